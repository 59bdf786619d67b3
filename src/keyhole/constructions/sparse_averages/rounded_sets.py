"""What number formats take from sparse averages: proven bounds on errors of sets, one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from keyhole._arrays import EPS, Array, Vector
from keyhole.constructions.shared.rounding import is_fixed, is_rounding
from keyhole.constructions.sparse_averages.closed_gaps import bound_leak
from keyhole.constructions.sparse_averages.directions import Sets
from keyhole.constructions.sparse_averages.set_queries import Queries, SetQueries
from keyhole.models.numbers import NumberFormat, Unrounded
from keyhole.tasks import SparseAverage


# A value is rounded once and the answer once more. Evenly spaced numbers lose half a spacing a
# coordinate each time; floating ones half a spacing of a number of size at most 1, the norm of a
# vector.
def bound_rounding_loss(task: SparseAverage, form: NumberFormat) -> float:
    """What the rounding of values and of the answer adds to its error."""
    if not is_rounding(form):
        return 0.0
    return form.spacing * (math.sqrt(task.dimension) if is_fixed(form) else 1.01)


# Scores s_j = <u_j, query> move by at most eta when query, key and score are rounded; a softmax
# whose scores move by eta changes each weight by a factor within e^{2 eta}, so the l1 distance
# grows by at most e^{2 eta} - 1. Scores that are not quite equal on a set move likewise.
def bound_set_errors(phi: SetQueries, sets: Sets, found: Queries, form: NumberFormat) -> Vector:
    """The proven largest error of each set, before values are rounded."""
    # Float64 evaluates anyway, and is counted below.
    form = form if is_rounding(form) else Unrounded()
    if sets.shape[1] == phi.length:
        return np.zeros(len(sets))
    w = np.abs(found.scaled)
    keys = np.abs(phi.keys)
    if not _is_held(form, w) or not _is_held(form, keys):
        return np.full(len(sets), math.inf)
    largest = (w @ keys.T).max(axis=1)
    off_query = _bound_number_loss(form, w) * (not _is_representable(form, found.scaled))
    off_keys = _bound_number_loss(form, keys) * (not _is_representable(form, phi.keys))
    eta = (off_query @ keys.T + (w + off_query) @ off_keys.T).max(axis=1)
    # Float64 rounds every product and every sum of a score, whatever the format.
    eta += (keys.shape[1] + 2) * EPS * largest + 0.5 * _measure_unevenness(phi, sets, found)
    eta += 0.0 if is_fixed(form) else 0.5 * form.spacing * (largest + eta)
    inner = 0.0 if is_fixed(form) else 0.5 * form.spacing
    leak = bound_leak(phi.length, sets.shape[1], phi.count_wanted_gap(sets.shape[1]))
    return leak + np.expm1(np.minimum(2.0 * eta, 700.0)) + inner


def _is_held(form: NumberFormat, sizes: Array) -> bool:
    return not sizes.size or float(sizes.max()) <= form.range[1]


def _measure_unevenness(phi: SetQueries, sets: Sets, found: Queries) -> Vector:
    """How far apart scores on a set are."""
    scores = np.einsum("bqm,bm->bq", phi.keys[sets], found.scaled)
    return np.ptp(scores, axis=1)


def _bound_number_loss(form: NumberFormat, sizes: Array) -> Array:
    """The most a number of a given size loses when rounded."""
    if is_fixed(form):
        return 0.5 * form.spacing * np.ones_like(sizes)
    # Below the least normal number of f16 the spacing no longer shrinks.
    return 0.5 * form.spacing * np.maximum(sizes, 2.0**-14)


def _is_representable(form: NumberFormat, numbers: Array) -> bool:
    return isinstance(form, Unrounded) or bool((form.round(numbers) == numbers).all())


def find_largest_number(queries: Sequence[Queries]) -> float:
    """The largest entry of a query."""
    return max((float(np.abs(found.scaled).max(initial=0.0)) for found in queries), default=0.0)
