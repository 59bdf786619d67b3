r"""What every learner of a single head measures with: pairs (x, y) in, forms out.

A form is $x^\top(W y + h)$. A `Prober` builds the queries of a design, asks them in batches, reads
the softmax shares, keeps the logits near a target size, asks again what was saturated, and refuses
answers no head can give.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import (
    EPS,
    Array,
    Int,
    Mask,
    Matrix,
    Scratch,
    Sequences,
    Stack,
    Vector,
    find_power_of_two,
)
from keyhole.errors import BudgetSpent
from keyhole.learners.base import Counterexample
from keyhole.learners.one_head.designs import Design
from keyhole.learners.one_head.readout import NotAHead, Readout
from keyhole.oracles import Counted

TARGET = 0.8  # root-mean-square logit aimed at
REASK_ABOVE = 6.0  # a logit larger than this is asked again at a smaller scale
_ROUNDS = 40  # of asking again
SPARE_REASKS = 1000  # queries asked again at most, above one for each query of the plan
# Sequences per call where tokens are long; up to four times as many where they are short.
_BATCH = 512
_NUMBERS = 1 << 19  # in one call, which bounds the memory of a batch
_SLACK = 1e-6  # how far outside [0, 1] a share may be before the class is refuted

Indices = Int[np.ndarray, "n"]


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
    _scratch: Scratch = field(default_factory=Scratch, init=False)
    _asked: int = field(default=0, init=False)
    _extra: int = field(default=0, init=False)

    def forms(self, design: Design, Y: Matrix) -> Matrix:
        """Forms x . (W (sy y) + h): a row for each y of Y, a column for each x of the design."""
        out = np.empty((len(Y), *design.X.shape[:2]))
        for js, gs in self._split_batches(len(Y), *design.X.shape[:2]):
            try:
                out[js, gs] = self._measure_block(design, self.sy * Y[js], gs)
            except BudgetSpent as spent:
                late = spent.forms if isinstance(spent, Cut) else out[:0]
                complete = np.concatenate([out[: js.start], late])
                raise Cut(spent, complete.reshape(-1, design.vectors)) from spent
        # Spelled out, as -1 cannot stand for the size of a matrix without rows.
        return out.reshape(len(Y), design.vectors)

    def _split_batches(
        self, columns: int, groups: int, together: int
    ) -> Iterator[tuple[slice, slice]]:
        most = max(_BATCH, min(4 * _BATCH, _NUMBERS // ((together + 1) * self.oracle.width)))
        many = max(1, most // groups)
        for j in range(0, columns, many):
            for g in range(0, groups, most):
                yield slice(j, min(j + many, columns)), slice(g, min(g + most, groups))

    def _build_queries(self, design: Design, y: Matrix, gs: slice) -> Sequences:
        """Sequences [y + x_1; ..; y] for every y and group; sparse vectors entry by entry."""
        x = design.X[gs]
        room = self._scratch.array((len(y), len(x), x.shape[1] + 1, x.shape[2]))
        if design.sparse is None:
            np.add(self.sx * x, y[:, None, None], out=room[:, :, :-1])
            room[:, :, -1] = y[:, None]
        else:
            at = np.arange(len(design.X))[gs]
            row = at - gs.start
            room[:] = y[:, None, None]
            room[:, row, 0, at] += self.sx * x[row, 0, at] * (at != design.sparse)
            room[:, :, 0, design.sparse] += self.sx * x[:, 0, design.sparse]
        return room.reshape(-1, *room.shape[2:])

    def _measure_block(self, design: Design, y: Matrix, gs: slice) -> Array:
        """Forms of one batch, what was saturated asked again."""
        groups = gs.stop - gs.start
        scales = np.full(len(y) * groups, self.sx)
        self._asked += len(scales)
        try:
            answers = self.oracle.ask(self._build_queries(design, y, gs))
        except BudgetSpent as spent:
            raise Cut(spent, self._rescue_forms(design, spent.answers, y, groups)) from spent
        which, group = np.divmod(np.arange(len(scales)), groups)
        t = self._check_answers(design, answers, y, which, group + gs.start, scales)
        bad = np.flatnonzero(mark_unreadable_rows(t))
        if len(bad):
            t[bad], scales[bad] = self._ask_again(
                design, group[bad] + gs.start, y[which[bad]], t[bad]
            )
        self._steer(t * (self.sx / scales)[:, None])
        return (t / scales[:, None]).reshape(len(y), groups, -1)

    def _rescue_forms(
        self, design: Design, answers: Matrix | None, y: Matrix, groups: int
    ) -> Stack:
        """Forms of the columns that a cut batch still answered in full."""
        whole = 0 if answers is None or groups < len(design.X) else len(answers) // groups
        if answers is None or whole == 0:
            return np.empty((0, *design.X.shape[:2]))
        scales = np.full(whole * groups, self.sx)
        base = np.repeat(self.readout.base(y[:whole]), groups, axis=0)
        t = log_ratio(self._read_shares(design, answers[: len(scales)], base, scales))
        # There is no budget to ask these again.
        t[mark_unreadable_rows(t)] = 0.0
        return t.reshape(whole, groups, -1) / self.sx

    def _ask_again(
        self, design: Design, groups: Indices, y: Matrix, t: Matrix
    ) -> tuple[Matrix, Vector]:
        """Ask single queries again at smaller scales until their shares can be read."""
        t = t.copy()
        scales = np.full(len(t), self.sx)
        for _ in range(_ROUNDS):
            bad = np.flatnonzero(mark_unreadable_rows(t))
            if len(bad) == 0:
                return t, scales
            self._extra += len(bad)
            if self._extra > self._asked + SPARE_REASKS:
                break
            largest = np.abs(t[bad]).max(axis=1)
            # A logit above 30 is rounding: it says that the scale is too large, not by how much.
            told = np.isfinite(largest) & (largest < 30)
            shrink = np.where(told, TARGET / np.maximum(largest, 1.0), 2.0**-10)
            scales[bad] *= 2.0 ** np.floor(np.log2(shrink))
            t[bad] = self.single(design, groups[bad], y[bad], scales[bad])
        raise Saturated

    def pairs(self, design: Design, groups: Indices, Y: Matrix) -> Matrix:
        """Forms of single groups, each on a direction of its own: a row for each pair."""
        out = np.empty((len(groups), design.X.shape[1]))
        most = max(_BATCH, min(4 * _BATCH, _NUMBERS // ((design.X.shape[1] + 1) * Y.shape[1])))
        for start in range(0, len(groups), most):
            part = slice(start, start + most)
            out[part] = self._measure_pairs(design, groups[part], self.sy * Y[part])
        return out

    def _measure_pairs(self, design: Design, groups: Indices, y: Matrix) -> Matrix:
        scales = np.full(len(groups), self.sx)
        self._asked += len(groups)
        t = self.single(design, groups, y, scales)
        bad = np.flatnonzero(mark_unreadable_rows(t))
        if len(bad):
            t[bad], scales[bad] = self._ask_again(design, groups[bad], y[bad], t[bad])
        self._steer(t * (self.sx / scales)[:, None])
        return t / scales[:, None]

    def single(self, design: Design, groups: Indices, y: Matrix, scales: Vector) -> Matrix:
        """Logits of single queries, each with a group, a last token and a length of its own."""
        x = scales[:, None, None] * design.X[groups]
        answers = self.oracle.ask(build_probe_sequences(x, y))
        return self._check_answers(design, answers, y, np.arange(len(y)), groups, scales)

    def even(self, design: Design, group: int, y: Vector, sx: float) -> NotAHead:
        """A refusal of the class by one query so short that every head takes its even mean."""
        x = sx * design.X[group]
        answer = self.oracle.ask(build_probe_sequences(x[None], y[None]))[0]
        return self._build_refusal(x, y, answer, np.full(len(x), 1.0 / (len(x) + 1)))

    def _steer(self, t: Matrix) -> None:
        """Shorten x when logits are large."""
        size = float(np.sqrt(np.mean(t * t)))
        # It is never lengthened, since one small column promises nothing of the next.
        if size > 1.5 * TARGET:
            self.sx = find_power_of_two(self.sx * TARGET / size)

    def _check_answers(
        self,
        design: Design,
        answers: Matrix,
        y: Matrix,
        which: Indices,
        groups: Indices,
        scales: Vector,
    ) -> Matrix:
        """Logits of answers to queries made of `groups` and rows `which` of y.

        Raises:
            NotAHead: a share lies outside [0, 1] by more than rounding.
        """
        base = self.readout.base(y)[which]
        size = self.readout.size(y).max(axis=1)[which]
        shares = self._read_shares(design, answers, base, scales)
        noise = np.maximum(np.abs(answers).max(axis=1), size) / scales
        slack = _SLACK + 64 * self.roundoff * noise * np.abs(design.decoder).max()
        outside = np.flatnonzero(np.minimum(shares.min(axis=1), 1.0 - shares.sum(axis=1)) < -slack)
        if len(outside):
            at = int(outside[0])
            x = scales[at] * design.X[groups[at]]
            raise self._build_refusal(x, y[which[at]], answers[at], shares[at])
        return log_ratio(shares)

    def _read_shares(self, design: Design, answers: Matrix, base: Matrix, scales: Vector) -> Matrix:
        """Shares of vectors x_k: the decoder inverts an answer base(y) + sum_k alpha_k V^T x_k."""
        return (answers - base) @ design.decoder.T / scales[:, None]

    def _build_refusal(self, x: Matrix, y: Vector, answer: Vector, shares: Vector) -> NotAHead:
        nearest = np.clip(shares, 0.0, 1.0)
        nearest /= max(1.0, nearest.sum())
        predicted = self.readout.base(y[None])[0] + nearest @ x @ self.readout.V
        asked = build_probe_sequences(x[None], y[None])[0]
        return NotAHead(Counterexample(asked, answer, predicted))


def build_probe_sequences(x: Stack, y: Matrix) -> Sequences:
    """[y + x_1; ..; y] for every row."""
    return np.concatenate([x, np.zeros_like(x[:, :1])], axis=1) + y[:, None]


def log_ratio(shares: Matrix) -> Matrix:
    """log(share of x_k / share of y), where y has what the others leave of 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(shares / (1.0 - shares.sum(axis=1, keepdims=True)))


def mark_unreadable_rows(t: Matrix) -> Mask:
    """Whether a row of logits has one that is too large to be read well, or none at all."""
    return np.logical_not((np.abs(t) <= REASK_ABOVE).all(axis=1))
