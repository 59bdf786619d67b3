r"""Values from lone tokens: $F([y]) = (v^1 y)(v^2 y)$, a quadratic form of rank two at most.

With B its symmetric matrix in a basis, p the token of largest answer and s that of the largest
minor of (p, s), the columns p and s give all of it: $B = C G^{-1} C^\top$. One eigenvalue is
positive and one negative, $\lambda_+ u_+ u_+^\top + \lambda_- u_- u_-^\top$ with
$v^{1,2} = \sqrt{\lambda_+} u_+ \pm \sqrt{-\lambda_-} u_-$, unless $v^1$ and $v^2$ are parallel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Mask, Matrix, Vector

Ask = Callable[[list[Matrix]], Matrix]

_STEPS = 3
_FLOOR = 1e-12  # of the largest answer, below which a token shows an output as little as any
_PARALLEL = 1e3  # roundings of the largest answer, squared, which a minor shows beyond


@dataclass(frozen=True, eq=False, slots=True)
class LoneValues:
    """Values of the tokens of a basis, one column per output.

    Args:
        first: those in the first place.
        second: those in the second place; which place is which is free for every output.
        parallel: outputs with one value vector in both places, up to a factor.
        dead: outputs without values.
    """

    first: Matrix
    second: Matrix
    parallel: Mask
    dead: Mask

    def swap(self, outputs: Mask) -> LoneValues:
        """The same with the places of some outputs exchanged."""
        first = np.where(outputs, self.second, self.first)
        second = np.where(outputs, self.first, self.second)
        return LoneValues(first, second, self.parallel, self.dead)


def read_lone_values(ask: Ask, tokens: Matrix, roundoff: float) -> LoneValues:
    """Values of all outputs from 3d - 3 lone tokens of a basis.

    Args:
        ask: answers to sequences.
        tokens: the basis, one token per row.
        roundoff: relative rounding of answers.
    """
    d = len(tokens)
    alone = ask([token[None] for token in tokens])
    dead = np.abs(alone).max(axis=0) == 0.0
    p = _pick_largest(np.abs(alone))
    beside_p = _ask_beside(ask, tokens, p, [i for i in range(d) if i != p], alone)
    minors = np.abs(alone[p] * alone - beside_p**2)
    minors[p] = 0.0
    s = _pick_largest(minors)
    # Pairs of p are known, and of s with itself.
    beside_s = _ask_beside(ask, tokens, s, [i for i in range(d) if i not in (p, s)], alone)
    beside_s[p] = beside_p[s]
    largest = np.abs(alone).max(axis=0, initial=0.0)
    parallel = minors.max(axis=0) <= _PARALLEL * roundoff * largest**2
    found = [
        _split_form(beside_p[:, o], beside_s[:, o], (p, s), bool(parallel[o]))
        for o in range(alone.shape[1])
    ]
    pairs = [(i, i) for i in range(d)]
    pairs += [(p, i) for i in range(d) if i != p] + [(s, i) for i in range(d) if i not in (p, s)]
    known = np.array([alone[i] if i == j else _pick(beside_p, beside_s, p, i, j) for i, j in pairs])
    polished = [
        _polish_values(first, second, pairs, known[:, o]) for o, (first, second) in enumerate(found)
    ]
    first, second = (np.column_stack([pair[k] for pair in polished]) for k in range(2))
    return LoneValues(first, second, parallel, dead)


def _pick(beside_p: Matrix, beside_s: Matrix, p: int, i: int, j: int) -> Vector:
    return beside_p[j] if i == p else beside_s[j]


def _pick_largest(sizes: Matrix) -> int:
    """The token that shows every output, by the product of its answers."""
    largest = sizes.max(axis=0)
    shown = sizes[:, largest > 0] / largest[largest > 0]
    return int(np.argmax(np.log(shown + _FLOOR).sum(axis=1)))


def _ask_beside(ask: Ask, tokens: Matrix, at: int, others: list[int], alone: Matrix) -> Matrix:
    """A column of the form: half of what F(e_at + e_i) has beside F(e_at) and F(e_i)."""
    column = alone.copy() if not others else np.empty_like(alone)
    column[at] = alone[at]
    if others:
        sums = ask([(tokens[at] + tokens[i])[None] for i in others])
        column[others] = (sums - alone[at] - alone[others]) / 2
    return column


def _split_form(
    by_p: Vector, by_s: Vector, places: tuple[int, int], parallel: bool
) -> tuple[Vector, Vector]:
    """Two linear forms whose product is the quadratic form with these two columns."""
    p, s = places
    if parallel or p == s:
        unit = np.sqrt(abs(by_p[p])) or 1.0
        return by_p / unit * np.sign(by_p[p]), by_p / unit
    C = np.column_stack([by_p, by_s])
    G = np.linalg.inv(np.array([[by_p[p], by_p[s]], [by_s[p], by_s[s]]]))
    # B = C G C' = R (U G U') R' with orthonormal R: its eigenvectors from a 2 x 2 matrix.
    R, U = np.linalg.qr(C)
    values, vectors = np.linalg.eigh(U @ ((G + G.T) / 2) @ U.T)
    minus, plus = np.sqrt(np.maximum(-values[0], 0.0)), np.sqrt(np.maximum(values[1], 0.0))
    u = R @ vectors
    return plus * u[:, 1] + minus * u[:, 0], plus * u[:, 1] - minus * u[:, 0]


def _polish_values(
    first: Vector, second: Vector, pairs: list[tuple[int, int]], known: Vector
) -> tuple[Vector, Vector]:
    """A few Gauss-Newton steps on all entries (v_i w_j + v_j w_i) / 2 of the form."""
    i, j = np.array(pairs).T
    rows = np.arange(len(pairs))
    for _ in range(_STEPS):
        left = known - (first[i] * second[j] + first[j] * second[i]) / 2
        slopes = np.zeros((len(pairs), 2 * len(first)))
        for one, other in ((i, j), (j, i)):
            slopes[rows, one] += second[other] / 2
            slopes[rows, len(first) + one] += first[other] / 2
        step = np.linalg.lstsq(slopes, left, rcond=1e-10)[0]
        first, second = first + step[: len(first)], second + step[len(first) :]
    return first, second
