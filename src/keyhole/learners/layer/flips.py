r"""Where single heads of a layer write, from queries so long that every softmax is hard.

On $[L(y + x); L y]$ with L huge, head h looks at its first token alone when $a_h = x^\top W_h y >
0$, at its second alone when $a_h < 0$; a score bias, which grows like L where these grow like
$L^2$, does not matter. So
$$G = (F - c - V^\top L y)/L = \sum_{h : a_h > 0} V_h^\top x, \qquad V = \sum_h V_h,$$
is piecewise constant in y. On a half circle $y(\theta) = y_0 \cos\theta + y_1 \sin\theta$ every
$a_h$ has exactly one zero, where G jumps by $\pm V_h^\top x$, and $G(0) + G(\pi) = V^\top x$. On
one plateau x may move a little without a head changing its mind. Differences between neighbouring
plateaus at moved x are $\pm V_h^\top(x + \delta\xi)$: they span the space that head h writes into.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import EPS, Mask, Matrix, Stack, Vector, pin_one_thread
from keyhole.errors import BadAnswer
from keyhole.learners.one_head.readout import Readout
from keyhole.oracles import Counted

_LENGTHS = (2.0**40, 2.0**20, 2.0**10)  # the first the target bears
_GRID = 16  # intervals of the half circle to begin with
_HALVINGS = 11  # of an interval with a jump in it
_SAFE = 1.0 / 30.0  # of the half width of the narrowest plateau: how far x may move
_JUMP = 1e4  # roundings of the answers below which two values count as one plateau
_RANK = 8.0  # roundings below which a singular value counts as zero
_BOLD = 0.1  # the same where answers are coarse: moves across a boundary are noticed and dropped
_STRAY = 8.0  # typical changes above which a head has changed its mind
_CIRCLES = 4  # half circles to choose from where answers are coarse
_SHORTER = 0.7  # of the length, at which the same jumps round differently


class Unseparated(Exception):
    """The heads could not be told apart; the message says how that showed."""


class Dependent(Unseparated):
    """More read-out ranks than outputs."""


class Still(Unseparated):
    """A part of the answers does not move with the last token."""


@dataclass(frozen=True, eq=False, slots=True)
class Long:
    """Pairs of tokens so long that every softmax is hard."""

    oracle: Counted
    readout: Readout
    length: float

    def ask(self, x: Matrix, y: Matrix) -> Matrix:
        """G for every row: the sum of V_h^T x over the heads that look at the first token."""
        last = self.length * y
        X = np.stack([last + self.length * x, last], axis=1)
        return (self.oracle.ask(X) - self.readout.base(last)) / self.length

    def rounding(self, roundoff: float) -> float:
        """Norm of the rounding of G for unit tokens."""
        constant = float(np.linalg.norm(self.readout.c)) / self.length
        return roundoff * (2.0 * float(np.linalg.norm(self.readout.V)) + constant)


@dataclass(frozen=True, eq=False, slots=True)
class HalfCircle:
    """A half circle of last tokens, and the token they are paired with."""

    x: Vector
    y: Matrix

    @classmethod
    def random(cls, width: int, rng: np.random.Generator) -> HalfCircle:
        """A random one: x of length 1 and two orthonormal y."""
        with pin_one_thread():
            turn = np.linalg.qr(rng.normal(size=(width, min(2, width))))[0].T
        # Where there is but one direction, the half circle shrinks to a segment through 0.
        if width == 1:
            turn = np.vstack([turn, 0 * turn])
        x = rng.normal(size=width)
        return cls(x / np.linalg.norm(x), turn)

    def at(self, angles: Vector) -> Matrix:
        """Last tokens at the given angles."""
        return np.cos(angles)[:, None] * self.y[0] + np.sin(angles)[:, None] * self.y[1]


@dataclass(frozen=True, eq=False, slots=True)
class Plateaus:
    """The middle of every plateau but the last, which is the first seen from the other side."""

    circle: HalfCircle
    middles: Vector
    half: float  # half width of the narrowest


def find_hard_pairs(oracle: Counted, readout: Readout, *, rng: np.random.Generator) -> Long:
    """Pairs at the largest length the target bears."""
    circle = HalfCircle.random(oracle.width, rng)
    for length in _LENGTHS:
        pairs = Long(oracle, readout, length)
        try:
            pairs.ask(circle.x[None], circle.y[:1])
        except BadAnswer:
            continue
        return pairs
    raise Unseparated(
        "The target takes no tokens so long that each head puts all its weight on one."
    )


def scan_plateaus(pairs: Long, circle: HalfCircle, *, roundoff: float) -> Plateaus:
    """Find the plateaus of G by bisecting every interval over which it changes.

    Raises:
        Dependent: there are more jumps than outputs.
        Still: nothing jumps, or the two ends do not add up.
        Unseparated: two jumps are closer than a bisection tells apart.
    """
    zero = _JUMP * pairs.rounding(roundoff)
    angles, values = _bisect_jumps(pairs, circle, zero, _HALVINGS)
    whole = pairs.readout.V.T @ circle.x
    if not np.linalg.norm(values[0] + values[-1] - whole) <= zero:
        raise Still(
            "A head looks the same way whatever the last token is: it has W = 0, and a score bias."
        )
    return _cut_plateaus(circle, angles, np.linalg.norm(np.diff(values, axis=0), axis=1) > zero)


def _bisect_jumps(
    pairs: Long, circle: HalfCircle, zero: float, halvings: int
) -> tuple[Vector, Matrix]:
    """Angles and values of G, closer together around its jumps."""
    angles = np.linspace(0.0, np.pi, _GRID + 1)
    values = pairs.ask(np.tile(circle.x, (len(angles), 1)), circle.at(angles))
    for _ in range(halvings):
        jumps = np.flatnonzero(np.linalg.norm(np.diff(values, axis=0), axis=1) > zero)
        if len(jumps) > values.shape[1]:
            raise Dependent(f"{len(jumps)} heads or more share {values.shape[1]} outputs.")
        between = (angles[jumps] + angles[jumps + 1]) / 2
        if not len(between):
            break
        found = pairs.ask(np.tile(circle.x, (len(between), 1)), circle.at(between))
        angles = np.insert(angles, jumps + 1, between)
        values = np.insert(values, jumps + 1, found, axis=0)
    return angles, values


def find_jumps(pairs: Long, circle: HalfCircle, *, roundoff: float, halvings: int) -> Matrix:
    """Jumps of G along a half circle after few halvings, as rows; two heads may share one."""
    zero = _JUMP * pairs.rounding(roundoff)
    changes = np.diff(_bisect_jumps(pairs, circle, zero, halvings)[1], axis=0)
    return changes[np.linalg.norm(changes, axis=1) > zero]


def _cut_plateaus(circle: HalfCircle, angles: Vector, jumps: Mask) -> Plateaus:
    cuts = np.flatnonzero(jumps)
    if len(cuts) == 0:
        raise Still("No head moves with the last token: every one has W = 0.")
    starts = angles[np.append(-1, cuts) + 1]
    ends = angles[np.append(cuts, len(angles) - 1)]
    # The last plateau continues the first.
    starts[0] = starts[-1] - np.pi
    starts, ends = starts[:-1], ends[:-1]
    if not (ends > starts).all():
        raise Unseparated("Two heads flip within one step of the finest bisection.")
    return Plateaus(circle, (starts + ends) / 2, float((ends - starts).min()) / 2)


def find_widest_plateaus(pairs: Long, *, roundoff: float, rng: np.random.Generator) -> Plateaus:
    """Plateaus on a half circle, the narrowest of them as wide as can be.

    x may move by a share of that width, and rounding is divided by the move: where answers are
    coarse several half circles are looked at.

    Raises:
        Unseparated: no half circle has plateaus; the reason of the last.
    """
    found: list[Plateaus] = []
    for left in reversed(range(1 if roundoff <= EPS else _CIRCLES)):
        circle = HalfCircle.random(pairs.oracle.width, rng)
        try:
            found.append(scan_plateaus(pairs, circle, roundoff=roundoff))
        except Unseparated:
            if not left and not found:
                raise
    # Fewer plateaus are wider, but two heads that flip together on one are not told apart.
    return max(found, key=lambda plateaus: (len(plateaus.middles), plateaus.half))


def find_column_spaces(
    pairs: Long, plateaus: Plateaus, *, roundoff: float, rng: np.random.Generator
) -> tuple[Matrix, ...]:
    """An orthonormal basis, as columns, of what each head writes.

    It takes as many moves of x as the rank asks for. Coarse answers are asked twice as many: the
    least singular value of a few random columns more than the rank is much smaller than that of
    the space they span.

    Raises:
        Dependent: the ranks add up to more than the outputs.
    """
    coarse = roundoff > EPS
    moved = _Moved(pairs, plateaus, min(0.3, (_BOLD if coarse else _SAFE) * plateaus.half))
    rounding = moved.noise() if coarse else _RANK * pairs.rounding(roundoff) / moved.step
    outputs = len(moved.still[0])
    while True:
        bases = tuple(_span_columns(columns, rounding) for columns in moved.columns(steady=coarse))
        ranks = [basis.shape[1] for basis in bases]
        if sum(ranks) > outputs:
            raise Dependent(
                f"The read-outs of {len(ranks)} heads have ranks that add up to more than"
                f" {outputs}."
            )
        # Ends at the latest when there are more columns than outputs.
        needed = 2 * max(ranks) + 1 if coarse else max(ranks)
        if needed < moved.count:
            return bases
        moved.more(max(2, moved.count // 8), rng)


def _measure_jumps(pairs: Long, x: Matrix, y: Matrix) -> Stack:
    """Differences of neighbouring plateaus, heads by moves by outputs, up to sign."""
    many = len(y)
    G = pairs.ask(np.repeat(x, many, axis=0), np.tile(y, (len(x), 1))).reshape(len(x), many, -1)
    last = x @ pairs.readout.V - G[:, 0]
    return np.diff(np.concatenate([G, last[:, None]], axis=1), axis=1).swapaxes(0, 1)


class _Moved:
    """Jumps at moved x, and their change per unit of move: columns V_h^T x and V_h^T xi."""

    def __init__(self, pairs: Long, plateaus: Plateaus, step: float) -> None:
        self.pairs = pairs
        self.x = plateaus.circle.x
        self.step = step
        self.y = plateaus.circle.at(plateaus.middles)
        self.still = _measure_jumps(pairs, self.x[None], self.y)[:, 0]
        self.changes = np.zeros((len(self.still), 0, self.still.shape[1]))

    @property
    def count(self) -> int:
        """Columns known per head."""
        return 1 + self.changes.shape[1]

    def more(self, count: int, rng: np.random.Generator) -> None:
        """Move x along so many more random directions."""
        xi = rng.normal(size=(count, len(self.x)))
        xi /= np.linalg.norm(xi, axis=1, keepdims=True)
        jumps = _measure_jumps(self.pairs, self.x + self.step * xi, self.y)
        changes = (jumps - self.still[:, None]) / self.step
        self.changes = np.concatenate([self.changes, changes], axis=1)

    def noise(self) -> float:
        """Norm of the rounding that all changes share: the same jumps at another length tell it."""
        pairs = replace(self.pairs, length=_SHORTER * self.pairs.length)
        again = _measure_jumps(pairs, self.x[None], self.y)[:, 0]
        return float(np.linalg.norm(again - self.still, axis=1).max()) / self.step

    def columns(self, *, steady: bool = False) -> Stack:
        """All columns, heads by outputs by moves; `steady` drops moves that turned a head away."""
        changes = self.changes
        if steady and changes.size:
            sizes = np.linalg.norm(changes, axis=2)
            usual = np.median(sizes, axis=1, keepdims=True)
            changes = changes[:, (sizes <= _STRAY * usual).all(axis=0)]
        return np.concatenate([self.still[:, None], changes], axis=1).swapaxes(1, 2)


def _span_columns(columns: Matrix, rounding: float) -> Matrix:
    with pin_one_thread():
        U, S, _ = np.linalg.svd(columns, full_matrices=False)
    return U[:, : max(1, int((rounding * np.sqrt(columns.shape[1]) < S).sum()))]
