r"""Heads whose boundaries coincide, nearly or wholly: one step on every circle, and yet two heads.

Where $W_2 = W_1 + \delta E$ the two steps are an angle of order $\delta$ apart. At a softness far
below $\delta$ there is a plateau between them, which bisection meets; its height tells the two
read-outs apart, for each of d vectors x. With the read-outs known and both W equal to begin with,
what is left is linear in $\delta$, and Gauss-Newton solves it.

Where $W_2 = \lambda W_1$, or $W_1 = p r^\top$ and $W_2 = q r^\top$, the steps coincide for every x.
Along a line across the boundary answers follow $\sum_j (D_j \cdot x)\, s(\mu_j \ell)$, $\ell$ the
logit of the merged head, and a fit of two sigmoids gives both slopes and both steps at each of d
vectors x: $W_j^\top x = \mu_j(x)\, W^\top x$.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Array, Matrix, Stack, Vector
from keyhole.learners.several_heads.circle import Brackets, PairCircle, bisect_brackets
from keyhole.learners.several_heads.isolation import Isolation
from keyhole.learners.several_heads.pairs import Unresolved, isolate_own_part, normalise_rows
from keyhole.learners.several_heads.rows import (
    apply_readouts,
    choose_steepness,
    draw_clear_directions,
    solve_readouts,
)

_MOVE = 0.01  # of x
_WINDOW = 2.0**-5  # angles to both sides of a boundary
_GOALS = (2.0**-20, 2.0**-36)  # widths of brackets, one after the other
_MOST = 4  # heads that share a boundary
# Logits of the merged head at which a profile is read: both signs, 1/4 to 11.
_LOGITS = np.outer([-1.0, 1.0], 2.0 ** np.arange(-2.0, 3.6, 0.5)).ravel()
_SINGLE = 1e-7  # misfit of a profile to one sigmoid
_TWO = 1e-6  # misfit of a profile to two
_UNLIKE = 0.05  # least difference of slopes, and least step, over the larger
_OFF = 0.5  # of a boundary from where it was foretold, as a logit
# Where a fit of two slopes may start: all pairs within a factor of 16 of the merged one.
_SLOPES = 2.0 ** np.arange(-4.0, 4.1, 0.5)
_STARTS = [np.array([a, b, 0.0]) for i, a in enumerate(_SLOPES) for b in _SLOPES[i + 1 :]]


@dataclass(frozen=True, eq=False, slots=True)
class Family:
    """Heads that were found as one.

    Args:
        W: their weights.
        D: their read-outs.
        near: whether their W are still to be told apart.
    """

    W: Stack
    D: Stack
    near: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Look:
    """What one x shows of a merged head: a boundary point, steps across it, one step's profile."""

    z: Vector
    steps: Matrix
    profile: Profile | None

    @property
    def parallel(self) -> bool:
        """Whether it is one step with a profile that one head does not have."""
        return self.profile is not None and self.profile.misfit > _SINGLE

    @property
    def clear(self) -> bool:
        """Whether it is one head, or several that this x tells apart well."""
        if self.profile is None or not self.parallel:
            return True
        one, two, off = self.profile.numbers
        sizes = np.abs(self.profile.steps).max(axis=1)
        # Slopes of one size, or a step of none, are one sigmoid told in two ways.
        unlike = min(one, two) > 0 and abs(one - two) > _UNLIKE * max(one, two)
        both_act = sizes.min() > _UNLIKE * sizes.max()
        return bool(unlike and both_act and abs(off) < _OFF and self.profile.rest <= _TWO)


def look_at_heads(near: Isolation, rng: np.random.Generator) -> list[Look]:
    """A look at every head, at the x whose rows are known.

    Raises:
        Unresolved: a step is neither that of one head, nor of several that this x tells apart.
    """
    looks: list[Look] = []
    for h, row in enumerate(near.rows.w):
        Y, margin = draw_clear_directions(near.rows.w, h, row, rng)
        spot = _locate_boundary(near, near.rows.w, h, near.rows.x, Y[int(np.argmax(margin))])
        steps = _find_boundary_steps(spot)
        profile = _read_boundary_profile(near, spot) if len(steps) == 1 else None
        looks.append(Look(spot.z, steps, profile))
        if not looks[-1].clear:
            raise Unresolved
    return looks


def split_merged_heads(near: Isolation, W: Stack, looks: list[Look]) -> list[Family]:
    """Every merged head as the heads it is made of.

    Raises:
        Unresolved: at some x near by a boundary is not as it was at the first.
    """
    return [_split_merged_head(near, W, h, look) for h, look in enumerate(looks)]


def _split_merged_head(near: Isolation, W: Stack, h: int, look: Look) -> Family:
    if look.profile is not None and not look.parallel:
        return Family(W[h : h + 1], near.D[h : h + 1])
    X = near.rows.x + _MOVE * near.q
    X[0] = near.rows.x
    spots = [_locate_boundary(near, x @ W, h, x, look.z) for x in X[1:]]
    if look.profile is None:
        return _separate_nearly_equal(near, W[h], [look.steps, *map(_find_boundary_steps, spots)])
    # Two sigmoids have no order: the first fit is where the others start, so that all agree on one.
    start = look.profile.numbers
    profiles = [look.profile, *(_read_boundary_profile(near, spot, start) for spot in spots)]
    rows = np.stack([near.rows.w[h], *(spot.row for spot in spots)])
    return _separate_parallel(near, rows, X, profiles)


@dataclass(frozen=True, eq=False, slots=True)
class Spot:
    """The boundary of one merged head at one x: a point, the row, how far other boundaries are."""

    h: int
    circle: PairCircle
    row: Vector
    rows: Matrix
    reach: float

    @property
    def z(self) -> Vector:
        """The point."""
        return self.circle.Y[0]


def _locate_boundary(near: Isolation, rows: Matrix, h: int, x: Vector, z: Vector) -> Spot:
    """The boundary of head h at x, near z."""
    own = normalise_rows(rows[h])
    z = normalise_rows(z - (z @ own) * own)
    others = np.delete(rows, h, axis=0)
    reach = float((np.abs(others @ z) / np.linalg.norm(others, axis=1)).min(initial=1.0))
    circle = PairCircle(near.pairs, x, np.stack([z, own]), near.rows.hard, 0.0, _MOST)
    return Spot(h, circle, rows[h], rows, reach)


def _find_boundary_steps(spot: Spot) -> Matrix:
    """The steps across a boundary, in order, however close they are.

    Raises:
        Unresolved: there is none where the boundary was thought to be.
    """
    window = min(_WINDOW, spot.reach / 4)
    ends = spot.circle.values(np.array([-window, window]), spot.circle.hard)
    size = float(np.abs(ends).max())
    around = np.array([-window]), np.array([window])
    found = Brackets(*around, ends[:1], ends[1:], np.full(1, _GOALS[0]))
    for goal in _GOALS:
        wanted = replace(found, goal=np.full(len(found.lo), goal))
        found = bisect_brackets(spot.circle, wanted, size)
    if not len(found.lo):
        raise Unresolved
    # Brackets that touch hold one step between them, cut by chance.
    apart = np.flatnonzero(found.lo[1:] > found.hi[:-1]) + 1
    return np.add.reduceat(found.jumps, np.append(0, apart), axis=0)


def _separate_nearly_equal(near: Isolation, W: Matrix, steps: list[Matrix]) -> Family:
    """Read-outs from the steps at d vectors x; W is that of the merged head for all."""
    if len({len(step) for step in steps}) > 1:
        raise Unresolved
    D = solve_readouts(near.q, np.stack(steps), _MOVE)
    return Family(np.broadcast_to(W, (len(D), *W.shape)), D, near=True)


@dataclass(frozen=True, eq=False, slots=True)
class Profile:
    """Two sigmoids across a boundary.

    Args:
        numbers: both slopes over that of the merged head, and how far off the boundary is, as a
            logit of the merged head.
        steps: both steps.
        misfit: of one sigmoid.
        rest: misfit of two.
    """

    numbers: Vector
    steps: Matrix
    misfit: float
    rest: float


def _read_boundary_profile(near: Isolation, spot: Spot, start: Vector | None = None) -> Profile:
    """Answers along the line z + l w, decoded."""
    norm = float(np.linalg.norm(spot.row))
    margin = np.array([np.abs(np.delete(spot.rows @ spot.z, spot.h)).min(initial=np.inf)])
    tau = float(choose_steepness(near.pairs, margin, norm / np.sqrt(len(spot.z)))[0])
    count = len(_LOGITS)
    Y: Matrix = spot.z + (_LOGITS / (tau * norm))[:, None] * spot.circle.Y[1]
    X = np.broadcast_to(spot.circle.x, Y.shape)
    G = near.pairs.ask(X, Y, tau)
    h = np.full(count, spot.h)
    b = apply_readouts(X, near.D)
    J = b[0, spot.h]
    values = isolate_own_part(G, X @ near.pairs.B, b, Y @ spot.rows.T > 0, h) - J / 2
    size = float(np.abs(J).max())
    one = np.outer(np.tanh(_LOGITS / 2), J / 2)
    numbers, steps, rest = _fit_two_sigmoids(values, start)
    return Profile(numbers, steps, float(np.abs(values - one).max()) / size, rest / size)


def _fit_two_sigmoids(values: Matrix, start: Vector | None) -> tuple[Vector, Matrix, float]:
    """Slopes and offset, steps and misfit of two sigmoids through a profile; steps are linear."""
    from scipy.optimize import least_squares

    def solved(numbers: Vector) -> tuple[Matrix, Vector]:
        shapes = np.tanh(np.outer(_LOGITS + numbers[2], numbers[:2]) / 2) / 2
        steps: Matrix = np.linalg.lstsq(shapes, values, rcond=1e-14)[0].astype(np.float64)
        return steps, (shapes @ steps - values).ravel()

    if start is None:
        start = min(_STARTS, key=lambda numbers: float(np.abs(solved(numbers)[1]).sum()))
    fit = least_squares(
        lambda numbers: solved(numbers)[1], start, xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=60
    )
    numbers = np.asarray(fit.x, dtype=np.float64)
    steps, rest = solved(numbers)
    return numbers, steps, float(np.abs(rest).max())


def _separate_parallel(near: Isolation, rows: Matrix, X: Matrix, profiles: list[Profile]) -> Family:
    """Two heads whose rows are parallel at every x.

    Raises:
        Unresolved: some profile is not that of two heads.
    """
    if max(profile.rest for profile in profiles) > _TWO:
        raise Unresolved
    slopes = np.stack([profile.numbers[:2] for profile in profiles])
    own: Array = slopes.T[:, :, None] * rows
    W: Stack = np.linalg.solve(X, own).astype(np.float64)
    steps = np.stack([profile.steps for profile in profiles])
    return Family(W, solve_readouts(near.q, steps, _MOVE))
