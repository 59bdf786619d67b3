r"""Every kink of half a circle from clusters of samples, where outputs do not tell kinks apart.

With one output or two the runs of gate_kinks have no equation to spare. So pieces are found one by
one: three samples that lie close together give one, and a fourth is the test that no kink lies
among them. What two neighbouring pieces differ by is a multiple of $\sin(\theta - \theta_j)
\sin(\theta - \eta_j)$ if one kink lies between, with one root there; samples next to that root then
have the values of the pieces on their sides. Otherwise another piece lies between, and is looked
for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from keyhole._arrays import EPS, Matrix, Vector
from keyhole.learners.gated_network.gate_kinks import (
    Circle,
    Kinks,
    expand_near,
    find_root_pair,
    finish_kinks,
    measure_noise,
)
from keyhole.learners.networks.kinks import Crowded, Unresolved

_FIRST = 4  # gaps as many as a cluster at an end is made for
_CLUSTER = np.array([0.0, 0.3, 0.6, 1.0])  # samples of one
_TESTED = 2  # of these
_WIDTH = 1 / 24  # of a cluster, beside the gap that it lies in
_ASIDE, _TURN = 0.5, 0.382  # a cluster that met a kink is put elsewhere in the gap
_SLACK = 64.0  # roundings beyond which a deviation is real
_NEXT = 10.0 ** -np.arange(5, 0, -1)  # from the root, beside its distance from the pieces
_NARROWEST = 1e-9  # gap
_CLEAR = 1e3  # the same for what shows on which side of a kink a sample lies
_ROUNDS = 80
_PER_KINK = 24  # samples, at most


@dataclass(frozen=True, eq=False, slots=True)
class _Arc:
    """A piece by three samples."""

    t: Vector
    F: Matrix

    def extend(self, at: Vector) -> tuple[Matrix, Vector]:
        """Its values at places, and by how much these enlarge rounding."""
        middle, h = float(self.t[1]), float(self.t[-1] - self.t[0])
        weights = expand_near(at - middle, h) @ np.linalg.inv(expand_near(self.t - middle, h))
        return weights @ self.F, 1 + np.abs(weights).sum(axis=1)

    def joined(self, other: _Arc) -> _Arc:
        """The same piece by samples that lie farther apart."""
        both = _order(np.concatenate([self.t, other.t]), np.concatenate([self.F, other.F]))
        kept = [0, len(both.t) // 2, len(both.t) - 1]
        return _Arc(both.t[kept], both.F[kept])


def _order(t: Vector, F: Matrix) -> _Arc:
    order = np.argsort(t)
    return _Arc(t[order], F[order])


@dataclass(frozen=True, eq=False, slots=True)
class _Gap:
    """What lies between two pieces: nothing, one kink as it seems, or more."""

    same: bool
    pair: tuple[float, float] | None = None
    aside: float = 0.0


@dataclass(slots=True)
class _Search:
    """The pieces found so far, every sample, and the gaps that are settled."""

    circle: Circle
    noise: float
    most: int
    t: list[Vector] = field(default_factory=list[Vector])
    F: list[Matrix] = field(default_factory=list[Matrix])
    pieces: list[_Arc] = field(default_factory=list[_Arc])
    settled: dict[tuple[float, float], tuple[float, float]] = field(
        default_factory=dict[tuple[float, float], tuple[float, float]]
    )

    def run(self) -> list[tuple[float, float]]:
        """Look for pieces until every gap holds one kink."""
        self.look_at_ends()
        for turn in range(_ROUNDS):
            gaps = self.weigh_gaps()
            open_gaps = [key for key in gaps if key not in self.settled]
            if not open_gaps:
                return list(self.settled.values())
            if sum(map(len, self.t)) > _PER_KINK * self.most + 64:
                raise Crowded
            self.try_roots({key: gaps[key] for key in open_gaps})
            self.look_between(turn)
        raise Unresolved

    def sample(self, t: Vector) -> Matrix:
        """Answers at places, kept."""
        F = self.circle(t)
        self.t.append(t)
        self.F.append(F)
        return F

    def look(self, starts: Vector, widths: Vector) -> list[bool]:
        """Clusters at some places, and which of them lie in one piece."""
        if not len(starts):
            return []
        t = starts[:, None] + widths[:, None] * _CLUSTER
        F = self.sample(t.ravel()).reshape(*t.shape, -1)
        kept = [i for i in range(len(_CLUSTER)) if i != _TESTED]
        found: list[bool] = []
        for places, values in zip(t, F, strict=True):
            piece = _order(places[kept], values[kept])
            foreseen, bar = piece.extend(places[[_TESTED]])
            found.append(self.is_rounding(foreseen[0] - values[_TESTED], float(bar[0])))
            if found[-1]:
                self.pieces.append(piece)
        self.pieces.sort(key=lambda piece: float(piece.t[0]))
        return found

    def is_rounding(self, left: Vector, bar: float) -> bool:
        """Whether a deviation is none."""
        return bool(np.abs(left).max() <= _SLACK * bar * self.noise)

    def weigh_gaps(self) -> dict[tuple[float, float], _Gap]:
        """All gaps between neighbouring pieces; those that are one piece are joined."""
        gaps: dict[tuple[float, float], _Gap] = {}
        joined = [self.pieces[0]]
        for piece in self.pieces[1:]:
            before = joined[-1]
            gap = self.weigh_gap(before, piece)
            if gap.same:
                joined[-1] = before.joined(piece)
            else:
                gaps[float(before.t[-1]), float(piece.t[0])] = gap
                joined.append(piece)
        self.pieces = joined
        return gaps

    def weigh_gap(self, before: _Arc, after: _Arc) -> _Gap:
        """What two pieces differ by, and its root where there is one between them."""
        low, high = float(before.t[-1]), float(after.t[0])
        h = high - low
        at = np.array([low, (low + high) / 2, high])
        ahead, bar = before.extend(at)
        back, other = after.extend(at)
        apart = back - ahead
        bars = bar + other
        if all(self.is_rounding(left, b) for left, b in zip(apart, bars.tolist(), strict=True)):
            return _Gap(same=True)
        # Of one kink all outputs are multiples of one function.
        along: Vector = np.asarray(np.linalg.svd(apart)[2][0])
        beside = apart - np.outer(apart @ along, along)
        if np.abs(beside).max() > _SLACK * self.noise * bars.max():
            return _Gap(same=False)
        along_gap = np.linalg.solve(expand_near(at - at[1], h), apart @ along)
        k: Vector = np.asarray(along_gap, dtype=np.float64)
        pair = find_root_pair(k, h, low - at[1], high - at[1])
        if pair is None:
            return _Gap(same=False)
        root, beyond = pair[0] + float(at[1]), pair[1] + float(at[1])
        room = min(root - low, high - root) / 2
        for aside in room * _NEXT:
            beside = np.array([root - aside, root + aside])
            ahead, bar = before.extend(beside)
            back, other = after.extend(beside)
            if (np.abs(back - ahead).max(axis=1) > _CLEAR * self.noise * (bar + other)).all():
                return _Gap(False, (root, beyond), float(aside))
        return _Gap(same=False)

    def try_roots(self, gaps: dict[tuple[float, float], _Gap]) -> None:
        """Two samples next to the root of every gap that has one."""
        tried = {key: gap for key, gap in gaps.items() if gap.pair is not None}
        if not tried:
            return
        roots = np.array([gap.pair[0] for gap in tried.values() if gap.pair is not None])
        aside = np.array([gap.aside for gap in tried.values()])
        before, after = roots - aside, roots + aside
        F = np.split(self.sample(np.concatenate([before, after])), 2)
        index = {float(piece.t[-1]): i for i, piece in enumerate(self.pieces)}
        for i, (key, gap) in enumerate(tried.items()):
            at = index[key[0]]
            first = self.extend_piece(at, before[i], F[0][i])
            last = self.extend_piece(at + 1, after[i], F[1][i])
            if first and last and gap.pair is not None:
                edges = float(self.pieces[at].t[-1]), float(self.pieces[at + 1].t[0])
                self.settled[edges] = gap.pair

    def extend_piece(self, index: int, t: float, F: Vector) -> bool:
        """Whether a sample belongs to a piece, which it then extends."""
        piece = self.pieces[index]
        foreseen, bar = piece.extend(np.array([t]))
        if not self.is_rounding(F - foreseen[0], float(bar[0])):
            return False
        self.pieces[index] = piece.joined(_Arc(np.array([t]), F[None]))
        return True

    def look_between(self, turn: int) -> None:
        """A cluster in each gap that is not settled, at another place in every turn."""
        keys = [(float(a.t[-1]), float(b.t[0])) for a, b in pairwise(self.pieces)]
        low, high = np.array([key for key in keys if key not in self.settled]).reshape(-1, 2).T
        if (high - low < _NARROWEST).any():
            raise Unresolved
        widths = _WIDTH * (high - low)
        middle = low + (high - low) * (0.1 + 0.8 * ((_ASIDE + turn * _TURN) % 1.0))
        self.look(middle - widths / 2, widths)

    def look_at_ends(self) -> None:
        """Clusters at both ends of the half circle, narrower ones where they meet a kink."""
        width = np.pi * _WIDTH / _FIRST
        for sign in (-1.0, 1.0):
            narrower = width
            while not self.look(np.array([sign * np.pi / 2]), np.array([-sign * narrower]))[0]:
                narrower *= _WIDTH
                if narrower < _NARROWEST:
                    raise Unresolved


def resolve_singly(circle: Circle, *, most: int, roundoff: float = EPS) -> Kinks:
    """Every kink of half a circle, one after another.

    Args:
        circle: what to ask.
        most: kinks allowed for.
        roundoff: relative rounding of answers, at least.

    Raises:
        Unresolved: the function is not piecewise quadratic, or bends too often.
    """
    t = np.array([-1.0, 0.0, 1.0])
    F = circle(t)
    noise = measure_noise(circle, F, roundoff)
    search = _Search(circle, noise, most, [t], [F])
    pairs = np.array(sorted(search.run())).reshape(-1, 2)
    if len(pairs) > most:
        raise Crowded
    order = np.argsort(np.concatenate(search.t))
    places, values = np.concatenate(search.t)[order], np.concatenate(search.F)[order]
    kinks = finish_kinks(circle, noise, pairs, places, values)
    if kinks is None:
        raise Unresolved
    return kinks
