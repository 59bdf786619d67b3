"""Separating the heads: rows that read one head out of an answer, for every head."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Array, Float, Matrix, Stack, Vector
from keyhole.learners.positions.head_fit import fit_head
from keyhole.learners.positions.head_pencil import (
    Clusters,
    Moves,
    Separated,
    find_clusters,
    find_left_null_space,
    sharpen_head,
)
from keyhole.learners.positions.placed import Asking, LinearPart, Placed, solve_rows
from keyhole.learners.positions.score_form import HeadScores, ScoreForm

_TRIES = 5
_LEFT = 1e-6  # of answers to moves, which a wrong head leaves
_APART = 1e-4  # least singular value of all rows together
_WIDE = 0.97  # of the radius: large scores part the weights of heads


class Unsplit(Exception):
    """The heads could not be told apart."""


@dataclass(frozen=True, slots=True)
class MovedToken:
    """How equal tokens are moved.

    Args:
        length: number of tokens.
        place: of the moved token.
        step: size of the moves.
        roams: whether other places show other weights, as in a table.
    """

    length: int
    place: int
    step: float
    roams: bool = False

    def vary(self, turn: int) -> MovedToken:
        """Smaller moves, for weights of heads that were too close together, and another place."""
        place = (self.place + turn) % (self.length - 1) if self.roams else self.place
        return replace(self, place=place, step=self.step * 0.2**turn)


def choose_moved_token(positions: str, longest: int | None) -> MovedToken:
    """Where weights of equal tokens differ most from head to head.

    Slopes of ALiBi differ by powers of two, so that the flattest show in long sequences alone.
    Weights of rotary heads differ more the farther the token.
    """
    wanted = 128 if positions == "alibi" else 8
    length = wanted if longest is None else max(2, min(wanted, longest))
    place = length - 2 if positions == "alibi" else 0
    return MovedToken(length, place, _choose_step(positions), roams=positions == "table")


def _choose_step(positions: str) -> float:
    # Tables have weights that are nearly equal more often, and fits that bear rounding better.
    return 1e-4 if positions == "table" else 1e-3


def count_extra_moves(D: int, rank: int) -> int:
    """Moves beyond one per direction, so that the fit of weight and slope is determined."""
    return min(D, math.ceil(1.6 * max(0.0, D + 1 - 0.6 * rank * rank) / rank) + 2)


def split_by_positions(
    asking: Asking, linear: LinearPart, first: MovedToken, *, rng: np.random.Generator
) -> Stack:
    """Rows of every head (heads x rank x outputs), from moves of one of several equal tokens.

    Raises:
        Unsplit: no try showed clusters of one size.
    """
    for turn in range(_TRIES):
        moved = first.vary(turn)
        y = asking.ball.draw(size=_WIDE, rng=rng)
        frame = np.linalg.qr(rng.normal(size=(len(y), len(y))))[0]
        delta = moved.step * frame
        answers = _ask_moves(asking, linear, moved, y, delta)
        J = solve_rows(frame, answers / moved.step).T
        clusters = find_clusters(J, linear.M, lost=0)
        if clusters is None:
            continue
        extra = -delta[: count_extra_moves(len(y), clusters.rank)]
        more = _ask_moves(asking, linear, moved, y, extra)
        delta, answers = np.concatenate([delta, extra]), np.concatenate([answers, more])
        heads = _sharpen_heads(Moves(delta, answers), linear.M, clusters)
        if _are_apart(heads):
            return np.stack([head.V for head in heads])
    raise Unsplit


def _ask_moves(
    asking: Asking, linear: LinearPart, moved: MovedToken, y: Vector, delta: Matrix
) -> Matrix:
    n = np.tile(y, (len(delta), moved.length, 1))
    n[:, moved.place] += delta
    return asking.ask(n) - linear.constant - linear.M @ y


def _sharpen_heads(moves: Moves, M: Matrix, clusters: Clusters) -> list[Separated]:
    level = np.zeros(M.shape[1])
    return [
        sharpen_head(moves, M, rank=clusters.rank, beta=math.log(w / (1 - w)), slope=level)
        for w in clusters.weights
    ]


def _are_apart(heads: list[Separated]) -> bool:
    rows = np.concatenate([head.V for head in heads])
    least = float(np.linalg.svd(rows, compute_uv=False)[-1])
    return max(head.left for head in heads) < _LEFT and least > _APART


@dataclass(frozen=True, eq=False, slots=True)
class RoughSplit:
    """Heads without positions, as far as one pair of tokens shows them.

    Args:
        x: the earlier token.
        y: the last token.
        delta: moves of the earlier token.
        answers: to the moved pairs, less the constant.
        J: derivative of answers by the earlier token.
        clusters: weights of the earlier token.
        V: rows of every head but one of each (heads x rank - 1 x outputs).
    """

    x: Vector
    y: Vector
    delta: Matrix
    answers: Matrix
    J: Matrix
    clusters: Clusters
    V: Float[Array, "heads less outputs"]


_PAIR_STEP = 1e-4


def split_one_pair(
    asking: Asking, linear: LinearPart, *, size: float, rng: np.random.Generator
) -> RoughSplit:
    """All rows of the heads but one of each, from moves of the earlier token of a pair.

    Raises:
        Unsplit: no try showed clusters of one size.
    """
    for _ in range(_TRIES):
        x, y = asking.ball.draw(2, size=size, rng=rng)
        frame = np.linalg.qr(rng.normal(size=(len(y), len(y))))[0]
        delta = np.concatenate([np.zeros((1, len(y))), _PAIR_STEP * frame])
        n = np.stack([x + delta, np.tile(y, (len(delta), 1))], axis=1)
        answers = asking.ask(n) - linear.constant
        J = solve_rows(frame, (answers[1:] - answers[0]) / _PAIR_STEP).T
        clusters = find_clusters(J, linear.M, lost=1)
        if clusters is not None:
            V = [
                find_left_null_space(J - w * linear.M, clusters.rank - 1) for w in clusters.weights
            ]
            return RoughSplit(x, y, delta, answers, J, clusters, np.stack(V))
    raise Unsplit


def finish_split(
    linear: LinearPart, rough: RoughSplit, asked: Placed, slopes: Matrix, form: ScoreForm
) -> Stack:
    """All rows of every head, once the slopes of their scores at y are known.

    At one last token a head is a slope: it is fitted to the moves and to further questions there,
    its rows eliminated, as a head of size 1 whose query is 1.

    Raises:
        Unsplit: a head does not explain the answers.
    """
    pairs = _place_pairs(rough)
    longest = max(pairs.length, asked.length)
    still = ScoreForm(np.zeros(0), np.zeros((longest, 0)), form.cap, form.biased)
    one, none = np.ones(1), np.zeros(0)
    heads = [
        fit_head(
            HeadScores(np.zeros((1, len(slope))), one, slope[None], np.zeros(1), none),
            [pairs, asked],
            linear.M,
            still,
            rank=rough.clusters.rank,
        )
        for slope in slopes
    ]
    if not all(head.found for head in heads):
        raise Unsplit
    return np.stack([head.V for head in heads])


def _place_pairs(rough: RoughSplit) -> Placed:
    """The moved pairs as placed questions."""
    count = len(rough.delta)
    n = np.stack([rough.x + rough.delta, np.tile(rough.y, (count, 1))], axis=1)
    at = np.tile(np.array([1, 0], dtype=np.intp), (count, 1))
    size = float(np.sqrt(np.mean(rough.answers**2)))
    return Placed(n, at, 2, rough.answers, np.full(count, 1.0 / size))
