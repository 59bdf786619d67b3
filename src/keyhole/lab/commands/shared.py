"""What commands have in common: a seeded generator, versions, exit codes."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np

from keyhole import __version__
from keyhole.claims import Verdict
from keyhole.errors import InvalidInput

# The command did its work, and the answer is no: a script can tell this from a failure.
REFUSED = 3


def seed_generator(seed: int) -> np.random.Generator:
    """A generator; seeds exist only in the lab and on the command line."""
    if seed < 0:
        raise InvalidInput(f"a seed is a whole number >= 0; got {seed}.")
    return np.random.default_rng(seed)


def list_versions() -> dict[str, str]:
    """What the run was made with."""
    return {"version": __version__, "python": platform.python_version(), "numpy": np.__version__}


def choose_exit_code(data: dict[str, Any]) -> int:
    """Exit code of a verdict."""
    return 0 if Verdict[data["verdict"]].verified else REFUSED
