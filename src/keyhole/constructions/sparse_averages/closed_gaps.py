r"""Gaps of scores on cyclic polytopes as products: Theorem 3 without any rounding, for all sets.

Trigonometric keys of set y score position j below the set by $\prod_{i \in y} (1 - \cos(\theta_j -
\theta_i))$, monomial ones by $\prod_{i \in y} (t_j - t_i)^2$, both times the scale. Factors are
positive and know no cancellation, so the products are known to a few units of rounding, whatever
float64 makes of the inner products. Differences of positions are distinct and not 0, so the least
product over all sets and positions takes the smallest factors there are:

$$\min_{y, j} \prod_{i \in y} \Big(1 - \cos \frac{2 \pi (j - i)}{N}\Big)
= \prod_{k \in \{1, -1, 2, -2, ..\}, |y| \text{ of them}} \Big(1 - \cos \frac{2 \pi k}{N}\Big).$$
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from keyhole._arrays import EPS, Matrix, Vector
from keyhole.constructions.shared.rounding import is_fixed
from keyhole.constructions.sparse_averages.directions import Sets, mark_members
from keyhole.constructions.sparse_averages.key_families import build_circle_keys, build_moment_keys
from keyhole.constructions.sparse_averages.set_queries import SetQueries
from keyhole.models.attention import SelfAttention
from keyhole.models.numbers import NumberFormat
from keyhole.tasks import SparseAverage

CYCLIC = {"trigonometric": build_circle_keys, "monomial": build_moment_keys}


def is_plain(phi: SetQueries, layer: SelfAttention) -> bool:
    """Whether scores are products of queries and keys as they stand, and values the vectors."""
    places = np.eye(phi.layout.width)
    wanted = (places[None][..., phi.layout[name]] for name in ("query", "key", "value"))
    return all(map(np.array_equal, (layer.Q, layer.K, layer.V), wanted))


def is_blind(phi: SetQueries, layer: SelfAttention) -> bool:
    """Whether queries come from sets alone, keys from positions alone, and values are the vectors.

    What is measured of a set then holds for every input that names it.
    """
    value, key, query = (phi.layout[name] for name in ("value", "key", "query"))
    passed = np.eye(phi.layout.width)[None][..., value]
    return (
        not layer.Q[:, value].any()
        and not layer.Q[:, key].any()
        and not layer.K[:, value].any()
        and not layer.K[:, query].any()
        and np.array_equal(layer.V, passed)
    )


def has_closed_gaps(phi: SetQueries, layer: SelfAttention) -> bool:
    """Whether keys lie on a cyclic polytope as built, so that gaps are products."""
    build_keys = CYCLIC.get(phi.solver)
    if build_keys is None or not is_plain(phi, layer):
        return False
    task = SparseAverage(phi.length, phi.q)
    built = build_keys(task, phi.keys.shape[1], np.random.default_rng(0))
    return np.array_equal(phi.keys, built)


def weigh_exactly(phi: SetQueries, sets: Sets) -> Matrix:
    """Weights of attention from gaps of scores; the least gap off a set is the one wanted."""
    logs = _measure_log_gaps(phi, sets)
    on = mark_members(sets, phi.length)
    least = np.where(on, np.inf, logs).min(axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        short = phi.count_wanted_gap(sets.shape[1]) * np.exp(logs - least)
    weights = np.where(on, 1.0, np.exp(-short))
    return weights / weights.sum(axis=1, keepdims=True)


def _measure_log_gaps(phi: SetQueries, sets: Sets) -> Matrix:
    """Logarithms of the products, up to one constant a set; minus infinity on it."""
    steps = np.abs(np.arange(phi.length) - sets[..., None])
    sizes = steps.astype(np.float64)
    if phi.solver == "trigonometric":
        # 1 - cos is twice the square of the sine of half the angle.
        sizes = np.sin(np.pi * np.minimum(steps, phi.length - steps) / phi.length)
    with np.errstate(divide="ignore"):
        return 2.0 * np.log(sizes).sum(axis=1)


def list_smallest_factors(length: int, size: int) -> Vector:
    """The factors 1 - cos of the nearest positions on either side, as many as a set holds."""
    steps = np.arange(2, size + 2) // 2
    return 2.0 * np.sin(np.pi * steps / length) ** 2


class Cyclic(NamedTuple):
    """Keys of a cyclic polytope by their sizes alone, so that claims need no array.

    Args:
        length: N.
        width: of the keys.
        size: n, positions of a set.
        wanted: the gap of scores that queries are scaled to.
        line: whether keys are monomial, on a line, and not trigonometric, on a circle.
    """

    length: int
    width: int
    size: int
    wanted: float
    line: bool = False

    @property
    def log_entry(self) -> float:
        r"""Binary logarithm of a bound on the entries of queries, $c^n \alpha$."""
        steps = np.arange(2, self.size + 2) // 2
        if self.line:
            logs = 2.0 * np.log2(2.0 * steps / (self.length - 1))
        else:
            logs = np.log2(list_smallest_factors(self.length, self.size))
        growth = 2 * self.size if self.line else self.size
        return growth + math.log2(max(self.wanted, 1e-300)) - float(logs.sum())


def describe_cyclic(phi: SetQueries, size: int) -> Cyclic:
    """The sizes behind a map."""
    wanted = phi.count_wanted_gap(size)
    return Cyclic(phi.length, phi.keys.shape[1], size, wanted, phi.solver == "monomial")


def bound_leak(length: int, size: int, wanted: float) -> float:
    r"""The largest error of sets of a size before rounding, $2 \delta / (1 + \delta)$."""
    delta = (length - size) / size * math.exp(-wanted)
    return 2.0 * delta / (1.0 + delta)


# The polynomial of a set of n has coefficients c_k with sum of |c_k| at most 2^n, so a query before
# scaling has entries up to 2^n and an l1 norm of at most sqrt(2) 2^n; alpha is the gap wanted over
# the least product. Keys, at most 1, are off by what the format loses and, as cosines of float64,
# by 24 units of rounding; convolutions leave coefficients off by 8 n units, twice.
def bound_circle_error(keys: Cyclic, form: NumberFormat) -> float:
    """The proven error of all sets of a size with trigonometric keys, before values are rounded."""
    if keys.log_entry > 1000 or not max(2.0**keys.log_entry * 1.0001, 1.0) <= form.range[1]:
        return math.inf
    norm = math.sqrt(2.0) * 2.0**keys.log_entry * 1.0001
    half = 0.5 * form.spacing
    fixed = is_fixed(form)
    eta = 1.01 * (norm + keys.width) * half if fixed else 3.0 * norm * half * 1.01
    eta += norm * (14.0 + 8.0 * keys.size + keys.width) * EPS
    leak = bound_leak(keys.length, keys.size, keys.wanted) * 1.0001
    return leak + math.expm1(min(2.0 * eta, 700.0)) + (0.0 if fixed else half)


# The polynomial of monomial keys, prod (t - t_i)^2 with |t_i| <= 1, has coefficients of sum 4^n at
# most; factors are squares of distances on a line.
def count_cyclic_bits(keys: Cyclic, *, dimension: int, spare: float) -> int:
    r"""Bits of fixed point in which keys of a cyclic polytope average every set of a size.

    With exact keys and queries, rounded once, $2^I > c^n \alpha$ holds every query, c = 2 on the
    circle and 4 on the line, and $\eta = (\sqrt{2} c^n \alpha + m) 2^{-F-1}$ is what scores move
    by: p = I + F + 1 with $e^{2 \eta} - 1 + \sqrt{d'} 2^{-F} \le$ spare.

    Args:
        keys: their sizes.
        dimension: d', of the vectors.
        spare: error left to rounding.
    """
    integer = max(0, math.floor(keys.log_entry + 1e-6) + 1)
    # Half of the room is for scores, half for values and answers.
    eta = 0.5 * math.log1p(spare / 2)
    moved = float(np.logaddexp2(keys.log_entry + 0.5, math.log2(keys.width)))
    values = 0.5 * math.log2(dimension) - math.log2(spare / 2)
    fraction = max(moved - 1.0 - math.log2(eta), values)
    return integer + max(0, math.ceil(fraction + 1e-6)) + 1
