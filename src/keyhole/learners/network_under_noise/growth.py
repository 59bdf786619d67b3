r"""A ReLU network grown from answers with errors, hyperplane by hyperplane, and pruned.

What the model leaves at points already asked shows where a hyperplane is missing. Out of many
random hyperplanes through points with large errors those are taken that explain most of what is
left, each is fitted to it alone, the best one is added, and all parameters are fitted again
(normal_form_fit). When additions help no more, though answers are not yet explained, those
hyperplanes go that are needed least, and growing goes on; after that it begins anew.

How much worse the fit gets without hyperplane j, everything else fitted again, is to second order
$D_j^\top [(J^\top J)^{-1}]_{jj}^{-1} D_j$ (the optimal brain surgeon's saliency). At the end
hyperplanes go as long as answers are explained without them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Indices, Mask, Matrix, Vector, pin_one_thread, rms
from keyhole.learners.fitting import solve_damped_equations
from keyhole.learners.networks.normal_form_fit import (
    build_normal_equations,
    count_parameters,
    fit_parameters,
)
from keyhole.models import AbsAffine
from keyhole.oracles.own_time import check_own_time

LARGEST = 800  # parameters at most; beyond, fits take too long
_DRAWS = 600
_CHOSEN = 4
_FITS = 15  # steps of a fit of everything
_ALONE = 10  # steps of a fit of one hyperplane
_WAIT = 5  # so many additions
_LESS = 0.6  # must leave less than this share
_CUT = 5  # one hyperplane in so many goes when additions help no more
_STUCK = 3  # how often, before growing begins anew
_STARTS = 4
_WORST = 16  # points explained worst, when additions help no more
_AROUND = 8  # points asked round each of them
_CLEAR = 4.0  # standard deviations
_PER_PARAMETER = 8  # points for every parameter
_LEAST = 5  # hyperplanes that are tried without, those needed least first
_WORK = 6e11  # products of numbers, at most


@dataclass(slots=True)
class Growing:
    """A network under way.

    Args:
        more: asks so many new points, near given ones if there are any, and returns them with their
            answers.
        sigma: standard deviation of an answer.
        most: hyperplanes allowed for.
        rng: source of every random choice.
        x: points asked.
        y: answers there.
    """

    more: Callable[[int, Matrix | None], tuple[Matrix, Matrix]]
    sigma: float
    most: int
    rng: np.random.Generator
    x: Matrix
    y: Matrix
    left: float = field(default=np.inf, init=False)
    work: float = field(default=0.0, init=False)

    def is_explained(self, model: AbsAffine, left: float) -> bool:
        """Whether errors explain what is left, given how many numbers were fitted."""
        count = self.y.size
        used = count_parameters(model.width, hidden=model.hidden, outputs=model.outputs)
        room = max(1, count - used)
        return left**2 * count <= self.sigma**2 * room * (1.0 + 4.0 * (2.0 / room) ** 0.5)

    def run(self, start: AbsAffine) -> AbsAffine:
        """The smallest network met that errors explain, else the one that leaves least."""
        best, least = start, np.inf
        with pin_one_thread(), np.errstate(all="ignore"):
            for _ in range(_STARTS):
                model, left = self._grow(start)
                if left < least:
                    best, least = model, left
                if self.is_explained(model, left):
                    best, least = self._prune(model, left)
                    break
        self.left = least
        return best

    def _grow(self, model: AbsAffine) -> tuple[AbsAffine, float]:
        stuck = 0
        history: list[float] = []
        model, left = self._fit(model, 1e-4)
        while not self.is_explained(model, left) and stuck < _STUCK and model.hidden < self.most:
            check_own_time()
            size = count_parameters(model.width, hidden=model.hidden + 1, outputs=model.outputs)
            if size > LARGEST or self.work > _WORK:
                break
            self._enough(size)
            model = _join_networks(model, self._propose_hyperplane(model))
            model, left = self._fit(model, 1e-4)
            history.append(left)
            slow = len(history) > _WAIT and left > _LESS * history[-1 - _WAIT]
            # A fit in a wrong valley is left by cutting what it needs least, not by adding more.
            if slow and not self.is_explained(model, left):
                self.look(model)
                needs = measure_saliency(model, self.x, self.y)
                needed = np.argsort(needs)[max(2, model.hidden // _CUT) :]
                model = _select_hyperplanes(model, np.sort(needed))
                stuck += 1
                history = []
                model, left = self._fit(model, 1e-2)
        return model, left

    def _fit(self, model: AbsAffine, damping: float) -> tuple[AbsAffine, float]:
        """Fit everything, at a cost that is booked."""
        size = count_parameters(model.width, hidden=model.hidden, outputs=model.outputs)
        self.work += _FITS * float(size) ** 2 * self.y.size
        return fit_parameters(
            model, self.x, self.y, steps=_FITS, damping=damping, enough=0.5 * self.sigma
        )

    def _enough(self, size: int) -> None:
        """Ask more points where there are few for so many parameters."""
        lacking = _PER_PARAMETER * size - self.y.size
        if lacking > 0:
            self._ask(-(-max(lacking, len(self.x) // 2) // self.y.shape[1]), None)

    def _ask(self, count: int, near: Matrix | None) -> None:
        x, y = self.more(count, near)
        self.x = np.concatenate([self.x, x])
        self.y = np.concatenate([self.y, y])

    def look(self, model: AbsAffine) -> None:
        """Ask round the points explained worst: small parts of the ball have few of their own."""
        off = np.abs(self.y - model.points(self.x)).max(axis=1)
        worst = np.argsort(-off)[:_WORST]
        worst = worst[off[worst] > _CLEAR * self.sigma]
        if len(worst):
            self._ask(_WORST * _AROUND, self.x[worst])

    def _propose_hyperplane(self, model: AbsAffine) -> AbsAffine:
        """One hyperplane, and an affine part, for what the model leaves."""
        x = self.x
        rest = self.y - model.points(x)
        n = self.rng.normal(size=(_DRAWS, model.width))
        n /= np.linalg.norm(n, axis=1, keepdims=True)
        odds = np.linalg.norm(rest, axis=1) + 1e-300
        t = (x[self.rng.choice(len(x), size=_DRAWS, p=odds / odds.sum())] * n).sum(axis=1)
        Q = np.linalg.qr(np.column_stack([x, np.ones(len(x))]))[0]
        bends = np.abs(x @ n.T - t)
        bends -= Q @ (Q.T @ bends)
        size = np.linalg.norm(bends, axis=0) + 1e-300
        explains = (bends / size).T @ rest
        tries: list[tuple[float, AbsAffine]] = []
        for j in np.argsort(-np.linalg.norm(explains, axis=1))[:_CHOSEN]:
            D = (2 * explains[j] / size[j])[None]
            flat = np.zeros_like(model.P), np.zeros_like(model.q)
            one = AbsAffine(n[j : j + 1], t[j : j + 1], D, *flat)
            one, left = fit_parameters(one, x, rest, steps=_ALONE, damping=1e-3)
            tries.append((left, one))
        return min(tries, key=lambda pair: pair[0])[1]

    def _prune(self, model: AbsAffine, left: float) -> tuple[AbsAffine, float]:
        """The model without those hyperplanes that errors explain as well."""
        for _ in range(model.hidden):
            needs = measure_saliency(model, self.x, self.y)
            for j in np.argsort(needs)[:_LEAST]:
                fewer = _select_hyperplanes(model, np.arange(model.hidden) != j)
                fewer, after = self._fit(fewer, 1e-4)
                if self.is_explained(fewer, after):
                    model, left = fewer, after
                    break
            else:
                break
        return model, left


def measure_saliency(model: AbsAffine, x: Matrix, y: Matrix) -> Vector:
    """How much the sum of squares grows without each hyperplane, everything else fitted again."""
    inverse = estimate_covariance(model, x, y)
    d, m = model.width, model.outputs
    size = d + 1 + m
    needs = np.zeros(model.hidden)
    for j in range(model.hidden):
        at = slice(j * size + d + 1, j * size + d + 1 + m)
        needs[j] = model.D[j] @ np.linalg.solve(inverse[at, at], model.D[j])
    return needs


def estimate_covariance(model: AbsAffine, x: Matrix, y: Matrix) -> Matrix:
    """The inverse of the normal matrix: covariance of parameters, for answers of variance 1."""
    with pin_one_thread():
        H = build_normal_equations(model, x, y).H
        return np.asarray(solve_damped_equations(H, np.eye(len(H)), 1e-9))


def fit_affine_map(x: Matrix, y: Matrix) -> tuple[AbsAffine, float]:
    """The affine map that leaves least, as a model, and what it leaves."""
    A = np.column_stack([x, np.ones(len(x))])
    B = np.asarray(np.linalg.lstsq(A, y, rcond=None)[0], dtype=np.float64)
    d, m = x.shape[1], y.shape[1]
    model = AbsAffine(np.zeros((0, d)), np.zeros(0), np.zeros((0, m)), B[:-1].T, B[-1])
    return model, rms(y - A @ B)


def _select_hyperplanes(model: AbsAffine, which: Mask | Indices) -> AbsAffine:
    return AbsAffine(model.n[which], model.t[which], model.D[which], model.P, model.q)


def _join_networks(a: AbsAffine, b: AbsAffine) -> AbsAffine:
    parts = [np.concatenate(pair) for pair in ((a.n, b.n), (a.t, b.t), (a.D, b.D))]
    return AbsAffine(parts[0], parts[1], parts[2], a.P + b.P, a.q + b.q)
