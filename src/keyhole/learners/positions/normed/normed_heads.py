"""Measuring heads whose queries and keys are normed: rows, questions, a start and a fit of each."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Array, Indices, Matrix, Stack
from keyhole.learners.positions.grouped.sharing import MeasuredHeads, list_head_maps
from keyhole.learners.positions.head_fit import FittedHead, fit_head
from keyhole.learners.positions.head_split import Unsplit
from keyhole.learners.positions.normed.normed_maps import (
    NormedMap,
    Shrunk,
    Situations,
    count_entries,
    join_maps,
    read_absolute_scores,
    solve_key_map,
    solve_query_map,
)
from keyhole.learners.positions.normed.shared_gains import share_gains
from keyhole.learners.positions.placed import Asking, LinearPart, Placed
from keyhole.learners.positions.question_design import OVER
from keyhole.learners.positions.score_form import ScoreForm

_TURNED = 3  # situations in which each token is asked, with rotary positions
_ZEROS = 8  # zero tokens, which scores are read against
_ROUNDS = 3  # of questions, each half as many again
_SHRUNK = 4  # queries that are asked smaller


@dataclass(frozen=True, eq=False, slots=True)
class NormedQuestions:
    """Questions for keys and queries, and their answers.

    Args:
        turns: situations, in which one set of tokens after the other is asked.
        keys: answers to these.
        small: the first set in the first situation, its tokens made smaller.
        queries: questions with a last token each.
        shrunk: the first of them with the last token made smaller.
        share: how much smaller.
    """

    turns: int
    keys: Placed
    small: Placed
    queries: Placed
    shrunk: Placed
    share: float

    @property
    def asked(self) -> list[Placed]:
        """All questions."""
        return [self.keys, self.small, self.queries, self.shrunk]


def measure_normed_heads(
    V: Stack,
    form: ScoreForm,
    asking: Asking,
    linear: LinearPart,
    *,
    size: float,
    roundoff: float,
    rng: np.random.Generator,
) -> MeasuredHeads:
    """The maps of heads that share gains, asked further where one does not explain its answers.

    Args:
        V: rows that read them.
        form: of their scores.
        asking: the target in coordinates of the ball.
        linear: what lone tokens are answered.
        size: of tokens, as a share of the radius of the ball.
        roundoff: of the answers.
        rng: source of all tokens.

    Raises:
        Unsplit: scores are not those of normed queries and keys.
    """
    heads: list[FittedHead] = []
    for k in range(_ROUNDS):
        over = OVER * 1.5**k
        asked = _ask_questions(V.shape[1], form, asking, linear, over=over, size=size, rng=rng)
        try:
            heads = [_fit_one(rows, asked, form, linear.M, roundoff) for rows in V]
        except Unsplit:
            # Few questions may leave sizes to rounding.
            continue
        if all(head.found for head in heads):
            break
    if not heads:
        raise Unsplit
    maps = list_head_maps(heads, linear.M, asking.shown)
    shared = share_gains([one.scores for one in maps], form)
    maps = [replace(one, scores=scores) for one, scores in zip(maps, shared, strict=True)]
    return MeasuredHeads(maps, [head.found for head in heads])


@dataclass(frozen=True, slots=True)
class _Design:
    """How many questions there are, of how many tokens, and how long."""

    tokens: int
    length: int
    turns: int
    sets: int
    queries: int

    @classmethod
    def of(cls, form: ScoreForm, D: int, rank: int, outputs: int, over: float) -> _Design:
        tokens = max(1, min(rank - 1, form.longest - 1))
        turns = _TURNED if form.rotary else rank
        length = form.longest if form.rotary else tokens + 1 + _ZEROS
        # Of every token and last token one size is read, which a quadratic form is solved for.
        sizes = over * count_entries(rank, form)
        sets = math.ceil(max(over * rank * D / (turns - 1), sizes) / tokens)
        free = math.ceil(over * 2 * (D + 1)) + outputs - rank
        queries = math.ceil(max(over * rank * D / tokens, sizes, free - sets * turns))
        return cls(tokens, length, turns, sets, queries)

    def draw_places(self, form: ScoreForm, count: int, rng: np.random.Generator) -> Indices:
        at = np.tile(np.arange(self.tokens, -1, -1, dtype=np.intp), (count, 1))
        if form.rotary:
            for row in at:
                row[:-1] = rng.choice(np.arange(1, self.length), self.tokens, replace=False)
        return at


def count_normed_questions(form: ScoreForm, D: int, rank: int, outputs: int) -> tuple[int, int]:
    """How many tell the heads apart, and how many keys and queries."""
    design = _Design.of(form, D, rank, outputs, OVER)
    split = 2 * D if form.rotary else 4 * D
    return split, design.sets * design.turns + 1 + design.queries + _SHRUNK


def _ask_questions(
    rank: int,
    form: ScoreForm,
    asking: Asking,
    linear: LinearPart,
    *,
    over: float,
    size: float,
    rng: np.random.Generator,
) -> NormedQuestions:
    ball = asking.ball
    design = _Design.of(form, ball.dimension, rank, len(linear.M), over)
    share = math.sqrt(form.head_eps or 1.0)

    def ask(n: Stack, at: Indices) -> Placed:
        return asking.ask_placed(n, at, design.length, linear.constant)

    sets = np.repeat(
        ball.draw(design.sets, design.tokens, size=size, rng=rng), design.turns, axis=0
    )
    fixed = ball.draw(1 if form.rotary else design.turns, size=size, rng=rng)
    last = np.resize(fixed, (len(sets), ball.dimension))
    n = np.concatenate([sets, last[:, None]], axis=1)
    at = design.draw_places(form, len(n), rng)
    small, own = n[:1].copy(), ball.draw(design.queries, design.tokens + 1, size=size, rng=rng)
    small[:, :-1] *= share
    shrunk, places = own[:_SHRUNK].copy(), design.draw_places(form, len(own), rng)
    shrunk[:, -1] *= share
    return NormedQuestions(
        design.turns,
        ask(n, at),
        ask(small, at[:1]),
        ask(own, places),
        ask(shrunk, places[:_SHRUNK]),
        share,
    )


def _fit_one(
    V: Matrix, asked: NormedQuestions, form: ScoreForm, M: Matrix, roundoff: float
) -> FittedHead:
    keys = _solve_for_keys(V, asked, form, M)
    queries = _solve_for_queries(V, asked, keys, form, M)
    start = join_maps(queries, keys, form)
    return fit_head(start, asked.asked, M, form, roundoff=roundoff)


def _solve_for_keys(V: Matrix, asked: NormedQuestions, form: ScoreForm, M: Matrix) -> NormedMap:
    read, turns, rank = read_absolute_scores(V, M, asked.keys), asked.turns, len(V)
    tokens = asked.keys.n.shape[1] - 1

    def arrange(values: Array) -> Array:
        """From questions x tokens to tokens x situations."""
        parts = values[:, :-1].reshape(-1, turns, tokens, *values.shape[2:])
        return parts.swapaxes(1, 2).reshape(-1, turns, *values.shape[2:])

    n = arrange(asked.keys.n)[:, 0]
    seen = np.broadcast_to(np.eye(turns), (len(n), turns, turns))
    if form.rotary:
        angles = arrange(asked.keys.at.astype(np.float64))[..., None] * form.frequencies
        seen = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)
    features = (seen[..., None] * n[:, None, None]).reshape(len(n), turns, -1)
    situations = Situations(n, features, arrange(read.values), arrange(read.weights))
    tiny = read_absolute_scores(V, M, asked.small).values[0, :-1]
    shrunk = Shrunk(situations.scores[:tokens, :1], tiny[:, None], asked.share)
    return solve_key_map(situations, shrunk, form, rank)


def _solve_for_queries(
    V: Matrix, asked: NormedQuestions, keys: NormedMap, form: ScoreForm, M: Matrix
) -> NormedMap:
    own = asked.queries
    read = read_absolute_scores(V, M, own)
    seen = form.turn(keys.apply(own.n, form.head_eps or 0.0), own.at)
    tiny = read_absolute_scores(V, M, asked.shrunk).values[:, :-1]
    shrunk = Shrunk(read.values[: len(tiny), :-1], tiny, asked.share)
    return solve_query_map(read, seen, own.n[:, -1], shrunk, form)
