r"""Every bend along one line from about two samples per kink, with three outputs or more.

Cells between neighbouring samples have chord slopes $c_i \in R^m$. If u cells with one kink each
follow a linear cell of slope $s_0$ and are followed by a linear cell, then $s_i = (1 - \mu_i)
s_{i-1} + \mu_i c_i$, where $1/\mu_i \le 1$ is the share of the cell after its kink. So the slope of
the linear cell at the end is an affine combination

$$s_u = \Bigl(1 - \sum_i a_i\Bigr) s_0 + \sum_i a_i c_i, \qquad
  \mu_u = a_u, \quad \mu_{u-1} = a_{u-1}/(1 - \mu_u), \dots$$

which is m equations for u numbers: one least-squares solve, and m - u equations left over as a test
that these cells hold exactly one kink each. The kink of a cell (a, b) lies at b - (b - a)/mu. Cells
that no chain explains are halved.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import EPS, Array, Matrix, Vector, rms
from keyhole.learners.networks.bends import SUSPICIOUS, is_smooth
from keyhole.learners.networks.kinks import (
    Bends,
    Crowded,
    Line,
    Noise,
    Smooth,
    Unresolved,
    find_middle,
)

_SLACK = 12.0  # deviations beyond this many noises are real
_LEVELS = 80
_CLOSER = 3  # rounds of samples in regions whose slope is poorly known
_DOUBT = 1e5  # how poorly: error beside the typical jump, in units of the rounding
_CHAIN = 6  # cells with one kink each in a row, at most
_PARALLEL = 1e-3  # distance of unit jumps, up to a sign, that are parallel
_EDGE = 1e-5  # how far from the start of its cell a kink lies at least, where that is in doubt


@dataclass(slots=True)
class _Cells:
    """Samples in order, chords between them, and what is known of each cell."""

    line: Line
    noise: Noise
    most: int
    t: Vector
    F: Matrix
    chords: Matrix = field(init=False)
    rough: Vector = field(init=False)
    tried: dict[tuple[bytes, bool], Array | None] = field(
        default_factory=dict[tuple[bytes, bool], Array | None]
    )
    suspicious: int = field(default=3 * SUSPICIOUS, init=False)

    def measure(self) -> None:
        """Chord slopes and their rounding."""
        width = np.diff(self.t)
        self.chords = np.diff(self.F, axis=0) / width[:, None]
        self.hear()
        bar = self.noise.at(self.t)
        self.rough = (bar[1:] + bar[:-1]) / width

    def hear(self) -> None:
        """Raise the noise to the steepest chord: terms that cancel far out are rounded there."""
        louder = self.noise.hear(float(np.abs(self.chords).max()))
        if louder is not self.noise:
            self.noise = louder
            self.tried.clear()

    def halve(self, cells: list[int]) -> None:
        """One more sample in each of these cells."""
        at = np.array(cells)
        t = find_middle(self.t[at], self.t[at + 1])
        if not (np.minimum(t - self.t[at], self.t[at + 1] - t) > 8 * EPS * (1 + np.abs(t))).all():
            raise Unresolved
        F = self.line(t)
        self.t = np.insert(self.t, at + 1, t)
        self.F = np.insert(self.F, at + 1, F, axis=0)

    def chain(self, start: int, longest: int, *, sure: bool) -> Array | None:
        """The mu of the shortest chain after a cell, at most `longest` cells; None if none.

        The linear cell at the end of a chain of u is the next column of the same matrix of steps,
        so one QR factorisation holds all of them: column u of R has the combination above its
        diagonal, and the rest on it.
        """
        steps = (self.chords[start + 1 : start + longest + 2] - self.chords[start]).T
        rough = self.rough[start:]
        if np.abs(steps[:, 0]).max() <= _SLACK * (rough[0] + rough[1]):
            return np.zeros(0)
        size = np.linalg.norm(steps, axis=0) + 1e-300
        R = np.linalg.qr(steps / size)[1]
        for u in range(1, steps.shape[1]):
            if size[u - 1] <= _SLACK * rough[u] or abs(R[u - 1, u - 1]) < 1e-9:
                return None
            a = _solve_upper(R[:u, :u], R[:u, u : u + 1])[:, 0] * size[u] / size[:u]
            bar = rough[u + 1] + np.abs(a) @ rough[1 : u + 1] + abs(1 - a.sum()) * rough[0]
            if abs(R[u, u]) * size[u] <= _SLACK * bar * len(steps) ** 0.5 and bar * 1e3 <= size[u]:
                # Two linear cells after a crooked one fit a chain of one kink at the edge; so may
                # an empty cell that hides a crowded one. Only from a cell known to be linear may a
                # kink lie at the edge of the next.
                mu = _peel_kink_shares(a, -1e-9 if sure and u == 1 else _EDGE)
                if mu is not None:
                    return mu
        return None

    def explain(self) -> tuple[dict[int, float], list[int]]:
        """The mu of every cell with one kink, and the cells that no chain explains."""
        self.measure()
        last = len(self.chords) - 1
        kinks: dict[int, float] = {}
        unknown: list[int] = []
        at, linear = 0, True
        while at < last:
            found = self._onward(at, last, sure=linear)
            if found is None:
                # The end of a chain is linear whatever follows: what is crooked comes after it.
                if not linear:
                    unknown.append(at)
                at, linear = at + 1, False
            else:
                kinks |= {at + 1 + i: float(mu) for i, mu in enumerate(found)}
                at, linear = at + 1 + len(found), True
        stuck = not linear and not unknown
        return kinks, [last - 1] if stuck else unknown

    def _onward(self, at: int, last: int, *, sure: bool) -> Array | None:
        """The shortest chain from a cell; from a crooked one m - u equations would have to hold."""
        # What was found holds until one of these cells is halved.
        key = self.t[at : at + _CHAIN + 3].tobytes(), sure
        if key not in self.tried:
            longest = min(self.F.shape[1] - 2, _CHAIN, last - at - 1)
            self.tried[key] = self.chain(at, longest, sure=sure)
        return self.tried[key]

    def run(self) -> dict[int, float]:
        """Halve until every cell is explained."""
        kinks = dict[int, float]()
        for _ in range(_LEVELS):
            kinks, unknown = self.explain()
            if not unknown:
                return kinks
            if len(self.t) > 4 * self.most + 64:
                break
            self.refuse_smooth(unknown)
            self.halve(unknown)
        raise Crowded if len(kinks) > self.most else Unresolved

    def refuse_smooth(self, unknown: list[int]) -> None:
        """Look, each time that cells have doubled, whether the function bends everywhere."""
        if len(self.t) <= self.suspicious:
            return
        self.suspicious *= 2
        at = np.array(unknown)
        if is_smooth(self.line, self.noise.at, self.t[at], self.t[at + 1]):
            raise Smooth


def _peel_kink_shares(a: Array, edge: float) -> Array | None:
    """The mu of a chain from its affine combination; None unless each kink is inside its cell."""
    mu = np.empty(len(a))
    rest = 1.0
    for i in reversed(range(len(a))):
        mu[i] = a[i] / rest if rest else np.nan
        rest *= 1.0 - mu[i]
    return np.maximum(mu, 1.0) if (mu >= 1 + edge).all() else None


def resolve_line_by_runs(
    line: Line, noise: Noise, places: Vector, values: Matrix, *, most: int
) -> Bends:
    """Resolve a line whose answers have three numbers or more, from the rungs of the ladder."""
    cells = _Cells(line, noise, most, places, values)
    mu = cells.run()
    at = np.array(sorted(mu), dtype=np.intp)
    t = cells.t[at + 1] - np.diff(cells.t)[at] / np.array([mu[i] for i in at])
    noise = cells.noise
    bends = refine_bends(line, noise, t, cells.t, cells.F)
    for _ in range(_CLOSER):
        more = _find_doubtful_places(bends)
        if not len(more):
            break
        places = np.concatenate([bends.places, more])
        order = np.argsort(places)
        values = np.concatenate([bends.values, line(more)])
        bends = refine_bends(line, noise, bends.t, places[order], values[order])
    return bends


def try_runs(
    line: Line, noise: Noise, places: Vector, values: Matrix, *, most: int
) -> Bends | None:
    """The same, None where runs of bends are no evidence: pairs of samples tell more then.

    Of two parallel jumps in one run the second makes up for a wrong place of the first, so that a
    crooked cell passes for the straight end of a run.
    """
    try:
        bends = resolve_line_by_runs(line, noise, places, values, most=most)
    except (Crowded, Smooth):
        raise
    except (Unresolved, np.linalg.LinAlgError):
        return None
    evidence = np.isfinite(bends.jumps).all() and not _has_parallel_neighbours(bends.jumps)
    return bends if evidence else None


def _has_parallel_neighbours(jumps: Matrix) -> bool:
    """Whether two jumps that one run may hold are parallel."""
    unit = jumps / np.linalg.norm(jumps, axis=1, keepdims=True)
    for apart in range(1, min(_CHAIN + 2, len(unit))):
        across = (
            unit[apart:]
            - unit[:-apart] * np.sign((unit[apart:] * unit[:-apart]).sum(axis=1))[:, None]
        )
        if np.linalg.norm(across, axis=1).min() < _PARALLEL:
            return True
    return False


def _find_doubtful_places(bends: Bends) -> Vector:
    """One more place, away from its samples, in each region whose slope is poorly known."""
    t = bends.t
    if len(t) < 2:
        return np.zeros(0)
    a, b = t[:-1], t[1:]
    spread = np.hypot(1.0, (a + b) / 2)
    jumps = np.linalg.norm(bends.jumps, axis=1) * np.hypot(1.0, t)
    error = bends.bars[1:-1] * spread / rms(jumps)
    worst = np.argsort(-error)[: max(1, len(t) // 8)]
    chosen = np.sort(worst[error[worst] > _DOUBT * bends.noise.share])
    places = [_find_emptiest_place(bends.places, float(a[i]), float(b[i])) for i in chosen]
    return np.array(places)


def _find_emptiest_place(places: Vector, a: float, b: float) -> float:
    """The place of (a, b), not too near its ends, that is farthest from every sample."""
    ahead = np.linspace(a, b, 42)[2:-2]
    inside = places[(places > a) & (places < b)]
    far = np.abs(ahead[:, None] - inside).min(axis=1, initial=b - a)
    return float(ahead[int(np.argmax(far))])


@dataclass(frozen=True, eq=False, slots=True)
class _SlopeFit:
    """Slopes for given kinks, and the shift of the kinks that would fit better.

    Args:
        C: value at 0, first slope, then the jumps.
        solve: what turns weighted samples into C, for error bars.
        carried: how C follows the kinks, in units of their standard errors.
        shift: step of the kinks.
    """

    C: Matrix
    solve: Matrix
    carried: Matrix
    shift: Vector


def _fit_slopes(t: Vector, places: Vector, F: Matrix, weight: Vector) -> _SlopeFit:
    """The linear problem for given kinks, and the first-order change of its rest when they move.

    A shift of kink j by e changes values beyond it by -e jump_j. What slopes cannot make up for is
    the sum of e_j z_j (x) jump_j, with z_j the part of its column outside the column space: k
    normal equations.
    """
    A = _build_hinge_basis(places, t) * weight[:, None]
    size = np.linalg.norm(A, axis=0)
    Q, R = np.linalg.qr(A / size)
    solve: Matrix = np.linalg.inv(R) @ Q.T / size[:, None]
    C = _solve_upper(R, Q.T @ F) / size[:, None]
    jumps = C[2:]
    beyond = (places[:, None] > t) * weight[:, None]
    z = beyond - Q @ (Q.T @ beyond)
    normal = (z.T @ z) * (jumps @ jumps.T)
    scale = np.sqrt(np.diag(normal)) + 1e-300
    root = _take_inverse_root(normal / scale / scale[:, None]) / scale[:, None]
    right = np.einsum("nk,nm,km->k", z, F - Q @ (Q.T @ F), jumps, optimize=True)
    typical = np.linalg.norm(jumps, axis=1) / F.shape[1] ** 0.5
    return _SlopeFit(C, solve, (solve @ beyond * typical) @ root, -root @ (root.T @ right))


def _solve_upper(R: Matrix, right: Matrix) -> Matrix:
    """Back substitution."""
    from scipy.linalg import solve_triangular

    return np.asarray(solve_triangular(R, right, check_finite=False), dtype=np.float64)


def _take_inverse_root(matrix: Matrix) -> Matrix:
    """A factor L with L L^T the pseudo-inverse of a positive semidefinite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return vectors / np.sqrt(np.where(values > 1e-15, values, np.inf))


def refine_bends(line: Line, noise: Noise, t: Vector, places: Vector, values: Matrix) -> Bends:
    """Kinks and slopes that fit every sample best, by Gauss-Newton steps.

    Rows are weighted by the rounding of their answers.
    """
    weight = noise.near(0.0) / noise.at(places)
    F = values * weight[:, None]
    fit = _fit_slopes(t, places, F, weight)
    for _ in range(3):
        t = np.sort(t + fit.shift)
        fit = _fit_slopes(t, places, F, weight)
    # Slope r is the first slope and the jumps up to r.
    sums = np.tri(len(t) + 1, len(fit.C), 1)
    sums[:, 0] = 0.0
    own = np.linalg.norm(sums @ fit.solve, axis=1)
    carried = np.linalg.norm(sums @ fit.carried, axis=1)
    spread = own**2 + carried**2
    return Bends(line, noise, t, sums @ fit.C, places, values, noise.near(0.0) * np.sqrt(spread))


def _build_hinge_basis(places: Vector, t: Vector) -> Matrix:
    """Columns 1, t and the hinges max(t - t_j, 0)."""
    return np.column_stack([np.ones_like(places), places, np.maximum(places[:, None] - t, 0.0)])
