r"""The width of every unit and the kind of all, many units to a query.

A place that is r_j from the hyperplanes of a block B of units and far from all others lacks, beside
saturated units, $\sum_{j \in B} D_j \lambda(s_j |r_j|)/s_j$. With m outputs and at most m/2 units
that is one least-squares solve for what each unit lacks; the share of its distance tells s_j, and a
second distance tells the kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from keyhole._arrays import Indices, Mask, Matrix, Vector, pin_one_thread
from keyhole.learners.networks.kinks import Ask
from keyhole.learners.smooth_network.unit_kinds import UNIT_KINDS

SCAN = 4.0 ** -np.arange(1.0, 9.0)  # distances of the first block, in units of the saturated one
ROUNDS = 8
_DRAWS = 256  # places to choose from
_LEAST, _MOST = 0.02, 0.46  # share of the distance that a unit lacks where its width is read
_SHOWN = 3  # distances of the first block from where its units begin to show
_TWICE = -2.0  # the second distance, beside the first
_SAMPLE = 20  # units of which the second distance is asked, with fewer than three outputs
_APART = 0.04  # least singular value of the unit jumps, and of the normals, of a block
_WEAK = 0.02  # jumps below this share of the median tell widths poorly
_ASTRAY = 2.5  # how far, in logs, such a width may be from the median


@runtime_checkable
class SaturatedUnits(Protocol):
    """A network where its units are saturated."""

    @property
    def n(self) -> Matrix:
        """Unit normals, one row per unit."""
        ...

    @property
    def t(self) -> Vector:
        """Offsets."""
        ...

    @property
    def D(self) -> Matrix:
        """What a unit adds to the answers for each unit of distance, one row per unit."""
        ...

    @property
    def reach(self) -> float:
        """How far from its hyperplane every unit is saturated."""
        ...

    def points(self, x: Matrix) -> Matrix:
        """Answers if every unit were saturated."""
        ...

    def jumps(self, x: Vector, block: Indices) -> Matrix:
        """What units of a block add at a point, for each unit of distance."""
        ...

    def avoided(self, block: Indices) -> Matrix:
        """Rows that a direction must not be near the kernel of, where a block is read."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class Readings:
    """Answers near hyperplanes, and what they say of single units.

    Args:
        r: the distance at which each unit was read.
        share: what each lacks there beside the distance.
        again: the same at the second distance, NaN where it was not asked.
        x: every point asked.
        y: the answers.
    """

    r: Vector
    share: Vector
    again: Vector
    x: Matrix
    y: Matrix

    @property
    def read(self) -> Mask:
        """Which units showed a width."""
        return find_readable(self.share)

    def widths(self, kind: str) -> tuple[Vector, float]:
        """The s of every unit if of that kind, and how badly the second distances fit it."""
        shape = UNIT_KINDS[kind]
        s = shape.invert_share(np.clip(np.abs(self.share), 1e-12, 0.5 - 1e-9)) / self.r
        told = self.read & np.isfinite(self.again)
        foreseen = shape.share(s[told] * abs(_TWICE) * self.r[told])
        gap = np.abs(foreseen - self.again[told]) if told.any() else np.full(1, np.inf)
        # The sign of what lacks is part of the kind.
        wrong = np.sign(shape.share(np.ones(1)))[0] * np.sign(self.share[told]) < 0
        return s, float(np.median(np.where(wrong, 1.0, gap))) if told.any() else np.inf


def find_unanimous(share: Vector) -> Mask:
    """Units that lack something of the sign that most have: units of one kind all do."""
    return np.sign(np.median(share)) * share >= 0


def find_readable(share: Vector) -> Mask:
    """Units that lack enough of the distance, and not nearly half of it, to tell their width."""
    size = np.abs(share)
    return (size >= _LEAST) & (size <= _MOST) & find_unanimous(share)


def mend_widths(s: Vector, readings: Readings, D: Matrix) -> Vector:
    """Widths to start from: the median for units not read, and for weak ones read far from it."""
    if not readings.read.any():
        return s
    size = np.linalg.norm(D, axis=1)
    middle = float(np.median(s[readings.read]))
    astray = (size < _WEAK * np.median(size)) & (np.abs(np.log(s / middle)) > _ASTRAY)
    return np.where(readings.read & ~astray, s, middle)


@dataclass(slots=True)
class _Reading:
    """Units being read."""

    ask: Ask
    found: SaturatedUnits
    rng: np.random.Generator
    x: list[Matrix] = field(default_factory=list[Matrix])
    y: list[Matrix] = field(default_factory=list[Matrix])

    def place(self, block: Indices, r: Vector) -> tuple[Vector, Vector]:
        """A point r from the hyperplanes of a block and saturated for all others, and r as a step.

        It stays saturated for them as far as the second distance.
        """
        n, t = self.found.n, self.found.t
        N = n[block]
        inverse: Matrix = np.asarray(np.linalg.pinv(N), dtype=np.float64)
        step = inverse @ r
        base = inverse @ t[block] + step
        others = np.delete(np.arange(len(n)), block)
        avoided = self.found.avoided(block)
        # On a line there is nothing across.
        if not len(avoided) or n.shape[1] == len(block):
            return base, step
        away, margin = self.choose_direction(N, inverse, avoided)
        apart = np.abs(n[others] @ base - t[others]).max(initial=0.0)
        apart += (1 - _TWICE) * float(np.linalg.norm(step))
        return base + (self.found.reach + apart) / margin * away, step

    def choose_direction(self, N: Matrix, inverse: Matrix, avoided: Matrix) -> tuple[Vector, float]:
        """A direction along the hyperplanes of N, far from others, and how far."""
        draws = self.rng.normal(size=(_DRAWS, N.shape[1]))
        draws -= draws @ N.T @ inverse.T
        draws /= np.linalg.norm(draws, axis=1, keepdims=True)
        margins = np.abs(draws @ avoided.T).min(axis=1)
        best = int(np.argmax(margins))
        return draws[best], float(margins[best])

    def shares(self, blocks: list[Indices], x: Matrix, r: list[Vector]) -> list[Vector]:
        """What the units of every block lack at one point each."""
        y = self.ask(x)
        self.x.append(x)
        self.y.append(y)
        lacking = self.found.points(x) - y
        return [
            np.linalg.pinv(self.found.jumps(point, block).T) @ lack / np.abs(apart)
            for point, block, lack, apart in zip(x, blocks, lacking, r, strict=True)
        ]

    def scan(self, block: Indices) -> float:
        """The distance at which most units of a block show their width."""
        r = self.found.reach * SCAN
        placed = [self.place(block, np.full(len(block), a))[0] for a in r]
        found = self.shares([block] * len(r), np.array(placed), [np.full(len(block), a) for a in r])
        size = np.abs(np.array(found))
        inside = ((size >= _LEAST) & (size <= _MOST)).sum(axis=1)
        near = np.abs(np.median(size, axis=1) - 0.2)
        # Much nearer than where units begin to show is rounding.
        first = int(np.argmax(inside >= min(int(inside.max()), (len(block) + 1) // 2)))
        shown = np.lexsort((near, -inside))
        return float(r[shown[(shown >= first) & (shown < first + _SHOWN)][0]])


def _count_block(width: int, outputs: int) -> int:
    """How many units are read at once."""
    return max(1, min(width, outputs) // 2) if outputs > 2 else 1


def count_blocks(width: int, hidden: int, outputs: int) -> int:
    """Places at which the widths of so many units are read."""
    return -(-hidden // _count_block(width, outputs))


def count_readings(width: int, hidden: int, outputs: int) -> int:
    """Points that are asked for the widths of so many units."""
    blocks = count_blocks(width, hidden, outputs)
    return len(SCAN) + blocks + (blocks if outputs > 2 else min(blocks, _SAMPLE))


def split_into_blocks(found: SaturatedUnits, which: Indices) -> Iterator[Indices]:
    """Blocks of at most min(d, m)/2 units whose jumps and normals are told apart well."""
    most = _count_block(found.n.shape[1], found.D.shape[1])
    unit = found.D / np.maximum(np.linalg.norm(found.D, axis=1, keepdims=True), 1e-300)
    todo = [which[i : i + most] for i in range(0, len(which), most)]
    while todo:
        block = todo.pop()
        weakest = min(np.linalg.svd(part[block], compute_uv=False)[-1] for part in (unit, found.n))
        if len(block) > 1 and weakest < _APART:
            todo += [block[::2], block[1::2]]
        else:
            yield block


def read_units(ask: Ask, found: SaturatedUnits, *, rng: np.random.Generator) -> Readings:
    """What every unit lacks near its hyperplane, and some at twice the distance."""
    with pin_one_thread():
        return _read_units(_Reading(ask, found, rng))


def _read_units(state: _Reading) -> Readings:
    k, outputs = state.found.D.shape
    share = np.zeros(k)
    again = np.full(k, np.nan)
    # Strong units first: they set the scale.
    todo = np.argsort(-np.linalg.norm(state.found.D, axis=1))
    r = np.full(k, state.scan(next(split_into_blocks(state.found, todo[: max(1, k // 2)]))))
    for turn in range(ROUNDS):
        blocks = list(split_into_blocks(state.found, todo))
        apart = [r[block] for block in blocks]
        placed = [state.place(block, a) for block, a in zip(blocks, apart, strict=True)]
        x = np.array([point for point, _ in placed])
        for block, got in zip(blocks, state.shares(blocks, x, apart), strict=True):
            share[block] = got
        _read_again(state, blocks, placed, again, r, every=outputs > 2 or turn > 0)
        outside = ~find_readable(share)[todo]
        todo = todo[outside]
        if not len(todo) or turn == ROUNDS - 1:
            break
        # So near that rounding decides, or that nearly half is lacking; or too far.
        nearer = (np.abs(share[todo]) < _LEAST) & find_unanimous(share)[todo]
        r[todo] *= np.where(nearer, 0.25, 4.0)
    return Readings(r, share, again, np.concatenate(state.x), np.concatenate(state.y))


def _read_again(
    state: _Reading,
    blocks: list[Indices],
    placed: list[tuple[Vector, Vector]],
    again: Vector,
    r: Vector,
    *,
    every: bool,
) -> None:
    """The second distance, of all blocks or of the first few."""
    chosen = blocks if every else blocks[:_SAMPLE]
    x = np.array([point + (_TWICE - 1) * step for point, step in placed[: len(chosen)]])
    found = state.shares(chosen, x, [_TWICE * r[block] for block in chosen])
    for block, got in zip(chosen, found, strict=True):
        again[block] = got
