"""Which questions tell keys and queries: how many, of how many vectors, and where they stand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Indices, Matrix
from keyhole.learners.positions.score_form import ScoreForm
from keyhole.models import Wiring
from keyhole.models.layers.turning import list_frequencies

OVER = 1.3  # equations per unknown
COARSE_OVER = 5.0  # the same where answers are rounded to less than float64
_SLOWEST = 0.25  # angle that the slowest pair must reach
_NEAR_ENOUGH = 64
_FAR_ENOUGH = 1024
_SLOWEST_READ_ROUGHLY = 1.25  # the same where weights are read to a few digits less
_FAR_ENOUGH_READ_ROUGHLY = 4096
_CAPPED_ZEROS = 8  # zero tokens that a capped score is told by


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
        slowest = _SLOWEST_READ_ROUGHLY if rough else _SLOWEST
        reach = math.ceil(slowest / float(frequencies.min())) + 1
        enough = _FAR_ENOUGH_READ_ROUGHLY if rough else _FAR_ENOUGH
        far = min(enough, max(_NEAR_ENOUGH, reach))
    if wiring.positions == "table":
        far = displacements
    far = far if longest is None else min(far, longest)
    columns = np.zeros((far, 0))
    if wiring.positions == "table":
        columns = np.eye(far)[:, 1:]
    elif wiring.positions == "alibi":
        columns = -np.arange(float(far))[:, None]
    return ScoreForm(frequencies, columns, wiring.softcap, biased, bool(wiring.sinks))


def design_questions(
    form: ScoreForm, D: int, rank: int, *, over: float = OVER, most: int | None = None
) -> QuestionDesign:
    """As many questions as unknowns take, `over` times as many equations as unknowns.

    Args:
        form: of the scores.
        D: numbers of a token.
        rank: size of a head.
        over: equations per unknown.
        most: tokens whose weights can be read at most; one less than a head is large when absent.
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
    return QuestionDesign(tokens, length, len(counts), counts, queries)


def draw_displacements(
    design: QuestionDesign, form: ScoreForm, count: int, *, rng: np.random.Generator
) -> Indices:
    """Where vectors stand, the last token at 0: log-uniform where slow pairs must turn."""
    at = np.zeros((count, design.tokens + 1), dtype=np.intp)
    places = np.arange(1, design.length)
    if form.rotary:
        # Weights 1/place make logarithms uniform.
        chance: Matrix = 1.0 / places
        for row in at:
            row[:-1] = rng.choice(places, design.tokens, replace=False, p=chance / chance.sum())
        return at
    # Dealt like cards: every entry of a table is asked as often as the others.
    rows = len(places) // design.tokens
    for start in range(0, count, rows):
        dealt = rng.permutation(places)[: rows * design.tokens].reshape(rows, -1)
        at[start : start + rows, :-1] = dealt[: count - start]
    return at
