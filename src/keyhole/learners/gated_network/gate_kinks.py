r"""Every kink of a homogeneous, piecewise quadratic function along half a circle.

On $x(\theta) = \cos\theta\, x_0 + \sin\theta\, u$ each piece lies in the span of 1, sin 2θ and cos
2θ, and across the kink of unit j it changes by $C_j \sin(\theta - \theta_j) \sin(\theta - \eta_j)$:
the gate changes sign at θ_j, the other factor at η_j.

Three neighbouring samples of one piece give it. Let the u samples after them have one more kink
each before them and two further samples none, and let $\rho_i$ be what sample i has beside the
piece. Then $\rho_i = \sum_{j \le i} C_j q_j(\theta_i)$, so that both last ones are combinations
$\sum a_i \rho_i$ of the u before: 2(m - u) equations are left as a test. With $\phi$ the three
functions and $q_j = \phi k_j$, the combinations say

$$\Big(\phi(\theta_{u+1}) - \sum_{i \ge j} a_i \phi(\theta_i)\Big) k_j = 0$$

and the same for the other: k_j is a cross product, its roots are θ_j and η_j, and only one of them
lies in the cell. Cells that no such run explains are halved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import EPS, Array, Indices, Matrix, Vector
from keyhole.learners.fitting import Damping, run_damped_steps, solve_damped_equations
from keyhole.learners.networks.kinks import Ask, Crowded, Unresolved

_FIRST = 17  # samples of the half circle to begin with
_SLACK = 16.0  # deviations beyond this many roundings are real
_CLEAR = 1e3  # roundings that what shows a kink is larger than
_RUN = 6  # kinks of one run, at most
_LEVELS = 40
_EDGE = 1e-3  # how far from the start of its cell a kink lies at least, where that is in doubt
_UNSURE = 1e-2  # the same after samples not known to be of one piece
_APART = 1e-6  # sine of the angle of two equations, below which they are one
_NEAR = 1e-7  # distance of the samples that show rounding
_STEPS = 40
_MENDED = 6  # how often cells where too much is left are halved
_WRONG = 1e4  # roundings that are too much
_FAINT = 1e-3  # jumps beside the median that may be none
_DAMPING = Damping(1e-9, lambda now: max(now / 10, 1e-14), lambda now: 10 * now)


@dataclass(frozen=True, eq=False, slots=True)
class Circle:
    """A circle round the origin, and whom to ask about it."""

    ask: Ask
    x0: Vector
    u: Vector

    def at(self, theta: Array) -> Matrix:
        """Points of the circle."""
        return np.outer(np.cos(theta), self.x0) + np.outer(np.sin(theta), self.u)

    def __call__(self, theta: Array) -> Matrix:
        """Answers along the circle."""
        return self.ask(self.at(theta))


@dataclass(frozen=True, eq=False, slots=True)
class Kinks:
    """Half a circle as it was resolved.

    Args:
        circle: the circle.
        theta: where gates change sign, ascending.
        eta: where the other factors do, up to half a turn.
        C: jumps, one row per kink.
        K: the first piece, coefficients of 1, sin 2θ and cos 2θ.
        places: every sample.
        values: answers there.
        noise: rounding of answers.
    """

    circle: Circle
    theta: Vector
    eta: Vector
    C: Matrix
    K: Matrix
    places: Vector
    values: Matrix
    noise: float

    def points(self, theta: Array) -> Matrix:
        """The function on the circle."""
        return expand_piece(theta) @ self.K + _hinge(theta, self.theta, self.eta) @ self.C


def expand_piece(theta: Array) -> Matrix:
    """Columns 1, sin 2θ and cos 2θ."""
    return np.column_stack([np.ones_like(theta), np.sin(2 * theta), np.cos(2 * theta)])


def _hinge(at: Array, theta: Vector, eta: Vector) -> Matrix:
    """sin(θ - θ_j) sin(θ - η_j) beyond θ_j."""
    beyond = np.where(at[:, None] > theta, 1.0, 0.0)
    return beyond * np.sin(at[:, None] - theta) * np.sin(at[:, None] - eta)


@dataclass(slots=True)
class _Samples:
    """Samples in order, and what is known of the cells between them."""

    circle: Circle
    noise: float
    most: int
    t: Vector
    F: Matrix
    tried: dict[tuple[bytes, bool], list[tuple[float, float]] | None] = field(
        default_factory=dict[tuple[bytes, bool], "list[tuple[float, float]] | None"]
    )

    def run(self) -> list[tuple[float, float]]:
        """Halve cells until every one is explained."""
        for _ in range(_LEVELS):
            kinks, unknown = self.explain()
            if not unknown:
                return kinks
            if len(self.t) > 6 * self.most + 64:
                break
            self.halve(np.array(unknown))
        raise Crowded

    def halve(self, cells: Indices) -> None:
        """One more sample in each of these cells."""
        t = (self.t[cells] + self.t[cells + 1]) / 2
        if (self.t[cells + 1] - self.t[cells] < 1e-9).any():
            raise Unresolved
        self.F = np.insert(self.F, cells + 1, self.circle(t), axis=0)
        self.t = np.insert(self.t, cells + 1, t)

    def explain(self) -> tuple[list[tuple[float, float]], list[int]]:
        """The kinks found, and the cells that no run explains."""
        kinks: list[tuple[float, float]] = []
        unknown: list[int] = []
        at, sure = 0, False
        while at + 3 < len(self.t):
            found = self._onward(at, sure=sure)
            if found is None:
                # The end of a run is one piece whatever follows: what is crooked comes after it.
                if not sure:
                    unknown += [0, 1] if at == 0 else [at + 1]
                at, sure = at + 1, False
            else:
                kinks += found
                at, sure = at + max(1, 2 + len(found)) if found else at + 1, True
        if not sure:
            unknown += [cell for cell in range(at, len(self.t) - 1) if cell not in unknown]
        return kinks, unknown

    def _onward(self, at: int, *, sure: bool) -> list[tuple[float, float]] | None:
        """The shortest run after three samples; what was found holds until a cell is halved."""
        key = self.t[at : at + _RUN + 5].tobytes(), sure
        if key not in self.tried:
            self.tried[key] = self.find_run(at, sure=sure)
        return self.tried[key]

    def find_run(self, at: int, *, sure: bool) -> list[tuple[float, float]] | None:
        """The kinks of the shortest run that begins with the piece of three samples, or None."""
        count = min(_RUN, self.F.shape[1] - 1) + 2
        after = slice(at + 3, at + 3 + count)
        t = self.t[at : at + 3 + count] - self.t[at + 1]
        phi = expand_near(t, float(t[-1] - t[0]))
        weights = phi[3:] @ np.linalg.inv(phi[:3])
        rho = self.F[after] - weights @ self.F[at : at + 3]
        bar = self.noise * (1 + np.abs(weights).sum(axis=1))
        if np.abs(rho[0]).max() <= _SLACK * bar[0]:
            return []
        size = np.linalg.norm(rho, axis=1) + 1e-300
        R = np.asarray(np.linalg.qr((rho / size[:, None]).T)[1])
        for u in range(1, len(rho) - 1):
            if size[u - 1] <= _CLEAR * bar[u - 1] or abs(R[u - 1, u - 1]) < 1e-8:
                return None
            found = self._close_run(t, phi, R, size, bar, u, sure=sure)
            if found is not None:
                return [(a + self.t[at + 1], b + self.t[at + 1]) for a, b in found]
        return None

    def _close_run(
        self, t: Vector, phi: Matrix, R: Matrix, size: Vector, bar: Vector, u: int, *, sure: bool
    ) -> list[tuple[float, float]] | None:
        """The kinks of a run of u, if both samples after it are combinations of those in it."""
        combined: list[Vector] = []
        for last in (u, u + 1):
            a = np.linalg.solve(R[:u, :u], R[:u, last]) * size[last] / size[:u]
            left = np.linalg.norm(R[u:, last]) * size[last]
            allowed = bar[last] + np.abs(a) @ bar[:u]
            if left > _SLACK * allowed * R.shape[0] ** 0.5 or size[last] < _CLEAR * allowed:
                return None
            combined.append(a)
        edges = t[2 : 3 + u]
        kinks: list[tuple[float, float]] = []
        for j in range(u):
            rows = [
                phi[3 + last] - a[j:] @ phi[3 + j : 3 + u]
                for last, a in zip((u, u + 1), combined, strict=True)
            ]
            margin = (0.0 if u == 1 else _EDGE) if sure else _UNSURE
            edge = margin * (edges[j + 1] - edges[j]) + 1e-12
            k = np.cross(*rows)
            # Two kinks in one cell leave more than one such function.
            if np.linalg.norm(k) < _APART * np.linalg.norm(rows[0]) * np.linalg.norm(rows[1]):
                return None
            pair = find_root_pair(k, float(t[-1] - t[0]), edges[j] - edge, edges[j + 1] + 1e-12)
            # What samples of two pieces leave is zero at the last of them.
            if pair is None or pair[0] < edges[j] + edge - 2e-12:
                return None
            kinks.append(pair)
        return kinks


def expand_near(t: Vector, h: float) -> Matrix:
    """The same span near 0, in functions of size one within h: 1, sin 2t/h, (1 - cos 2t)/h^2."""
    return np.column_stack([np.ones_like(t), np.sin(2 * t) / h, 2 * (np.sin(t) / h) ** 2])


def find_root_pair(k: Vector, h: float, low: float, high: float) -> tuple[float, float] | None:
    """The root of k in a cell, and the other one; None unless exactly one lies there.

    With w = tan(t)/h it is a quadratic equation, $(k_0 h^2 + 2 k_2) w^2 + 2 k_1 w + k_0 = 0$.
    """
    a = k[0] * h * h + 2 * k[2]
    inside = k[1] * k[1] - a * k[0]
    if inside <= 0.0:
        return None
    far = -(k[1] + np.copysign(np.sqrt(inside), k[1]))
    with np.errstate(divide="ignore"):
        roots = [float(np.arctan(h * w)) for w in (np.divide(far, a), np.divide(k[0], far))]
    met = [low <= root <= high for root in roots]
    if sum(met) != 1:
        return None
    return (roots[0], roots[1]) if met[0] else (roots[1], roots[0])


def resolve_circle(circle: Circle, *, most: int, roundoff: float = EPS) -> Kinks:
    """Every kink of half a circle.

    Args:
        circle: what to ask.
        most: kinks allowed for.
        roundoff: relative rounding of answers, at least.

    Raises:
        Unresolved: the function is not piecewise quadratic, or bends too often.
    """
    t = np.linspace(-np.pi / 2, np.pi / 2, _FIRST)
    F = circle(t)
    noise = measure_noise(circle, F, roundoff)
    samples = _Samples(circle, noise, most, t, F)
    for _ in range(_MENDED):
        found = np.array(sorted(samples.run())).reshape(-1, 2)
        if len(found) > most:
            raise Crowded
        kinks = refine_kinks(circle, noise, found[:, 0], found[:, 1], samples.t, samples.F)
        left = _measure_sample_gaps(kinks)
        if left.max() <= _WRONG * noise:
            return _drop_faint_kinks(kinks)
        # A run that was explained wrongly leaves something where it is.
        worst = int(np.argmax(left))
        samples.halve(np.arange(max(0, worst - 3), min(len(left) - 1, worst + 3)))
    raise Unresolved


def measure_noise(circle: Circle, F: Matrix, roundoff: float) -> float:
    """Rounding of answers like F, from samples so near each other that nothing else shows."""
    near: Vector = np.asarray(_NEAR * np.arange(1, 5), dtype=np.float64)
    second = np.diff(circle(near), 2, axis=0)
    return max(4 * roundoff * float(np.abs(F).max()), float(np.abs(second).max())) + 1e-300


def finish_kinks(
    circle: Circle, noise: float, pairs: Matrix, places: Vector, F: Matrix
) -> Kinks | None:
    """Kinks that explain every sample, from where they seem to be; None where none do."""
    kinks = refine_kinks(circle, noise, pairs[:, 0], pairs[:, 1], places, F)
    return _drop_faint_kinks(kinks) if _measure_sample_gaps(kinks).max() <= _WRONG * noise else None


def _measure_sample_gaps(kinks: Kinks) -> Vector:
    """What is left of every sample."""
    return np.asarray(np.abs(kinks.points(kinks.places) - kinks.values).max(axis=1))


def _drop_faint_kinks(kinks: Kinks) -> Kinks:
    """The same without kinks that no sample needs, as one found twice leaves."""
    if not len(kinks.theta):
        return kinks
    size: Vector = np.linalg.norm(kinks.C, axis=1)
    faint: Indices = np.argsort(size)[: int((size < _FAINT * np.median(size)).sum())]
    allowed = max(float(_measure_sample_gaps(kinks).max()), kinks.noise) * _SLACK
    for theta in kinks.theta[faint]:
        kept = kinks.theta != theta
        fewer = refine_kinks(
            kinks.circle,
            kinks.noise,
            kinks.theta[kept],
            kinks.eta[kept],
            kinks.places,
            kinks.values,
        )
        if _measure_sample_gaps(fewer).max() <= allowed:
            return _drop_faint_kinks(fewer)
    return kinks


@dataclass(frozen=True, eq=False, slots=True)
class _Fit:
    """Kinks with everything linear solved for, and the size of what is left."""

    theta: Vector
    eta: Vector
    linear: Matrix
    basis: Matrix
    left: Matrix
    size: float


def refine_kinks(
    circle: Circle, noise: float, theta: Vector, eta: Vector, places: Vector, F: Matrix
) -> Kinks:
    r"""Kinks, jumps and first piece that fit every sample best, by damped Gauss-Newton steps.

    All but (θ_j, η_j) is linear and solved for; the normal matrix of these is $(Z^\top Z) \circ (C
    C^\top)$, with Z what the linear part cannot make up for.
    """

    def linearise(here: _Fit) -> Callable[[float], _Fit | None]:
        normal, pull = _build_kink_equations(here, places)

        def step(damping: float) -> _Fit | None:
            try:
                moved = solve_damped_equations(normal, pull, damping).reshape(2, -1)
            except (np.linalg.LinAlgError, ValueError):
                return None
            return _fit_linear_part(here.theta + moved[0], here.eta + moved[1], places, F)

        return step

    best = _fit_linear_part(theta, eta, places, F)
    if len(theta):
        best = run_damped_steps(best, linearise, _DAMPING, is_settled=_is_settled, steps=_STEPS)
    order = np.argsort(best.theta)
    C = best.linear[3:][order]
    return Kinks(circle, best.theta[order], best.eta[order], C, best.linear[:3], places, F, noise)


def _is_settled(before: float, after: float, damping: float) -> bool:
    return 0.9 * before < after < before or before == 0.0 or damping > 1e3


def _fit_linear_part(theta: Vector, eta: Vector, places: Vector, F: Matrix) -> _Fit:
    A = np.hstack([expand_piece(places), _hinge(places, theta, eta)])
    scale = np.linalg.norm(A, axis=0) + 1e-300
    Q, R = np.linalg.qr(A / scale)
    # A kink that moved off all samples has an empty column.
    R[np.diag_indices_from(R)] += np.where(np.abs(np.diag(R)) < 1e-14, 1e-14, 0.0)
    linear = np.linalg.solve(R, Q.T @ F) / scale[:, None]
    left = F - A @ linear
    return _Fit(theta, eta, linear, Q, left, float(np.linalg.norm(left)))


def _build_kink_equations(here: _Fit, places: Vector) -> tuple[Matrix, Vector]:
    Z = np.hstack(_differentiate_hinges(places, here.theta, here.eta))
    Z -= here.basis @ (here.basis.T @ Z)
    C = here.linear[3:]
    both = np.concatenate([C, C])
    pull = np.einsum("na,nm,am->a", Z, here.left, both, optimize=True)
    return (Z.T @ Z) * (both @ both.T), pull


def _differentiate_hinges(at: Vector, theta: Vector, eta: Vector) -> tuple[Matrix, Matrix]:
    beyond = np.where(at[:, None] > theta, -1.0, 0.0)
    a = at[:, None] - theta
    b = at[:, None] - eta
    return beyond * np.cos(a) * np.sin(b), beyond * np.sin(a) * np.cos(b)
