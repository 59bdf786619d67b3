"""A proof for every input: exact scores of all sets, and softmax with digits to spare.

Stored numbers are binary fractions, so scores are rational numbers and are computed without any
rounding. Exponentials are rounded correctly to `DIGITS` digits; what sums of them lose is far below
`SLACK`, which is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from itertools import combinations

import numpy as np

from keyhole._arrays import Array, Matrix
from keyhole.constructions.sparse_averages.choosing_sets import count_sets, set_sizes
from keyhole.constructions.sparse_averages.set_queries import Members, SetQueries
from keyhole.errors import InvalidInput
from keyhole.models.attention import SelfAttention
from keyhole.models.stack import Transformer
from keyhole.tasks import SparseAverage

# Sets enclosed: fractions are slow.
ALL = 2_000
DIGITS = 60
# More than sums of thousands of terms of 60 digits can lose, and less than any accuracy asked for.
SLACK = Decimal("1e-40")
# Exponentials below e to this are counted as e to this, which only raises the bound.
_FAR = -1000

Row = dict[int, Fraction]


def enclose_error(task: SparseAverage, model: Transformer) -> float:
    """An upper bound on the exact error, over every set and all vectors of the unit ball.

    Args:
        task: sparse averages with at most 2,000 sets.
        model: one self-attention head behind a map of set queries.

    Returns:
        The bound, infinite where vectors enter scores or are not passed on as they are.

    Raises:
        InvalidInput: there are more sets, or the model is of another shape.
        DoesNotFit: the keys do not single out some set.
    """
    if count_sets(task) > ALL:
        raise InvalidInput(
            f"every set is enclosed where there are at most {ALL:,}; here are {count_sets(task):,}."
        )
    block = model.blocks[0]
    phi = block.map
    layer = block.layer
    if not isinstance(phi, SetQueries) or not isinstance(layer, SelfAttention) or len(layer.Q) != 1:
        raise InvalidInput(
            "sets are enclosed for one self-attention head behind a map of set queries."
        )
    # A token's own vector and key must not enter its query: one token then stands for all.
    own = slice(0, phi.dimension + phi.keys.shape[1])
    if layer.Q[0][own].any() or layer.K[0][: phi.dimension].any() or not _is_passed_on(layer.V[0]):
        return float("inf")
    keys = _project_rows(
        np.column_stack([np.zeros((phi.length, phi.dimension)), phi.keys, 0 * phi.keys]), layer.K[0]
    )
    positions = range(task.length)
    sets = (members for size in set_sizes(task) for members in combinations(positions, size))
    with localcontext(Context(prec=DIGITS)):
        worst = max(
            _measure_softmax_distance(_score_keys(phi, layer.Q[0], members, keys), members)
            for members in sets
        )
        return float(np.nextafter(float(worst + SLACK), np.inf))


def _is_passed_on(V: Matrix) -> bool:
    """Whether values are the vectors themselves."""
    return np.array_equal(V, np.eye(*V.shape))


def _project_rows(tokens: Matrix, weights: Matrix) -> list[Row]:
    """Exact products of rows with a matrix, zeros left out."""
    columns = [
        [(int(k), Fraction(float(w))) for k, w in _list_nonzero(column)] for column in weights.T
    ]
    rows = [{k: Fraction(float(x)) for k, x in _list_nonzero(row)} for row in tokens]
    return [{c: _dot(row, column) for c, column in enumerate(columns)} for row in rows]


def _dot(row: Row, column: Sequence[tuple[int, Fraction]]) -> Fraction:
    return sum((row.get(k, Fraction(0)) * w for k, w in column), Fraction(0))


def _list_nonzero(numbers: Array) -> list[tuple[int, float]]:
    return [(int(k), float(numbers[k])) for k in np.flatnonzero(numbers)]


def _score_keys(
    phi: SetQueries, Q: Matrix, members: Members, keys: Sequence[Row]
) -> list[Fraction]:
    token = np.concatenate([np.zeros(phi.dimension), phi.keys[0], phi.query(members).scaled])
    (query,) = _project_rows(token[None], Q)
    return [sum((query[c] * value for c, value in key.items()), Fraction(0)) for key in keys]


def _measure_softmax_distance(scores: Sequence[Fraction], members: Members) -> Decimal:
    """The l1 distance of the softmax from uniform on a set."""
    top = max(scores)
    powers = [max(s - top, Fraction(_FAR)) for s in scores]
    weights = [(Decimal(p.numerator) / Decimal(p.denominator)).exp() for p in powers]
    total = sum(weights)
    share = Decimal(1) / len(members)
    inside = set(members)
    gaps = [abs(w / total - (share if j in inside else 0)) for j, w in enumerate(weights)]
    return sum(gaps, Decimal(0))
