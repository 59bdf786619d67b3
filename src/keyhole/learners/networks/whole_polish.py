r"""All hyperplanes fitted at once to new answers, parallel ones with one normal.

With $s_{ij}$ the side of hyperplane j that point i is on, $g(x) = \tfrac12 \sum_j D_j |n_j x - t_j|
+ P x + q$ changes by

$$\delta g(x_i) = \tfrac12 \sum_j \big( D_j s_{ij} (\delta n_j x_i - \delta t_j)
  + |n_j x_i - t_j|\, \delta D_j \big) + \delta P x_i + \delta q,$$

a few products of N x d x k, and as many for the transpose: no matrix of derivatives is formed. A
ridge narrower than the others gets points of its own inside, since from outside only the product of
its height and width is seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Indices, Matrix, Vector, pin_one_thread, rms
from keyhole.learners.fitting import solve_whole_step
from keyhole.learners.networks.parallel import find_parallel_groups
from keyhole.models import AbsAffine
from keyhole.models.relu import network_freedom

_SHARE = 1.3  # answers per parameter
_NARROW = 0.5  # ridges narrower than this share of the typical distance
_FAR = 1000.0  # typical distances
_PARTS = ("n", "t", "D", "P", "q")
_STEPS = 3
_ITERATIONS = 300  # of each step, where the fit is small
_FEWEST = 30
_WORK = 150_000_000  # points times hyperplanes times iterations
_MOST = 3_000_000  # points times hyperplanes, at most
_GAINS = 0.5  # a step that leaves more than this share is the last


@dataclass(frozen=True, eq=False, slots=True)
class _Derivatives:
    """A model at points, ready to be multiplied; `own` is the normal that each unit has."""

    x: Matrix
    sides: Matrix
    apart: Matrix
    D: Matrix
    own: Indices
    count: int
    weight: Vector

    def forward(self, step: dict[str, Array]) -> Matrix:
        """The change of answers."""
        inner = self.sides * ((self.x @ step["n"].T)[:, self.own] - step["t"])
        bent = (inner @ self.D + self.apart @ step["D"]) / 2
        return (bent + self.x @ step["P"].T + step["q"]) * self.weight[:, None]

    def backward(self, left: Matrix) -> dict[str, Array]:
        """The transpose."""
        left = left * self.weight[:, None]
        pulled = self.sides * (left @ self.D.T) / 2
        n = np.zeros((self.count, self.x.shape[1]))
        np.add.at(n, self.own, pulled.T @ self.x)
        return {
            "n": n,
            "t": -pulled.sum(axis=0),
            "D": self.apart.T @ left / 2,
            "P": left.T @ self.x,
            "q": left.sum(axis=0),
        }

    def lengths(self) -> dict[str, Array]:
        """The length of every column; of a normal that units share as if they did not cancel."""
        w = self.weight**2
        size = np.linalg.norm(self.D, axis=1) / 2
        squares = w @ self.x**2
        n = np.zeros((self.count, self.x.shape[1]))
        np.add.at(n, self.own, np.outer(size**2, squares))
        m = self.D.shape[1]
        long = {
            "n": np.sqrt(n),
            "t": size * np.sqrt(w.sum()),
            "D": np.tile(np.sqrt(w @ self.apart**2)[:, None] / 2, (1, m)),
            "P": np.tile(np.sqrt(squares), (m, 1)),
            "q": np.full(m, np.sqrt(w.sum())),
        }
        return {name: np.maximum(array, 1e-300) for name, array in long.items()}


def count_polishing_points(width: int, *, hidden: int, outputs: int) -> int:
    """Answers that the fit takes, those inside narrow ridges aside."""
    freedom = network_freedom(width, hidden=hidden, outputs=outputs)
    return int(np.ceil(_SHARE * freedom / outputs)) + 8


def is_worth_fitting(model: AbsAffine) -> bool:
    """Whether the fit takes seconds and not minutes."""
    count = count_polishing_points(model.width, hidden=model.hidden, outputs=model.outputs)
    return count * model.hidden <= _MOST


def place_polishing_points(model: AbsAffine, radius: float, *, rng: np.random.Generator) -> Matrix:
    """Points about the hyperplanes, and some inside every narrow ridge."""
    d, m = model.width, model.outputs
    count = count_polishing_points(d, hidden=model.hidden, outputs=m)
    x = radius * rng.normal(size=(count, d))
    x[::2] *= 2.0
    # Ridges are constant far out, where the least slope that should not be there is seen.
    if find_parallel_groups(model.n):
        x[1::4] *= _FAR
    parts = [x]
    each = 2 * (d + 3) // m + 1
    for n, low, high in find_narrow_ridges(model, radius):
        inside = radius * rng.normal(size=(each, d))
        aim = rng.uniform(low, high, size=each)
        parts.append(inside + (aim - inside @ n)[:, None] * n)
    return np.concatenate(parts)


def find_narrow_ridges(model: AbsAffine, radius: float) -> list[tuple[Vector, float, float]]:
    """Normals of parallel hyperplanes that are close together, with both offsets."""
    ridges: list[tuple[Vector, float, float]] = []
    for group in find_parallel_groups(model.n):
        n = model.n[group[0]]
        t = np.sort(model.t[group] * np.sign(model.n[group] @ n))
        close = np.flatnonzero(np.diff(t) < _NARROW * radius)
        ridges += [(n, float(t[i]), float(t[i + 1])) for i in close]
    return ridges


def fit_hyperplanes(model: AbsAffine, x: Matrix, y: Matrix) -> AbsAffine:
    """The best model met by Gauss-Newton steps from one whose sides are right."""
    own, model = _number_normals(model)
    most = int(np.clip(_WORK / max(1, len(x) * model.hidden), _FEWEST, _ITERATIONS))
    # Far answers are larger, and so is their rounding.
    weight = 1.0 / np.maximum(model.terms(x), 1e-300)
    weight /= weight.max()
    best, size = model, rms((y - model.points(x)) * weight[:, None])
    with pin_one_thread(), np.errstate(all="ignore"):
        for _ in range(_STEPS):
            left = (y - best.points(x)) * weight[:, None]
            slopes = _differentiate(best, own, x, weight)
            step = solve_whole_step(slopes, left, _PARTS, iterations=most)
            moved = _move_model(best, own, step)
            after = rms((y - moved.points(x)) * weight[:, None])
            if not after < size:
                break
            gained = after < _GAINS * size
            best, size = moved, after
            if not gained:
                break
    return best


def _number_normals(model: AbsAffine) -> tuple[Indices, AbsAffine]:
    """Which normal each unit has, and the model with parallel ones turned alike."""
    own = np.arange(model.hidden)
    n, t = model.n.copy(), model.t.copy()
    for group in find_parallel_groups(model.n):
        signs = np.sign(n[group] @ n[group[0]])
        own[group] = group[0]
        t[group] *= signs
        n[group] = n[group[0]]
    numbers = np.unique(own, return_inverse=True)[1]
    return numbers.ravel(), AbsAffine(n, t, model.D, model.P, model.q)


def _differentiate(model: AbsAffine, own: Indices, x: Matrix, weight: Vector) -> _Derivatives:
    offset = x @ model.n.T - model.t
    count = int(own.max(initial=-1)) + 1
    return _Derivatives(x, np.sign(offset), np.abs(offset), model.D, own, count, weight)


def _move_model(model: AbsAffine, own: Indices, step: dict[str, Array]) -> AbsAffine:
    return AbsAffine(
        model.n + step["n"][own],
        model.t + step["t"],
        model.D + step["D"],
        model.P + step["P"],
        model.q + step["q"],
    )
