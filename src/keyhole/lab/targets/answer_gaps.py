"""How far two targets answer apart: the same fresh questions to both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keyhole._arrays import FORMATS, Answers, Array, Matrix, Sequences, rms
from keyhole.errors import InvalidInput
from keyhole.lab.targets.inspecting import inspect, read_layer_weights
from keyhole.lab.targets.opening import load_askable_model, open_target
from keyhole.models.files import read_metadata
from keyhole.oracles import Imperfection, Local, Oracle, read_imperfection
from keyhole.oracles.base import walk_wrapped

LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34)
EACH = 64  # questions of one length
# Up to this answers are equal, as for an EXACT verdict; a recovered copy need not share all digits.
_EQUAL = 1e-9
# Rounding of a sum of some hundred terms, in units of one rounding.
_ROUNDINGS = 64.0
# Roundings inside a layer, in units of what one rounding of its tokens does to its answers.
_NUDGES = 16.0
_CHANCE = 1e-6  # that noise alone is taken for another function
# An answer that moves by more of its size with the sequences beside it depends on them.
_BESIDE = 1e-3


@dataclass(frozen=True, slots=True)
class Side:
    """One of two things that are compared.

    Args:
        name: as a person names it.
        oracle: how it is asked.
        model: its weights as a model of ours; None where only its answers are known.
    """

    name: str
    oracle: Oracle
    model: Any = None

    @property
    def reads_last(self) -> bool:
        """Whether it answers sequences, of which the last position is read."""
        return any(getattr(part, "reads_last", False) for part in walk_wrapped(self.oracle))


@dataclass(frozen=True, eq=False, slots=True)
class AnswerGap:
    """What the same questions to both came to.

    Args:
        lengths: of the questions.
        gaps: the largest difference, by length and by output.
        size: root mean square of the answers of the first.
        relative: root mean square of all differences over `size`.
        worst: the largest difference, each over `size` or, where that is larger, over its answer.
        allowed: up to this an answer is equal: 1e-9, or what rounding in the coarser number format
            of the two explains, relatively.
        singly: names of those that answer otherwise in a batch, and were asked one by one.
    """

    lengths: tuple[int, ...]
    gaps: Matrix
    size: float
    relative: float
    worst: float
    allowed: float
    singly: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether every answer is alike; one that is not may be all that tells a copy apart."""
        return self.worst <= self.allowed

    @property
    def sequences(self) -> int:
        """How many questions both were asked."""
        return EACH * len(self.lengths)

    @property
    def farthest(self) -> int:
        """The length at which the largest difference is."""
        return self.lengths[int(self.gaps.max(axis=1).argmax())]


def open_side(
    name: str, *, layer: str | None = None, width: int | None = None, heads: int | None = None
) -> Side:
    """What a person compares: a saved model, a TARGET, or one layer of a model or weight file.

    Raises:
        InvalidInput: nothing usable is there; the message says what to name.
    """
    if name.endswith(".safetensors") and not is_own_file(name):
        return _open_weights(name, layer, heads)
    if name.endswith(".safetensors"):
        model = load_askable_model(name)
        return Side(name, Local(model), model)
    oracle = open_target(name, width=width, layer=layer, last=True)
    return Side(name, oracle, None if layer is None else _copy_layer(name, layer))


def is_own_file(path: str) -> bool:
    """Whether a file is a saved model of keyhole; a damaged one is told by whoever loads it."""
    if not path.endswith(".safetensors"):
        return False
    try:
        return "kind" in read_metadata(Path(path))
    except InvalidInput:
        return True


def is_target_name(name: str) -> bool:
    """Whether a name is that of something to be asked, rather than of a file of ours."""
    return name.endswith((".onnx", ".safetensors")) or ":" in name


def _open_weights(path: str, layer: str | None, heads: int | None) -> Side:
    # Imported late: most comparisons are of models of ours.
    from keyhole.oracles.inside.weight_copying import copy_file_layer

    if layer is None:
        names = [part.name for part in inspect(path).parts if not hasattr(part, "norm")]
        raise InvalidInput(
            f"{path} holds weights of others: --layer names one of its layers, such as"
            f" {', '.join(names[:3]) or 'none, for none was found'}. keyhole inspect lists them."
        )
    model = copy_file_layer(Path(path), layer, heads)
    return Side(path, Local(model), model)


def _copy_layer(name: str, layer: str) -> Any:
    """The weights of a layer as a model of ours, where it is one."""
    try:
        return read_layer_weights(name, layer)
    # Wired otherwise, or a file that only answers: answers are compared all the same.
    except InvalidInput:
        return None


def measure_answer_gap(a: Side, b: Side, *, rng: np.random.Generator) -> AnswerGap:
    """Ask both the same sequences of standard Gaussian tokens.

    Raises:
        InvalidInput: widths or numbers of outputs differ, or a side mixes the sequences of a batch.
    """
    if a.oracle.width != b.oracle.width:
        raise InvalidInput(
            f"models of one width are compared: {a.name} takes tokens of width {a.oracle.width},"
            f" {b.name} of width {b.oracle.width}."
        )
    lengths = _choose_lengths(a, b)
    asked = [_draw_questions(a, b, length, rng) for length in lengths]
    (first, a_singly), (second, b_singly) = (_ask_side(side, asked) for side in (a, b))
    if first[0].shape != second[0].shape:
        raise InvalidInput(
            f"{a.name} answers {first[0].shape[1]} numbers, {b.name} {second[0].shape[1]}: they"
            " cannot be compared."
        )
    size = rms(np.concatenate(first)) or 1.0
    gaps = [y - z for y, z in zip(first, second, strict=True)]
    worst = _measure_worst(gaps, first, size)
    unit = max(_read_rounding(side) for side in (a, b))
    allowed = max(_EQUAL, _ROUNDINGS * unit)
    if worst > allowed and _NUDGES * unit > _EQUAL:
        moved = _answer_nudged(a, asked, unit, rng, singly=a_singly)
        changes = [y - z for y, z in zip(first, moved, strict=True)]
        allowed = max(allowed, _NUDGES * _measure_worst(changes, first, size))
    return AnswerGap(
        lengths,
        np.stack([np.abs(gap).max(axis=0) for gap in gaps]),
        size,
        rms(np.concatenate(gaps)) / size,
        worst,
        allowed,
        tuple(side.name for side, singly in ((a, a_singly), (b, b_singly)) if singly),
    )


def _measure_worst(gaps: list[Answers], answers: list[Answers], size: float) -> float:
    """The largest difference, each in units of its own answer or of a typical one."""
    return max(
        float((np.abs(gap).max(axis=1) / np.maximum(size, np.abs(answer).max(axis=1))).max())
        for gap, answer in zip(gaps, answers, strict=True)
    )


# Scores of size 30 turn one rounding of a token into 30 of an answer. How a layer swells roundings
# is measured on itself: its answers to the same tokens, each number moved by one rounding.
def _answer_nudged(
    side: Side, asked: list[Array], unit: float, rng: np.random.Generator, *, singly: bool
) -> list[Array]:
    moved = [X * (1.0 + unit * rng.choice([-1.0, 1.0], size=X.shape)) for X in asked]
    return _ask_singly(side, moved) if singly else [side.oracle.ask(X) for X in moved]


def allow_declared_errors(gap: AnswerGap, stated: Imperfection) -> tuple[float, float]:
    """The largest gap, and the largest root mean square, that declared errors explain, relatively.

    Of n Gaussian numbers one is beyond sqrt(2 log(2 n / p)) with probability p at most, and their
    root mean square beyond 1 + sqrt(2 log(1 / p) / n); p is a millionth here.

    Raises:
        InvalidInput: there is noise of unknown size.
    """
    if np.isnan(stated.noise):
        raise InvalidInput(
            "a copy is judged by how large the noise of its target is: give --noise SD."
        )
    numbers = gap.sequences * gap.gaps.shape[1]
    far = np.sqrt(2.0 * np.log(2.0 * numbers / _CHANCE))
    typical = 1.0 + np.sqrt(2.0 * np.log(1.0 / _CHANCE) / numbers)
    known, noise = gap.allowed + stated.tolerance / gap.size, stated.noise / gap.size
    return float(known + far * noise), float(known + typical * noise)


def _read_rounding(side: Side) -> float:
    """One rounding of the arithmetic or of the answers, whichever is coarser."""
    stated = read_imperfection(side.oracle)
    return max(stated.roundoff, FORMATS[stated.format].roundoff)


def _draw_questions(a: Side, b: Side, length: int, rng: np.random.Generator) -> Sequences:
    """Gaussian tokens, shortened to what both may be asked."""
    X = rng.normal(size=(EACH, length, a.oracle.width))
    bounds = [read_imperfection(side.oracle).token_bound for side in (a, b)]
    bound = min((limit for limit in bounds if limit is not None), default=np.inf)
    norms = np.linalg.norm(X, axis=2, keepdims=True)
    # A hair inside: a bound is checked after rounding, and nudges move tokens.
    return X * np.minimum(1.0, 0.99 * bound / norms)


def _choose_lengths(a: Side, b: Side) -> tuple[int, ...]:
    """Lengths that both can be asked."""
    known = [read_imperfection(side.oracle).lengths for side in (a, b)]
    declared = [pair for pair in known if pair is not None]
    most = [pair[1] for pair in declared]
    most += [n for side in (a, b) if (n := getattr(side.model, "longest", None)) is not None]
    least = max((pair[0] for pair in declared), default=1)
    limit = min(most, default=LENGTHS[-1])
    return tuple(n for n in LENGTHS if least <= n <= limit) or (max(least, 1),)


def _ask_side(side: Side, asked: list[Array]) -> tuple[list[Array], bool]:
    """The answers of a side, and whether it was asked one by one since a batch changes them.

    An 8 bit copy whose steps fit the largest number of a batch answers by its neighbours too.
    """
    together = [side.oracle.ask(X.copy()) for X in asked]
    alone = _ask_singly(side, [X[:1] for X in asked])
    if all(map(_is_near(side), alone, [answers[:1] for answers in together])):
        return together, False
    _check_reads_tokens(side, asked[-1][:1])
    return _ask_singly(side, asked), True


def _ask_singly(side: Side, asked: list[Array]) -> list[Array]:
    return [np.concatenate([side.oracle.ask(x[None].copy()) for x in X]) for X in asked]


def _is_near(side: Side) -> Callable[[Array, Array], bool]:
    """Whether two answers of a side are one, up to its rounding and what it declares."""
    stated = read_imperfection(side.oracle)
    declared = 2.0 * stated.tolerance + 12.0 * np.nan_to_num(stated.noise, nan=np.inf)
    share = _BESIDE + _ROUNDINGS * _read_rounding(side)
    return lambda y, z: bool(np.abs(y - z).max() <= share * (np.abs(z).max() or 1.0) + declared)


def _check_reads_tokens(side: Side, question: Sequences) -> None:
    """Raise where other tokens of a lone sequence change nothing, but other sequences did.

    A module that takes (length, batch, width) answers a shape that looks right, and mixes
    sequences.
    """
    other = question.copy()
    other[:, :-1] = -other[:, :-1]
    if np.array_equal(side.oracle.ask(question.copy()), side.oracle.ask(other)):
        raise InvalidInput(
            f"{side.name} answers a sequence otherwise alone than in a batch: is its first axis"
            " the batch (batch_first=True)?"
        )
