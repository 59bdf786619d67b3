"""What attention computes, on inputs a person moves about, beside brute force.

Models are built by the constructions of this package, once per size; what is checked beforehand
elsewhere is checked here on the very input that is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache

import msgspec
import numpy as np
from msgspec import structs

from keyhole._arrays import Array, Matrix, Stack, Vector, softmax
from keyhole.constructions.matching.wave_units import Waves
from keyhole.constructions.sparse_averages.set_queries import SetQueries
from keyhole.constructions.sparse_averages.sparse_average import (
    MAX_MARGIN,
    ONE_HOT,
    TRIGONOMETRIC,
    SetKeys,
    build_set_unit,
)
from keyhole.errors import InvalidInput
from keyhole.models.attention import SelfAttention
from keyhole.models.numbers import number_format
from keyhole.models.stack import Transformer
from keyhole.models.tensor import TensorAttention
from keyhole.tasks import Match2, Match3, SparseAverage
from keyhole.web.requests import SEED, Content, check_within, read_request

LENGTH, SUBSET, MODULUS = 32, 6, 400  # largest
# Finer weights would be sharper, and no eye could see it.
ACCURACY = 1e-2
POINTS = 241  # of a curve
FAMILIES: dict[str, SetKeys] = {
    "trigonometric": TRIGONOMETRIC,
    "max-margin": MAX_MARGIN,
    "one-hot": ONE_HOT,
}


@dataclass(frozen=True)
class Averages:
    """Ask for the mean of the vectors at some positions.

    Args:
        length: positions.
        q: most positions asked for at a time.
        members: the positions asked for.
        keys: the family of keys.
        seed: of the vectors.
    """

    _: KW_ONLY
    length: int
    q: int
    members: tuple[int, ...]
    keys: str = "trigonometric"
    seed: int = 0

    def __post_init__(self) -> None:
        check_within("length", self.length, 2, LENGTH)
        check_within("q", self.q, 1, min(SUBSET, self.length))
        check_within("seed", self.seed, 0, SEED)
        if self.keys not in FAMILIES:
            raise InvalidInput(f"keys are {', '.join(FAMILIES)}; got {self.keys!r:.80}.")
        if not 1 <= len(self.members) <= self.q or len(set(self.members)) != len(self.members):
            raise InvalidInput(
                f"choose 1 to {self.q} different positions; got {len(self.members)}."
            )
        for place in self.members:
            check_within("a position", place, 0, self.length - 1)


@dataclass(frozen=True)
class Matching:
    """Ask which tokens have a match.

    Args:
        modulus: M.
        tokens: whole numbers below M.
        query: the token whose attention is shown.
    """

    _: KW_ONLY
    modulus: int
    tokens: tuple[int, ...]
    query: int = 0

    def __post_init__(self) -> None:
        check_within("modulus", self.modulus, 2, MODULUS)
        check_within("the number of tokens", len(self.tokens), 1, LENGTH)
        check_within("query", self.query, 0, len(self.tokens) - 1)
        for token in self.tokens:
            check_within("a token", token, 0, self.modulus - 1)


@lru_cache(maxsize=64)
def _build_set_unit(
    length: int, q: int, keys: str
) -> tuple[SparseAverage, SetQueries, Transformer]:
    task = SparseAverage(length, q, 2, at_most=True)
    family = FAMILIES[keys]
    rng = np.random.default_rng(0)
    widths = {
        "trigonometric": 2 * q,
        "one-hot": length,
        "max-margin": math.ceil(2.0 * q * math.log(length)),
    }
    # Fewer numbers than bits of a position cannot tell positions apart.
    width = max(widths[keys], (length - 1).bit_length())
    phi = family.map_tokens(task, family.keys(task, width, rng), ACCURACY, "f64")
    return task, phi, build_set_unit(phi)


class AveragesView(msgspec.Struct, frozen=True, kw_only=True):
    """Keys seen along the query, the margin, attention, and the answer beside the truth."""

    keys: str
    embed: int
    heights: list[float]
    across: list[float]
    curve: list[float] | None
    margin: float | None
    sharpness: float
    weights: list[list[float]]
    vectors: list[list[float]]
    answer: list[float]
    truth: list[float]
    error: float
    accuracy: float


class MatchingView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Attention of one token, a blank one first; all answers beside the truth.

    Args:
        scores: of the token, where it looks at one other at a time.
        weights: its attention, as a matrix where it looks at pairs.
        answers: of every token.
        truth: of every token.
        wrong: how many answers are wrong.
        embed: width of keys.
        gap: of scores.
        bounds: how far answers may be off.
    """

    scores: list[float] | None = None
    weights: list[float] | list[list[float]]
    answers: list[float]
    truth: list[float]
    wrong: int
    embed: int
    gap: float
    bounds: tuple[float, ...]


View = AveragesView | MatchingView


def show_averages(wish: Averages) -> AveragesView:
    """Keys seen along the query, the margin, attention, and the answer beside the truth."""
    task, phi, model = _build_set_unit(wish.length, wish.q, wish.keys)
    members = tuple(sorted(wish.members))
    z = task.sample(1, rng=np.random.default_rng(wish.seed))[..., :2]
    row = [*members, *[-1] * (wish.q - len(members))]
    X = task.tokens(z, np.tile(row, (1, wish.length, 1)))
    query = phi.query(members)
    weights = softmax(_score_tokens(model, X)[0])
    answer, truth = model(X)[0, 0], task.target(X)[0, 0]
    direction = query.scaled / (query.sharpness or 1.0)
    curved = wish.keys == "trigonometric"
    return AveragesView(
        keys=wish.keys,
        embed=phi.keys.shape[1],
        heights=(phi.keys @ direction).tolist(),
        across=_place_keys_across(phi.keys, direction).tolist(),
        curve=_trace_key_curve(direction).tolist() if curved else None,
        margin=query.margin if math.isfinite(query.margin) else None,
        sharpness=query.sharpness,
        weights=weights.tolist(),
        vectors=z[0].tolist(),
        answer=answer.tolist(),
        truth=truth.tolist(),
        error=float(np.linalg.norm(answer - truth)),
        accuracy=ACCURACY,
    )


def _score_tokens(model: Transformer, X: Stack) -> Matrix:
    """Scores of every token against every token of the only layer."""
    block = model.blocks[0]
    tokens = block.tokens(X)
    layer = block.layer
    if isinstance(layer, TensorAttention):
        return layer.scores(tokens)[0]
    if not isinstance(layer, SelfAttention):
        raise TypeError(f"{type(layer).__name__} has no scores")
    return (tokens[0] @ layer.Q[0]) @ (tokens[0] @ layer.K[0]).T


def _place_keys_across(keys: Matrix, direction: Vector) -> Vector:
    """Where keys lie across the query: along the widest direction at right angles to it."""
    size = float(direction @ direction)
    rest = keys - keys.mean(axis=0)
    # A query of zero has no direction to be at right angles to.
    rest = rest - np.outer(rest @ direction, direction) / size if size > 0 else rest
    left, values, _ = np.linalg.svd(rest, full_matrices=False)
    return left[:, 0] * values[0]


def _trace_key_curve(direction: Vector) -> Vector:
    """Heights of the whole curve that trigonometric keys lie on, from angle 0 to 2 pi."""
    harmonics = np.outer(
        np.linspace(0.0, 2.0 * np.pi, POINTS), np.arange(1, len(direction) // 2 + 1)
    )
    return np.column_stack([np.cos(harmonics), np.sin(harmonics)]) @ direction


WaveUnit = tuple[Transformer, int, float, tuple[float, ...]]


@lru_cache(maxsize=64)
def _build_wave_unit(order: int, length: int, modulus: int) -> WaveUnit:
    """A unit with its key width, its gap, and how far answers may be off."""
    task = (Match2 if order == 2 else Match3)(length, modulus)
    rng = np.random.default_rng(0)
    draft = Waves(order).draft(task, form=number_format("f64"), embed=None, rng=rng)
    return draft.model, draft.embed, draft.margin, tuple(far for _, far in draft.bounds)


def show_match2(wish: Matching) -> MatchingView:
    """Scores and attention of one token."""
    X = _stack_tokens(wish.tokens)
    unit = _build_wave_unit(2, len(wish.tokens), wish.modulus)
    scores = _score_tokens(unit[0], X)[wish.query + 1]
    shown = _judge_task_answers(Match2(len(wish.tokens), wish.modulus), unit, X)
    return structs.replace(shown, scores=scores.tolist(), weights=softmax(scores).tolist())


def show_match3(wish: Matching) -> MatchingView:
    """The pair weights of one token."""
    X = _stack_tokens(wish.tokens)
    unit = _build_wave_unit(3, len(wish.tokens), wish.modulus)
    scores = _score_tokens(unit[0], X)[wish.query + 1]
    side = len(wish.tokens) + 1
    shown = _judge_task_answers(Match3(len(wish.tokens), wish.modulus), unit, X)
    return structs.replace(shown, weights=softmax(scores).reshape(side, side).tolist())


def _stack_tokens(tokens: Sequence[int]) -> Stack:
    return np.array(tokens, dtype=np.float64)[None, :, None]


def _judge_task_answers(task: Match2 | Match3, unit: WaveUnit, X: Stack) -> MatchingView:
    """All answers beside the truth; attention is still to be seen."""
    model, embed, gap, bounds = unit
    answers: Array = model(X)
    truth = task.target(X)
    return MatchingView(
        weights=[],
        answers=answers[0, :, 0].tolist(),
        truth=truth[0, :, 0].tolist(),
        wrong=int(((answers > 0.5) != (truth > 0.5)).sum()),
        embed=embed,
        gap=gap,
        bounds=bounds,
    )


VIEWS: dict[str, Callable[[Content], View]] = {
    "sparse-average": lambda content: show_averages(read_request(Averages, content)),
    "match2": lambda content: show_match2(read_request(Matching, content)),
    "match3": lambda content: show_match3(read_request(Matching, content)),
}


def show_task(task: str, content: Content) -> View:
    """What is shown of a task on an input, given as JSON.

    Raises:
        InvalidInput: there is no such task here, or the input does not fit it.
        DoesNotFit: the keys do not single out what was chosen.
    """
    if task not in VIEWS:
        raise InvalidInput(f"the page computes {', '.join(VIEWS)}; got {task!r:.80}.")
    return VIEWS[task](content)


def rehearse_views() -> None:
    """Ask for one small thing of each kind, so that nobody waits for libraries to load."""
    for keys in FAMILIES:
        show_averages(Averages(length=4, q=1, members=(0,), keys=keys))
    for view in (show_match2, show_match3):
        view(Matching(modulus=3, tokens=(0, 1)))
