"""Explicit attention weights that solve tasks, each with a certificate."""

from keyhole.constructions.files.unit_files import load, save
from keyhole.constructions.planner import CONSTRUCTIONS, Room, Survey, build, survey_recipes
from keyhole.constructions.shared.base import Built, Checked, Construction, Size, check_model

__all__ = [
    "CONSTRUCTIONS",
    "Built",
    "Checked",
    "Construction",
    "Room",
    "Size",
    "Survey",
    "build",
    "check_model",
    "load",
    "save",
    "survey_recipes",
]
