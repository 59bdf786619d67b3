"""What `package.module:NAME` names, imported with the current directory on the path."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from keyhole.errors import InvalidInput
from keyhole.oracles import Oracle


def import_target(target: str) -> Any:
    """The callable or oracle of that name.

    Raises:
        InvalidInput: there is none, or importing it raised.
    """
    module, _, path = target.partition(":")
    # As `python -m` does: people name modules of the directory they are in.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        remedy = _say_remedy(module, error)
        raise InvalidInput(f"cannot import {module} ({error}). {remedy}") from error
    # Importing runs code of others, which may raise anything, or end the process.
    except (Exception, SystemExit) as error:
        raise InvalidInput(f"importing {module} raised {type(error).__name__}: {error}.") from error
    # NAME may have dots, such as Model.forward.
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise InvalidInput(
                f"{module} has no {path!r}. Name a callable: {module}:NAME."
            ) from error
        # A module may make what it is asked for, and fail.
        except (Exception, SystemExit) as error:
            raise InvalidInput(
                f"reading {path!r} of {module} raised {type(error).__name__}: {error}."
            ) from error
    if not callable(found) and not isinstance(found, Oracle):
        raise InvalidInput(f"{target} is a {type(found).__name__}, not a callable.")
    return found


def _say_remedy(module: str, error: ImportError) -> str:
    """What to do about a module that cannot be imported: itself, or one that it needs."""
    missing = error.name or module
    if missing.partition(".")[0] == module.partition(".")[0]:
        return "The current directory is on the path."
    wanted = "'keyhole[torch]'" if missing == "torch" else missing.partition(".")[0]
    return f"{module} needs it: pip install {wanted}."
