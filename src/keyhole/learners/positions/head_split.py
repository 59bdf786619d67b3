"""Separating the heads: rows that read one head out of an answer, for every head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Array, Float, Matrix, Stack, Vector
from keyhole.learners.positions.head_fit import fit_head, is_coarse
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
from keyhole.learners.positions.score_maps import find_slopes, read_scores

_TRIES = 5
_LEFT = 1e-6  # of answers to moves, which a wrong head leaves
_APART = 1e-4  # least singular value of all rows together
# Both ways a move errs by its square, and by rounding over it: least near the third root.
_COARSE_STEP = 10.0
_LARGEST_STEP = 0.25
_ROUNDINGS = 300.0  # of an answer, over the step, that a right head may leave
_FEW = 16  # directions
_WIDE = 0.97  # of the radius: large scores part the weights of heads


class Unsplit(Exception):
    """The heads could not be told apart."""


class NormedScores(Unsplit):
    """Queries and keys have a norm of their own."""


class Unfinished(Unsplit):
    """Heads were seen, and not all of their rows were found."""


@dataclass(frozen=True, slots=True)
class MovedToken:
    """How equal tokens are moved.

    Args:
        length: number of tokens.
        place: of the moved token.
        step: size of the moves.
        roams: whether other places show other weights, as in a table.
        left: of answers to moves, what a head that is right may leave.
        coarse: whether answers are rounded to less than float64: moves are large, and go both ways.
    """

    length: int
    place: int
    step: float
    roams: bool = False
    left: float = _LEFT
    coarse: bool = False

    def vary(self, turn: int) -> MovedToken:
        """Smaller moves, for weights of heads that were too close together, and another place."""
        place = (self.place + turn) % (self.length - 1) if self.roams else self.place
        shrink = 1.0 if self.coarse else 0.2
        return replace(self, place=place, step=self.step * shrink**turn)


def choose_moved_token(
    positions: str | None, longest: int | None, roundoff: float, D: int
) -> MovedToken:
    """Where weights of equal tokens differ most from head to head.

    Slopes of ALiBi differ by powers of two, so that the flattest show in long sequences alone.
    Weights of rotary heads differ more the farther the token. Where the kind is not known, a length
    serves that shows all of them.
    """
    wanted = {"alibi": 128, None: 16}.get(positions, 8)
    length = wanted if longest is None else max(2, min(wanted, longest))
    place = length - 2 if positions == "alibi" else 0
    roams = positions in ("table", None)
    # Slopes of scores along one direction are the smaller the more there are.
    step = _choose_step(positions) * max(1.0, D / _FEW)
    token = MovedToken(length, place, step, roams=roams)
    if not is_coarse(roundoff):
        return token
    wide = choose_coarse_step(roundoff)
    return replace(token, step=wide, left=_ROUNDINGS * roundoff / wide, coarse=True)


def choose_coarse_step(roundoff: float) -> float:
    """The size of moves where answers are rounded to less than float64."""
    return min(_LARGEST_STEP, _COARSE_STEP * roundoff ** (1 / 3))


def _choose_step(positions: str | None) -> float:
    # Tables have weights that are nearly equal more often, and fits that bear rounding better.
    return {"table": 1e-4, None: 3e-4}.get(positions, 1e-3)


def count_extra_moves(D: int, rank: int) -> int:
    """Moves beyond one per direction, so that the fit of weight and slope is determined."""
    return min(D, math.ceil(1.6 * max(0.0, D + 1 - 0.6 * rank * rank) / rank) + 2)


def split_by_positions(
    asking: Asking,
    linears: Sequence[LinearPart],
    first: MovedToken,
    *,
    last: float | None = None,
    rng: np.random.Generator,
) -> tuple[LinearPart, Stack]:
    """Rows of every head (heads x rank x outputs), from moves of one of several equal tokens.

    Args:
        asking: the target; the residual of its first linear part is taken off.
        linears: what lone tokens are answered, with and without a residual where that is not known:
            moves of earlier tokens do not show it, and only the right one has clusters.
        first: which token is moved.
        last: size of the tokens, a share of the radius of the ball; as large as leaves room for
            moves in any direction when None.
        rng: source of the tokens.

    Raises:
        Unsplit: no try showed clusters of one size.
    """
    for turn in range(_TRIES):
        moved = first.vary(turn)
        # What is moved stays inside the ball.
        size = min(_WIDE, 1.0 - 1.2 * moved.step / np.sqrt(asking.ball.dimension))
        y = asking.ball.draw(size=last or size, rng=rng)
        frame = np.linalg.qr(rng.normal(size=(len(y), len(y))))[0]
        frame = frame if last is None else _turn_inwards(frame, y)
        delta = moved.step * frame
        answers = _ask_moves(asking, linears[0], moved, y, delta)
        slopes = answers
        if moved.coarse:
            back = _ask_moves(asking, linears[0], moved, y, -delta)
            slopes = 0.5 * (answers - back)
            delta, answers = np.concatenate([delta, -delta]), np.concatenate([answers, back])
        J = solve_rows(frame, slopes / moved.step).T
        seen = [(find_clusters(J, part.M, lost=0), part) for part in linears]
        known = [(clusters, part) for clusters, part in seen if clusters is not None]
        if not known:
            continue
        clusters, linear = max(known, key=lambda one: one[0].ratio)
        if not moved.coarse:
            extra = -delta[: count_extra_moves(len(y), clusters.rank)]
            extra = extra if last is None else -2.0 * extra
            more = _ask_moves(asking, linears[0], moved, y, extra)
            delta, answers = np.concatenate([delta, extra]), np.concatenate([answers, more])
        heads = _sharpen_heads(Moves(delta, answers), linear.M, clusters)
        if _are_apart(heads, moved.left):
            return linear, np.stack([head.V for head in heads])
    raise Unsplit


def _turn_inwards(frame: Matrix, y: Vector) -> Matrix:
    """An orthonormal frame all of whose directions lead inwards at y, one as much as another."""
    now = frame @ y / np.linalg.norm(y)
    mirror = now + np.full(len(y), 1.0 / np.sqrt(len(y)))
    return frame - 2.0 * np.outer(mirror, mirror @ frame) / (mirror @ mirror)


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


def _are_apart(heads: list[Separated], left: float) -> bool:
    rows = np.concatenate([head.V for head in heads])
    least = float(np.linalg.svd(rows, compute_uv=False)[-1])
    return max(head.left for head in heads) < left and least > _APART


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
    asking: Asking,
    linear: LinearPart,
    *,
    size: float,
    roundoff: float,
    rng: np.random.Generator,
) -> RoughSplit:
    """All rows of the heads but one of each, from moves of the earlier token of a pair.

    Raises:
        Unsplit: no try showed clusters of one size.
    """
    for _ in range(_TRIES):
        x, y = asking.ball.draw(2, size=size, rng=rng)
        frame = np.linalg.qr(rng.normal(size=(len(y), len(y))))[0]
        step = choose_coarse_step(roundoff) if is_coarse(roundoff) else _PAIR_STEP
        # Both ways where answers are coarse; else back to no move at all.
        back = -step * frame if is_coarse(roundoff) else np.zeros((1, len(y)))
        delta = np.concatenate([step * frame, back])
        n = np.stack([x + delta, np.tile(y, (len(delta), 1))], axis=1)
        answers = asking.ask(n) - linear.constant
        apart = 2.0 * step if is_coarse(roundoff) else step
        J = solve_rows(frame, (answers[: len(y)] - answers[len(y) :]) / apart).T
        clusters = find_clusters(J, linear.M, lost=1)
        if clusters is not None:
            V = [
                find_left_null_space(J - w * linear.M, clusters.rank - 1) for w in clusters.weights
            ]
            return RoughSplit(x, y, delta, answers, J, clusters, np.stack(V))
    raise Unsplit


def finish_split(
    linear: LinearPart,
    rough: RoughSplit,
    asked: Placed,
    form: ScoreForm,
    *,
    roundoff: float,
) -> Stack:
    """All rows of every head, from the slopes of their scores at y.

    At one last token a head is a slope: it is fitted to the moves and to further questions there,
    its rows eliminated, as a head of size 1 whose query is 1.

    Raises:
        Unfinished: a head does not explain the answers.
    """
    slopes = [find_slopes(read_scores(V, linear.M, asked, form), asked) for V in rough.V]
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
            roundoff=roundoff,
        )
        for slope in slopes
    ]
    if not all(head.found for head in heads):
        raise Unfinished
    return np.stack([head.V for head in heads])


def _place_pairs(rough: RoughSplit) -> Placed:
    """The moved pairs as placed questions."""
    count = len(rough.delta)
    n = np.stack([rough.x + rough.delta, np.tile(rough.y, (count, 1))], axis=1)
    at = np.tile(np.array([1, 0], dtype=np.intp), (count, 1))
    size = float(np.sqrt(np.mean(rough.answers**2)))
    return Placed(n, at, 2, rough.answers, np.full(count, 1.0 / size))
