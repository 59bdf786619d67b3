"""Which questions tell keys and queries: how many, of how many vectors, and where they stand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Indices, Vector
from keyhole.learners.positions.score_form import ScoreForm
from keyhole.models import Wiring
from keyhole.models.layers.turning import list_frequencies
from keyhole.models.layers.wiring import USUAL_EPS

OVER = 1.3  # equations per unknown
_SPARE = 1.1  # the same where the rows that read a head are unknown too
_MANY = 2048  # unknowns of a head that are fitted at once
COARSE_OVER = 5.0  # the same where answers are rounded to less than float64
_NEAR_ENOUGH = 64
_FAR_ENOUGH = 8192
_CONDITION = 1500.0  # of the waves of rotary pairs at the displacements asked
_ROUGH_CONDITION = 30.0  # the same where weights are read to a few digits less
_CAPPED_ZEROS = 8  # zero tokens that a capped score is told by


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of a layer before its heads are.

    Args:
        wiring: norm, residual, positions and cap, as far as they are known.
        displacements: entries of a table to learn.
        longest: the longest sequence that may be asked.
        searches: whether base, share and cap are looked for; the kind of positions too, where it is
            None.
        last: how large last tokens are, as a share of the radius of the ball; as the others are
            when None.
    """

    wiring: Wiring
    displacements: int
    longest: int | None
    searches: bool = False
    last: float | None = None


@dataclass(frozen=True, slots=True)
class QuestionDesign:
    """Questions for keys and queries of heads of one size.

    Args:
        tokens: vectors beside the last.
        length: tokens of a question, zero ones included.
        groups: last tokens that keys are read at.
        key_questions: for each of these.
        query_questions: each with a last token of its own.
    """

    tokens: int
    length: int
    groups: int
    key_questions: tuple[int, ...]
    query_questions: int


def make_score_form(
    wiring: Wiring,
    rank: int,
    *,
    biased: bool,
    displacements: int,
    longest: int | None,
    rough: bool = False,
) -> ScoreForm:
    """The form of scores, with as many displacements as are asked.

    Args:
        wiring: of the layer.
        rank: size of a head.
        biased: whether queries and keys may have biases.
        displacements: entries of a table.
        longest: the longest sequence that may be asked.
        rough: whether weights are read to a few digits less than answers have.
    """
    frequencies = np.zeros(0)
    far = rank + _CAPPED_ZEROS
    if wiring.positions == "rope":
        share = wiring.rotary_share or 1.0
        frequencies = list_frequencies(rank, wiring.rope_base or 1e4, share)
        far = _reach_far(frequencies, _ROUGH_CONDITION if rough else _CONDITION)
    if wiring.positions == "table":
        far = displacements
    far = far if longest is None else min(far, longest)
    columns = np.zeros((far, 0))
    if wiring.positions == "table":
        columns = np.eye(far)[:, 1:]
    elif wiring.positions == "alibi":
        columns = -np.arange(float(far))[:, None]
    head_eps = choose_head_eps(wiring) if wiring.qk_norm else None
    return ScoreForm(frequencies, columns, wiring.softcap, biased, bool(wiring.sinks), head_eps)


def choose_head_eps(wiring: Wiring) -> float:
    """The eps of norms of queries and keys: any serves, as maps are as large as it wants."""
    return USUAL_EPS if wiring.eps is None else wiring.eps


def _reach_far(frequencies: Vector, condition: float) -> int:
    """Displacements at which rotary pairs are told apart: those that turn slowly look alike."""
    far = _NEAR_ENOUGH
    while far < _FAR_ENOUGH:
        angles = np.arange(1, far)[:, None] * frequencies
        sizes = np.linalg.svd(np.hstack([np.cos(angles), np.sin(angles)]), compute_uv=False)
        if sizes[0] < condition * sizes[-1]:
            break
        far *= 2
    return far


def is_fitted_in_stages(form: ScoreForm, D: int, rank: int) -> bool:
    """Whether keys and rows are fitted at one last token before queries are solved for."""
    turned = form.rotary and 2 * len(form.frequencies) == rank
    return turned and 2 * rank * D > _MANY


def design_questions(
    form: ScoreForm,
    D: int,
    rank: int,
    *,
    over: float = OVER,
    most: int | None = None,
    outputs: int | None = None,
) -> QuestionDesign:
    """As many questions as unknowns take, `over` times as many equations as unknowns.

    Args:
        form: of the scores.
        D: numbers of a token.
        rank: size of a head.
        over: equations per unknown.
        most: tokens whose weights can be read at most; one less than a head is large when absent.
        outputs: numbers of an answer, where rows that read the head are fitted too: each answer
            then has as many equations as a head is large, and rows take some of them.
    """
    tokens = max(1, min(most or rank - 1, form.longest - 1))
    biased = D + form.biased
    turned = 2 * len(form.frequencies)
    rest = rank - turned
    unknowns = [turned * biased + (D if rest else 0)] if turned else []
    if not turned:
        unknowns = [D + math.ceil(form.columns.shape[1] / rank)] * rank
    elif rest:
        unknowns += [D + turned] * (rest - 1)
    counts = tuple(math.ceil(over * count / tokens) for count in unknowns)
    spread = form.rotary or form.columns.shape[1] > 1
    length = form.longest if spread else tokens + 1
    if form.cap is not None:
        length = min(form.longest, max(length, tokens + 1 + _CAPPED_ZEROS))
    queries = math.ceil(over * rank * biased / tokens)
    if outputs is not None:
        rows = outputs - rank
        if is_fitted_in_stages(form, D, rank):
            counts = (max(counts[0], math.ceil(_SPARE * biased) + rows),)
        free = 2 * biased * rank - (turned + rest**2) + form.columns.shape[1]
        queries = max(queries, math.ceil(_SPARE * free / rank) + rows - sum(counts))
    return QuestionDesign(tokens, length, len(counts), counts, queries)


def draw_displacements(
    design: QuestionDesign, form: ScoreForm, count: int, *, rng: np.random.Generator
) -> Indices:
    """Where vectors stand, the last token at 0."""
    at = np.zeros((count, design.tokens + 1), dtype=np.intp)
    places = np.arange(1, design.length)
    if form.rotary:
        for row in at:
            row[:-1] = rng.choice(places, design.tokens, replace=False)
        return at
    # Dealt like cards: every entry of a table is asked as often as the others.
    rows = len(places) // design.tokens
    for start in range(0, count, rows):
        dealt = rng.permutation(places)[: rows * design.tokens].reshape(rows, -1)
        at[start : start + rows, :-1] = dealt[: count - start]
    return at
