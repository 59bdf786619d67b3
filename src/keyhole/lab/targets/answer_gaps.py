"""How far two targets answer apart: the same fresh questions to both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keyhole._arrays import FORMATS, Matrix, rms
from keyhole.errors import InvalidInput
from keyhole.lab.targets.inspecting import inspect, read_layer_weights
from keyhole.lab.targets.opening import load_askable_model, open_target
from keyhole.models.files import read_metadata
from keyhole.oracles import Local, Oracle, read_imperfection
from keyhole.oracles.base import walk_wrapped

LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34)
EACH = 64  # questions of one length
# Up to this answers are equal, as for an EXACT verdict; a recovered copy need not share all digits.
_EQUAL = 1e-9
# Rounding of a sum of some hundred terms, in units of one rounding.
_ROUNDINGS = 64.0


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
        gaps: root mean square of the difference, by length and by output.
        size: root mean square of the answers of the first.
        relative: root mean square of all differences over `size`.
        worst: the largest difference over `size`.
        allowed: up to this they are equal: 1e-9, or what rounding in the coarser number format of
            the two explains, relatively.
    """

    lengths: tuple[int, ...]
    gaps: Matrix
    size: float
    relative: float
    worst: float
    allowed: float

    @property
    def same(self) -> bool:
        """Whether they answer alike."""
        return self.relative <= self.allowed


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
    asked = [rng.normal(size=(EACH, length, a.oracle.width)) for length in lengths]
    first, second = ([side.oracle.ask(X.copy()) for X in asked] for side in (a, b))
    if first[0].shape != second[0].shape:
        raise InvalidInput(
            f"{a.name} answers {first[0].shape[1]} numbers, {b.name} {second[0].shape[1]}: they"
            " cannot be compared."
        )
    for side, answers in ((a, first), (b, second)):
        _check_alone(side, asked[-1][0], answers[-1][0])
    gaps = [y - z for y, z in zip(first, second, strict=True)]
    size = rms(np.concatenate(first)) or 1.0
    format_of = max(FORMATS[read_imperfection(s.oracle).format].roundoff for s in (a, b))
    return AnswerGap(
        lengths,
        np.stack([np.sqrt(np.mean(gap**2, axis=0)) for gap in gaps]),
        size,
        rms(np.concatenate(gaps)) / size,
        max(float(np.abs(gap).max()) for gap in gaps) / size,
        max(_EQUAL, _ROUNDINGS * format_of),
    )


def _choose_lengths(a: Side, b: Side) -> tuple[int, ...]:
    """Lengths that both can be asked."""
    known = [read_imperfection(side.oracle).lengths for side in (a, b)]
    most = [pair[1] for pair in known if pair is not None]
    most += [n for side in (a, b) if (n := getattr(side.model, "longest", None)) is not None]
    limit = min(most, default=LENGTHS[-1])
    return tuple(n for n in LENGTHS if n <= limit) or (1,)


def _check_alone(side: Side, question: Matrix, answer: Any) -> None:
    """Raise where a sequence is answered otherwise alone than in a batch.

    A module that takes (length, batch, width) answers a shape that looks right, and mixes
    sequences.
    """
    alone = side.oracle.ask(question[None].copy())[0]
    if np.abs(alone - answer).max() > 1e-2 * (np.abs(answer).max() or 1.0):
        raise InvalidInput(
            f"{side.name} answers a sequence otherwise alone than in a batch: is its first axis"
            " the batch (batch_first=True)?"
        )
