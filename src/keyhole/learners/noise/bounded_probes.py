r"""Forms $x^\top(W y + h)$ from answers with errors, tokens never longer than a bound.

Tokens are y + x and y. Where no score bias acts and one vector x is asked at a time, y is taken
with the sign that makes $x \cdot y \le 0$ (the logit changes sign with it), so that $|x|^2 + |y|^2
\le R^2$ keeps both tokens inside the ball; otherwise |x| + |y| <= R does. A share is read to s /
(|x| |v| / sqrt 2), a logit near zero to four times that, a form to that over |x||y|: weak scores
are read best where $|x|^2|y|$ is largest, at |y|^2 = R^2/3 (or |y| = R/3). Strong scores lower |y|
until the logits are of order one. Raw answers are kept, so that the fit can be repeated with other
errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from keyhole._arrays import Array, Mask, Matrix, Sequences, Stack
from keyhole.learners.noise.noisy_readout import Errors, NoisyReading
from keyhole.learners.one_head.designs import Design
from keyhole.learners.one_head.probes import TARGET, Saturated
from keyhole.learners.one_head.readout import Readout
from keyhole.oracles import Counted

Places = NDArray[np.intp]

_BATCH = 2048
_LARGEST = 5.0  # a logit larger than this is asked again at a smaller scale
_CLIP = 1e-3  # least share that is believed
_LOST = 0.05  # standard deviation of a share above which an odd share is put down to errors
_ROUNDS = 40
_LOOKS = 4  # directions, and vectors for each, that show how large logits are
_NOWHERE = 1e40  # a product |x||y| at which scores that show nothing are zero


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """Answers to all queries of one design along some directions.

    Args:
        design: the vectors x.
        Y: unit directions y, as rows.
        lx: length of x for every direction and group.
        ly: length of y, with its sign.
        answers: means over the repeats.
    """

    design: Design
    Y: Matrix
    lx: Matrix
    ly: Matrix
    answers: Stack

    def shares(self, readout: Readout, answers: Stack) -> Array:
        """Shares of the vectors x, decoded with that read-out."""
        base = self.ly[..., None] * (self.Y @ readout.total)[:, None] + readout.c
        decoder = np.linalg.pinv(self.design.X @ readout.V)
        return np.einsum("ngo,gor->ngr", answers - base, decoder) / self.lx[..., None]

    def logits(self, readout: Readout, answers: Stack) -> Array:
        """log(share of x / share of y), shares being believed down to a thousandth."""
        shares = self.shares(readout, answers)
        rest = np.maximum(1.0 - shares.sum(axis=2, keepdims=True), _CLIP)
        return np.log(np.maximum(shares, _CLIP) / rest)

    def forms(self, readout: Readout, answers: Stack) -> Matrix:
        """Forms x . W y for every direction and vector; x . (W (ly y) + h) with a score bias."""
        scale = self.lx if readout.biased else self.lx * self.ly
        return (self.logits(readout, answers) / scale[..., None]).reshape(len(self.Y), -1)

    def columns(self, readout: Readout, answers: Stack) -> Matrix:
        """What the design solves the forms for, one row per direction."""
        return self.design.solve(self.forms(readout, answers))


@dataclass(slots=True)
class NoisyProber:
    """Asks the queries of a design within the bound.

    Args:
        oracle: the black box, counting.
        reading: what was read before, with the norms tokens may have.
        errors: size of the errors of answers.
        repeats: how often every question is asked.
        ly: length of y.
    """

    oracle: Counted
    reading: NoisyReading
    errors: Errors
    repeats: int
    ly: float

    def signed(self, design: Design) -> bool:
        """Whether y may be asked with either sign."""
        return design.X.shape[1] == 1 and not self.reading.readout.biased

    def longest(self, design: Design) -> float:
        """Length of x that the length of y leaves room for."""
        R = self.reading.length
        norm = float(np.sqrt((design.X**2).sum(axis=2).max()))
        room = np.sqrt(R**2 - self.ly**2) if self.signed(design) else R - self.ly
        return min(float(room), self.reading.reach) / norm

    def ask_all(self, design: Design, Y: Matrix) -> Block:
        """Ask every vector of the design along every direction, `repeats` times."""
        signs = np.ones((len(Y), len(design.X)))
        if self.signed(design):
            signs = np.where(Y @ design.X[:, 0].T > 0, -1.0, 1.0)
        outputs = self.reading.readout.V.shape[1]
        lx = np.full_like(signs, self.longest(design))
        block = Block(design, Y, lx, self.ly * signs, np.zeros((*signs.shape, outputs)))
        self._fill(block, np.indices(signs.shape).reshape(2, -1))
        return block

    def block(self, design: Design, Y: Matrix) -> Block:
        """The same, what was saturated asked again with shorter tokens.

        Raises:
            Saturated: some share cannot be read however short the tokens are.
        """
        block = self.ask_all(design, Y)
        for _ in range(_ROUNDS):
            odd = self._find_saturated(block)
            if not odd.any():
                return block
            smaller = np.where(odd, 1.0 / 16.0, 1.0)
            # With a score bias x scores by itself, however short y is.
            if self.reading.readout.biased:
                block = replace(block, lx=block.lx * smaller)
            else:
                block = replace(block, ly=block.ly * smaller)
            self._fill(block, np.argwhere(odd).T)
        raise Saturated

    def _fill(self, block: Block, at: Places) -> None:
        for rows, groups in _split_places(at):
            X = _build_block_sequences(block, rows, groups)
            block.answers[rows, groups] = self._mean(X)

    def _mean(self, X: Sequences) -> Matrix:
        answers = self.oracle.ask(X.copy())
        for _ in range(self.repeats - 1):
            answers = answers + self.oracle.ask(X.copy())
        return answers / self.repeats

    def _find_saturated(self, block: Block) -> Mask:
        """Where a share is too close to 0 or 1 to be read, for another reason than errors."""
        readout = self.reading.readout
        lost = self.share_error(block) > _LOST
        large = np.abs(block.logits(readout, block.answers)).max(axis=2) > _LARGEST
        return large & ~lost

    def lost(self, block: Block) -> bool:
        """Whether errors hide the shares, so that what is fitted need not be near the target."""
        return bool(np.median(self.share_error(block)) > _LOST)

    def deviation(self, block: Block) -> Stack:
        """Standard deviation of every answer."""
        readout = self.reading.readout
        values = np.abs(block.design.X @ readout.V).max(axis=1)
        alone = (np.abs(block.Y) @ np.abs(readout.total))[:, None]
        size = block.lx[..., None] * values + np.abs(block.ly)[..., None] * alone
        return self.errors.deviation(size + np.abs(readout.c), self.repeats)

    def share_error(self, block: Block) -> Matrix:
        """Standard deviation of the worst share of every query."""
        decoder = np.linalg.pinv(block.design.X @ self.reading.readout.V)
        gain = np.linalg.norm(decoder, axis=1).max(axis=1)
        return self.deviation(block).max(axis=2) * gain / block.lx


def _split_places(at: Places) -> Iterator[tuple[Places, Places]]:
    for i in range(0, at.shape[1], _BATCH):
        yield at[0, i : i + _BATCH], at[1, i : i + _BATCH]


def _build_block_sequences(block: Block, rows: Places, groups: Places) -> Sequences:
    """[y + x_1; ..; y] for every pair of a direction and a group."""
    x = block.lx[rows, groups][:, None, None] * block.design.X[groups]
    y = block.ly[rows, groups][:, None] * block.Y[rows]
    return np.concatenate([x, np.zeros_like(x[:, :1])], axis=1) + y[:, None]


def aim_prober(
    oracle: Counted,
    reading: NoisyReading,
    design: Design,
    errors: Errors,
    *,
    repeats: int,
    bounded: bool,
    rng: np.random.Generator,
) -> NoisyProber:
    """A prober whose y makes logits of order one, or is as long as helps to read weak scores.

    Its length of y is 0 where tokens of any length show no scores.

    Raises:
        Saturated: logits stay out of reach however short y is.
    """
    for _ in range(_ROUNDS):
        prober = NoisyProber(oracle, reading, errors, repeats, _choose_weak_length(reading, design))
        size = _shorten_directions(prober, design, rng)
        if bounded or reading.readout.biased or size > 0.25 * TARGET:
            return prober
        # Longer tokens would show weaker scores, but scores weaker than that are none.
        if reading.length**2 > _NOWHERE:
            return replace(prober, ly=0.0)
        longer = reading.length * (2.0**20 if size == 0.0 else float(np.sqrt(TARGET / size)))
        reading = replace(reading, length=longer, reach=longer)
    raise Saturated


def _choose_weak_length(reading: NoisyReading, design: Design) -> float:
    """Length of y that reads weak scores best."""
    alone = design.X.shape[1] == 1 and not reading.readout.biased
    return reading.length / (np.sqrt(3.0) if alone else 3.0)


def _shorten_directions(prober: NoisyProber, design: Design, rng: np.random.Generator) -> float:
    """Shorten y until logits are of order one; return their size, 0 where the errors hide them.

    Between a length at which they are too large and one at which they are hidden the search bisects
    geometrically.
    """
    hidden, large = 0.0, np.inf
    for _ in range(_ROUNDS):
        t, error = _sample_logits(prober, design, rng)
        size = max(float(np.sqrt(np.mean(t * t))), float(np.abs(t).max()) / 3.0)
        if np.abs(t).max() >= _LARGEST and error <= _LOST:
            large = prober.ly
        elif size > 8.0 * error:
            prober.ly = min(prober.ly * TARGET / size, _choose_weak_length(prober.reading, design))
            return size
        elif large == np.inf:
            return 0.0
        else:
            hidden = prober.ly
        prober.ly = float(np.sqrt(hidden * large)) if hidden > 0 else large * 2.0**-24
    raise Saturated


def _sample_logits(
    prober: NoisyProber, design: Design, rng: np.random.Generator
) -> tuple[Array, float]:
    """Logits that y adds, for a few groups and random directions, and the error of one."""
    Y = rng.normal(size=(_LOOKS, design.X.shape[2]))
    groups = rng.permutation(len(design.X))[:_LOOKS]
    some = Design(design.X[groups], design.decoder, design.solve)
    block = prober.ask_all(some, Y / np.linalg.norm(Y, axis=1, keepdims=True))
    t = block.logits(prober.reading.readout, block.answers)
    # What a bias adds is the same along all directions.
    if prober.reading.readout.biased and np.abs(t).max() < _LARGEST:
        t = (t - t.mean(axis=0)) * float(np.sqrt(_LOOKS / (_LOOKS - 1.0)))
    return t, 4.0 * float(prober.share_error(block).max())
