r"""Third-order attention without visiting every triple, where scores have structure.

Two kinds of structure: scores that depend on $x_i + x_{j_1} + x_{j_2}$ modulo M only, as those that
find three tokens with sum zero, and scores $a_{ij} + b_{jk} + c_{ki}$, as those that find
triangles. Each comes in two forms: given directly, or read off the weights of a unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keyhole._arrays import (
    EPS,
    Array,
    Matrix,
    Sequences,
    Stack,
    Vector,
    check_finite,
    check_sequences,
    check_shape,
)
from keyhole.errors import InvalidInput
from keyhole.models.tensor import Partial, TensorAttention, scale_factors
from keyhole.models.tensor_sums import (
    WINDOW,
    CircleRows,
    Kernel,
    Whole,
    average_sides,
    bin_pairs,
    require_finite,
    sum_terms,
)

# Of one sequence: scores of pairs with a blank by kind, and the kinds.
Beside = Callable[[int], tuple[Matrix, Whole]]
# Answers of one sequence.
Rows = Callable[[int, Matrix, Matrix, Partial | None], Matrix]
# Of both places of a pair, batch x length x outputs.
Values = tuple[Stack, Stack]


@dataclass(frozen=True, eq=False, slots=True)
class Blank:
    """A constant token beside the sequence, which pairs may contain.

    Args:
        pair: score of the pair of two blanks.
        mixed: score of a pair of a blank and a token, in either order.
        values: what the blank is worth as first and as second of a pair; zero when absent.
    """

    pair: float
    mixed: float = 0.0
    values: tuple[Vector, Vector] | None = None


def shift_invariant(
    kernel: Vector, tokens: NDArray[Any], values: Values, *, blank: Blank | None = None
) -> Stack:
    r"""Averages over pairs whose scores are kernel values.

    $$F_i = \frac{\sum_{j_1 j_2} e^{\kappa(x_i + x_{j_1} + x_{j_2})} v^1_{j_1} v^2_{j_2}}
                 {\sum_{j_1 j_2} e^{\kappa(x_i + x_{j_1} + x_{j_2})}}$$

    Args:
        kernel: score of every residue 0 .. M - 1.
        tokens: whole numbers, batch x length, taken modulo M.
        values: what every token is worth as first and as second of a pair.
        blank: a constant token that pairs may contain besides; its own row is not answered.

    Raises:
        InvalidInput: tokens are not whole numbers, shapes do not fit, or the kernel is not finite.
    """
    check_finite("kernel", kernel)
    x = _take_residues(tokens, len(kernel))
    circle = CircleRows(kernel.__getitem__, len(kernel), x.shape[1])
    worth, beside = _prepend_blank(blank, values, x.shape)
    return _answer_sequences(worth, beside, lambda n, v, w, part: circle.rows(x[n], v, w, part))


def pairwise_sum(
    a: Stack, b: Stack, c: Stack, values: Values, *, blank: Blank | None = None
) -> Stack:
    r"""Averages over pairs (j, k) with scores summed over the sides of the triangle (i, j, k).

    $$F_i = \frac{\sum_{jk} e^{a_{ij} + b_{jk} + c_{ki}} v^1_j v^2_k}
    {\sum_{jk} e^{a_{ij} + b_{jk} + c_{ki}}}$$

    Args:
        a: scores of (i, j), batch x length x length.
        b: scores of (j, k).
        c: scores of (k, i), indexed in this order.
        values: what every token is worth as j and as k.
        blank: a constant token that pairs may contain besides; its own row is not answered.

    Raises:
        InvalidInput: shapes do not fit, or a score is not finite.
    """
    for name, side in {"a": a, "b": b, "c": c}.items():
        check_finite(name, side)
        check_shape(name, side, (len(a), a.shape[1], a.shape[1]))
    worth, beside = _prepend_blank(blank, values, a.shape[:2])
    return _answer_sequences(
        worth, beside, lambda n, v, w, part: average_sides(a[n], b[n], c[n], v, w, part)
    )


def on_circle(
    unit: TensorAttention, tokens: NDArray[Any], *, modulus: int, frequencies: Sequence[int] = (1,)
) -> Stack:
    r"""What a third-order unit over points of a circle answers, from their whole numbers.

    The token x is given to the unit as $(\cos f_1 a, .., \cos f_k a, \sin f_1 a, .., \sin f_k a, 1,
    0)$ with $a = 2 \pi x / M$, behind one blank token (0, .., 0, 0, 1), whose own row is not
    answered.

    Args:
        unit: its scores of three tokens must depend on their sum only.
        tokens: whole numbers, batch x length.
        modulus: M.
        frequencies: f_1 .. f_k.

    Raises:
        InvalidInput: the unit is of another order or width, or its scores depend on more than the
            sum.
    """
    waves = _find_waves(unit, len(frequencies))
    x = _take_residues(tokens, modulus)
    X = build_circle_features(x, modulus, frequencies)
    kernel, top = _build_kernel(waves, modulus, frequencies)
    # One wave has one peak, which is known without a look at all residues.
    window = _list_peak_residues(waves, modulus) if tuple(frequencies) == (1,) else None
    circle = CircleRows(kernel, modulus, x.shape[1], window)
    beside = _score_blank_pairs(unit, X, top)
    return _answer_sequences(
        (X @ unit.V[0], X @ unit.V[1]), beside, lambda n, v, w, part: circle.rows(x[n], v, w, part)
    )


def in_pairs(unit: TensorAttention, X: Sequences, *, blank: bool = False) -> Stack:
    """What a third-order unit answers whose scores are sums over pairs of its tokens.

    That is so where in every column of the scores one of the three factors is the same for all
    tokens.

    Args:
        unit: the unit.
        X: tokens.
        blank: whether the first token is a blank, for which nothing of the kind is asked and whose
            row is not answered.

    Raises:
        InvalidInput: the unit is of another order or width, or some column depends on three tokens.
    """
    _check_order(unit)
    check_sequences(X, unit.width)
    a, b, c = _score_sides(unit, X[:, 1:] if blank else X)
    beside = _score_blank_pairs(unit, X, 0.0) if blank else None
    return _answer_sequences(
        (X @ unit.V[0], X @ unit.V[1]),
        beside,
        lambda n, v, w, part: average_sides(a[n], b[n], c[n], v, w, part),
    )


def build_circle_features(
    tokens: NDArray[Any], modulus: int, frequencies: Sequence[int] = (1,)
) -> Stack:
    """The tokens as `on_circle` gives them to a unit, the blank in front."""
    x = _take_residues(tokens, modulus)
    angles = [_centre_residues(f * x, modulus) * (2 * np.pi / modulus) for f in frequencies]
    real = np.stack(
        [*map(np.cos, angles), *map(np.sin, angles), np.ones(x.shape), np.zeros(x.shape)], axis=-1
    )
    blank = np.broadcast_to(np.eye(real.shape[-1])[-1], (len(x), 1, real.shape[-1]))
    return np.concatenate([blank, real], axis=1)


def _answer_sequences(values: Values, beside: Beside | None, rows: Rows) -> Stack:
    """Rows of one sequence after another; the first token may be a blank, scored apart."""
    (first, second), exponents = scale_factors(values)
    answers: list[Matrix] = []
    for n, (v, w) in enumerate(zip(first, second, strict=True)):
        # Without a blank all pairs are pairs of tokens.
        if beside is None:
            answers.append(rows(n, v, w, None))
        else:
            answers.append(rows(n, v[1:], w[1:], _average_blank_pairs(*beside(n), v, w)))
    return np.ldexp(np.stack(answers), exponents)


def _prepend_blank(
    blank: Blank | None, values: Values, shape: tuple[int, ...]
) -> tuple[Values, Beside | None]:
    """Values with those of the blank in front, and the scores of the pairs that contain it."""
    for name, array in zip(("values[0]", "values[1]"), values, strict=True):
        check_shape(name, array, (*shape, values[0].shape[-1]))
        check_finite(name, array)
    if blank is None:
        return values, None
    batch, length = shape
    own = blank.values or (np.zeros(values[0].shape[-1]),) * 2
    first, second = (
        np.concatenate([np.broadcast_to(v, (batch, 1, len(v))), array], axis=1)
        for v, array in zip(own, values, strict=True)
    )
    scores = np.tile([blank.pair, blank.mixed], (length, 1))
    kinds = np.minimum(np.arange(2 * length + 1), 1)
    return (first, second), lambda n: (scores, kinds)


def _score_blank_pairs(unit: TensorAttention, X: Sequences, top: float) -> Beside:
    """Scores, less `top`, of pairs with the first token; pairs of equal keys are one kind."""

    def scores(n: int) -> tuple[Matrix, Whole]:
        k = X[n] @ unit.K[0]
        l = X[n] @ unit.K[1]
        # Equal keys have equal scores for every row: thousands of pairs become a few kinds.
        keys, kinds = np.unique(
            np.concatenate([k[:1] * l, k[1:] * l[:1]]), axis=0, return_inverse=True
        )
        return (X[n, 1:] @ unit.Q) @ keys.T - top, kinds.ravel()

    return scores


def _average_blank_pairs(scores: Matrix, kinds: Whole, first: Matrix, second: Matrix) -> Partial:
    """The average over pairs (blank, any), then (token, blank), by the kind of each."""
    v = np.repeat(first[:1], len(second), axis=0)
    w = np.repeat(second[:1], len(first) - 1, axis=0)
    found = bin_pairs(
        kinds, np.concatenate([v, first[1:]]), np.concatenate([second, w]), scores.shape[1]
    )
    top = require_finite(scores).max(axis=1)
    return sum_terms(top, np.exp(scores - top[:, None]), found)


def _take_residues(tokens: NDArray[Any], modulus: int) -> Whole:
    x = np.asarray(tokens)
    if x.ndim != 2 or not x.shape[1] or not (x == np.rint(x)).all():
        raise InvalidInput(
            f"tokens must be whole numbers, batch x length >= 1; got shape {x.shape} of {x.dtype}."
        )
    return x.astype(np.int64) % modulus


def _centre_residues(x: Whole, modulus: int) -> Whole:
    """The same residues from -M/2 to M/2, whose angles are small where they are near 0."""
    return (x + modulus // 2) % modulus - modulus // 2


def _check_order(unit: TensorAttention) -> None:
    if unit.order != 3:
        raise InvalidInput(f"this form is for units of order 3; this one is of order {unit.order}.")


# cos(a + b + c) = ccc - css - scs - ssc and sin(a + b + c) = scc + csc + ccs - sss, so scores that
# depend on the sum have these coefficients of the products of three features, A_f and B_f times, a
# constant, and no others.
def _find_waves(unit: TensorAttention, count: int) -> tuple[Vector, Vector, float]:
    """A_f, B_f and D of scores sum_f A_f cos f(a + b + c) + B_f sin f(a + b + c) + D."""
    _check_order(unit)
    if unit.width != 2 * count + 2:
        raise InvalidInput(
            f"{count} frequencies take tokens of width {2 * count + 2}; the unit has {unit.width}."
        )
    T = np.einsum("ae,be,ce->abc", unit.Q[:-1], unit.K[0][:-1], unit.K[1][:-1])
    c = np.arange(count)
    s = np.arange(count, 2 * count)
    A = T[c, c, c]
    B = T[s, c, c]
    D = float(T[-1, -1, -1])
    only = np.zeros_like(T)
    only[-1, -1, -1] = D
    only[c, c, c], only[s, s, s] = A, -B
    for x, y, z in ((c, s, s), (s, c, s), (s, s, c)):
        only[x, y, z] = -A
    for x, y, z in ((s, c, c), (c, s, c), (c, c, s)):
        only[x, y, z] = B
    # Coefficients are sums of a few products: rounding leaves some EPS of the largest.
    if np.abs(T - only).max() > 8 * EPS * np.abs(T).max():
        raise InvalidInput(
            "the scores of this unit depend on more than the sum of three tokens; evaluate it"
            " densely."
        )
    return A, B, D


def _build_kernel(
    waves: tuple[Vector, Vector, float], modulus: int, frequencies: Sequence[int]
) -> tuple[Kernel, float]:
    """Scores of residues below their bound, and it: differences near it keep all digits."""
    A, B, D = waves
    parts = list(zip(frequencies, np.hypot(A, B), np.arctan2(B, A) / 2, strict=True))

    def score(residues: Whole) -> Array:
        waves = [
            r * np.sin(_centre_residues(f * residues, modulus) * (np.pi / modulus) - shift) ** 2
            for f, r, shift in parts
        ]
        return -2 * np.sum(waves, axis=0)

    return score, float(np.hypot(A, B).sum() + D)


def _list_peak_residues(waves: tuple[Vector, Vector, float], modulus: int) -> Whole:
    """The residues of largest score of a single wave."""
    peak = round(float(np.arctan2(waves[1], waves[0])[0]) * modulus / (2 * np.pi))
    size = min(WINDOW, modulus)
    return (peak - size // 2 + np.arange(size)) % modulus


def _score_sides(unit: TensorAttention, X: Sequences) -> tuple[Stack, Stack, Stack]:
    """Scores of (i, j), (j, k) and (k, i), every column with the two tokens it depends on."""
    q = X @ unit.Q
    k = X @ unit.K[0]
    l = X @ unit.K[1]
    # A column is pairwise where one of its three factors is the same for all tokens.
    same = [(factor == factor[:, :1]).all(axis=(0, 1)) for factor in (l, q, k)]
    if not np.any(same, axis=0).all():
        column = int(np.flatnonzero(~np.any(same, axis=0))[0])
        raise InvalidInput(
            f"column {column} of the scores depends on three tokens; evaluate the unit densely."
        )
    chosen = [np.argmax(same, axis=0) == side for side in range(3)]
    turns = zip(((q, k, l), (k, l, q), (l, q, k)), chosen, strict=True)
    a, b, c = ((x[..., e] * z[:, :1, e]) @ y[..., e].swapaxes(-1, -2) for (x, y, z), e in turns)
    return a, b, c
