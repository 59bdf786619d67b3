r"""Hyperplanes from the bends of one line and slopes across it.

Write hyperplane j as $\tilde n_j (x - x_0) = t_j$ with $\tilde n_j u = 1$, where the line $x_0 + t
u$ meets it at t_j and its slope jumps by $\tilde D_j \in R^m$. Stations are places of the line, one
in each of some regions; between two stations that have the kinks B between them the Jacobian
changes by $\sum_{j \in B} \tilde D_j \tilde n_j^\top$. With m outputs a block of up to m kinks is
solved at once, so that Jacobians are needed only every 0.85 m kinks; with one output there is a
station in every region.

A step h v from a station at c crosses hyperplane j when $h\, \tilde n_j v = t_j - c$, so steps are
cut to a share of $|t_j - c|$ over the spread of $\tilde n_j v$ over the directions already
measured. Directions are an orthogonal basis across the line, asked in growing batches, so that this
spread is known better and better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from keyhole._arrays import Indices, Mask, Matrix, Stack, Vector
from keyhole.learners.networks.kinks import Bends, Unresolved
from keyhole.models import AbsAffine

_BATCHES = (3, 5, 10, 20, 40, 80, 160)
_SHARE = 0.85  # kinks in a block, as a share of the outputs
_REMOTE = 3e4  # how far along the line stations measure more than the outermost hyperplanes
_WEAK = 0.04  # a block whose unit jumps have a smaller singular value gets one more station
_SHORT = 0.05  # steps shorter than this share of what turned out to be possible are taken again
_SLACK = 12.0  # noises that a point may be off the plane of slopes
_SHORTER = 8.0  # steps, in each round of asking again
_AGAIN = 6  # rounds of asking again what turns out to have crossed a hyperplane


@dataclass(frozen=True, eq=False, slots=True)
class Stations:
    """Places of a line where Jacobians are taken.

    Args:
        region: how many kinks lie before each.
        at: places.
        values: answers there.
    """

    region: Indices
    at: Vector
    values: Matrix


@dataclass(frozen=True, eq=False, slots=True)
class Found:
    """Hyperplanes of one line, in the order of its kinks.

    Args:
        n: unit normals.
        t: offsets from the origin.
        D: jumps.
        P: linear part that fits the Jacobians together with these.
        q: constant part.
        bars: standard error of each normal.
        where: the points where the line meets the hyperplanes.
        anchor: the point where slopes are known best.
    """

    n: Matrix
    t: Vector
    D: Matrix
    P: Matrix
    q: Vector
    bars: Vector
    where: Matrix
    anchor: Vector

    def model(self) -> AbsAffine:
        """These hyperplanes as a model."""
        return AbsAffine(self.n, self.t, self.D, self.P, self.q)


def _centre_regions(bends: Bends) -> tuple[Vector, Vector]:
    """A central place of every region, and its distance in theta from the nearest kink."""
    t = bends.t
    if not len(t):
        return np.zeros(1), np.ones(1)
    spread = np.hypot(1.0, t)
    ends = t[:1] - 2 * spread[:1], t[-1:] + 2 * spread[-1:]
    if not bends.whole:
        ends = (t[:1] + bends.places[:1]) / 2, (t[-1:] + bends.places[-1:]) / 2
    at = np.concatenate([ends[0], (t[1:] + t[:-1]) / 2, ends[1]])
    near = np.abs(at[:, None] - t) / np.hypot(1.0, t) ** 2
    return at, near.min(axis=1)


def _choose_regions(bends: Bends) -> list[int]:
    """Which regions get a station: with one output all, else one for 0.85 m kinks, in wide gaps."""
    block = max(1, int(_SHARE * bends.values.shape[1]))
    at, gap = _centre_regions(bends)
    near = np.flatnonzero(np.abs(at) <= _REMOTE)
    # Beyond a remote hyperplane answers and their rounding are large, not to spoil a block.
    ends = {int(near[0]), int(near[-1])} if block > 1 and len(near) else set[int]()
    return _strengthen_blocks(bends.jumps, sorted({*_space_regions(gap, block), *ends}), gap)


def choose_block_ends(jumps: Matrix, gap: Vector, block: int) -> list[int]:
    """Wide regions, at most `block` kinks apart, with the jumps between two of them told apart.

    Args:
        jumps: one row per kink.
        gap: how wide each region is, one more than kinks.
        block: kinks between two regions, at most.
    """
    return _strengthen_blocks(jumps, _space_regions(gap, block), gap)


def _space_regions(gap: Vector, block: int) -> list[int]:
    """As few regions as possible, at most `block` apart, from the first to the last.

    Of all choices with the least number the one with the least sum of 1/gap^2, by dynamic
    programming.
    """
    k = len(gap) - 1
    price = 1.0 / (gap + 1e-100) ** 2
    cost = np.zeros(k + 1)
    before = np.zeros(k + 1, dtype=np.intp)
    for r in range(1, k + 1):
        first = max(0, r - block)
        fewest = -(-np.arange(first, r) // block)  # blocks up to there
        sums = np.where(fewest == fewest[0], cost[first:r], np.inf)
        before[r] = first + int(np.argmin(sums))
        cost[r] = sums.min() + price[r]
    chosen = [k]
    while chosen[-1] > 0:
        chosen.append(int(before[chosen[-1]]))
    return chosen[::-1]


def _strengthen_blocks(jumps: Matrix, chosen: list[int], gap: Vector) -> list[int]:
    """More regions inside every block whose jumps are nearly dependent, until none is.

    Units of one direction have parallel jumps: a block that holds two of them is parted between.
    """
    unit = jumps / np.linalg.norm(jumps, axis=1, keepdims=True)
    done: list[int] = []
    todo = list(pairwise(chosen))
    while todo:
        a, b = todo.pop()
        if b - a > 1 and np.linalg.eigvalsh(unit[a:b] @ unit[a:b].T)[0] < _WEAK**2:
            middle = _part_block(unit[a:b], gap[a : b + 1]) + a
            todo += [(a, middle), (middle, b)]
        else:
            done += [a, b]
    return sorted({*chosen, *done})


def _part_block(unit: Matrix, gap: Vector) -> int:
    """The widest region between the two jumps of a block that are most parallel."""
    alike = np.triu(np.abs(unit @ unit.T), 1)
    i, j = np.unravel_index(int(np.argmax(alike)), alike.shape)
    first, last = int(i) + 1, int(j)
    third = max(1, len(unit) // 3)
    # Where no two stand out, the middle of the block is as good a place.
    if alike[i, j] < 1 - _WEAK:
        first, last = third, len(unit) - third
    return first + int(np.argmax(gap[first : last + 1]))


def choose_stations(bends: Bends) -> Stations:
    """Where Jacobians are taken, with the answers there."""
    region = np.array(_choose_regions(bends))
    at = _centre_regions(bends)[0][region]
    # By pairs a whole line is known so well that answers are read off it, and cost no query.
    if bends.values.shape[1] > 2 or not bends.whole:
        return Stations(region, at, bends.line(at))
    places = zip(region.tolist(), at.tolist(), strict=True)
    return Stations(region, at, np.array([bends.value(r, t) for r, t in places]))


@dataclass(slots=True)
class Survey:
    """Slopes across a line at every station, direction by direction.

    Args:
        bends: the line.
        stations: where slopes are taken.
        V: directions, one per row, orthogonal to the line and as long.
        G: slopes by station and direction.
        steps: how far was gone for each.
        jumps: the line's jumps, or better ones.
        own: which of them were measured elsewhere, so that only their directions count here.
        longest: steps are never longer than this, by station.
        level: how many of the first stations are known to have no slope across the line, and are
            not asked.
        inverses: of the jumps between two stations.
    """

    bends: Bends
    stations: Stations
    V: Matrix
    G: Stack
    steps: Matrix
    jumps: Matrix
    own: Mask
    longest: Vector | float = np.inf
    level: int = 0
    inverses: list[Matrix] = field(init=False)

    def __post_init__(self) -> None:
        blocks = pairwise(self.stations.region.tolist())
        self.inverses = [_invert_jumps(self.jumps[a:b]) for a, b in blocks]

    def spread(self, done: int) -> Vector:
        """Root mean square of n_j v over the directions measured; a prior before the first."""
        if done == 0:
            return np.hypot(1.0, self.bends.t)
        seen = self.across(done)
        return np.sqrt((seen**2).mean(axis=1)) + 1e-300

    def across(self, done: int) -> Matrix:
        """Components n_j v of the scaled normals along the first directions, block by block."""
        return self._solve_blocks(self.G[:, :done])

    def along(self) -> Vector:
        """Components n_j u: 1, or what blocks say where a jump was measured elsewhere."""
        solved = self._solve_blocks(self.bends.slopes[self.stations.region][:, None])[:, 0]
        return np.where(self.own, solved, 1.0)

    def _solve_blocks(self, slopes: Stack) -> Matrix:
        """What each kink adds to slopes (station, direction, output), in units of its jump."""
        rows = [np.zeros((0, slopes.shape[1]))]
        for inverse, change in zip(self.inverses, np.diff(slopes, axis=0), strict=True):
            rows.append(inverse @ change.T)
        return np.concatenate(rows)

    def step(self, done: int) -> Vector:
        """How far each station may go along a direction not measured yet."""
        if not len(self.bends.t):
            return np.ones(1)
        room = np.abs(self.stations.at[:, None] - self.bends.t)
        # The fewer directions are known, the less is their spread to be trusted.
        caution = 2.2 + 10 / np.sqrt(done + 1)
        return np.minimum((room / (self.spread(done) * caution)).min(axis=1), self.longest)

    def ask(self, which: Mask, steps: Matrix) -> None:
        """Measure slopes of the chosen (station, direction) pairs."""
        which[: self.level] = False
        s, p = np.nonzero(which)
        if not len(s):
            return
        h = steps[s, p]
        x = self.bends.line.at(self.stations.at[s]) + h[:, None] * self.V[p]
        self.G[s, p] = (self.bends.line.ask(x) - self.stations.values[s]) / h[:, None]
        self.steps[s, p] = h

    def find_crossed_steps(self) -> Mask:
        """Steps that, by the hyperplanes found, come too close to one of them or cross it."""
        A = self.across(len(self.V))
        bad = np.zeros(self.steps.shape, dtype=np.bool_)
        for i, c in enumerate(self.stations.at):
            reach = self.steps[i] * A / (self.bends.t - c)[:, None]
            bad[i] = (reach > 0.9).any(axis=0) & (i >= self.level)
        return bad

    def run(self) -> None:
        """All directions, in growing batches, then again those that crossed a hyperplane."""
        count = len(self.V)
        done = 0
        for size in (*_BATCHES, *[320] * count):
            if done >= count:
                break
            which = np.zeros(self.steps.shape, dtype=np.bool_)
            which[:, done : done + size] = True
            self.ask(which, np.tile(self.step(done)[:, None], (1, count)))
            done = min(count, done + size)
        final = np.tile(self.step(count)[:, None], (1, count))
        # The first directions went by a guess.
        self.ask(self.steps < _SHORT * final, final)
        for _ in range(_AGAIN):
            bad = self.find_crossed_steps()
            if not bad.any():
                return
            self.ask(bad, self.steps / 3)

    def settle(self, *, rng: np.random.Generator) -> None:
        """Take slopes again, with shorter steps, where one more point does not lie on their plane.

        A step across a hyperplane that the line does not meet spoils the slope of its direction
        alone, and a step along all directions at once, as long, does not have that slope.
        """
        todo = np.arange(len(self.steps)) >= self.level
        for _ in range(_AGAIN if len(self.V) else 0):
            s = np.flatnonzero(todo)
            signs = rng.choice([-1.0, 1.0], size=(len(s), len(self.V))) / len(self.V) ** 0.5
            h = self.steps[s].min(axis=1)
            x = self.bends.line.at(self.stations.at[s]) + h[:, None] * (signs @ self.V)
            slopes = np.einsum("sp,spm->sm", signs, self.G[s])
            foreseen = self.stations.values[s] + h[:, None] * slopes
            gap = np.abs(self.bends.line.ask(x) - foreseen).max(axis=1)
            todo[s] = gap > _SLACK * self.bends.noise.at(self.stations.at[s])
            if not todo.any():
                return
            self.ask(np.tile(todo[:, None], (1, len(self.V))), self.steps / _SHORTER)


def _invert_jumps(jumps: Matrix) -> Matrix:
    """The pseudo-inverse of jumps^T, with every jump scaled to length one on the way."""
    size = np.linalg.norm(jumps, axis=1)
    U, S, Z = np.linalg.svd((jumps / size[:, None]).T, full_matrices=False)
    return (Z.T / np.maximum(S, 1e-14)) @ U.T / size[:, None]


def survey_line(
    bends: Bends,
    *,
    rng: np.random.Generator,
    longest: Callable[[Vector], Vector] | None = None,
    level: int = 0,
) -> Survey:
    """Measure Jacobians along a line.

    Args:
        bends: the line.
        rng: source of the directions across it.
        longest: how long steps may be, as a share of the line's own vector, at places of the line.
        level: how many of the first stations are known to have no slope across the line.
    """
    u = bends.line.along
    d = len(u)
    Q = np.linalg.qr(np.column_stack([u, rng.normal(size=(d, d - 1))]))[0]
    V: Matrix = Q[:, 1:].T * float(np.linalg.norm(u))
    where = choose_stations(bends)
    G = np.zeros((len(where.at), d - 1, bends.values.shape[1]))
    steps = np.ones((len(where.at), d - 1))
    own = np.zeros(len(bends.t), dtype=np.bool_)
    limit = np.inf if longest is None else longest(where.at)
    state = Survey(bends, where, V, G, steps, bends.jumps, own, limit, level)
    state.run()
    if longest is not None:
        state.settle(rng=rng)
    return state


def assemble_hyperplanes(state: Survey) -> Found:
    """The hyperplanes that the line of a survey meets."""
    bends, V = state.bends, state.V
    u = bends.line.along
    size = float(u @ u)
    A = state.across(len(V))
    N = (np.outer(state.along(), u) + A @ V) / size
    length = np.linalg.norm(N, axis=1)
    n = N / length[:, None]
    D = state.jumps * length[:, None]
    t = (bends.t * (N @ u) + N @ bends.line.start) / length
    P, q = _fit_affine_part(state, n, t, D)
    bars = _estimate_normal_bars(state) / (length * size**0.5)
    if not all(np.isfinite(array).all() for array in (n, t, D, P, q)):
        raise Unresolved
    best = int(np.argmin(_estimate_slope_errors(state).max(axis=1, initial=0.0)))
    anchor = bends.line.at(state.stations.at)[best]
    return Found(n, t, D, P, q, bars, bends.line.at(bends.t), anchor)


def _estimate_slope_errors(state: Survey) -> Matrix:
    """Standard error of each slope measured."""
    return state.bends.noise.at(state.stations.at)[:, None] * 1.5 / state.steps


def _estimate_normal_bars(state: Survey) -> Vector:
    """Standard error of each scaled normal across the line, as a length."""
    rough = _estimate_slope_errors(state)
    rows = [np.zeros(0)]
    for i, inverse in enumerate(state.inverses):
        gain = np.linalg.norm(inverse, axis=1)
        rows.append(gain * np.sqrt((rough[i] ** 2 + rough[i + 1] ** 2).sum()))
    return np.concatenate(rows)


def _fit_affine_part(state: Survey, n: Matrix, t: Vector, D: Matrix) -> tuple[Matrix, Vector]:
    """Linear and constant part: what Jacobians and values at stations leave, weighted by errors."""
    bends, V = state.bends, state.V
    u = bends.line.along
    at = state.stations.at
    side = np.sign(at[:, None] - bends.t)
    along = bends.slopes[state.stations.region]
    rows = np.concatenate([along[:, None], state.G], axis=1)  # station, direction, output
    bent = (np.vstack([u, V]) @ n.T) @ (side[..., None] * D) / 2
    on_line = bends.noise.at(at) / np.hypot(1.0, at)
    rough = np.column_stack([on_line, _estimate_slope_errors(state)]) + 1e-300
    weight = (rough.min() / rough) ** 2
    lines = ((rows - bent) * weight[..., None]).sum(axis=0) / weight.sum(axis=0)[:, None]
    P = lines.T @ np.vstack([u, V]) / float(u @ u)
    x = bends.line.at(at)
    rest = state.stations.values - np.abs(x @ n.T - t) @ D / 2 - x @ P.T
    near = 1.0 / (bends.noise.level + bends.noise.slope * np.abs(at) + 1e-300) ** 2
    return P, (rest * near[:, None]).sum(axis=0) / near.sum()
