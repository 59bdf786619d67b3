"""Weights within sizes, by the constructions of this package."""

from __future__ import annotations

import numpy as np

from keyhole.bounds.formulas import Sizes
from keyhole.constructions import Built
from keyhole.errors import DoesNotFit
from keyhole.tasks import Task


def planned(task: Task, sizes: Sizes, *, order: int, rng: np.random.Generator) -> Built:
    """The smallest construction that does a task within sizes.

    Raises:
        DoesNotFit: none is known that fits.
    """
    raise DoesNotFit(f"No construction for {task.name} is known.")
