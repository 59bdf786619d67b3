r"""Arguments that cover every set at once, tried before any set is asked (keyhole/coherence).

- Exchange of positions: one-hot keys look alike from every position, in every number format, so
  that one set of a size stands for all.
- Products of gaps: on a circle the least gap over all sets is one product (closed_gaps.py).
- Coherence: for keys of norm s with $|\langle u_i, u_j \rangle| \le \mu s^2$ the least-squares
  query of q keys scores 1 on them and, by the Neumann series of their Gram matrix, at most $\rho =
  q \mu / (1 - (q - 1) \mu)$ elsewhere: for $\rho < 1$ every set is singled out by $1 - \rho$.
  Queries are computed by that series, so that what float64 rounds is derived too.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from keyhole._arrays import EPS, Matrix
from keyhole.constructions.shared.rounding import is_fixed, is_rounding
from keyhole.constructions.sparse_averages.choosing_sets import set_sizes
from keyhole.constructions.sparse_averages.closed_gaps import (
    bound_circle_error,
    bound_leak,
    describe_cyclic,
    has_closed_gaps,
    is_plain,
)
from keyhole.constructions.sparse_averages.exposing import TERMS
from keyhole.constructions.sparse_averages.rounded_sets import (
    bound_rounding_loss,
    bound_set_errors,
)
from keyhole.constructions.sparse_averages.set_queries import SetQueries
from keyhole.models.attention import SelfAttention
from keyhole.models.numbers import NumberFormat
from keyhole.tasks import SparseAverage

EXCHANGE = "exchange of positions"
PRODUCT = "product of gaps"
COHERENCE = "coherence of keys"


class SetsProof(NamedTuple):
    """What is proven of every set a token may name.

    Args:
        name: the argument.
        bound: no answer is wrong by more, in the number format.
    """

    name: str
    bound: float


def prove_every_set(
    task: SparseAverage, phi: SetQueries, layer: SelfAttention, form: NumberFormat
) -> SetsProof | None:
    """An argument for every set, where one is known; its bound may still be too large.

    Args:
        task: the task.
        phi: the token map.
        layer: the unit behind it.
        form: the number format.
    """
    if not is_plain(phi, layer):
        return None
    lost = bound_rounding_loss(task, form)
    sizes = set_sizes(task)
    if _is_alike(phi):
        return SetsProof(EXCHANGE, max(_bound_first_set(phi, n, form) for n in sizes) + lost)
    if has_closed_gaps(phi, layer) and form.name == "exact":
        return SetsProof(PRODUCT, max(_bound_leak(phi, n) for n in sizes) * (1 + 64 * EPS))
    if has_closed_gaps(phi, layer) and phi.solver == "trigonometric":
        circles = [describe_cyclic(phi, n) for n in sizes]
        return SetsProof(PRODUCT, max(bound_circle_error(one, form) for one in circles) + lost)
    if phi.solver == "series":
        return SetsProof(COHERENCE, max(_bound_coherent_sets(phi, n, form) for n in sizes) + lost)
    return None


def _bound_leak(phi: SetQueries, size: int) -> float:
    return bound_leak(phi.length, size, phi.count_wanted_gap(size))


def _is_alike(phi: SetQueries) -> bool:
    square = phi.keys[0, 0] * np.eye(phi.length)
    return phi.solver == "indicator" and np.array_equal(phi.keys, square)


def _bound_first_set(phi: SetQueries, size: int, form: NumberFormat) -> float:
    first = np.arange(size, dtype=np.int64)[None]
    return float(bound_set_errors(phi, first, phi.solve_sets(first), form)[0])


def measure_coherence(keys: Matrix) -> float:
    """The largest product of two keys by absolute value, relative to the smallest norm squared."""
    gram = keys @ keys.T
    norms = np.diagonal(gram).copy()
    np.fill_diagonal(gram, 0.0)
    return float(np.abs(gram).max() / norms.min()) if norms.min() > 0 else math.inf


def bound_coherent_score(coherence: float, size: int) -> float:
    r"""$\rho$: no key off a set of that size scores more, those on it scoring 1."""
    left = 1.0 - (size - 1) * coherence
    return size * coherence / left if left > 0 else math.inf


# Float64, u = 2^-53, k = (q - 1) mu <= 1/2. The query w = sum c_i u_i has |c|_inf <= 1 / (m (1 -
# k)). A step c + (1 - G c)/m shrinks what c is off by the factor k; of the products and sums of 1 -
# G c it rounds (q + 2) u of 1 + m (1 + k) |c|_inf <= 2/(1 - k), and 2 u of c itself. So c ends off
# by (2q + 6) u / (m (1 - k)^2) at most, and the scores on the set by m (1 + k) times that; the sums
# w = sum c_i u_i round q u of q / (m (1 - k)), which moves scores by q^2 u / (1 - k).
def bound_series_rounding(size: int, mu: float) -> float:
    """How far scores of a query from the series of coherent keys are from 1 on its set.

    In exact arithmetic, with the query as float64 holds it; as far do scores off the set move.
    Infinite where the series is too slow.
    """
    slow = (size - 1) * mu
    if slow > 0.5:
        return math.inf
    left = 1.0 - slow
    solved = (1.0 + slow) * (2 * size + 6) / left**2 + size**2 / left
    # What 64 halvings leave, and products of roundings.
    return 1.01 * (0.5 * EPS * solved + 2.0**-TERMS / left)


# Entries are at most alpha |w|_inf with alpha = wanted / (1 - rho) and |w|_inf <= |c|_1 <= q / (m
# (1 - k)). Scores add up m products, which rounds (m + 2) u of m alpha |w|_inf, once where margins
# are measured and once where attention is evaluated; the series moves them as above, in both.
def _bound_coherent_sets(phi: SetQueries, size: int, form: NumberFormat) -> float:
    """The proven error of all sets of a size with keys of signs that are little alike."""
    if not (np.abs(phi.keys) == 1.0).all():
        return math.inf
    mu = measure_coherence(phi.keys)
    wanted = phi.count_wanted_gap(size)
    return bound_coherent_sizes(phi.length, phi.keys.shape[1], size, mu, wanted, form)


def bound_coherent_sizes(
    length: int, width: int, size: int, mu: float, wanted: float, form: NumberFormat
) -> float:
    """The same from sizes alone, for keys of signs whose coherence is at most mu."""
    rho = bound_coherent_score(mu, size)
    if rho >= 1.0:
        return math.inf
    left = 1.0 - (size - 1) * mu
    sharpness = wanted / (1.0 - rho)
    largest = sharpness * size / (width * left) * 1.0001
    if largest > form.range[1]:
        return math.inf
    half = 0.5 * form.spacing if is_rounding(form) else 0.0
    eta = width * half if is_fixed(form) else 2.02 * width * largest * half
    evaluated = 0.5 * EPS * (width + 4) * width * largest
    eta += 2.0 * (evaluated + sharpness * bound_series_rounding(size, mu))
    inner = 0.0 if is_fixed(form) else half
    return bound_leak(length, size, wanted) + math.expm1(min(2.0 * eta, 700.0)) + inner
