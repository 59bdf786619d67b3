"""What answers determine: degrees of freedom, symmetries, distance modulo symmetry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array
from keyhole.errors import InvalidInput
from keyhole.models import AbsAffine, Factored, Head, MultiHead, OneLayer, ReluNet

_SAME = 1e-12  # heads whose W differ by less than this, relatively, count as one


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

    $$r(2d - r) + r_v(d + o - r_v)$$ plus the numbers of a score bias (r for one inside the column space of W, d for
    any other), o for a constant and d o for a residual. The limit of queries is this over o, rounded up.
    """
    r = width if rank is None else rank
    v = min(width, outputs) if value_rank is None else value_rank
    extra = score_bias + outputs * constant + width * outputs * residual
    return r * (2 * width - r) + v * (width + outputs - v) + extra


def matrix_rank(W: Array | Factored, cut: float = 1e-12) -> int:
    """Number of singular values above `cut` times the largest, cheap for factored matrices."""
    if isinstance(W, Factored):
        W = np.linalg.qr(W.A)[1] @ np.linalg.qr(W.B)[1].T
    values = np.linalg.svd(W, compute_uv=False)
    return int((values > cut * values.max(initial=0.0)).sum())


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
        return max(self.W, self.V, self.h, self.c, self.U) if self.heads[0] == self.heads[1] else float("inf")


def canonical(model: Head | MultiHead) -> MultiHead:
    """The same function with heads of equal W and h merged, heads without effect dropped, sorted by size of W."""
    heads = [model] if isinstance(model, Head) else list(model.heads)
    merged: list[tuple[Array, Array, Array]] = []
    for head in heads:
        W, h = np.asarray(head.W), np.zeros(head.width) if head.h is None else head.h
        for at, (W2, V2, h2) in enumerate(merged):
            if _relative(W, W2) < _SAME and _relative(h, h2) < _SAME:
                merged[at] = (W2, V2 + head.V, h2)
                break
        else:
            merged.append((W, np.array(head.V), h))
    scale = max(float(np.abs(head.V).max(initial=0.0)) for head in heads)
    kept = sorted(
        (m for m in merged if np.abs(m[1]).max(initial=0.0) > _SAME * scale), key=lambda m: -float(np.linalg.norm(m[0]))
    )
    shape = (0, model.width, model.width), (0, model.width, model.outputs), (0, model.width)
    W, V, h = (np.array([m[i] for m in kept]).reshape(-1, *s[1:]) for i, s in enumerate(shape))
    return MultiHead(W, V, h, np.zeros(model.outputs) if model.c is None else model.c)


def distance(a: Head | MultiHead, b: Head | MultiHead) -> Distance:
    """Distance of two models modulo what answers do not determine.

    Heads are matched by the assignment that makes the sum of relative distances of W and V least.
    """
    from scipy.optimize import linear_sum_assignment

    if (a.width, a.outputs) != (b.width, b.outputs):
        raise InvalidInput(
            f"models to compare must have one width and one number of outputs; got "
            f"{(a.width, a.outputs)} and {(b.width, b.outputs)}."
        )
    first, second = canonical(a), canonical(b)
    cost = np.array(
        [
            [_relative(W, X) + _relative(V, Y) for X, Y in zip(second.W, second.V, strict=True)]
            for W, V in zip(first.W, first.V, strict=True)
        ]
    ).reshape(len(first.W), len(second.W))
    rows, columns = linear_sum_assignment(cost)
    worst = {
        name: max((_relative(x[i], y[j]) for i, j in zip(rows, columns, strict=True)), default=0.0)
        for name, x, y in (("W", first.W, second.W), ("V", first.V, second.V), ("h", _bias(first), _bias(second)))
    }
    return Distance(
        **worst,
        c=_relative(_constant(first), _constant(second)),
        U=_residual_gap(a, b),
        heads=(len(first.W), len(second.W)),
    )


def _bias(model: MultiHead) -> Array:
    return np.zeros(model.W.shape[:2]) if model.h is None else model.h


def _constant(model: MultiHead) -> Array:
    return np.zeros(model.outputs) if model.c is None else model.c


def _residual_gap(a: Head | MultiHead, b: Head | MultiHead) -> float:
    zero = np.zeros((a.width, a.outputs))
    U, T = (getattr(model, "U", None) for model in (a, b))
    return _relative(zero if U is None else U, zero if T is None else T)


def _relative(x: Array, y: Array) -> float:
    size = max(float(np.linalg.norm(x)), float(np.linalg.norm(y)))
    return float(np.linalg.norm(x - y)) / size if size > 0 else 0.0


@dataclass(frozen=True, slots=True)
class NetworkDistance:
    """How far two networks with one hidden layer are apart once order, signs and merging no longer count.

    Args:
        n: largest distance of matched unit normals.
        t: largest difference of matched offsets, relative to the larger offset or 1.
        D: largest distance of matched jumps, relative to the largest jump.
        P: relative distance of the linear parts, beside the jumps where those are larger.
        q: the same for the constants.
        hidden: number of hyperplanes of both.
    """

    n: float
    t: float
    D: float
    P: float
    q: float
    hidden: tuple[int, int]

    @property
    def largest(self) -> float:
        """The worst of the parts; infinite when the numbers of hyperplanes differ."""
        return max(self.n, self.t, self.D, self.P, self.q) if self.hidden[0] == self.hidden[1] else float("inf")


def network_distance(a: ReluNet | AbsAffine, b: ReluNet | AbsAffine) -> NetworkDistance:
    """Distance of two ReLU networks modulo what values do not determine, hyperplanes matched by least total cost."""
    from scipy.optimize import linear_sum_assignment

    if (a.width, a.outputs) != (b.width, b.outputs):
        raise InvalidInput(
            f"networks to compare must have one width and one number of outputs; got "
            f"{(a.width, a.outputs)} and {(b.width, b.outputs)}."
        )
    f, g = ((m.normal_form() if isinstance(m, ReluNet) else m).canonical() for m in (a, b))
    size = max(float(np.abs(m.D).max(initial=0.0)) for m in (f, g)) or 1.0
    signs = np.where(f.n @ g.n.T < 0, -1.0, 1.0)
    n = np.linalg.norm(f.n[:, None] - signs[..., None] * g.n, axis=2)
    t = np.abs(f.t[:, None] - signs * g.t) / np.maximum(1.0, np.maximum(np.abs(f.t)[:, None], np.abs(g.t)))
    D = np.linalg.norm(f.D[:, None] - g.D, axis=2) / size
    at = linear_sum_assignment(np.minimum(n, 1.0) + np.minimum(t, 1.0) + np.minimum(D, 1.0))
    parts = {name: float(cost[at].max(initial=0.0)) for name, cost in (("n", n), ("t", t), ("D", D))}
    scale = max(float(np.linalg.norm(f.P)), float(np.linalg.norm(g.P)), size)
    constant = max(float(np.linalg.norm(f.q)), float(np.linalg.norm(g.q)), size)
    P, q = float(np.linalg.norm(f.P - g.P)) / scale, float(np.linalg.norm(f.q - g.q)) / constant
    return NetworkDistance(**parts, P=P, q=q, hidden=(f.hidden, g.hidden))


@dataclass(frozen=True, slots=True)
class OneLayerDistance:
    """How far two one-layer Transformers are apart in what answers determine: scores, lone answers, mixing.

    Args:
        W: relative Frobenius distance of the score matrices.
        h: the same for the score biases, beside the score matrices where those are larger.
        M: relative distance of the mixing maps, as the networks see them.
        net: distance of the networks a lone token meets.
    """

    W: float
    h: float
    M: float
    net: NetworkDistance

    @property
    def largest(self) -> float:
        """The worst of the parts."""
        return max(self.W, self.h, self.M, self.net.largest)


def one_layer_distance(a: OneLayer, b: OneLayer) -> OneLayerDistance:
    """Distance of two one-layer Transformers modulo what answers do not determine.

    Directions that the network ignores do not count in M.
    """
    f, g = (_lone_form(model) for model in (a, b))
    seen = np.concatenate([f.n * np.linalg.norm(f.D, axis=1, keepdims=True), f.P])
    h, k = (np.zeros(m.width) if m.head.h is None else m.head.h for m in (a, b))
    W = np.asarray(a.head.W)
    return OneLayerDistance(
        W=_relative(W, np.asarray(b.head.W)),
        h=float(np.linalg.norm(h - k)) / (max(map(float, map(np.linalg.norm, (h, k, W)))) or 1.0),
        M=_relative(seen @ a.mixing, seen @ b.mixing),
        net=network_distance(f, g),
    )


def _lone_form(model: OneLayer) -> AbsAffine:
    lone = model.lone()
    return lone.normal_form() if isinstance(lone, ReluNet) else lone


def one_layer_freedom(
    width: int, *, hidden: int, outputs: int = 1, rank: int | None = None, score_bias: int = 0, residual: bool = False
) -> int:
    """Numbers that the answers of a one-layer Transformer determine.

    $$k(d + m) + m(d + 1) + r(2d - r)$$ plus the numbers of a score bias and, with a residual, the $d^2$ of M.
    """
    r = width if rank is None else rank
    network = hidden * (width + outputs) + outputs * (width + 1)
    return network + r * (2 * width - r) + score_bias + width * width * residual
