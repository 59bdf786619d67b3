r"""The mixing map M of residual attention, $f(X) = G(x_N + M \sum_i \alpha_i (x_i - x_N))$.

At a spot every vector b of a random orthonormal basis gives the score and the m numbers $J M b$
from two answers, whatever M is. Spots whose slopes J together have full rank, $\lceil d/m \rceil$
of them and one more for the sake of errors, give M by least squares; and each gives its column $Wz
+ h$ on the way. Where $J M b$ happens to be small its score is read badly: then, M being known, one
more question along $b + r$, r the direction seen best, and a subtraction give it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix, Vector, pin_one_thread
from keyhole.learners.one_head.designs import build_lone_design
from keyhole.learners.one_head.probes import Indices
from keyhole.learners.one_layer.regions import Spot, measure_room
from keyhole.learners.one_layer.scores import REASK_ABOVE, Reader
from keyhole.models import AbsAffine

_SAFE = 6.0  # standard deviations of b's component along a normal that steps leave room for
_POOR = 0.05  # share of the typical |J M b| below which a score is read again
_ROUNDS = 3  # of shortening steps
_TRIES = 64  # choices of spots looked at, without asking


@dataclass(frozen=True, eq=False, slots=True)
class Paired:
    """What one spot told along the rows of a basis.

    Args:
        spot: where.
        step: how far the tokens asked were from z.
        forms: b . (W z + h).
        seen: J M b.
    """

    spot: Spot
    step: float
    forms: Vector
    seen: Matrix

    def inside(self, moved: Matrix) -> bool:
        """Whether the network's input stayed inside the region, moved by shares of whole steps."""
        share = 1.0 / (1.0 + np.exp(-np.nan_to_num(np.abs(self.forms * self.step), nan=np.inf)))
        return bool((self.step * share < self.spot.within(moved)).all())

    def poor(self) -> Indices:
        """Which forms were read badly."""
        size: Vector = np.sqrt((self.seen**2).sum(axis=1))
        return np.flatnonzero(~np.isfinite(self.forms) | (size < _POOR * np.sqrt(np.mean(size**2))))


def find_seen_directions(G: AbsAffine) -> Matrix:
    """An orthonormal basis, in columns, of the directions the network does not ignore."""
    with pin_one_thread():
        rows = np.concatenate([G.n * np.sqrt((G.D**2).sum(axis=1, keepdims=True)), G.P])
        _, S, Z = np.linalg.svd(rows, full_matrices=False)
        return Z[1e-9 * S[0] < S].T


def choose_spanning_spots(
    spots: list[Spot], seen: Matrix, *, rng: np.random.Generator
) -> list[int]:
    """As many spots as M needs and one more, those whose slopes are best conditioned together."""
    count = min(len(spots), -(-seen.shape[1] // len(spots[0].J)) + 1)
    with pin_one_thread():
        draws = [rng.choice(len(spots), size=count, replace=False) for _ in range(_TRIES)]
        choices = [sorted(draw.tolist()) for draw in draws]

        def spread(chosen: list[int]) -> float:
            return measure_slope_spread([spots[i] for i in chosen], seen)

        return max(choices, key=spread)


def measure_slope_spread(spots: list[Spot], seen: Matrix) -> float:
    """Least singular value of all slopes, normalised: 0 where they do not determine M."""
    rows = [w * s.J @ seen for w, s in zip(_weigh_spots(spots), spots, strict=True)]
    S = np.linalg.svd(np.concatenate(rows), compute_uv=False)
    return float(S[-1])


def _weigh_spots(spots: list[Spot]) -> Vector:
    """What makes slopes of one size."""
    # Those of a region where the network is all but flat stay small: they are mostly error.
    size = np.array([float(np.linalg.norm(s.J)) for s in spots])
    return 1.0 / np.maximum(size, max(1e-3 * float(size.max()), 1e-300))


def read_pairs(
    reader: Reader, spot: Spot, base: Vector, B: Matrix, mixing: float, *, scores: bool
) -> Paired:
    """J M b along every row b of the basis, in steps short enough for scores if these are asked."""
    length = float(np.linalg.norm(spot.z))
    reach = float(measure_room(reader.G, spot.z / length, np.array([length]))[0]) / (_SAFE * mixing)
    most = float(reader.sizes.step(np.array([length]))[0]) if scores else np.inf
    step = min(reach, most)
    t, seen = reader.pair(spot, base, B, np.full(len(B), step))
    return Paired(spot, step, np.where(np.abs(t) <= REASK_ABOVE, t / step, np.nan), seen)


def solve_mixing(pairs: list[Paired], B: Matrix) -> Matrix:
    """M from J M b at several spots; of least norm where the network ignores directions."""
    with pin_one_thread():
        weights = _weigh_spots([p.spot for p in pairs])
        J = np.concatenate([w * p.spot.J for w, p in zip(weights, pairs, strict=True)])
        Y = np.concatenate([w * p.seen.T for w, p in zip(weights, pairs, strict=True)])
        return np.linalg.lstsq(J, Y, rcond=1e-9)[0] @ B


def measure_mixing(
    reader: Reader,
    spots: list[Spot],
    bases: Matrix,
    mixing: float,
    *,
    scores: bool = True,
    rng: np.random.Generator,
) -> Matrix:
    """Measure M for the reader, and return the columns W z + h at the spots as rows.

    They are zero without scores.
    M itself tells whether the steps stayed inside the regions; where they did not, shorter ones are
    asked.
    """
    d = reader.G.width
    B = np.linalg.qr(rng.normal(size=(d, d)))[0]
    pairs: list[Paired] = []
    for _ in range(_ROUNDS):
        pairs = [
            read_pairs(reader, s, base, B, mixing, scores=scores)
            for s, base in zip(spots, bases, strict=True)
        ]
        reader.M = solve_mixing(pairs, B)
        if all(pair.inside(reader.move_input(B)) for pair in pairs):
            break
        mixing *= 4.0
    if not scores:
        return np.zeros((len(spots), d))
    asked = zip(pairs, bases, strict=True)
    return np.array([_solve_paired_column(reader, pair, base, B) for pair, base in asked])


def _solve_paired_column(reader: Reader, pair: Paired, base: Vector, B: Matrix) -> Vector:
    """W z + h from its forms along the basis, those read badly replaced by forms along b + r."""
    at = pair.poor()
    rows = B.copy()
    forms = pair.forms.copy()
    if len(at):
        V = reader.readout(pair.spot)
        with pin_one_thread():
            r = np.linalg.svd(V, full_matrices=False)[0][:, 0]
        rows[at] = (B[at] + r) / np.sqrt(2.0)
        forms[at] = [reader.forms(pair.spot, base, build_lone_design(V, x))[0] for x in rows[at]]
    with pin_one_thread():
        return np.asarray(np.linalg.solve(rows, forms), dtype=np.float64)
