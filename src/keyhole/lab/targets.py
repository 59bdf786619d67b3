"""From the TARGET a person names to an oracle."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from keyhole.errors import InvalidInput
from keyhole.models import SelfAttention, load
from keyhole.oracles import Local, Oracle

_FORMS = "a .safetensors file, or package.module:callable"


def open_target(target: str, *, width: int | None = None, outputs: int | None = None) -> Oracle:
    """The oracle a TARGET names.

    Raises:
        InvalidInput: nothing usable is there; the message says what was looked for.
    """
    if target.endswith(".safetensors") or (os.sep in target and ":" not in target):
        model = load(target)
        if isinstance(model, SelfAttention):
            model = model.read_last()
        if width not in (None, model.width):
            raise InvalidInput(f"{target} has tokens of width {model.width}; --width says {width}.")
        return Local(model)
    if ":" not in target or target.startswith(("http://", "https://")):
        raise InvalidInput(f"TARGET must be {_FORMS}; got {target!r}.")
    return Local(_callable(target), width, outputs)


def _callable(target: str) -> Any:
    module, _, path = target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise InvalidInput(f"cannot import {module} ({error}). The current directory is on the path.") from error
    except Exception as error:
        raise InvalidInput(f"importing {module} raised {type(error).__name__}: {error}.") from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise InvalidInput(f"{module} has no {path!r}. Name a callable: {module}:NAME.")
        found = getattr(found, name)
    if not callable(found):
        raise InvalidInput(f"{target} is a {type(found).__name__}, not a callable.")
    return found


def digest(target: str) -> str | None:
    """SHA-256 of a file target, so that a changed file is not taken for the same run."""
    path = Path(target)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def label(target: str) -> str:
    """A short name for run directories."""
    name = Path(target).stem if os.sep in target or target.endswith(".safetensors") else target.rpartition(":")[2]
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name) or "target"
