r"""Queries and keys of heads whose value maps are known, whatever network is behind them.

With the rows V_h of the heads an answer shows $W_h \sum_i \alpha_{hi} (n_i - y)$, so the weights of
fewer tokens than a head has numbers are linear in it; $\log \alpha_{hi}/\alpha_{hN} = (W_q y +
b_q)^\top W_k (n_i - y)$. Many tokens beside one y show $W_k^\top q(y)$; those of a few y the space
of keys; then few tokens beside many y are linear equations for queries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.learners.blocks.far_tokens import FarTokens
from keyhole.learners.blocks.solving import join_parts, linalg, solve_scaled_steps, whiten
from keyhole.learners.blocks.value_maps import ValueMaps

_SIZE = 0.75  # of the radius, of the tokens
SHARE = 0.65  # of a head's numbers, weights that are read at once
LEAST = 2e-4  # weights below are not read
_MORE = 1.25  # equations for an unknown


@dataclass(frozen=True, eq=False, slots=True)
class ScoreMaps:
    """What heads score tokens by: $(W_q y + b_q)^T W_k n_i$.

    Args:
        Wq: query maps (heads x rank x dimension).
        bq: query biases.
        Wk: key maps.
    """

    Wq: Array
    bq: Array
    Wk: Array


@dataclass(frozen=True, slots=True)
class ScoreDesign:
    """How many questions are asked.

    Args:
        tokens: before the last one.
        key_places: last tokens beside which keys are read.
        each: questions beside each of them.
        query_places: further last tokens, two questions each.
    """

    tokens: int
    key_places: int
    each: int
    query_places: int

    @property
    def queries(self) -> int:
        """All of them, with one for every last token alone."""
        return self.key_places * (self.each + 1) + self.query_places * 3


def design_scores(dimension: int, rank: int, tokens: int | None = None) -> ScoreDesign:
    """Questions that show queries and keys of heads of a size, so many tokens at once."""
    tokens = max(1, int(SHARE * rank)) if tokens is None else tokens
    each = math.ceil(_MORE * dimension / tokens)
    places = math.ceil(_MORE * rank * (dimension + 1) / (2 * tokens)) + 1
    return ScoreDesign(tokens, rank + 2, each, places)


def find_score_maps(
    asking: FarTokens, values: ValueMaps, *, near: float, rng: np.random.Generator
) -> ScoreMaps | None:
    """Queries and keys; None where weights were too uneven to be read.

    Args:
        asking: the block.
        values: its value maps.
        near: how far from the last token others are, as a share of the usual: scores shrink by it.
        rng: source of the tokens.
    """
    design = design_scores(asking.dimension, values.rank)
    shape = design.each, design.tokens
    keys = _ask_weights(asking, values, (design.key_places, *shape), near, rng)
    queries = _ask_weights(asking, values, (design.query_places, 2, design.tokens), near, rng)
    return solve_score_maps(keys, queries, values.rank)


def solve_score_maps(keys: Weighed, queries: Weighed, rank: int) -> ScoreMaps | None:
    """Queries and keys of a size from scores; None where too few were read."""
    heads = range(keys.scores.shape[1])
    Wk = [_solve_keys(keys, h, rank) for h in heads]
    known = [found for found in Wk if found is not None]
    if len(known) < len(Wk):
        return None
    pairs = [_solve_queries((keys, queries), h, k) for h, k in enumerate(known)]
    return ScoreMaps(
        np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs]), np.array(known)
    )


@dataclass(frozen=True, eq=False, slots=True)
class Weighed:
    """Scores beside the last token's, with how far they are to be trusted.

    Args:
        y: last tokens (places x dimension).
        apart: tokens less the last one (places x equations x dimension).
        scores: (places x heads x equations).
        trust: 0 where a weight was not read.
    """

    y: Matrix
    apart: Array
    scores: Array
    trust: Array


def _ask_weights(
    asking: FarTokens,
    values: ValueMaps,
    shape: tuple[int, int, int],
    near: float,
    rng: np.random.Generator,
) -> Weighed:
    """Weights of tokens: so many last ones, questions beside each, and tokens of a question."""
    places, each, tokens = shape
    y = asking.draw_on_sphere(places, rng)
    n = asking.draw_inside(*shape, size=_SIZE, rng=rng)
    n = near * n + (1.0 - near) * y[:, None, None]
    answers = asking.ask_behind(
        n.reshape(places * each, tokens, -1), np.repeat(y, each, axis=0)
    ).reshape(places, each, -1)
    z = answers - asking.ask_lone(y)[:, None]
    apart = n - y[:, None, None]
    made = np.einsum("hrd,petd->hpert", values.W, apart)
    seen = np.einsum("hro,peo->hper", values.V, z)
    alphas = (linalg.pinv(made) @ seen[..., None])[..., 0]
    return weigh(y, apart, alphas.transpose(1, 0, 2, 3))


def weigh(y: Matrix, apart: Array, alphas: Array) -> Weighed:
    """Scores beside the last token's, from weights.

    Args:
        y: last tokens (places x dimension).
        apart: tokens less the last one (places x questions x tokens x dimension).
        alphas: their weights (places x heads x questions x tokens); below 0 where none was read.
    """
    last = 1.0 - alphas.sum(axis=-1, keepdims=True)
    least = np.minimum(alphas, last)
    fine = least > LEAST
    scores = np.log(np.where(fine, alphas, 1.0) / np.where(last > 0, last, 1.0))
    joined = (*alphas.shape[:2], -1)
    return Weighed(
        y,
        apart.reshape(len(y), -1, apart.shape[-1]),
        np.where(fine, scores, 0.0).reshape(joined),
        np.where(fine, least, 0.0).reshape(joined),
    )


def _solve_keys(seen: Weighed, h: int, rank: int) -> Matrix | None:
    """The space of keys, as rank many rows."""
    rows: list[Vector] = []
    for apart, scores, trust in zip(seen.apart, seen.scores[:, h], seen.trust[:, h], strict=True):
        if np.count_nonzero(trust) >= apart.shape[1]:
            solved = linalg.lstsq(apart * trust[:, None], scores * trust, rcond=None)[0]
            rows.append(solved)
    if len(rows) < rank:
        return None
    found = linalg.svd(np.array(rows), full_matrices=False)[2][:rank]
    # A single head is as wide as the answers, which is more than a norm leaves of a token.
    return np.concatenate([found, np.zeros((rank - len(found), found.shape[1]))])


def _solve_queries(seen: tuple[Weighed, ...], h: int, Wk: Matrix) -> tuple[Matrix, Vector]:
    """Queries and their biases: linear in scores, by products of keys and last tokens."""
    parts = [
        _Products(
            (part.apart @ Wk.T) * part.trust[:, h, :, None],
            np.column_stack([part.y, np.ones(len(part.y))]),
        )
        for part in seen
    ]
    wanted = join_parts([part.scores[:, h] * part.trust[:, h] for part in seen])
    both = _solve_products(parts, wanted)
    return both[:, :-1], both[:, -1]


@dataclass(frozen=True, eq=False, slots=True)
class _Products:
    r"""Equations $k_{pe}^\top F y_p$ for one matrix F.

    Args:
        k: keys (places x equations x rank).
        y: last tokens and a one (places x dimension + 1).
    """

    k: Array
    y: Matrix

    def multiply(self, F: Matrix) -> Matrix:
        """What F makes (places x equations)."""
        return (self.k @ (self.y @ F.T)[..., None])[..., 0]

    def multiply_back(self, made: Matrix) -> Matrix:
        """The transpose."""
        return (made[:, None] @ self.k)[:, 0].T @ self.y


def _solve_products(parts: Sequence[_Products], wanted: Vector) -> Matrix:
    """F by least squares; a table of all products is never formed."""
    left = whiten(_sum_squares([part.k.reshape(-1, part.k.shape[2]) for part in parts]))
    right = whiten(_sum_squares([part.y for part in parts]))
    shape = len(left), len(right)
    ends = np.cumsum([part.k.shape[0] * part.k.shape[1] for part in parts])[:-1]

    def multiply(x: Vector) -> Vector:
        F = left @ x.reshape(shape) @ right.T
        return join_parts([part.multiply(F) for part in parts])

    def multiply_back(y: Vector) -> Vector:
        sides = zip(parts, np.split(y, ends), strict=True)
        F = np.sum([part.multiply_back(made.reshape(part.k.shape[:2])) for part, made in sides], 0)
        return (left.T @ F @ right).ravel()

    x = solve_scaled_steps(multiply, multiply_back, wanted, 0.0, unknowns=shape[0] * shape[1])
    return left @ x.reshape(shape) @ right.T


def _sum_squares(tables: Sequence[Matrix]) -> Matrix:
    rows = np.concatenate(tables)
    return rows.T @ rows
