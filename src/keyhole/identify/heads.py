"""Sums of heads: degrees of freedom, canonical form, distance modulo symmetry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.errors import InvalidInput
from keyhole.models import Factored, Head, MultiHead

# Heads whose W differ by less than this, relatively, count as one.
SAME = 1e-12


def head_freedom(
    width: int,
    *,
    outputs: int = 1,
    rank: int | None = None,
    value_rank: int | None = None,
    score_bias: int = 0,
    constant: bool = False,
    residual: bool = False,
) -> int:
    """Numbers that the answers of one head determine.

    $$r(2d - r) + r_v(d + o - r_v)$$

    plus the numbers of a score bias (r for one inside the column space of W, d for any other), o
    for a constant and d o for a residual. The limit of queries is this over o, rounded up.
    """
    r = width if rank is None else rank
    v = min(width, outputs) if value_rank is None else value_rank
    # A residual is a d x o matrix of its own, whatever the head does.
    extra = score_bias + outputs * constant + width * outputs * residual
    return r * (2 * width - r) + v * (width + outputs - v) + extra


def matrix_rank(W: Array | Factored, cut: float = 1e-12) -> int:
    """Number of singular values above `cut` times the largest, cheap for factored matrices."""
    # The product of the triangular factors has the same singular values, and is r x r.
    if isinstance(W, Factored):
        W = np.linalg.qr(W.A)[1] @ np.linalg.qr(W.B)[1].T
    values = np.linalg.svd(W, compute_uv=False)
    return int((values > cut * values.max(initial=0.0)).sum())


def freedom(model: Head | MultiHead) -> int:
    r"""Numbers that answers of a model determine: the dimension of the functions around it.

    $$\sum_h \big( r_h(2d - r_h) + \rho_h(d + o - \rho_h) + b_h \big)$$

    over the heads of the canonical form, $r_h$ and $\rho_h$ the ranks of $W_h$ and $V_h$, and $b_h$
    the numbers of a score bias: 0 where there is none, $r_h$ for one in the column space of $W_h$,
    d for any other. A constant adds o, a residual d o.
    """
    form = canonical_heads(model)
    total = form.outputs * bool(_fill_constant(form).any())
    if form.U is not None and form.U.any():
        total += form.width * form.outputs
    for W, V, h in zip(form.W, form.V, fill_score_biases(form), strict=True):
        rank = matrix_rank(W)
        total += head_freedom(
            form.width,
            outputs=form.outputs,
            rank=rank,
            value_rank=matrix_rank(V),
            score_bias=count_bias_freedom(W, h, rank),
        )
    return total


def count_bias_freedom(W: Matrix, h: Vector, rank: int, cut: float = 1e-12) -> int:
    """Numbers of a score bias: the rank of W, to the cut, inside its column space, else all."""
    # Where there is no bias nothing is to be determined.
    if not h.any():
        return 0
    # Brought to the size of W, or a short bias would pass for rounding beside it.
    unit = h / np.linalg.norm(h) * max(float(np.linalg.norm(W)), np.finfo(float).tiny)
    return rank if W.any() and matrix_rank(np.column_stack([W, unit]), cut) == rank else len(h)


@dataclass(frozen=True, slots=True)
class Distance:
    """How far two models are apart once order and merging of heads no longer count.

    Args:
        W: largest relative Frobenius distance of matched score matrices.
        V: the same for read-outs.
        h: the same for score biases.
        c: largest difference of constants, relative to the larger one.
        U: the same as V for residuals.
        heads: number of heads after merging, of both models.
    """

    W: float
    V: float
    h: float
    c: float
    U: float
    heads: tuple[int, int]

    @property
    def largest(self) -> float:
        """The worst of the parts; infinite when the numbers of heads differ."""
        if self.heads[0] == self.heads[1]:
            return max(self.W, self.V, self.h, self.c, self.U)
        return float("inf")


def canonical_heads(model: Head | MultiHead) -> MultiHead:
    """The form that models with one function share: heads merged, idle ones dropped, in order.

    Heads of equal W and h have equal softmax weights, so their V are added; heads whose sum of V is
    zero go, and all heads with W = 0 and h = 0, which take plain means, are one. Heads are sorted
    by the size of W, then entry by entry. A residual belongs to no head and stays as it is.
    """
    heads = [model] if isinstance(model, Head) else list(model.heads)
    merged: list[tuple[Array, Array, Array]] = []
    for head in heads:
        W = np.asarray(head.W)
        h = np.zeros(head.width) if head.h is None else head.h
        for at, (W2, V2, h2) in enumerate(merged):
            if relative_distance(W, W2) < SAME and relative_distance(h, h2) < SAME:
                merged[at] = (W2, V2 + head.V, h2)
                break
        else:
            merged.append((W, np.array(head.V), h))
    # Idle is relative to the largest read-out: rounding of a sum of V leaves 1e-16 of it.
    scale = max((float(np.abs(head.V).max(initial=0.0)) for head in heads), default=0.0)
    kept = sorted(
        (m for m in merged if np.abs(m[1]).max(initial=0.0) > SAME * scale), key=_build_sort_key
    )
    shape = (0, model.width, model.width), (0, model.width, model.outputs), (0, model.width)
    W, V, h = (np.array([m[i] for m in kept]).reshape(-1, *s[1:]) for i, s in enumerate(shape))
    return MultiHead(W, V, h, np.zeros(model.outputs) if model.c is None else model.c, model.U)


def _build_sort_key(head: tuple[Array, Array, Array]) -> tuple[float, ...]:
    """What heads are sorted by: largest W first, then entries of W, h and V."""
    W, V, h = head
    return (-float(np.linalg.norm(W)), *W.ravel().tolist(), *h.tolist(), *V.ravel().tolist())


def distance(a: Head | MultiHead, b: Head | MultiHead) -> Distance:
    """Distance of two models modulo what answers do not determine.

    Heads are matched by the assignment that makes the sum of relative distances of W and V least.
    """
    if (a.width, a.outputs) != (b.width, b.outputs):
        raise InvalidInput(
            "models to compare must have one width and one number of outputs; got "
            f"{(a.width, a.outputs)} and {(b.width, b.outputs)}."
        )
    first = canonical_heads(a)
    second = canonical_heads(b)
    pairs = assign_heads(first, second)
    worst = {
        name: max((relative_distance(x[i], y[j]) for i, j in pairs), default=0.0)
        for name, x, y in (
            ("W", first.W, second.W),
            ("V", first.V, second.V),
            ("h", fill_score_biases(first), fill_score_biases(second)),
        )
    }
    return Distance(
        **worst,
        c=relative_distance(_fill_constant(first), _fill_constant(second)),
        U=_measure_residual_gap(a, b),
        heads=(len(first.W), len(second.W)),
    )


def assign_heads(a: MultiHead, b: MultiHead) -> list[tuple[int, int]]:
    """Heads of one model matched to another's, by the least sum of distances of W and V."""
    from scipy.optimize import linear_sum_assignment

    cost = np.array(
        [
            [
                relative_distance(W, X) + relative_distance(V, Y)
                for X, Y in zip(b.W, b.V, strict=True)
            ]
            for W, V in zip(a.W, a.V, strict=True)
        ]
    ).reshape(len(a.W), len(b.W))
    rows, columns = linear_sum_assignment(cost)
    return [(int(i), int(j)) for i, j in zip(rows, columns, strict=True)]


def fill_score_biases(model: MultiHead) -> Array:
    """Score biases of all heads, zeros where there are none."""
    return np.zeros(model.W.shape[:2]) if model.h is None else model.h


def _fill_constant(model: MultiHead) -> Array:
    return np.zeros(model.outputs) if model.c is None else model.c


def _measure_residual_gap(a: Head | MultiHead, b: Head | MultiHead) -> float:
    zero = np.zeros((a.width, a.outputs))
    U, T = (zero if model.U is None else model.U for model in (a, b))
    return relative_distance(U, T)


def relative_distance(x: Array, y: Array) -> float:
    """Frobenius distance over the larger norm."""
    size = max(float(np.linalg.norm(x)), float(np.linalg.norm(y)))
    return float(np.linalg.norm(x - y)) / size if size > 0 else 0.0
