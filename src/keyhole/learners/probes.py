r"""The measurement layer under every learner of a single head: pairs (x, y) in, forms $x^\top(W y + h)$ out.

It builds the queries of a design, asks them in batches, reads the softmax shares, keeps the logits near a
target size, asks again what was saturated, and refuses answers no head can give.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from keyhole._arrays import EPS, Answers, Array, Mask, Matrix, Sequences, Vector, power_of_two, rms
from keyhole.learners.base import Counterexample
from keyhole.learners.designs import Design
from keyhole.learners.readout import NotAHead, Readout
from keyhole.oracles import Counted

TARGET = 0.8  # root-mean-square logit aimed at
REASK_ABOVE = 6.0  # a logit larger than this is asked again at a smaller scale
_ROUNDS = 40  # of asking again
_BATCH = 512  # sequences per call where tokens are long; up to four times as many where they are short
_NUMBERS = 1 << 19
_SLACK = 1e-6  # how far outside [0, 1] a share may be before the class is refuted

Indices = Int[NDArray[np.intp], "n"]


class Saturated(Exception):
    """No scale was found at which the shares can be read."""


@dataclass(slots=True)
class Prober:
    """Measures forms of one head.

    Args:
        oracle: the black box, counting.
        readout: what was read before.
        sx: length given to the vectors x of a design; steered while measuring.
        sy: length given to the directions y.
        roundoff: relative rounding of the answers.
    """

    oracle: Counted
    readout: Readout
    sx: float
    sy: float
    roundoff: float = EPS

    def forms(self, design: Design, Y: Matrix) -> Matrix:
        """X . (W (sy y) + h) for every row y of Y (rows) and every vector x of the design (columns)."""
        out = np.empty((len(Y), *design.X.shape[:2]))
        X, sx = self.sx * design.X, self.sx
        for js, gs in self._batches(len(Y), *design.X.shape[:2]):
            if sx != self.sx:
                X, sx = self.sx * design.X, self.sx
            out[js, gs] = self._block(design, X, Y, js, gs)
        return out.reshape(len(Y), -1)

    def _batches(self, columns: int, groups: int, together: int) -> Iterator[tuple[slice, slice]]:
        most = max(_BATCH, min(4 * _BATCH, _NUMBERS // ((together + 1) * self.oracle.width)))
        many = max(1, most // groups)
        for j in range(0, columns, many):
            for g in range(0, groups, most):
                yield slice(j, min(j + many, columns)), slice(g, min(g + most, groups))

    def _block(self, design: Design, X: Array, Y: Matrix, js: slice, gs: slice) -> Array:
        y, x = self.sy * Y[js], X[gs]
        queries = np.empty((len(y), len(x), x.shape[1] + 1, x.shape[2]))
        np.add(x, y[:, None, None], out=queries[:, :, :-1])
        queries[:, :, -1] = y[:, None]
        flat = queries.reshape(-1, *queries.shape[2:])
        scales = np.full(len(flat), self.sx)
        t = self.logits(design, flat, scales)
        bad = np.flatnonzero(_unreadable(t))
        if len(bad):
            which = np.divmod(bad, len(x))
            t[bad], scales[bad] = self._again(design, which[1] + gs.start, y[which[0]], t[bad])
        self._steer(t * (self.sx / scales)[:, None])
        return (t / scales[:, None]).reshape(len(y), len(x), -1)

    def _again(self, design: Design, groups: Indices, y: Matrix, t: Matrix) -> tuple[Matrix, Vector]:
        """Ask single queries again at smaller scales until their shares can be read."""
        t, scales = t.copy(), np.full(len(t), self.sx)
        for _ in range(_ROUNDS):
            bad = np.flatnonzero(_unreadable(t))
            if len(bad) == 0:
                return t, scales
            largest = np.abs(t[bad]).max(axis=1)
            shrink = np.where(np.isfinite(largest) & (largest < 30), TARGET / np.maximum(largest, 1.0), 2.0**-10)
            scales[bad] *= 2.0 ** np.floor(np.log2(shrink))
            x = scales[bad, None, None] * design.X[groups[bad]]
            queries = np.concatenate([x, np.zeros_like(x[:, :1])], axis=1) + y[bad, None]
            t[bad] = self.logits(design, queries, scales[bad])
        raise Saturated

    def _steer(self, t: Matrix) -> None:
        size = rms(np.clip(np.nan_to_num(t), -1e3, 1e3))
        if size > 2 * TARGET or 1e-6 < size < TARGET / 4:
            self.sx = power_of_two(self.sx * TARGET / size)

    def logits(self, design: Design, queries: Sequences, scales: Vector) -> Matrix:
        """Ask queries [y + x_1; ..; y] of one design and read log(share of x_k / share of y).

        One answer is base(y) + sum_k alpha_k V^T x_k, which the decoder turns into the shares. The share
        of y is what they leave of 1; since |t| stays small, nothing cancels.
        """
        answers, base = self.oracle.ask(queries), self.readout.base(queries[:, -1])
        shares = (answers - base) @ design.decoder.T / scales[:, None]
        rest = 1.0 - shares.sum(axis=1, keepdims=True)
        noise = np.maximum(np.abs(answers), np.abs(base)).max(axis=1) / scales
        slack = _SLACK + 64 * self.roundoff * noise * np.abs(design.decoder).max()
        outside = np.minimum(shares.min(axis=1), rest[:, 0]) < -slack
        if outside.any():
            raise self._impossible(queries, answers, base, shares, int(np.flatnonzero(outside)[0]))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(shares / rest)

    def _impossible(self, queries: Sequences, answers: Answers, base: Answers, shares: Matrix, at: int) -> NotAHead:
        nearest = np.clip(shares[at], 0.0, 1.0)
        nearest /= max(1.0, nearest.sum())
        x = queries[at, :-1] - queries[at, -1]
        return NotAHead(Counterexample(queries[at], answers[at], base[at] + nearest @ x @ self.readout.V))


def _unreadable(t: Matrix) -> Mask:
    return np.logical_not((np.abs(t) <= REASK_ABOVE).all(axis=1))
