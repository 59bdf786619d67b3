r"""Reading attention scores behind a known network G, at spots inside its linear regions.

With tokens $z + s x_k$ before z, $f = G(z) + s J M \sum_k \alpha_k x_k$: where M is known that is a
single head with read-out $(J M)^\top$, and its shares give the forms $x_k^\top(Wz + h)$.

Where M is not known, ask $[z + s x; z]$ and $[z - s x; z]$. Their shares are $\sigma(t)$ and
$\sigma(-t)$ with $t = s\, x^\top(Wz + h)$, and these sum to one: so $f_+ - f_- = s J M x$ whatever
the score is, and $t = \log\big((f_+ - G)/(G - f_-)\big)$: the read-out and the score from two
answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keyhole._arrays import EPS, Array, Matrix, Stack, Vector, rms
from keyhole.learners.one_head.designs import Design, build_frame_design
from keyhole.learners.one_head.probes import SPARE_REASKS, TARGET, build_probe_sequences, log_ratio
from keyhole.learners.one_layer.regions import Sizes, Spot
from keyhole.models.relu import AbsAffine
from keyhole.oracles import Counted

TOGETHER = 8  # logits per query, at most: the more, the smaller each share
CUT = 0.3  # directions seen less than this share of the best are not read with: J has errors
REASK_ABOVE = 3.5  # larger logits are asked again: J's errors grow with what they leave of others
_ROUNDS = 30  # of asking again


@dataclass(slots=True)
class Reader:
    """Reads forms x . (W z + h) behind a network.

    Args:
        oracle: the black box, counting.
        G: the network as a lone token meets it.
        sizes: what forms are expected to be like.
        roundoff: relative rounding of the answers.
        M: how the mean of the tokens moves the network's input; the identity when absent.
        lost: how many forms could not be read at any step.
        spare: how many queries may still be asked again.
    """

    oracle: Counted
    G: AbsAffine
    sizes: Sizes
    roundoff: float = EPS
    M: Matrix | None = None
    lost: int = field(default=0, init=False)
    spare: int = field(default=SPARE_REASKS, init=False)

    def move_input(self, X: Array) -> Array:
        """Where displacements x of a token move the network's input, M x."""
        return X if self.M is None else X @ self.M.T

    def readout(self, spot: Spot) -> Matrix:
        """What the head at this spot is read with, (J M)^T."""
        return spot.J.T if self.M is None else (spot.J @ self.M).T

    def design(self, spot: Spot) -> Design:
        """Vectors that measure a whole column W z + h at this spot."""
        V = self.readout(spot)
        return build_frame_design(V, most=min(V.shape[1], TOGETHER), cut=CUT)

    def bases(self, spots: list[Spot]) -> Matrix:
        """G at the spots, asked: a model of it would add its own error, magnified."""
        return self.oracle.ask(np.array([spot.z for spot in spots])[:, None])

    def steps(self, spot: Spot, X: Stack) -> Vector:
        """How far each group of vectors may go, inside the region and with readable logits."""
        steps = spot.steps(self.move_input(X))
        most = float(self.sizes.step(np.array([float(np.linalg.norm(spot.z))]))[0])
        return np.sign(steps) * np.minimum(np.abs(steps), most)

    def rises(self, spot: Spot, base: Vector, X: Stack, steps: Vector) -> Matrix:
        """Rise of answers per step when tokens z + s x_k stand before z: J M sum alpha_k x_k."""
        x = steps[:, None, None] * X
        answers = self.oracle.ask(build_probe_sequences(x, np.tile(spot.z, (len(x), 1))))
        return (answers - base) / steps[:, None]

    def forms(self, spot: Spot, base: Vector, design: Design) -> Vector:
        """Forms x . (W z + h) for every vector x of the design."""
        steps = self.steps(spot, design.X)
        t = self._logits(spot, base, design, slice(None), steps)
        for _ in range(_ROUNDS):
            bad = np.flatnonzero(~(np.abs(t) <= REASK_ABOVE).all(axis=1))
            self.spare -= len(bad)
            if len(bad) == 0 or self.spare < 0:
                break
            steps[bad] *= _choose_shrink_factor(t[bad])
            t[bad] = self._logits(spot, base, design, bad, steps[bad])
        self._steer(t)
        return self._keep_readable(t / steps[:, None]).ravel()

    def _steer(self, t: Matrix) -> None:
        """Expect larger forms, and make shorter steps, when logits turn out large."""
        # Never the other way round: small logits cost digits, large ones cost queries.
        more = rms(t) / TARGET
        if 1.5 < more < np.inf:
            self.sizes = Sizes(more * self.sizes.W, more * self.sizes.h)

    def _logits(
        self, spot: Spot, base: Vector, design: Design, groups: Any, steps: Vector
    ) -> Matrix:
        return log_ratio(self.rises(spot, base, design.X[groups], steps) @ design.decoder.T)

    def _keep_readable(self, forms: Matrix) -> Matrix:
        readable = np.isfinite(forms)
        self.lost += int((~readable).sum())
        return np.where(readable, forms, 0.0)

    def pair(self, spot: Spot, base: Vector, X: Matrix, steps: Vector) -> tuple[Vector, Matrix]:
        """Logits s x . (W z + h), and J M x, for every row x of X, M not being known."""
        ahead, back = (self.rises(spot, base, X[:, None], side * steps) for side in (1.0, -1.0))
        seen = ahead + back
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log((ahead * seen).sum(axis=1) / (back * seen).sum(axis=1)), seen


def _choose_shrink_factor(t: Matrix) -> Vector:
    """By how much steps are shortened where the logits t could not be read."""
    largest = np.abs(t).max(axis=1)
    return np.where(np.isfinite(largest), TARGET / np.maximum(largest, TARGET), 2.0**-10)
