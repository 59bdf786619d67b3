r"""Offset and width of every smooth unit, near its own hyperplane and far from all others.

With $\phi(z) = z\,\sigma(z)$ and $z = s(r - t)$ a unit is $D\,(r - t)\,\sigma(s(r - t))$ along its
normal: two straight lines that meet at t, and between them less than those by $D\,|r -
t|\,\sigma(-s|r - t|)$, which falls with s. Far from the origin, near its hyperplane, all other
units are straight lines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keyhole._arrays import Array, Matrix, Stack, Vector, pin_one_thread
from keyhole.learners.networks.kinks import Ask
from keyhole.models import AbsAffine

Which = NDArray[np.intp]
PER_UNIT = 6
ROUNDS = 12
_FAR = 2e3  # where a unit is looked at, in units of its width
_LINES = np.array([-128.0, -64.0, 64.0, 128.0])  # where it is a straight line, in the same units
_INSIDE = np.array([0.75, -1.5])  # where it is not
_DRAWS = 32  # places to choose from
_BENT = 1e-3  # share of its jump that a unit may lack where it should be two lines
_LEAST, _MOST = 0.02, 0.4  # share of the distance that a unit lacks where its width is read


@dataclass(frozen=True, eq=False, slots=True)
class UnitShapes:
    """What single units show.

    Args:
        t: offsets.
        apart: distances from the hyperplane asked, two per unit.
        lacks: what the answers lack there beside straight lines, as a share of the distance.
    """

    t: Vector
    apart: Matrix
    lacks: Matrix

    @property
    def resolved(self) -> bool:
        """Whether every unit showed a width; ReLU units have none."""
        share = self.lacks[:, 0]
        return bool(((share >= _LEAST) & (share <= _MOST)).all())

    def widths(self, activation: str) -> tuple[Vector, float]:
        """The s of every unit if of that kind, and how badly the second distances fit it."""
        share = np.clip(self.lacks, 1e-12, 0.5 - 1e-12)
        s = _invert_lacking_share(activation, share[:, 0]) / self.apart[:, 0]
        gap = _find_lacking_share(activation, s * self.apart[:, 1]) - self.lacks[:, 1]
        return s, float(np.median(np.abs(gap))) if len(gap) else 0.0


def _find_lacking_share(activation: str, u: Array) -> Array:
    """1 - sigma(u), the share that a unit lacks u widths away from its hyperplane."""
    from scipy.special import expit, ndtr

    return np.asarray(ndtr(-u) if activation == "gelu" else expit(-u))


def _invert_lacking_share(activation: str, share: Array) -> Array:
    """Where a unit lacks that share."""
    from scipy.special import logit, ndtri

    return -np.asarray(ndtri(share) if activation == "gelu" else logit(share))


def look_at_units(ask: Ask, units: AbsAffine, *, rng: np.random.Generator) -> UnitShapes:
    """Six points near every hyperplane, and six more while they do not suit the unit's width."""
    k = units.hidden
    unit = np.ones(k)
    t = np.zeros(k)
    apart = np.ones((k, 2))
    lacks = np.zeros((k, 2))
    todo = np.arange(k)
    for _ in range(ROUNDS):
        if not len(todo):
            break
        with pin_one_thread():
            places = np.array([_choose_unit_place(units, int(j), rng) for j in todo])
            places = places * _FAR * unit[todo, None]
        found = _Near(ask, units, todo, places, unit[todo]).read(t[todo])
        # Where the jump is not whole, the points meant for straight lines were still on the bend.
        outside = np.abs(found.jump - 1.0) > _BENT
        share = found.lacks[:, 0]
        t[todo] = np.where(outside, t[todo], found.t)
        apart[todo] = np.abs(_INSIDE) * unit[todo, None]
        lacks[todo] = found.lacks
        wide = outside | (share > _MOST)
        narrow = ~outside & (share < _LEAST)
        unit[todo] *= np.where(wide, 4.0, np.where(narrow, 0.25, 1.0))
        todo = todo[wide | narrow]
    return UnitShapes(t, apart, lacks)


def _choose_unit_place(units: AbsAffine, j: int, rng: np.random.Generator) -> Vector:
    """A point of size sqrt(d) on hyperplane j, far from the others."""
    draws = rng.normal(size=(_DRAWS, units.width))
    draws -= np.outer(draws @ units.n[j], units.n[j])
    others = np.abs(draws @ np.delete(units.n, j, axis=0).T)
    return draws[int(np.argmax(others.min(axis=1, initial=np.inf)))]


@dataclass(frozen=True, eq=False, slots=True)
class _UnitReading:
    """Where the two lines of each unit meet, how much steeper the second is, what lacks between."""

    t: Vector
    jump: Vector
    lacks: Matrix


@dataclass(frozen=True, eq=False, slots=True)
class _Near:
    """Some units, each near a place on its hyperplane."""

    ask: Ask
    units: AbsAffine
    which: Which
    places: Matrix
    unit: Vector

    def along(self, r: Matrix) -> Stack:
        """Answers r along the normal from each place, by unit and point."""
        x = self.places[:, None] + r[..., None] * self.units.n[self.which][:, None]
        return self.ask(x.reshape(-1, self.units.width)).reshape(*r.shape, -1)

    def shares(self, answers: Stack, base: Stack) -> Matrix:
        """Answers less those at the base, in units of the jump."""
        D = self.units.D[self.which]
        size = np.maximum((D * D).sum(axis=1), 1e-300)
        return np.einsum("jrm,jm->jr", answers - base, D) / size[:, None]

    def read(self, centre: Vector) -> _UnitReading:
        """Four points on the two lines, then two between them, on both sides of where they meet."""
        r = _LINES * self.unit[:, None]
        answers = self.along(centre[:, None] + r)
        y = self.shares(answers, answers[:, :1])
        a = (y[:, 1] - y[:, 0]) / (r[:, 1] - r[:, 0])
        b = (y[:, 3] - y[:, 2]) / (r[:, 3] - r[:, 2])
        left = y[:, 0] - a * r[:, 0]
        right = y[:, 2] - b * r[:, 2]
        apart = np.where(np.abs(b - a - 1.0) < _BENT, left - right, 0.0)
        meet = apart / np.where(np.abs(b - a) > _BENT, b - a, 1.0)
        inside = meet[:, None] + _INSIDE * self.unit[:, None]
        got = self.shares(self.along(centre[:, None] + inside), answers[:, :1])
        ahead = right[:, None] + b[:, None] * inside
        behind = left[:, None] + a[:, None] * inside
        lacking = np.where(_INSIDE > 0, ahead, behind) - got
        lacks = lacking / (np.abs(_INSIDE) * self.unit[:, None])
        return _UnitReading(centre + meet, b - a, lacks)
