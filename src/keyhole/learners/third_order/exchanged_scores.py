r"""Scores where both places have one value vector, so that only sums of two weights are seen.

With $u = w_{ab} + w_{ba}$, and the same with a doubled, $u' = w_{ab}^2 + w_{ba}^2$, the two scores
have the sum $\ln((u^2 - u')/2)$ and differ by $2\,\mathrm{arcosh}(u/\sqrt{2(u^2 - u')})$. Signs of
the differences are told one by one, by questions in which two of them are added; the sign of all of
them together is free.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from keyhole._arrays import Array, Matrix, Vector, softmax
from keyhole.learners.third_order.score_table import ScoreTable, Unreadable


def split_exchanged_scores(table: ScoreTable) -> Array:
    """T from a table of means of weights, up to exchanging both places everywhere.

    Raises:
        Unreadable: the answers are not those of two positive weights.
    """
    d = len(table.tokens)
    # A token of one number has no pairs.
    if d < 2:
        return table.T
    sums, halves = _measure_differences(table)
    for y in range(d):
        _align_pairs(table, sums, halves, y)
    for y in range(1, d):
        _align_last_tokens(table, sums, halves, y)
    return sums + halves


def _measure_differences(table: ScoreTable) -> tuple[Array, Array]:
    """Half sums of scores, and half differences whose signs are not known, (a, b) with a < b."""
    d = len(table.tokens)
    sums, halves = table.T.copy(), np.zeros((d, d, d))
    groups = [(x, y) for y in range(d) for x in range(d) if x != y]
    groups += [(a, b, y) for y in range(d) for a, b in combinations(range(d), 2) if y not in (a, b)]
    answers = table.ask([_double_first(table.tokens[list(group)]) for group in groups])
    for group, F in zip(groups, answers, strict=True):
        a, b, y = group[0], group[1], group[-1]
        mean = np.exp(table.T[y, a, b])
        doubled = _solve_doubled(table, sums, halves, group, F)
        product = 2.0 * mean**2 - doubled / 2.0
        if not product > 0.0:
            raise Unreadable
        half = np.arccosh(max(1.0, mean / np.sqrt(product)))
        sums[y, a, b] = sums[y, b, a] = np.log(product) / 2.0
        halves[y, a, b], halves[y, b, a] = (half, -half) if a < b else (-half, half)
    return sums, halves


def _double_first(tokens: Matrix) -> Matrix:
    return np.concatenate([2.0 * tokens[:1], tokens[1:]])


def _solve_doubled(
    table: ScoreTable, sums: Array, halves: Array, group: tuple[int, ...], F: Vector
) -> float:
    """The sum of the squared weights of the first two tokens of a group, by the best output."""
    y, at = group[-1], list(group)
    scale = np.ones(len(at))
    scale[0] = 2.0
    products = (table.values.first[at] * scale[:, None])[:, None] * (
        table.values.second[at] * scale[:, None]
    )
    scores = sums[y][np.ix_(at, at)] * np.outer(scale, scale)
    weights = np.exp(scores) * np.cosh(halves[y][np.ix_(at, at)] * np.outer(scale, scale))
    each = products - F
    unknown = each[0, 1] + each[1, 0]
    weights[0, 1] = weights[1, 0] = 0.0
    rest = np.einsum("ij,ijo->o", weights, each)
    best = int(np.argmax(np.abs(unknown)))
    # The unknown is w_ab^2 + w_ba^2, of which each place has half.
    return float(-2.0 * rest[best] / unknown[best])


def _predict(table: ScoreTable, T: Array, parts: Matrix) -> Vector:
    """The answer of scores T to tokens that are sums of basis tokens, one row of factors each."""
    scores = np.einsum("y,ia,jb,yab->ij", parts[-1], parts, parts, T, optimize=True)
    weights = softmax(scores.reshape(1, -1)).reshape(scores.shape)
    first, second = parts @ table.values.first, parts @ table.values.second
    return np.einsum("ij,io,jo->o", weights, first, second)


def _choose_signs(
    table: ScoreTable, sums: Array, halves: Array, cases: list[tuple[Matrix, Array]]
) -> list[bool]:
    """Whether each case, with its other halves, explains its answer better than the halves do."""
    answers = table.ask([parts @ table.tokens for parts, _ in cases])
    turned: list[bool] = []
    for (parts, other), F in zip(cases, answers, strict=True):
        gaps = [np.abs(_predict(table, sums + each, parts) - F).max() for each in (halves, other)]
        turned.append(bool(gaps[1] < gaps[0]))
    return turned


def _turn(halves: Array, y: int, a: int, b: int) -> Array:
    other = halves.copy()
    other[y, a, b], other[y, b, a] = -halves[y, a, b], -halves[y, b, a]
    return other


def _apply_turns(
    table: ScoreTable, sums: Array, halves: Array, y: int, pairs: list[tuple[int, int, Matrix]]
) -> None:
    cases = [(parts, _turn(halves, y, a, b)) for a, b, parts in pairs]
    for (a, b, _), turned in zip(pairs, _choose_signs(table, sums, halves, cases), strict=True):
        if turned:
            halves[y] = _turn(halves, y, a, b)[y]


def _align_pairs(table: ScoreTable, sums: Array, halves: Array, y: int) -> None:
    """Signs of all differences for one last token, relative to the largest that it is part of."""
    e = np.eye(len(table.tokens))
    others = [x for x in range(len(e)) if x != y]
    first = max(others, key=lambda x: abs(halves[y, x, y]))
    beside = [(x, y, np.stack([e[first] + e[x], e[y]])) for x in others if x != first]
    _apply_turns(table, sums, halves, y, beside)
    inside = [(a, b, np.stack([e[a], e[b] + e[y], e[y]])) for a, b in combinations(others, 2)]
    _apply_turns(table, sums, halves, y, inside)


def _align_last_tokens(table: ScoreTable, sums: Array, halves: Array, y: int) -> None:
    """The sign of all differences of one last token, relative to the first."""
    e = np.eye(len(table.tokens))
    other = halves.copy()
    other[y] = -halves[y]
    both = np.minimum(np.abs(halves[0]), np.abs(halves[y]))
    a, b = np.unravel_index(int(np.argmax(both)), both.shape)
    parts = np.stack([e[a], e[b], e[0] + e[y]])
    if _choose_signs(table, sums, halves, [(parts, other)])[0]:
        halves[y] = -halves[y]
