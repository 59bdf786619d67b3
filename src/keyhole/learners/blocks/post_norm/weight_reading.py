r"""Queries and keys of all heads of a post-norm block, its token map and value maps known.

An answer to few tokens beside y shows $u = K y + b + \sum_h A_h \sum_i \alpha_{hi} (x_i - y)$ but
for its length: all weights are solved for at once, from equal ones on. Their logarithms are linear
in queries and in keys, as in `head_scores`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.learners.blocks.head_scores import (
    SHARE,
    ScoreDesign,
    ScoreMaps,
    Weighed,
    design_scores,
    solve_score_maps,
    weigh,
)
from keyhole.learners.blocks.post_norm.direction_fit import TokenMap, TokenModel, leave_directions
from keyhole.learners.blocks.post_norm.locks import FrontMaps
from keyhole.learners.blocks.post_norm.token_sphere import TokenSphere
from keyhole.learners.blocks.solving import linalg
from keyhole.oracles.own_time import check_own_time

_STEPS = 30
_HELD = 1 << 24  # slopes at once
_GAINED = 0.5  # of what is left, that another step takes off
_SOLVED = 1e-6  # what weights that were found may leave


@dataclass(frozen=True, eq=False, slots=True)
class ReadScores:
    """Score maps, and the questions that showed them.

    Args:
        maps: queries and keys; None where too few weights were read.
        X: the sequences.
        phi: directions that they were answered by.
    """

    maps: ScoreMaps | None
    X: Array
    phi: Matrix


def choose_score_rank(width: int, front: FrontMaps) -> int:
    """The size of queries: of values, or what is left of it where a norm took a direction."""
    return max(front.rank, width // front.heads)


def design_weights(width: int, heads: int, rank: int) -> ScoreDesign:
    """Questions that show queries and keys: few enough tokens that all weights show."""
    tokens = max(1, int(SHARE * (width - 2) / heads))
    return design_scores(width, rank, tokens)


def count_weight_queries(width: int, heads: int, rank: int) -> int:
    """What reading the scores costs."""
    design = design_weights(width, heads, rank)
    return design.key_places * design.each + 2 * design.query_places


class WeightReader:
    """Weights of few tokens, read through everything that is known."""

    def __init__(
        self, sphere: TokenSphere, model: TokenModel, known: TokenMap, front: FrontMaps
    ) -> None:
        self.sphere, self.model, self.known, self.front = sphere, model, known, front

    def find(self, *, near: float, rng: np.random.Generator) -> ReadScores:
        """Queries and keys, others a share `near` of the usual distance from the last token."""
        width = self.front.A.shape[2]
        rank = choose_score_rank(width, self.front)
        design = design_weights(width, self.front.heads, rank)
        shapes = (
            (design.key_places, design.each, design.tokens),
            (design.query_places, 2, design.tokens),
        )
        (keys, X, phi), (queries, more, shown) = (self._ask(s, near, rng) for s in shapes)
        maps = solve_score_maps(keys, queries, rank)
        return ReadScores(maps, np.concatenate([X, more]), np.concatenate([phi, shown]))

    def _ask(
        self, shape: tuple[int, int, int], near: float, rng: np.random.Generator
    ) -> tuple[Weighed, Array, Matrix]:
        places, each, tokens = shape
        width = self.front.A.shape[2]
        y = rng.normal(size=(places, width))
        apart = near * (rng.normal(size=(*shape, width)) - y[:, None, None])
        X = np.concatenate(
            [y[:, None, None] + apart, np.broadcast_to(y[:, None, None], (places, each, 1, width))],
            axis=2,
        ).reshape(places * each, tokens + 1, width)
        phi = self.sphere.ask(X)
        alphas = self._solve(np.repeat(y, each, axis=0), apart.reshape(-1, tokens, width), phi)
        alphas = alphas.reshape(places, each, -1, tokens).transpose(0, 2, 1, 3)
        return weigh(y, apart, alphas), X, phi

    def _solve(self, y: Matrix, apart: Array, phi: Matrix) -> Array:
        """Weights of all heads (questions x heads x tokens); negative where none were found."""
        # A slope for every output and coordinate: a few questions at a time.
        parts = 1 + len(y) * y.shape[1] ** 2 // _HELD
        cut = [np.array_split(each, parts) for each in (y, apart, phi)]
        return np.concatenate([self._solve_few(*each) for each in zip(*cut, strict=True)])

    def _solve_few(self, y: Matrix, apart: Array, phi: Matrix) -> Array:
        count, tokens, _ = apart.shape
        front = self.known.front
        alone = y @ front.K.T + front.b
        pull = np.einsum("hdc,ptc->pdht", self.front.A, apart, optimize=True)
        pull = pull.reshape(*alone.shape, -1)
        weights = np.full((count, pull.shape[2]), 1.0 / (tokens + 1))
        left, J = self._leave(alone, pull, weights, phi)
        cost: Vector = linalg.norm(left, axis=1)
        damping = np.full(count, 1e-4)
        for _ in range(_STEPS):
            check_own_time()
            N = J.swapaxes(1, 2) @ J
            N += (damping[:, None] * np.einsum("pii->pi", N) + 1e-300)[..., None] * np.eye(
                N.shape[1]
            )
            step = linalg.solve(N, J.swapaxes(1, 2) @ left[..., None])[..., 0]
            trial = weights + step
            moved, slopes = self._leave(alone, pull, trial, phi)
            after: Vector = linalg.norm(moved, axis=1)
            better = after < cost
            if not (after < _GAINED * cost).any() and (cost < self.model.excuse(_SOLVED)).all():
                break
            weights = np.where(better[:, None], trial, weights)
            left = np.where(better[:, None], moved, left)
            J = np.where(better[:, None, None], slopes, J)
            cost = np.where(better, after, cost)
            damping = np.where(better, damping * 0.05, damping * 10.0)
        weights[~(cost < self.model.excuse(_SOLVED))] = -1.0
        return weights.reshape(count, -1, tokens)

    def _leave(
        self, alone: Matrix, pull: Array, weights: Matrix, phi: Matrix
    ) -> tuple[Matrix, Array]:
        u = alone + (pull @ weights[..., None])[..., 0]
        left, slopes = leave_directions(self.model.turn(self.known.behind, u), phi)
        return left, slopes @ pull
