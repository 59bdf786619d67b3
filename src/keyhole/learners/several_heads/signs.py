r"""What pairs of tokens leave open: the sign of a head, mirror pairs, and the mean.

On $[y + tx; y + tx; y]$ a head counts with $s(a + \ln 2)$. Let $m_h = V'_h \cdot x$ be the read-out
of $-W_h$ and $D_h = V_h - V'_h$. Then G is what follows from D alone, plus $\sum_h m_h (\kappa(a_h)
- \kappa(0))$ with $\kappa(a) = s(a + \ln 2) + s(\ln 2 - a)$, which is 4/3 on the boundary of head h
and 1 where it is hard. So one query on each boundary and one away from all give every $m_h$: 0 for
a head of the right sign, $-D_h \cdot x$ for one to be turned round, anything else for a mirror
pair, whose m is then measured along a basis. What is left of B belongs to the mean, W = 0.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix, Stack, Vector
from keyhole.learners.several_heads.pairs import (
    Pairs,
    logistic,
    normalise_rows,
    round_to_powers,
)
from keyhole.learners.several_heads.rows import (
    Rows,
    apply_readouts,
    choose_steepness,
    draw_clear_directions,
    extend_to_basis,
)
from keyhole.models import MultiHead

_LOG2 = float(np.log(2.0))
_MOVE = 0.2  # of x, along a basis
_UNSEEN = 1024.0  # logits of usual heads: a mirror pair that pairs do not show is hard there too
_ROUGHEST = 1e-7  # rounding times such logits, so that rows are precise enough for them
_MEAN = 2.0**15  # roundings within which what is left of B counts as nothing
_NEAR = 2.0**22  # roundings within which a read-out counts as zero or as turned round


def resolve_signs(
    pairs: Pairs, rows: Rows, W: Stack, D: Stack, rng: np.random.Generator
) -> MultiHead:
    """Heads with their signs, mirror pairs taken apart, and a head W = 0 for what is left."""
    m = measure_mirror_readouts(pairs, rows.x[None], W, D, rng)[0]
    near = _NEAR * pairs.roundoff * np.abs(rows.J).max()
    plain = np.abs(m).max(axis=1) <= near
    turned = np.abs(m + rows.J).max(axis=1) <= near
    M = np.where(turned[:, None, None], -D, 0.0)
    both = ~(plain | turned)
    if both.any():
        X = rows.x + _MOVE * extend_to_basis(rows.x)
        values = measure_mirror_readouts(pairs, X, W, D, rng)[:, both]
        M[both] = np.linalg.solve(X, values.swapaxes(0, 1))
    return assemble_heads(pairs, W, D, M)


def measure_mirror_readouts(
    pairs: Pairs, X: Matrix, W: Stack, D: Stack, rng: np.random.Generator
) -> Stack:
    """m_h for every row of X and every head, from one query per boundary and one away from all."""
    heads = len(W)
    at = [_choose_boundary_points(pairs, x @ W, rng) for x in X]
    Y = np.concatenate([Y for Y, _ in at])
    tau = np.concatenate([tau for _, tau in at])
    X = np.repeat(X, heads + 1, axis=0)
    a = np.einsum("nd,hde,ne->nh", X, W, Y) * tau[:, None]
    b = apply_readouts(X, D)
    mean = (X @ pairs.B - b.sum(axis=1)) * (2 / 3)
    known = np.einsum("nh,nho->no", logistic(a + _LOG2), b) + mean
    left = (pairs.ask(X, Y, tau, copies=2) - known).reshape(-1, heads + 1, b.shape[2])
    kappa = (logistic(a + _LOG2) + logistic(_LOG2 - a) - 4 / 3).reshape(-1, heads + 1, heads)
    # One unknown more, common to all queries of an x, takes up what a hidden mirror pair adds.
    system = np.concatenate([kappa, np.ones((len(kappa), heads + 1, 1))], axis=2)
    return np.asarray(np.linalg.solve(system, left), dtype=np.float64)[:, :heads]


def _choose_boundary_points(
    pairs: Pairs, rows: Matrix, rng: np.random.Generator
) -> tuple[Matrix, Vector]:
    """Products of lengths, and y: on each boundary clear of the others, then one clear of all."""
    anywhere = normalise_rows(rng.normal(size=(1, len(pairs.B))))[0]
    nowhere = np.vstack([rows, np.zeros_like(rows[:1])])
    drawn = [draw_clear_directions(rows, h, row, rng) for h, row in enumerate(rows)]
    drawn.append(draw_clear_directions(nowhere, len(rows), anywhere, rng))
    Y = np.stack([Y[int(np.argmax(margin))] for Y, margin in drawn])
    margin = np.array([float(margin.max()) for _, margin in drawn])
    norms = np.sqrt((rows * rows).sum(axis=1))
    size = np.append(norms, norms.min()) / np.sqrt(rows.shape[1])
    unseen = min(_UNSEEN, _ROUGHEST / pairs.roundoff)
    return Y, np.maximum(choose_steepness(pairs, margin, size), round_to_powers(unseen / size))


def assemble_heads(pairs: Pairs, W: Stack, D: Stack, M: Stack) -> MultiHead:
    """Heads (W, D + M) and (-W, M), where not zero, and (0, what is left of B)."""
    d = len(pairs.B)
    V = np.concatenate([D + M, M, (pairs.B - (D + 2 * M).sum(axis=0))[None]])
    W = np.concatenate([W, -W, np.zeros((1, d, d))])
    # The mean is what is left of B, and so holds the rounding of all others.
    floor = np.zeros(len(V))
    floor[-1] = _MEAN * pairs.roundoff * np.abs(V).max(initial=0.0)
    kept = np.abs(V).max(axis=(1, 2)) > floor
    # A model has one head at least, be it zero.
    kept[0] |= not kept.any()
    return MultiHead(W[kept], V[kept] * pairs.units, None, pairs.c if pairs.c.any() else None)


def build_mean_model(pairs: Pairs) -> MultiHead:
    """The mean alone, where nothing acts on pairs of tokens."""
    d = len(pairs.B)
    none = np.zeros((0, *pairs.B.shape))
    return assemble_heads(pairs, np.zeros((0, d, d)), none, none)
