"""Questions of a few vectors at chosen displacements, zero tokens elsewhere, and their answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Float, Indices, Matrix, Stack, Vector
from keyhole.learners.positions.ball import NormBall
from keyhole.oracles import Oracle

_NUMBERS = 1 << 21  # of a call


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


def join_placed(parts: list[Placed]) -> Placed:
    """Questions of one length as one."""
    return Placed(
        np.concatenate([part.n for part in parts]),
        np.concatenate([part.at for part in parts]),
        parts[0].length,
        np.concatenate([part.answers for part in parts]),
        np.concatenate([part.weight for part in parts]),
    )


@dataclass(slots=True)
class Asking:
    """An oracle asked in coordinates of the ball.

    Args:
        oracle: the target.
        ball: what can be made to be read.
        residual: whether the last token is added to answers.
        shown: outputs x directions that answers are read along; all outputs when absent.
    """

    oracle: Oracle
    ball: NormBall
    residual: bool
    shown: Matrix | None = None

    def ask(self, n: Stack) -> Matrix:
        """Answers to sequences of vectors, less the residual."""
        step = max(1, _NUMBERS // (n.shape[1] * len(self.ball.basis)))
        answers = [self._ask_some(n[k : k + step]) for k in range(0, len(n), step)]
        return np.concatenate(answers)

    def _ask_some(self, n: Stack) -> Matrix:
        X = self.ball.send(n)
        answers = self.oracle.ask(X)
        answers = answers - X[:, -1] if self.residual else answers
        return answers if self.shown is None else answers @ self.shown

    def ask_placed(self, n: Stack, at: Indices, length: int, constant: Vector) -> Placed:
        """Vectors at displacements, zero tokens elsewhere."""
        X = np.zeros((len(n), length, self.ball.dimension))
        X[np.arange(len(n))[:, None], length - 1 - at] = n
        answers = self.ask(X) - constant
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
    return LinearPart(constant, solve_rows(frame, answers[1:] - constant).T)
