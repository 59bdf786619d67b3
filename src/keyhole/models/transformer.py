r"""A one-layer Transformer at its last token: softmax attention, then a hidden layer.

$$f(X) = g\big(\mathrm{softmax}(X(W x_N + h))^\top X V + c + x_N^\top U \;(+\, x_N)\big)$$

Let T be the map by which a lone token enters the network, $T = V^\top + U^\top (+ I)$. A sequence
of one token has nothing to attend to but itself, so it is answered by $G(x) = g(T x + c)$; and
every other one by

$$f(X) = G\Big(x_N + M \sum_i \alpha_i (x_i - x_N)\Big), \qquad T M = V^\top,$$

so that W, h, G and M are all that answers determine of the weights. Without a residual M is the
identity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import (
    Answers,
    Array,
    Float,
    Matrix,
    PerSequence,
    Rng,
    Sequences,
    as_generator,
    check_sequences,
)
from keyhole.drawing.faces import Face
from keyhole.errors import InvalidInput
from keyhole.models.attention import Head
from keyhole.models.last_token.gated import Gated
from keyhole.models.relu import AbsAffine, ReluNet
from keyhole.models.yardsticks import Yardstick, start_at_tokens

Network = ReluNet | AbsAffine | Gated


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class OneLayer(Face):
    r"""Attention, an optional residual, and a network: $f(X) = g(\mathrm{head}(X) \,(+\, x_N))$.

    The value matrix is determined only through $G(x) = g(Tx + c)$ and $M$ (see the module);
    recovered models have T = 1, that is V = 1 without a residual and $V = M^\top$, $U = -M^\top$
    with one.

    Args:
        head: the attention, one output per input of the network.
        net: the network.
        residual: whether the last token is added to what the network is given.
    """

    head: Head
    net: Network
    residual: bool = False

    def __post_init__(self) -> None:
        if self.net.width != self.head.outputs:
            raise InvalidInput(
                f"the network must take what the head gives: {self.head.outputs} numbers; it takes"
                f" {self.net.width}."
            )
        if self.residual and self.head.outputs != self.head.width:
            raise InvalidInput(
                "a residual needs a head with as many outputs as a token has numbers,"
                f" {self.head.width}; it has {self.head.outputs}."
            )

    @classmethod
    def random(
        cls,
        width: int,
        *,
        hidden: int,
        outputs: int = 1,
        rank: int | None = None,
        scale: float = 1.0,
        biases: bool = False,
        residual: bool = False,
        rng: Rng,
    ) -> OneLayer:
        """A Gaussian layer: V of size 1/sqrt(width), half that beside a residual; biases of 1."""
        rng = as_generator(rng)
        drawn = Head.random(width, outputs=width, rank=rank, scale=scale, biases=biases, rng=rng)
        V = drawn.V * ((0.5 if residual else 1.0) / np.sqrt(width))
        return cls(
            Head(drawn.W, V, drawn.h, drawn.c),
            ReluNet.random(width, hidden=hidden, outputs=outputs, rng=rng),
            residual,
        )

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.head.width

    @property
    def outputs(self) -> int:
        """Numbers answered per sequence."""
        return self.net.outputs

    @property
    def carry(self) -> Float[Array, "inputs width"]:
        """The map T by which a lone token enters the network."""
        T = self.head.V.T if self.head.U is None else (self.head.V + self.head.U).T
        return T + np.eye(self.width) if self.residual else T

    @property
    def mixing(self) -> Matrix:
        """The map M of least norm with T M = V^T: how the tokens' mean moves the lone place."""
        # T may lose directions; M is free along them, and the least is taken.
        return np.linalg.pinv(self.carry, rcond=1e-12) @ self.head.V.T

    def lone(self) -> Network:
        """G, the network as a lone token meets it."""
        c = np.zeros(self.head.outputs) if self.head.c is None else self.head.c
        return compose_network(self.net, self.carry, c)

    def logits(self, X: Sequences) -> Float[Array, "batch heads length"]:
        """Attention scores before the softmax, as one row."""
        return self.head.logits(X)

    def magnitude(self, X: Sequences) -> PerSequence:
        """Largest sum of sizes of what a token adds to its own answer, constants aside."""
        batch, length, width = X.shape
        return bound_change(self.lone(), X.reshape(-1, width)).reshape(batch, length).max(axis=1)

    def yardstick(self, X: Sequences, eps: float) -> Yardstick:
        """What a gap is measured by; see `models.yardsticks`."""
        into = self.head.reach(X, eps)
        if self.residual:
            into += start_at_tokens(X[:, -1])
        return self.net.reach(into, eps).summarise()

    def __call__(self, X: Sequences) -> Answers:
        """Answers to a batch."""
        check_sequences(X, self.width)
        inputs = self.head(X)
        return self.net.points(inputs + X[:, -1] if self.residual else inputs)


def bound_change(net: Network, x: Float[Array, "points width"]) -> PerSequence:
    """A bound on |G(x) - G(0)|: the sizes of the slopes' terms, summed, of the largest output."""
    if isinstance(net, ReluNet):
        return (np.abs(x @ net.W1.T) @ np.abs(net.W2).T).max(axis=1)
    if isinstance(net, Gated):
        return net.terms(x)
    return (np.abs(x @ net.n.T) @ np.abs(net.D) / 2 + np.abs(x @ net.P.T)).max(axis=1)


def compose_network(net: Network, T: Matrix, c: Array) -> Network:
    """The network x -> net(T x + c)."""
    if isinstance(net, ReluNet):
        return ReluNet(net.W1 @ T, net.b1 + net.W1 @ c, net.W2, net.b2, net.activation)
    if isinstance(net, Gated):
        a, b = net.a + net.A @ c, net.b + net.B @ c
        return Gated(net.A @ T, a, net.B @ T, b, net.C, net.c, net.activation)
    n = net.n @ T
    t = net.t - net.n @ c
    # Hyperplanes that T maps to nothing become constants.
    acts = np.linalg.norm(n, axis=1) > 0
    q = net.q + net.P @ c + np.abs(t[~acts]) @ net.D[~acts] / 2
    return AbsAffine(n[acts], t[acts], net.D[acts], net.P @ T, q)
