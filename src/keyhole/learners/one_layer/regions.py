r"""Where to ask about attention behind a known network: deep inside one of its linear regions.

Around z the network is $G(y) = G(z) + J(y - z)$ until a hyperplane is crossed. Regions are convex,
so a softmax mean of tokens that lie in one region lies in it too: there the target is a single head
with read-out $J^\top$, whose shares can be read. The hyperplanes are known, so places are chosen
without asking.

A share read along a step of length s has the error $\epsilon |G(z)| / (s|J|)$, the form $x^\top(Wz
+ h)$ that over s, and an entry of W that over |z|. So a place is worth $s^2 |z| |J| / |G(z)|$,
where s is bounded by the region and by $s\,|Wz + h| \le$ TARGET.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Stack, Vector
from keyhole.learners.networks.lines import measure_typical_distance
from keyhole.learners.one_head.probes import TARGET
from keyhole.models.relu import AbsAffine

_INSIDE = 0.9  # share of the way to the nearest hyperplane that is gone
_OCTAVES = np.arange(-220, 221) / 2.0  # lengths tried, as powers of two of the network's own
_LOOKED_AT = 6  # lengths, of those that seem best, whose slopes are worked out
_FLAT = 1e-9  # slopes below this share of what they could be are none
_FREE = 2.0**10  # a step where no hyperplane is in the way, in units of 1 and the token


@dataclass(frozen=True, slots=True)
class Sizes:
    """Typical forms of unit vectors: |x . W y| is about `W` |y|, |x . h| about `h`."""

    W: float
    h: float

    def step(self, length: Array) -> Array:
        """The step at which forms at last tokens of that length are logits of the size aimed at."""
        return TARGET / np.maximum(np.hypot(self.W * length, self.h), 1e-300)


@dataclass(frozen=True, eq=False, slots=True)
class Spot:
    """A last token inside a linear region.

    Args:
        z: the token.
        J: slopes of the network there, one row per output.
        n: normals of the hyperplanes, each as far away as a unit step along it gets: n_j / (n_j z -
            t_j).
    """

    z: Vector
    J: Matrix
    n: Matrix

    def within(self, moved: Matrix) -> Vector:
        """For each displacement how far it goes, both ways, to the edge of the region."""
        nearest: Vector = np.abs(moved @ self.n.T).max(axis=1, initial=0.0)
        return 1.0 / np.maximum(nearest, 1e-300)

    def steps(self, moved: Stack) -> Vector:
        """For each group of displacements the longest step inside, negative for backwards."""
        ratio = (moved @ self.n.T).reshape(len(moved), -1)
        back: Vector = ratio.max(axis=1, initial=0.0)
        ahead: Vector = -ratio.min(axis=1, initial=0.0)
        least = _INSIDE / (_FREE * (1.0 + np.linalg.norm(self.z)))
        forwards = _INSIDE / np.maximum(ahead, least)
        backwards = -_INSIDE / np.maximum(back, least)
        return np.where(ahead <= back, forwards, backwards)


def locate_spot(G: AbsAffine, z: Vector) -> Spot:
    """The spot at z."""
    slack = G.n @ z - G.t
    return Spot(z, G.jacobian(z), G.n / np.where(slack == 0.0, 1e-300, slack)[:, None])


def find_best_spot(
    G: AbsAffine, u: Vector, sizes: Sizes, *, backwards: bool = True
) -> tuple[Spot, float]:
    """The most valuable spot along the ray of the unit vector u, or its line, and its worth."""
    unit = measure_typical_distance(G)
    ahead = unit * 2.0**_OCTAVES
    lengths = np.concatenate([ahead, -ahead]) if backwards else ahead
    size = np.abs(lengths)
    step = np.minimum(measure_room(G, u, lengths), sizes.step(size))
    gain = step**2 * (size if sizes.W > 0.0 else 1.0)
    order = np.argsort(-gain / (size + unit))
    best = (locate_spot(G, lengths[order[0]] * u), 0.0)
    for first in range(0, len(order), _LOOKED_AT):
        some = order[first : first + _LOOKED_AT]
        judged = [_judge_spot(G, lengths[i] * u, float(gain[i])) for i in some]
        best = max([best, *judged], key=lambda pair: pair[1])
        if best[1] > 0.0:
            break
    return best


def _judge_spot(G: AbsAffine, z: Vector, gain: float) -> tuple[Spot, float]:
    """The spot at z with its worth."""
    here = locate_spot(G, z)
    terms = float(G.terms(z[None])[0]) or 1.0
    slope = float(np.abs(here.J).max())
    # Slopes that should be zero are rounding of those of the hyperplanes that cancel.
    if not slope > _FLAT * float(np.abs(G.D).sum() + np.abs(G.P).sum()):
        return here, 0.0
    return here, gain * slope / terms


def measure_room(G: AbsAffine, u: Vector, lengths: Array) -> Array:
    """About how far a random direction goes from points of a line before a hyperplane is met."""
    room = _FREE * (1.0 + np.abs(lengths))
    if G.hidden:
        room = np.abs(np.multiply.outer(lengths, G.n @ u) - G.t).min(axis=1)
    return np.sqrt(len(u)) * room
