r"""What declared errors of answers leave open of a block that was fitted to them.

Answers are moved by as much as their errors may be, and everything is fitted once more from where
it ended: blocks that differ from the first one as it may differ from the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, PerSequence, Sequences
from keyhole.learners.blocks.post_norm.attention_fit import AttentionFit, WholeFront
from keyhole.learners.blocks.post_norm.direction_fit import DirectionFit, TokenMap, TokenModel
from keyhole.learners.blocks.post_norm.output_norm import OutputNorm, find_output_norm
from keyhole.models import TransformerBlock

_DRAWS = 4
_ROUNDINGS = 4.0  # of the declared error: arithmetic inside may round as well
_SIGMAS = 6.0


@dataclass(frozen=True, eq=False, slots=True)
class SettledMap:
    """What lone tokens become, as it was fitted, and to what.

    Args:
        norm: the last norm.
        known: the token map.
        x: lone tokens.
        phi: directions that they were answered by.
    """

    norm: OutputNorm
    known: TokenMap
    x: Matrix
    phi: Matrix


@dataclass(frozen=True, eq=False, slots=True)
class Settled:
    """A whole block as it was fitted, and to what.

    Args:
        map: what lone tokens become.
        front: the attention.
        asked: sequences, and directions that they were answered by.
    """

    map: SettledMap
    front: WholeFront
    asked: list[tuple[Array, Matrix]]


def _draw_error(settled: Settled, model: TokenModel, rng: np.random.Generator) -> Settled | None:
    lone, first = settled.map, settled.map.norm
    error = _ROUNDINGS * model.error
    answers = _move_answers(first, lone.phi, error, rng)
    norm = find_output_norm(answers, first.basis)
    if norm is None:
        return None
    side = np.sign(norm.gain @ first.gain)
    norm = OutputNorm(side * norm.gain, norm.shift, norm.basis)
    phi = norm.read(answers)
    asked = [(X, norm.read(_move_answers(first, shown, error, rng))) for X, shown in settled.asked]
    known = DirectionFit(model, lone.x, phi).fit(lone.known)[0]
    front = AttentionFit(model, known, asked).fit(settled.front)[0]
    return Settled(SettledMap(norm, known, lone.x, phi), front, asked)


def _move_answers(norm: OutputNorm, phi: Matrix, error: float, rng: np.random.Generator) -> Matrix:
    """Answers along directions, moved by relative errors."""
    width = len(norm.basis)
    answers: Matrix = norm.shift + norm.gain * (np.sqrt(width) * phi @ norm.basis.T)
    return answers * (1.0 + error * rng.uniform(-1.0, 1.0, size=answers.shape))


def allow_errors(
    settled: Settled,
    model: TokenModel,
    assemble: Callable[[Settled], TransformerBlock],
    *,
    rng: np.random.Generator,
) -> Callable[[Sequences], PerSequence]:
    """How far an answer may be off: by its own error, and by what blocks like this one differ."""
    block = assemble(settled)
    drawn = [_draw_error(settled, model, rng) for _ in range(_DRAWS)]
    others = [assemble(one) for one in drawn if one is not None]

    def allowance(X: Sequences) -> PerSequence:
        middle = block(X)
        squares = [np.abs(other(X) - middle).max(axis=1) ** 2 for other in others]
        spread = np.sqrt(np.mean(squares, axis=0)) if squares else 0.0
        return _ROUNDINGS * model.error * np.abs(middle).max(axis=1) + _SIGMAS * spread

    return allowance
