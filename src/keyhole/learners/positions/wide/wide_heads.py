"""Measuring heads that no rows read one by one: split, questions, a start of each, a fit of all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from keyhole._arrays import Indices, Matrix, Vector
from keyhole.learners.positions.grouped.sharing import HeadMaps
from keyhole.learners.positions.placed import Asking, LinearPart, Placed, join_placed
from keyhole.learners.positions.question_design import QuestionDesign, design_questions
from keyhole.learners.positions.score_form import HeadScores, ScoreForm
from keyhole.learners.positions.score_maps import (
    ReadScores,
    solve_plain_keys,
    solve_queries,
    solve_rotary_keys,
)
from keyhole.learners.positions.wide.joint_reading import count_read_tokens, read_joint_scores
from keyhole.learners.positions.wide.shift_split import WideSplit
from keyhole.learners.positions.wide.wide_fit import JointHeads, fit_heads
from keyhole.models import Wiring

OVER = 1.7  # equations per unknown
_ROUNDS = (1.0, 0.5, 0.5)  # of such questions
_FAR = 12.0  # times the usual score, which a misread weight shows

AskPlaced = Callable[[QuestionDesign, Matrix], Placed]


def may_be_wide(wiring: Wiring, linear: LinearPart, D: int) -> bool:
    """Whether heads may be told apart by shifts: zero tokens must score 0."""
    plain = not (wiring.sinks or wiring.softcap or linear.biased)
    return plain and wiring.positions in ("rope", "none") and D > 3


def design_wide_questions(form: ScoreForm, split: WideSplit) -> QuestionDesign:
    """Few tokens, so that the weights of all heads fit into an answer, and more questions."""
    heads, outputs, D = split.A.shape
    tokens = count_read_tokens(outputs, heads, split.rank)
    return design_questions(form, D, split.rank, over=OVER, most=tokens)


def measure_wide_heads(
    split: WideSplit,
    form: ScoreForm,
    asking: Asking,
    linear: LinearPart,
    ask: AskPlaced,
    *,
    size: float,
    rng: np.random.Generator,
) -> JointHeads:
    """All heads fitted together, asked further where they do not explain their answers.

    Args:
        split: maps of all heads, roughly.
        form: of their scores.
        asking: the target in coordinates of the ball.
        linear: what lone tokens are answered.
        ask: asks tokens at displacements before given last ones.
        size: of tokens.
        rng: source of the last tokens.
    """
    design = design_wide_questions(form, split)
    fixed = asking.ball.draw(design.groups, size=size, rng=rng)
    counts = np.array(design.key_questions)
    keys: list[Placed] = []
    groups: list[Indices] = []
    queries: list[Placed] = []
    fits: list[JointHeads] = []
    lone = _place_lone_tokens(linear, size)
    for share in _ROUNDS:
        group = np.repeat(np.arange(len(counts)), np.ceil(share * counts).astype(int))
        own = asking.ball.draw(math.ceil(share * design.query_questions), size=size, rng=rng)
        keys.append(ask(design, fixed[group]))
        queries.append(ask(design, own))
        groups.append(group)
        start = _start_heads(split, keys, groups, queries, form)
        asked = [*keys, *queries, lone]
        fits.append(fit_heads(start, asked, form))
        if fits[-1].found:
            break
    return fits[-1]


def _start_heads(
    split: WideSplit,
    keys: list[Placed],
    groups: list[Indices],
    queries: list[Placed],
    form: ScoreForm,
) -> list[HeadScores]:
    asked, group, own = join_placed(keys), np.concatenate(groups), join_placed(queries)
    scores: list[HeadScores] = []
    for read, last in zip(
        read_joint_scores(split.A, asked), read_joint_scores(split.A, own), strict=True
    ):
        solve = solve_rotary_keys if form.rotary else solve_plain_keys
        found = solve(_trim(read), asked, group, split.rank, form)
        scores.append(solve_queries(_trim(last), own, found, form))
    return scores


def _trim(read: ReadScores) -> ReadScores:
    """Without scores that are out of all proportion: a weight near zero was misread."""
    sizes: Matrix = np.abs(read.values)
    known: Vector = sizes[read.weights > 0]
    usual = float(np.median(known)) if len(known) else 0.0
    far = sizes > _FAR * max(1.0, usual)
    return replace(read, weights=np.where(far, 0.0, read.weights))


def _place_lone_tokens(linear: LinearPart, size: float) -> Placed:
    """What lone tokens are answered, as questions of one token."""
    D = linear.M.shape[1]
    n = size * np.sqrt(D) * np.eye(D)
    answers: Matrix = n @ linear.M.T
    weight = np.full(D, 1.0 / float(np.sqrt(np.mean(answers**2))))
    return Placed(n[:, None], np.zeros((D, 1), dtype=np.intp), 1, answers, weight)


def list_wide_maps(heads: JointHeads, rank: int) -> list[HeadMaps]:
    """The maps of every head, each in coordinates of its own."""
    U, s, Vt = np.linalg.svd(heads.A, full_matrices=False)
    return [
        HeadMaps(U[h, :, :rank] * s[h, :rank], Vt[h, :rank], scores)
        for h, scores in enumerate(heads.scores)
    ]
