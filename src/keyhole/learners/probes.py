r"""The measurement layer under every learner of a single head: pairs (x, y) in, forms $x^\top(W y + h)$ out.

It builds the queries of a design, asks them in batches, reads the softmax shares, keeps the logits near a
target size, asks again what was saturated, and refuses answers no head can give.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from keyhole._arrays import EPS, Answers, Array, Mask, Matrix, Sequences, Stack, Vector, power_of_two, rms
from keyhole.errors import BudgetSpent
from keyhole.learners.base import Counterexample
from keyhole.learners.designs import Design
from keyhole.learners.readout import NotAHead, Readout
from keyhole.oracles import Counted

TARGET = 0.8  # root-mean-square logit aimed at
REASK_ABOVE = 6.0  # a logit larger than this is asked again at a smaller scale
_ROUNDS = 40  # of asking again
SPARE_REASKS = 1000  # queries asked again at most, above one for each query of the plan
_BATCH = 512  # sequences per call where tokens are long; up to four times as many where they are short
_NUMBERS = 1 << 19
_SLACK = 1e-6  # how far outside [0, 1] a share may be before the class is refuted

Indices = Int[NDArray[np.intp], "n"]


class Saturated(Exception):
    """No scale was found at which the shares can be read."""


class Cut(BudgetSpent):
    """The budget ended in the middle; `forms` holds the columns that were complete by then."""

    def __init__(self, spent: BudgetSpent, forms: Array) -> None:
        super().__init__(str(spent), spent.answers)
        self.forms = forms


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
    _buffer: Vector = field(default_factory=lambda: np.empty(0), init=False)
    _asked: int = field(default=0, init=False)
    _extra: int = field(default=0, init=False)

    def forms(self, design: Design, Y: Matrix) -> Matrix:
        """X . (W (sy y) + h) for every row y of Y (rows) and every vector x of the design (columns)."""
        out = np.empty((len(Y), *design.X.shape[:2]))
        X, sx = self.sx * design.X, self.sx
        for js, gs in self._batches(len(Y), *design.X.shape[:2]):
            if sx != self.sx:
                X, sx = self.sx * design.X, self.sx
            try:
                out[js, gs] = self._block(design, X, Y, js, gs)
            except BudgetSpent as spent:
                late = spent.forms if isinstance(spent, Cut) else out[:0]
                raise Cut(spent, np.concatenate([out[: js.start], late]).reshape(-1, design.vectors)) from spent
        return out.reshape(len(Y), -1)

    def _batches(self, columns: int, groups: int, together: int) -> Iterator[tuple[slice, slice]]:
        most = max(_BATCH, min(4 * _BATCH, _NUMBERS // ((together + 1) * self.oracle.width)))
        many = max(1, most // groups)
        for j in range(0, columns, many):
            for g in range(0, groups, most):
                yield slice(j, min(j + many, columns)), slice(g, min(g + most, groups))

    def _block(self, design: Design, X: Array, Y: Matrix, js: slice, gs: slice) -> Array:
        y, x = self.sy * Y[js], X[gs]
        queries = self._room(len(y), len(x), x.shape[1] + 1, x.shape[2])
        np.add(x, y[:, None, None], out=queries[:, :, :-1])
        queries[:, :, -1] = y[:, None]
        flat = queries.reshape(-1, *queries.shape[2:])
        scales = np.full(len(flat), self.sx)
        self._asked += len(flat)
        try:
            t = self.logits(design, flat, scales)
        except BudgetSpent as spent:
            raise Cut(spent, self._rescued(design, spent.answers, y, len(x))) from spent
        bad = np.flatnonzero(_unreadable(t))
        if len(bad):
            which = np.divmod(bad, len(x))
            t[bad], scales[bad] = self._again(design, which[1] + gs.start, y[which[0]], t[bad])
        self._steer(t * (self.sx / scales)[:, None])
        return (t / scales[:, None]).reshape(len(y), len(x), -1)

    def _rescued(self, design: Design, answers: Matrix | None, y: Matrix, groups: int) -> Stack:
        """Forms of the columns that a cut batch still answered in full."""
        whole = 0 if answers is None or groups < len(design.X) else len(answers) // groups
        if answers is None or whole == 0:
            return np.empty((0, *design.X.shape[:2]))
        scales = np.full(whole * groups, self.sx)
        t = self.read(design, np.repeat(y[:whole], groups, axis=0), answers[: len(scales)], scales)
        t[_unreadable(t)] = 0.0  # there is no budget to ask these again
        return t.reshape(whole, groups, -1) / self.sx

    def _room(self, *shape: int) -> Array:
        """Space for one batch, the same for every batch: fresh pages cost more than filling them."""
        size = math.prod(shape)
        if self._buffer.size < size:
            self._buffer = np.empty(size)
        return self._buffer[:size].reshape(shape)

    def _again(self, design: Design, groups: Indices, y: Matrix, t: Matrix) -> tuple[Matrix, Vector]:
        """Ask single queries again at smaller scales until their shares can be read."""
        t, scales = t.copy(), np.full(len(t), self.sx)
        for _ in range(_ROUNDS):
            bad = np.flatnonzero(_unreadable(t))
            if len(bad) == 0:
                return t, scales
            self._extra += len(bad)
            if self._extra > self._asked + SPARE_REASKS:
                break
            largest = np.abs(t[bad]).max(axis=1)
            shrink = np.where(np.isfinite(largest) & (largest < 30), TARGET / np.maximum(largest, 1.0), 2.0**-10)
            scales[bad] *= 2.0 ** np.floor(np.log2(shrink))
            x = scales[bad, None, None] * design.X[groups[bad]]
            queries = np.concatenate([x, np.zeros_like(x[:, :1])], axis=1) + y[bad, None]
            t[bad] = self.logits(design, queries, scales[bad])
        raise Saturated

    def _steer(self, t: Matrix) -> None:
        """Shorten x when logits are large; never lengthen it, since one small column promises nothing of the next."""
        size = rms(np.clip(np.nan_to_num(t), -1e3, 1e3))
        if size > 1.5 * TARGET:
            self.sx = power_of_two(self.sx * TARGET / size)

    def logits(self, design: Design, queries: Sequences, scales: Vector) -> Matrix:
        """Ask queries [y + x_1; ..; y] of one design and read log(share of x_k / share of y).

        Raises:
            NotAHead: shares lie outside [0, 1].
        """
        answers, y = self.oracle.ask(queries), queries[:, -1]
        base = self.readout.base(y)
        shares = self._shares(design, base, answers, scales)
        rest = 1.0 - shares.sum(axis=1, keepdims=True)
        noise = np.maximum(np.abs(answers), np.abs(base)).max(axis=1) / scales
        slack = _SLACK + 64 * self.roundoff * noise * np.abs(design.decoder).max()
        outside = np.minimum(shares.min(axis=1), rest[:, 0]) < -slack
        if outside.any():
            raise self._impossible(queries, answers, base, shares, int(np.flatnonzero(outside)[0]))
        return _log_ratio(shares)

    def read(self, design: Design, y: Matrix, answers: Matrix, scales: Vector) -> Matrix:
        """Logits of answers that were given to queries ending in y; not finite where a share is not inside (0, 1)."""
        return _log_ratio(self._shares(design, self.readout.base(y), answers, scales))

    def _shares(self, design: Design, base: Matrix, answers: Matrix, scales: Vector) -> Matrix:
        """Shares of the vectors x_k: an answer is base(y) + sum_k alpha_k V^T x_k, which the decoder inverts."""
        return (answers - base) @ design.decoder.T / scales[:, None]

    def _impossible(self, queries: Sequences, answers: Answers, base: Answers, shares: Matrix, at: int) -> NotAHead:
        nearest = np.clip(shares[at], 0.0, 1.0)
        nearest /= max(1.0, nearest.sum())
        x = queries[at, :-1] - queries[at, -1]
        return NotAHead(Counterexample(queries[at].copy(), answers[at], base[at] + nearest @ x @ self.readout.V))


def _log_ratio(shares: Matrix) -> Matrix:
    """log(share of x_k / share of y), the share of y being what the others leave of 1; small logits lose nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(shares / (1.0 - shares.sum(axis=1, keepdims=True)))


def _unreadable(t: Matrix) -> Mask:
    return np.logical_not((np.abs(t) <= REASK_ABOVE).all(axis=1))
