"""What stands in where no network was found, and what one line with its Jacobians may take."""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix
from keyhole.learners.networks.kinks import Ask
from keyhole.models import AbsAffine


def fit_tangent(ask: Ask, width: int, *, rng: np.random.Generator) -> AbsAffine:
    """The affine map through d + 1 points, as the model to refute where no other was found."""
    x = np.concatenate([np.zeros((1, width)), rng.normal(size=(width, width))])
    values = ask(x.copy())
    P: Matrix = (np.linalg.inv(x[1:]) @ (values[1:] - values[0])).T
    outputs = values.shape[1]
    flat = np.zeros((0, width)), np.zeros(0), np.zeros((0, outputs))
    return AbsAffine(*flat, P, values[0])


def allow_line_queries(width: int, *, hidden: int, outputs: int) -> float:
    """Queries that one line with its Jacobians may take, a quarter more than expected."""
    # With three outputs or more one Jacobian serves a block of kinks.
    if outputs < 3:
        return 1.25 * (hidden * width) + 7 * hidden + 200
    jacobians = (-(-hidden // max(1, int(0.85 * outputs))) + 3) * width
    return 1.25 * jacobians + 3 * hidden + 200
