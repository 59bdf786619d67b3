r"""Several softmax heads before a network, at the last token.

$$f(X) = g\Big(\sum_h V_h^\top z_h + c + U^\top x_N\Big), \qquad
z_h = X^\top \mathrm{softmax}(X(W_h x_N + h_h))$$

With $g(u) = \sum_j c_j \max(a_j \cdot u + b_j, 0)$ answers determine the $W_h$ and the network
$(z_1, \dots, z_H) \mapsto f$ on $\mathbb{R}^{Hd}$, whose rows are $V_h a_j$ side by side: a token
that one head looks at moves its part alone. V itself they do not determine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import (
    Answers,
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
from keyhole.models.attention import MultiHead
from keyhole.models.relu import ReluNet
from keyhole.models.transformer import Network, bound_change, compose_network
from keyhole.models.yardsticks import Yardstick


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class HeadsBeforeNetwork(Face):
    """Several heads, what they write added up, and a network that takes it.

    Args:
        heads: the attention, one output per input of the network.
        net: the network.
    """

    heads: MultiHead
    net: Network

    def __post_init__(self) -> None:
        if self.net.width != self.heads.outputs:
            raise InvalidInput(
                f"the network must take what the heads give: {self.heads.outputs} numbers; it takes"
                f" {self.net.width}."
            )

    @classmethod
    def random(
        cls,
        width: int,
        *,
        heads: int,
        hidden: int,
        outputs: int = 1,
        biases: bool = False,
        activation: str = "relu",
        rng: Rng,
    ) -> HeadsBeforeNetwork:
        """Gaussian heads with as many outputs as coordinates, and a network of such units."""
        rng = as_generator(rng)
        attention = MultiHead.random(width, heads=heads, outputs=width, rng=rng)
        net = ReluNet.random(width, hidden=hidden, outputs=outputs, activation=activation, rng=rng)
        if not biases:
            net = replace(net, b1=0.0 * net.b1, b2=0.0 * net.b2)
        return cls(attention, net)

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.heads.width

    @property
    def outputs(self) -> int:
        """Numbers answered per sequence."""
        return self.net.outputs

    def spread(self) -> Network:
        """The network as it takes the means of all heads side by side, and the last token."""
        parts = list(self.heads.V)
        if self.heads.U is not None:
            parts.append(self.heads.U)
        c = np.zeros(self.heads.outputs) if self.heads.c is None else self.heads.c
        return compose_network(self.net, np.concatenate(parts).T, c)

    def logits(self, X: Sequences) -> Float[np.ndarray, "batch heads length"]:
        """Attention scores before the softmax, one row per head."""
        return self.heads.logits(X)

    def magnitude(self, X: Sequences) -> PerSequence:
        """Largest sum over heads of the sizes of what their tokens add to an answer."""
        total = np.zeros(len(X))
        readouts: list[Matrix] = list(self.heads.V)
        for V in readouts:
            change = bound_change(self.net, (X @ V).reshape(-1, self.heads.outputs))
            total += change.reshape(X.shape[:2]).max(axis=1)
        if self.heads.U is not None:
            total += bound_change(self.net, X[:, -1] @ self.heads.U)
        return total

    def yardstick(self, X: Sequences, eps: float) -> Yardstick:
        """What a gap is measured by; see `models.yardsticks`."""
        return self.net.reach(self.heads.reach(X, eps), eps).summarise()

    def __call__(self, X: Sequences) -> Answers:
        """Answers to a batch."""
        check_sequences(X, self.width)
        return self.net.points(self.heads(X))
