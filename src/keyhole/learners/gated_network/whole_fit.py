r"""All parameters of a gated network fitted at once, without a matrix of derivatives.

With $p = \psi'(r)\, y$ the form changes by

$$\delta g = \sum_j C_j \big( p_j (\delta n_j x - \delta t_j) + \psi_j (\delta b_j x - \delta e_j)
  + y_j\, \partial_{\log s} \psi_j\, \delta \log s_j \big) + \psi_j y_j\, \delta C_j + \delta c,$$

six products of N x d x k for each step of LSMR, and as many for the transpose. Columns are scaled
to length one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import EPS, Array, Matrix, Vector, pin_one_thread, rms
from keyhole.learners.fitting import solve_formed_step, solve_whole_step
from keyhole.learners.gated_network.gated_form import GatedForm
from keyhole.models.last_token.gated import gated_freedom

PARTS = ("n", "t", "s", "b", "e", "C", "c")
_DRAWS, _BAR_ITERATIONS = 2, 200  # of noise, for error bars
_FORMED = 3_000_000  # entries of a matrix that is formed
_GAINS = 0.7  # a step that leaves more than this share is the last


@dataclass(frozen=True, eq=False, slots=True)
class _Derivatives:
    """A form at points, ready to be multiplied."""

    x: Matrix
    by_r: Matrix
    psi: Matrix
    by_s: Matrix
    product: Matrix
    C: Matrix
    weight: Vector

    def forward(self, step: dict[str, Array]) -> Matrix:
        """The change of answers."""
        inner = self.by_r * (self.x @ step["n"].T - step["t"])
        inner += self.psi * (self.x @ step["b"].T - step["e"])
        inner += self.by_s * step["s"]
        return (inner @ self.C + self.product @ step["C"] + step["c"]) * self.weight[:, None]

    def backward(self, left: Matrix) -> dict[str, Array]:
        """The transpose."""
        left = left * self.weight[:, None]
        pulled = left @ self.C.T
        gates = self.by_r * pulled
        others = self.psi * pulled
        return {
            "n": gates.T @ self.x,
            "t": -gates.sum(axis=0),
            "s": (self.by_s * pulled).sum(axis=0),
            "b": others.T @ self.x,
            "e": -others.sum(axis=0),
            "C": self.product.T @ left,
            "c": left.sum(axis=0),
        }

    def lengths(self) -> dict[str, Array]:
        """The length of every column."""
        w = self.weight[:, None] ** 2
        size = np.linalg.norm(self.C, axis=1)
        squares = self.x**2
        gates, others = (self.by_r**2 * w), (self.psi**2 * w)
        long = {
            "n": np.sqrt(gates.T @ squares) * size[:, None],
            "t": np.sqrt(gates.sum(axis=0)) * size,
            "s": np.sqrt((self.by_s**2 * w).sum(axis=0)) * size,
            "b": np.sqrt(others.T @ squares) * size[:, None],
            "e": np.sqrt(others.sum(axis=0)) * size,
            "C": np.tile(np.sqrt((self.product**2 * w).sum(axis=0))[:, None], (1, self.C.shape[1])),
            "c": np.full(self.C.shape[1], np.sqrt(w.sum())),
        }
        return {name: np.maximum(array, 1e-300) for name, array in long.items()}


def differentiate(form: GatedForm, x: Matrix, weight: Vector) -> _Derivatives:
    """Derivatives of a form at points."""
    r, y = form.factors(x)
    psi, slope, by_s = form.gates(r)
    return _Derivatives(x, slope * y, psi, by_s * y, psi * y, form.C, weight)


def move_form(form: GatedForm, step: dict[str, Array]) -> GatedForm:
    """The form with its parameters changed, and unit vectors unit again."""
    n = form.n + step["n"]
    b = form.b + step["b"]
    long_n, long_b = np.linalg.norm(n, axis=1), np.linalg.norm(b, axis=1)
    s = form.s * np.exp(np.clip(step["s"], -0.7, 0.7))
    return replace(
        form,
        n=n / long_n[:, None],
        t=(form.t + step["t"]) / long_n,
        s=s * long_n,
        b=b / long_b[:, None],
        e=(form.e + step["e"]) / long_b,
        C=(form.C + step["C"]) * (long_n * long_b)[:, None],
        c=form.c + step["c"],
    )


def fit_form(
    form: GatedForm,
    x: Matrix,
    y: Matrix,
    *,
    parts: tuple[str, ...] = PARTS,
    weight: Vector | None = None,
    steps: int = 4,
    iterations: int = 500,
    near: bool = False,
) -> GatedForm:
    """The best form met by Gauss-Newton steps, each solved by LSMR.

    Args:
        form: where to start.
        x: points.
        y: answers there.
        parts: which parameters move.
        weight: of each point; equal when absent.
        steps: how many steps, at most.
        iterations: of LSMR in each.
        near: whether the start is so close that no way has to be found; where the matrix is large
            such a form is kept.
    """
    weight = np.ones(len(x)) if weight is None else weight

    def take_step(here: GatedForm, *, formed: bool) -> GatedForm:
        slopes = differentiate(here, x, weight)
        missing = (y - here.points(x)) * weight[:, None]
        if formed:
            return move_form(here, solve_formed_step(slopes, missing, parts))
        return move_form(here, solve_whole_step(slopes, missing, parts, iterations=iterations))

    def measure(form: GatedForm) -> float:
        return rms((y - form.points(x)) * weight[:, None])

    best, size = form, measure(form)
    freedom = gated_freedom(x.shape[1], hidden=form.hidden, outputs=y.shape[1])
    # LSMR finds the way from afar; where the matrix is small the rest is solved for exactly.
    ways = () if near else (False,)
    if y.size * freedom <= _FORMED:
        ways = (*ways, True)
    with pin_one_thread(), np.errstate(all="ignore"):
        for formed in ways:
            for _ in range(steps):
                moved = take_step(best, formed=formed)
                left = measure(moved)
                if not left < size:
                    break
                gained = left < _GAINS * size
                best, size = moved, left
                if not gained:
                    break
    return best


def estimate_gate_bars(
    form: GatedForm, x: Matrix, y: Matrix, weight: Vector, *, rng: np.random.Generator
) -> Vector:
    """Standard error of the normal of each gate: how far noise like what is left moves it."""
    freedom = gated_freedom(form.n.shape[1], hidden=form.hidden, outputs=y.shape[1])
    spare = max(1 - freedom / y.size, 1 / y.size)
    left = weight[:, None] * (y - form.points(x))
    noise = max(rms(left) / np.sqrt(spare), EPS * rms(weight[:, None] * y))
    slopes = differentiate(form, x, weight)
    with pin_one_thread(), np.errstate(all="ignore"):
        moved = [
            solve_whole_step(
                slopes, noise * rng.normal(size=y.shape), PARTS, iterations=_BAR_ITERATIONS
            )["n"]
            for _ in range(_DRAWS)
        ]
    return np.asarray(np.sqrt((np.array(moved) ** 2).sum(axis=2).mean(axis=0)))
