r"""Units of one direction: hyperplanes that are parallel share one normal.

A ridge, ReLU6 or a hard tanh is $D\,(|n x - t| - |n x - t'|)/2$, which far away is constant. With
two normals that differ by their errors it grows there instead, so that one normal is taken for
both: their mean, weighted by what each is known to. Jumps that cancel but for their errors are made
to cancel, for the same reason. Hyperplanes that two rounds found become one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from keyhole._arrays import EPS, Indices, Matrix, Vector
from keyhole.learners.networks.jacobians import Found
from keyhole.models import AbsAffine
from keyhole.models.relu import choose_generic_direction, find_close_numbers

_PARALLEL = 1e-4  # distance of unit normals, up to a sign, that may be one
_CANCELLED = 1e-7  # sum of jumps of one direction, beside the largest, that may be none
_SAME = 1e-5  # hyperplanes of two rounds closer than this are one
_TAKEN_BACK = 1e-2  # so are those not so close whose jumps cancel
_TO_NOTHING = 1e-2  # up to this share
_SURELY = 1e-6  # unless they are as parallel as this


def find_parallel_groups(n: Matrix) -> list[Indices]:
    """Groups of two or more normals that are one to within 1e-4, up to their signs."""
    direction = choose_generic_direction(n.shape[1])
    along = np.abs(n @ direction)
    # Those whose shares of one direction differ are not one.
    chosen = find_close_numbers(along, _PARALLEL * float(np.linalg.norm(direction)))
    n = n[chosen]
    size = np.einsum("kd,kd->k", n, n)
    close = size[:, None] + size - 2 * np.abs(n @ n.T) < _PARALLEL**2
    np.fill_diagonal(close, True)
    groups: list[Indices] = []
    free = np.ones(len(n), dtype=np.bool_)
    for j in np.flatnonzero(close.sum(axis=1) > 1).tolist():
        near = np.flatnonzero(free & close[j])
        if free[j] and len(near) > 1:
            free[near] = False
            groups.append(chosen[near])
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


def join_hyperplanes(
    model: AbsAffine, bars: Vector, found: Found, *, reach: float
) -> tuple[AbsAffine, Vector]:
    """A model with hyperplanes of another round: equal ones become one, and go if they cancel.

    Args:
        model: what is known.
        bars: standard error of each normal.
        found: what was found beside it.
        reach: typical distance of hyperplanes from the origin.
    """
    n = np.concatenate([model.n, found.n])
    t = np.concatenate([model.t, found.t])
    D = np.concatenate([model.D, found.D])
    bars = np.concatenate([bars, found.bars])
    keep = np.ones(len(n), dtype=np.bool_)
    for j in range(model.hidden, len(n)) if model.hidden else ():
        sign = np.sign(n[: model.hidden] @ n[j])
        turned = np.abs(n[: model.hidden] - sign[:, None] * n[j]).max(axis=1, initial=0.0)
        near = turned + np.abs(t[: model.hidden] - sign * t[j]) / (reach + abs(t[j]))
        i = int(np.argmin(near)) if len(near) else -1
        if i < 0 or not keep[i]:
            continue
        both = D[i] + D[j]
        rest = float(np.linalg.norm(both) / np.linalg.norm(D[i]))
        # What was wrong is found again with the opposite sign, less precisely; two true ones that
        # cancel so nearly are parallel.
        wrong = turned[i] > _SURELY and near[i] < _TAKEN_BACK and rest < _TO_NOTHING
        if near[i] < _SAME or wrong:
            keep[j] = False
            keep[i] = rest > 1e-6 and not wrong
            D[i] = both
    return AbsAffine(n[keep], t[keep], D[keep], model.P + found.P, model.q + found.q), bars[keep]
