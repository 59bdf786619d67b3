r"""Which fitted heads share their keys and values, and the maps that they share.

Every head was fitted by itself, in coordinates of its own. Value maps of one group have one row
space: $W_{v,h} = C W_{v,g}$, and C goes into the outputs. Keys differ by an invertible map, or by a
complex number per pair that rotary positions turn, which goes into the queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from keyhole._arrays import EPS, Array, Matrix, Vector
from keyhole.learners.positions.head_fit import FittedHead
from keyhole.learners.positions.score_form import HeadScores, ScoreForm

_ComplexRows = np.ndarray[Any, np.dtype[np.complex128]]
_SAME = 1e-6  # of a map, which fits of heads with the same map do not differ by
_ROUNDINGS = 2e3  # the same in roundings of coarse answers


@dataclass(frozen=True, eq=False, slots=True)
class HeadMaps:
    """The maps of one head: outputs x rank, rank x dimension, and its scores."""

    Wo: Matrix
    Wv: Matrix
    scores: HeadScores

    def join(self, first: HeadMaps, form: ScoreForm, same: float) -> HeadMaps | None:
        """The same head with the keys and values of another, None where it does not share them."""
        values = _express(self.Wv, first.Wv, same)
        scores = _share_keys(self.scores, first.scores, form, same)
        if values is None or scores is None:
            return None
        return HeadMaps(self.Wo @ values, first.Wv, scores)


@dataclass(frozen=True, eq=False, slots=True)
class MeasuredHeads:
    """The maps of every head.

    Args:
        maps: of every head.
        found: which of them explain the answers.
        bars: standard errors of tensors.
        others: heads and constants that are as likely, where errors of answers are declared.
    """

    maps: list[HeadMaps]
    found: list[bool]
    bars: Mapping[str, Array] = field(default_factory=dict[str, Array])
    others: Sequence[tuple[list[HeadMaps], Vector]] = ()


def list_head_maps(heads: list[FittedHead], M: Matrix, shown: Matrix | None) -> list[HeadMaps]:
    """The maps of every head, each in coordinates of its own.

    Args:
        heads: fitted one by one.
        M: the sum of all value maps.
        shown: outputs x directions that answers were read along; all outputs when None.
    """
    rows = np.concatenate([head.V for head in heads])
    outward = np.asarray(np.linalg.pinv(rows), dtype=np.float64)
    outward = outward if shown is None else shown @ outward
    split = np.split(outward, len(heads), axis=1)
    return [HeadMaps(Wo, head.V @ M, head.scores) for Wo, head in zip(split, heads, strict=True)]


def share_maps(
    heads: list[HeadMaps], form: ScoreForm, *, roundoff: float = EPS
) -> list[list[HeadMaps]]:
    """Heads by group, those of a group with the same keys and values.

    Groups of one head each where heads do not fall into groups of one size.
    """
    same = max(_SAME, _ROUNDINGS * roundoff)
    groups: list[list[HeadMaps]] = []
    for head in heads:
        for group in groups:
            joined = head.join(group[0], form, same)
            if joined is not None:
                group.append(joined)
                break
        else:
            groups.append([head])
    even = len({len(group) for group in groups}) == 1
    return groups if even else [[head] for head in heads]


def solve_least_squares(A: Matrix, b: Array, rcond: float | None = None) -> Array:
    """The shortest x for which A x is nearest to b."""
    return np.asarray(np.linalg.lstsq(A, b, rcond=rcond)[0], dtype=np.float64)


def _express(own: Array, other: Array, same: float) -> Matrix | None:
    """The C with own = C other, None where there is none."""
    C = solve_least_squares(other.T, own.T).T
    left = float(np.linalg.norm(own - C @ other))
    return C if left < same * float(np.linalg.norm(own)) else None


def _share_keys(
    own: HeadScores, other: HeadScores, form: ScoreForm, same: float
) -> HeadScores | None:
    """The scores with the keys of another head; what keys lose queries gain."""
    pairs = len(form.frequencies)
    keys, known, queries = (_append_bias(*parts) for parts in _list_parts(own, other))
    turned = _join_pairs(keys, pairs), _join_pairs(known, pairs)
    factors = (turned[0] * turned[1].conj()).sum(axis=1) / (np.abs(turned[1]) ** 2).sum(axis=1)
    left = float(np.linalg.norm(turned[0] - factors[:, None] * turned[1]))
    if left > same * float(np.linalg.norm(keys)):
        return None
    shared = queries.copy()
    joined = _join_pairs(queries, pairs) * factors.conj()[:, None]
    shared[:pairs], shared[pairs : 2 * pairs] = joined.real, joined.imag
    if 2 * pairs < len(keys):
        # Without a cap a bias of what is not turned does not show.
        columns = slice(None, None if form.cap is not None else -1)
        rest = _express(keys[2 * pairs :, columns], known[2 * pairs :, columns], same)
        if rest is None:
            return None
        shared[2 * pairs :] = rest.T @ queries[2 * pairs :]
    return replace(own, Wq=shared[:, :-1], bq=shared[:, -1], Wk=other.Wk, bk=other.bk)


def _list_parts(own: HeadScores, other: HeadScores) -> tuple[tuple[Matrix, Array], ...]:
    return (own.Wk, own.bk), (other.Wk, other.bk), (own.Wq, own.bq)


def _append_bias(W: Matrix, b: Array) -> Matrix:
    return np.column_stack([W, b])


def _join_pairs(rows: Matrix, pairs: int) -> _ComplexRows:
    """Rows that are turned together as one complex row each."""
    return rows[:pairs] + 1j * rows[pairs : 2 * pairs]
