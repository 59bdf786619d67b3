r"""The fit of all heads at once, where no rows read one of them alone.

Answers $F_q - b = \sum_h A_h m_{hq}(\theta_h)$ with $m_{hq} = \sum_i \alpha_{hi} n_i$ are linear in
the maps $A_h$, which are eliminated (variable projection, Kaufman's form); Gauss-Newton with
Levenberg's damping finds the scores $\theta_h$ of all heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Matrix, Stack, Vector
from keyhole.learners.positions.grouped.sharing import solve_least_squares
from keyhole.learners.positions.head_fit import (
    DAMPING,
    PATIENCE,
    attend_placed,
    derive_left,
    list_free,
)
from keyhole.learners.positions.placed import Placed
from keyhole.learners.positions.score_form import HeadScores, ScoreForm
from keyhole.oracles.own_time import check_own_time, work_apart

_STEPS = 40
_FIRST_DAMPING = 1e-6
_LARGEST_DAMPING = 1e-1
_DONE = 1e-14
_NEAR = 1e-10
_SLOW = 0.5


@dataclass(frozen=True, eq=False, slots=True)
class JointHeads:
    """Heads fitted together: scores, maps (heads x outputs x dimension), and what is left."""

    scores: list[HeadScores]
    A: Stack
    left: float

    @property
    def found(self) -> bool:
        """Whether they explain all answers."""
        return self.left < _NEAR


@dataclass(frozen=True, eq=False, slots=True)
class _State:
    scores: list[HeadScores]
    frame: Matrix  # orthonormal, of the means that heads answer
    maps: Matrix
    rest: Matrix

    @property
    def left(self) -> float:
        return float(np.sqrt(np.mean(self.rest**2)))


def fit_heads(start: list[HeadScores], questions: list[Placed], form: ScoreForm) -> JointHeads:
    """Gauss-Newton from a start, answers weighed as the questions say."""
    fit = _JointFit(questions, form)
    state, damping = fit.decompose(start), _FIRST_DAMPING
    trail = [state.left]
    for _ in range(_STEPS):
        check_own_time()
        step = fit.choose_step(state, damping)
        moved = fit.decompose(fit.move(state.scores, step))
        # What is no number is no progress either.
        if not moved.left < state.left:
            damping *= 10.0
            if damping > _LARGEST_DAMPING or state.left < _NEAR:
                break
            continue
        slow = moved.left > _SLOW * state.left and moved.left < _NEAR
        state, damping = moved, max(DAMPING, 0.1 * damping)
        trail.append(state.left)
        # As of single heads: a right start falls faster and faster, a wrong wiring creeps.
        creeps = len(trail) > PATIENCE and state.left > 0.5 * trail[-PATIENCE]
        if slow or creeps or state.left < _DONE:
            break
    heads = len(start)
    A = state.maps.reshape(heads, -1, state.maps.shape[1]).swapaxes(1, 2)
    return JointHeads(state.scores, A, state.left)


@dataclass(frozen=True, eq=False, slots=True)
class _JointFit:
    questions: list[Placed]
    form: ScoreForm

    def decompose(self, scores: list[HeadScores]) -> _State:
        """The best maps for these scores, and what they leave."""
        means, answers = self._list_means(scores), self._list_answers()
        frame, triangle = np.linalg.qr(means)
        told = frame.T @ answers
        maps = solve_least_squares(triangle, told)
        return _State(scores, frame, maps, answers - frame @ told)

    def _list_answers(self) -> Matrix:
        return np.concatenate([part.answers * part.weight[:, None] for part in self.questions])

    def _list_means(self, scores: list[HeadScores]) -> Matrix:
        """What every head would answer were its map the identity (questions x all)."""
        return np.concatenate([self._mean_heads(scores, part) for part in self.questions])

    def _mean_heads(self, scores: list[HeadScores], placed: Placed) -> Matrix:
        means = [
            np.einsum("qt,qtd->qd", attend_placed(one, placed, self.form).shares, placed.n)
            for one in scores
        ]
        return np.concatenate(means, axis=1) * placed.weight[:, None]

    def choose_step(self, state: _State, damping: float) -> Vector:
        """A damped step of the free parameters of all heads."""
        heads = len(state.scores)
        maps = state.maps.reshape(heads, -1, state.maps.shape[1]).swapaxes(1, 2)
        # One row for each question, one column for each number of an answer and each parameter.
        J = np.concatenate(
            [
                np.concatenate(
                    [
                        derive_left(one, part, A, self.form)
                        for one, A in zip(state.scores, maps, strict=True)
                    ],
                    axis=2,
                )
                for part in self.questions
            ]
        )
        flat = J.reshape(len(J), -1)
        flat -= state.frame @ (state.frame.T @ flat)
        table = flat.reshape(-1, J.shape[2])
        return work_apart(lambda: _solve_normal(table, state.rest.ravel(), damping))

    def move(self, scores: list[HeadScores], step: Vector) -> list[HeadScores]:
        """Scores less a step of their free parameters."""
        free = [list_free(one, self.form) for one in scores]
        parts = np.split(step, np.cumsum([mask.sum() for mask in free])[:-1])
        moved: list[HeadScores] = []
        for one, mask, part in zip(scores, free, parts, strict=True):
            values = one.flatten()
            values[mask] -= part
            moved.append(one.refill(values))
        return moved


def _solve_normal(A: Matrix, b: Vector, damping: float) -> Vector:
    """Damped least squares by normal equations, in the place of A.

    What their squared condition loses the next step makes good.
    """
    from scipy import linalg

    scale = np.linalg.norm(A, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    A /= scale
    normal = A.T @ A
    normal[np.diag_indices(len(normal))] += damping
    solve: Any = linalg.solve
    return solve(normal, A.T @ b, assume_a="pos", overwrite_a=True) / scale
