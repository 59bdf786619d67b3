"""Questions of a few vectors at chosen displacements, zero tokens elsewhere, and their answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Float, Indices, Mask, Matrix, Stack, Vector
from keyhole.learners.positions.ball import NormBall
from keyhole.oracles import Oracle
from keyhole.oracles.base import read_imperfection

_NUMBERS = 1 << 21  # of a call
_DEVIATIONS = 6.0  # of declared errors, which a constant of zero does not pass


@dataclass(frozen=True, eq=False, slots=True)
class Placed:
    """Questions of one length.

    Args:
        n: vectors, the last token last (questions x vectors x dimension).
        at: their displacements, 0 for the last.
        length: tokens of a question; those at other displacements are zero.
        answers: less the answer to the zero token.
        weight: of each question in a fit.
    """

    n: Stack
    at: Indices
    length: int
    answers: Matrix
    weight: Vector

    def pick(self, chosen: slice | Mask) -> Placed:
        """Some of the questions."""
        return Placed(
            self.n[chosen],
            self.at[chosen],
            self.length,
            self.answers[chosen],
            self.weight[chosen],
        )


def join_placed(parts: list[Placed]) -> Placed:
    """Questions of one length as one."""
    return Placed(
        np.concatenate([part.n for part in parts]),
        np.concatenate([part.at for part in parts]),
        parts[0].length,
        np.concatenate([part.answers for part in parts]),
        np.concatenate([part.weight for part in parts]),
    )


@dataclass(frozen=True, eq=False, slots=True)
class Logged:
    """Questions with their answers as they came, and less the residual."""

    placed: Placed
    raw: Matrix


@dataclass(slots=True)
class Asking:
    """An oracle asked in coordinates of the ball.

    Args:
        oracle: the target.
        ball: what can be made to be read.
        residual: whether the last token is added to answers.
        shown: outputs x directions that answers are read along; all outputs when absent.
        log: where questions are kept; nowhere when None.
    """

    oracle: Oracle
    ball: NormBall
    residual: bool
    shown: Matrix | None = None
    log: list[Logged] | None = None

    def ask(self, n: Stack) -> Matrix:
        """Answers to sequences of vectors, less the residual."""
        at = np.arange(n.shape[1] - 1, -1, -1, dtype=np.intp)
        return self._ask(n, n, np.tile(at, (len(n), 1)))

    def _ask(self, sent: Stack, n: Stack, at: Indices) -> Matrix:
        """Answers to sequences whose vectors at some displacements are no zeros."""
        step = max(1, _NUMBERS // (sent.shape[1] * len(self.ball.basis)))
        parts = [self._ask_some(sent[k : k + step]) for k in range(0, len(sent), step)]
        raw, answers = (np.concatenate(part) for part in zip(*parts, strict=True))
        if self.log is not None:
            kept = Placed(n, at, sent.shape[1], answers, np.ones(len(n)))
            self.log.append(Logged(kept, raw))
        return answers if self.shown is None else answers @ self.shown

    def _ask_some(self, n: Stack) -> tuple[Matrix, Matrix]:
        X = self.ball.send(n)
        raw = self.oracle.ask(X)
        return raw, raw - X[:, -1] if self.residual else raw

    def ask_placed(self, n: Stack, at: Indices, length: int, constant: Vector) -> Placed:
        """Vectors at displacements, zero tokens elsewhere."""
        X = np.zeros((len(n), length, self.ball.dimension))
        X[np.arange(len(n))[:, None], length - 1 - at] = n
        answers = self._ask(X, n, at) - constant
        size = float(np.sqrt(np.mean(answers**2))) or 1.0
        return Placed(n, at, length, answers, np.full(len(n), 1.0 / size))


@dataclass(frozen=True, eq=False, slots=True)
class LinearPart:
    """What lone tokens are answered: constant + M n."""

    constant: Vector
    M: Float[Array, "outputs dimension"]

    @property
    def biased(self) -> bool:
        """Whether there is a constant: then queries and keys may have biases too."""
        return float(np.abs(self.constant).max()) > 1e-12 * float(np.abs(self.M).max())

    @property
    def scale(self) -> float:
        """The usual size of an answer to a token whose entries are about 1."""
        return float(np.linalg.norm(self.M)) / float(np.sqrt(len(self.M)))

    def list_possible(self, residual: bool | None, D: int) -> list[LinearPart]:
        """The same, and less a residual where one is possible and nobody knows of it."""
        if residual is not None or len(self.M) != D:
            return [self]
        return [self, LinearPart(self.constant, self.M - np.eye(D))]

    def project(self, shown: Matrix) -> LinearPart:
        """The same along some directions of answers."""
        return LinearPart(self.constant @ shown, shown.T @ self.M)


def solve_rows(frame: Matrix, answers: Matrix) -> Matrix:
    """The linear map that answers the rows of a frame so, one row per coordinate."""
    return np.asarray(np.linalg.solve(frame, answers), dtype=np.float64)


def measure_linear_part(asking: Asking, *, size: float, rng: np.random.Generator) -> LinearPart:
    """The constant and the sum of all value maps, from lone tokens along a random frame."""
    D = asking.ball.dimension
    frame = np.linalg.qr(rng.normal(size=(D, D)))[0] * size * np.sqrt(D)
    answers = asking.ask(np.concatenate([np.zeros((1, D)), frame])[:, None])
    constant = answers[0]
    if np.abs(constant).max() <= _DEVIATIONS * read_deviation(asking.oracle):
        constant = np.zeros_like(constant)
    return LinearPart(constant, solve_rows(frame, answers[1:] - constant).T)


def read_deviation(oracle: Oracle) -> float:
    """Standard deviation of the errors that answers are declared to have, whatever their size.

    Bounded errors are taken to be spread evenly. 0 where nobody knows how large errors are.
    """
    stated = read_imperfection(oracle)
    found = float(np.hypot(stated.noise, stated.tolerance / np.sqrt(3.0)))
    return found if np.isfinite(found) else 0.0
