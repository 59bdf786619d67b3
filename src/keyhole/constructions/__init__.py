"""Explicit attention weights that solve tasks, each with a certificate.

Enters: a task and sizes. Leaves: Built weights, with a margin and what checking them showed.
`planner` tries all recipes; every room is one family of them.
"""

from keyhole.constructions.files.unit_files import load, save
from keyhole.constructions.planner import (
    CONSTRUCTIONS,
    Room,
    Survey,
    build,
    survey_proofs,
    survey_recipes,
)
from keyhole.constructions.shared.base import (
    Built,
    Checked,
    Construction,
    Proven,
    Size,
    check_model,
)

__all__ = [
    "CONSTRUCTIONS",
    "Built",
    "Checked",
    "Construction",
    "Proven",
    "Room",
    "Size",
    "Survey",
    "build",
    "check_model",
    "load",
    "save",
    "survey_proofs",
    "survey_recipes",
]
