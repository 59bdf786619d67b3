"""Fresh answers beside a network fitted to answers with errors: how far off, and what may be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import EPS, Array, Matrix, Vector, pin_one_thread
from keyhole.learners.network_under_noise.far_units import differentiate_by_offsets
from keyhole.learners.networks.normal_form_fit import differentiate_output
from keyhole.models import AbsAffine

_SIGMAS = 6.0  # the largest of thousands of fresh errors is within this many
_FAR_ERROR = 1e-9  # what is said of normals and jumps that were read far away
_INEXACT = 1e-7  # relative error of normals and jumps that were read far away, at most


@dataclass(frozen=True, slots=True)
class Scatter:
    """Errors of an answer.

    Args:
        sigma: standard deviation of all of them.
        noise: of the random part.
        tolerance: the largest of those that are not random.
    """

    sigma: float
    noise: float
    tolerance: float

    @property
    def rounding(self) -> float:
        """Standard deviation of rounding, which grows with the answers."""
        return max(self.sigma**2 - self.noise**2 - self.tolerance**2, 0.0) ** 0.5

    @property
    def hides(self) -> float:
        """What cannot be told from zero."""
        return _SIGMAS * self.sigma

    def measure_excess(self, answers: Matrix) -> float:
        """How much answers to one question scatter, where it is more than declared; else 0."""
        scatter = float(answers.std(axis=0, ddof=1).max())
        size = float(np.abs(answers).max())
        declared = 2.5 * self.noise + 2.0 * self.tolerance + 1e-11 * size
        return scatter if scatter > declared else 0.0


@dataclass(frozen=True, eq=False, slots=True)
class UncertainFit:
    """A model with the uncertainty of its answers.

    Args:
        model: the network.
        C: covariance of the fitted parameters, for answers of variance 1.
        offsets: whether only offsets and constants were fitted, to answers with errors.
    """

    model: AbsAffine
    C: Matrix
    offsets: bool

    def deviation(self, x: Matrix) -> Vector:
        """Largest standard deviation of the model's outputs, for answers of variance 1."""
        m = self.model.outputs
        worst = np.zeros(len(x))
        with pin_one_thread():
            if self.offsets:
                J = differentiate_by_offsets(self.model, x)
                return self._propagate(J).reshape(-1, m).max(axis=1)
            # One output at a time: the derivatives of all would take m times the room.
            for output in range(m):
                J = differentiate_output(self.model, x, output)
                worst = np.maximum(worst, self._propagate(J))
        return worst

    def _propagate(self, J: Matrix) -> Vector:
        """Standard deviations of what has the derivatives J."""
        return np.sqrt(np.maximum(((J @ self.C) * J).sum(axis=1), 0.0))

    def bars(self, sigma: float) -> dict[str, Array]:
        """One standard error by hyperplane: of its normal, of its offset, of its jump."""
        model = self.model
        k, d, m = model.hidden, model.width, model.outputs
        if not k:
            return {}
        spread = sigma * np.sqrt(np.maximum(np.diag(self.C), 0.0))
        # Far away normals and jumps are read to rounding, and only offsets have errors of answers.
        if self.offsets:
            jumps = _FAR_ERROR * np.linalg.norm(model.D, axis=1)
            return {"n": np.full(k, _FAR_ERROR), "t": spread[:k], "D": jumps}
        rows = spread[: k * (d + 1 + m)].reshape(k, d + 1 + m)
        return {
            "n": np.linalg.norm(rows[:, :d], axis=1),
            "t": rows[:, d],
            "D": np.linalg.norm(rows[:, d + 1 :], axis=1),
        }


@dataclass(frozen=True, eq=False, slots=True)
class FreshComparison:
    """Fresh answers of one length: how far off they are, and how far they may be."""

    X: Array
    gap: Vector
    allowed: Vector
    mean_square: float
    rms: float
    spread: float

    @classmethod
    def of(
        cls, found: UncertainFit, X: Array, y: Matrix, scatter: Scatter, radius: float
    ) -> FreshComparison:
        """Compare answers with the model's, beside errors and the uncertainty of the fit."""
        model, x = found.model, X[:, -1]
        off = y - model(X)
        size = np.abs(y).max(axis=1)
        far = np.maximum(1.0, np.linalg.norm(x, axis=1) / radius)
        rounding = far * scatter.rounding
        # A fit known less well than answers are is not explained by their errors.
        fit = scatter.sigma * np.minimum(found.deviation(x), far)
        random = np.sqrt(scatter.noise**2 + rounding**2 + fit**2)
        inexact = (_INEXACT if found.offsets else 0.0) * size + 64 * EPS * size
        gap = np.abs(off).max(axis=1)
        allowed = scatter.tolerance + _SIGMAS * random + inexact
        expected = scatter.sigma**2 + fit**2 + inexact**2
        spread = float(np.abs(model(X) - model(X).mean(axis=0)).max())
        mean = float((off**2).mean() / max(float(expected.mean()), 1e-300))
        return cls(X, gap, allowed, mean, float(np.sqrt((off**2).mean())), spread)

    @property
    def worst(self) -> int:
        """The answer that is farthest off for what is allowed."""
        return int(np.argmax(self.gap / np.maximum(self.allowed, 1e-300)))

    @property
    def excess(self) -> float:
        """By which factor it is beyond that."""
        return float(self.gap[self.worst] / max(float(self.allowed[self.worst]), 1e-300))

    @property
    def relative(self) -> float:
        """Largest gap beside how much answers vary."""
        return float(self.gap.max()) / (self.spread or 1.0)
