"""Things named by where they stand, `package.module:name`: registries hold such names."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def import_place(place: str) -> Any:
    """What stands at a place, its module imported now."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
