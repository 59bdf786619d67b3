"""Explicit attention weights that solve tasks, each with a certificate."""

from keyhole.constructions.base import Built, Checked, Construction, Size, check
from keyhole.constructions.planner import CONSTRUCTIONS, Room, Survey, build, survey
from keyhole.constructions.unit_files import load, save

__all__ = [
    "CONSTRUCTIONS",
    "Built",
    "Checked",
    "Construction",
    "Room",
    "Size",
    "Survey",
    "build",
    "check",
    "load",
    "save",
    "survey",
]
