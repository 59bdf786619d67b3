r"""Units of one direction: hyperplanes that are parallel share one normal.

A ridge, ReLU6 or a hard tanh is $D\,(|n x - t| - |n x - t'|)/2$, which far away is constant. With
two normals that differ by their errors it grows there instead, so that one normal is taken for
both: their mean, weighted by what each is known to. Jumps that cancel but for their errors are made
to cancel, for the same reason.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from keyhole._arrays import EPS, Indices, Matrix, Vector
from keyhole.models import AbsAffine

_PARALLEL = 1e-4  # distance of unit normals, up to a sign, that may be one
_CANCELLED = 1e-7  # sum of jumps of one direction, beside the largest, that may be none


def find_parallel_groups(n: Matrix) -> list[Indices]:
    """Groups of two or more normals that are one to within 1e-4, up to their signs."""
    groups: list[Indices] = []
    free = np.ones(len(n), dtype=np.bool_)
    for j in range(len(n)):
        if not free[j]:
            continue
        apart = n - np.sign(n @ n[j])[:, None] * n[j]
        near = np.flatnonzero(free & (np.linalg.norm(apart, axis=1) < _PARALLEL))
        free[near] = False
        if len(near) > 1:
            groups.append(near)
    return groups


def share_normals(model: AbsAffine, bars: Vector) -> AbsAffine | None:
    """The model with one normal for each group of parallel ones; None where there is none."""
    groups = find_parallel_groups(model.n)
    if not groups:
        return None
    n, D = model.n.copy(), model.D.copy()
    for group in groups:
        signs = np.sign(n[group] @ n[group[0]])
        weights = signs / np.maximum(bars[group], EPS) ** 2
        mean = weights @ n[group]
        n[group] = signs[:, None] * mean / np.linalg.norm(mean)
        left = D[group].sum(axis=0)
        if np.abs(left).max() <= _CANCELLED * np.abs(D[group]).max():
            D[group] -= left / len(group)
    return replace(model, n=n, D=D)
