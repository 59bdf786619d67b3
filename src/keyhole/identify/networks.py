"""Networks and one-layer Transformers: freedom, and distance modulo what answers hide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole.errors import InvalidInput
from keyhole.identify.heads import relative_distance
from keyhole.models import AbsAffine, Gated, OneLayer, ReluNet


@dataclass(frozen=True, slots=True)
class NetworkDistance:
    """How far two networks are apart once order, signs and merging no longer count.

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
        if self.hidden[0] == self.hidden[1]:
            return max(self.n, self.t, self.D, self.P, self.q)
        return float("inf")


def network_distance(a: ReluNet | AbsAffine, b: ReluNet | AbsAffine) -> NetworkDistance:
    """Distance of two ReLU networks modulo what values hide, hyperplanes matched."""
    # Imported here: most users never compare networks.
    from scipy.optimize import linear_sum_assignment

    if (a.width, a.outputs) != (b.width, b.outputs):
        raise InvalidInput(
            "networks to compare must have one width and one number of outputs; got "
            f"{(a.width, a.outputs)} and {(b.width, b.outputs)}."
        )
    f, g = ((m.normal_form() if isinstance(m, ReluNet) else m).canonical() for m in (a, b))
    size = max(float(np.abs(m.D).max(initial=0.0)) for m in (f, g)) or 1.0
    # A hyperplane has two normals, and jumps do not tell them apart.
    signs = np.where(f.n @ g.n.T < 0, -1.0, 1.0)
    n = np.linalg.norm(f.n[:, None] - signs[..., None] * g.n, axis=2)
    larger = np.maximum(np.abs(f.t)[:, None], np.abs(g.t))
    t = np.abs(f.t[:, None] - signs * g.t) / np.maximum(1.0, larger)
    D = np.linalg.norm(f.D[:, None] - g.D, axis=2) / size
    # Cut at 1, so that one far offset does not decide the whole matching.
    at = linear_sum_assignment(np.minimum(n, 1.0) + np.minimum(t, 1.0) + np.minimum(D, 1.0))
    parts = {
        name: float(cost[at].max(initial=0.0)) for name, cost in (("n", n), ("t", t), ("D", D))
    }
    # P is a sum of jumps, and known as well as they are.
    scale = max(float(np.linalg.norm(f.P)), float(np.linalg.norm(g.P)), size)
    constant = max(float(np.linalg.norm(f.q)), float(np.linalg.norm(g.q)), size)
    P = float(np.linalg.norm(f.P - g.P)) / scale
    q = float(np.linalg.norm(f.q - g.q)) / constant
    return NetworkDistance(**parts, P=P, q=q, hidden=(f.hidden, g.hidden))


@dataclass(frozen=True, slots=True)
class OneLayerDistance:
    """How far two one-layer Transformers are apart in what answers determine.

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
    f, g = (_find_lone_form(model) for model in (a, b))
    # M acts on answers only through what the network sees, weighted by how much.
    seen = np.concatenate([f.n * np.linalg.norm(f.D, axis=1, keepdims=True), f.P])
    h, k = (np.zeros(m.width) if m.head.h is None else m.head.h for m in (a, b))
    W = np.asarray(a.head.W)
    return OneLayerDistance(
        W=relative_distance(W, np.asarray(b.head.W)),
        h=float(np.linalg.norm(h - k)) / (max(map(float, map(np.linalg.norm, (h, k, W)))) or 1.0),
        M=relative_distance(seen @ a.mixing, seen @ b.mixing),
        net=network_distance(f, g),
    )


def _find_lone_form(model: OneLayer) -> AbsAffine:
    lone = model.lone()
    if isinstance(lone, Gated):
        raise InvalidInput("layers with gated networks are not compared.")
    return lone.normal_form() if isinstance(lone, ReluNet) else lone


def one_layer_freedom(
    width: int,
    *,
    hidden: int,
    outputs: int = 1,
    rank: int | None = None,
    score_bias: int = 0,
    residual: bool = False,
) -> int:
    """Numbers that the answers of a one-layer Transformer determine.

    $$k(d + m) + m(d + 1) + r(2d - r)$$

    plus the numbers of a score bias and, with a residual, the $d^2$ of M.
    """
    r = width if rank is None else rank
    network = hidden * (width + outputs) + outputs * (width + 1)
    return network + r * (2 * width - r) + score_bias + width * width * residual
