r"""A block whose network is known, asked as the attention before it.

$f = r + g(\mathrm{norm}(r))$ with $r = x_N + a(X)$ is solved for r. Where the last token is large
beside what the network adds, $r \mapsto f - g(\mathrm{norm}(r))$ draws every start to the one
solution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Answers, Sequences
from keyhole.learners.blocks.gated.gate_fit import GateMap
from keyhole.models.layers.norms import normalise
from keyhole.oracles import Oracle

SIZE = 10.0  # of entries of a last token: larger ones lose digits, smaller ones solutions
_STEPS = 60
_SETTLED = 1e-15


def share_of_ball(eps: float) -> float:
    """How near to the sphere a norm takes such a last token."""
    return SIZE / float(np.sqrt(SIZE**2 + eps))


@dataclass(frozen=True, eq=False, slots=True)
class PeeledBlock:
    """The attention of a block beside its residual.

    Args:
        block: the target.
        network: what is known to stand behind the attention.
        eps: of the norm between.
    """

    block: Oracle
    network: GateMap
    eps: float

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.block.width

    @property
    def outputs(self) -> int | None:
        """Numbers of an answer."""
        return self.block.outputs

    def ask(self, X: Sequences) -> Answers:
        """What the attention answers, the last token added."""
        f = self.block.ask(X)
        r = f
        for _ in range(_STEPS):
            moved = f - self.network.answer(normalise(r, "rms", self.eps))
            settled = float(np.abs(moved - r).max()) <= _SETTLED * float(np.abs(f).max())
            r = moved
            if settled:
                break
        return r
