r"""Proofs about matching units of any order for all inputs, in balls of the extra `rigorous`.

A unit whose weights are those of `build_wave_unit` scores a tuple by $c\,\mathrm{Re} \prod_t z_t$,
averaged over frequencies, where $z_t = \cos + i \sin$ as float64 holds them: an identity of the
real numbers, whatever the z. If every z is within $\delta$ of the angle it stands for, a product of
s of them is within $(1 + \delta)^s - 1$ of the angle of the sum. So $\delta$, enclosed over all
residues, and the gap of the frequencies enclose every score of every input; nothing is sampled, and
N enters through the number of tuples alone.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from keyhole.constructions.matching.wave_units import build_blank_row, build_wave_unit
from keyhole.constructions.matching.waves import Angles
from keyhole.constructions.proofs.match2_balls import (
    Proof,
    import_flint,
    prove_gap,
    round_down,
    round_up,
)
from keyhole.constructions.shared.holding import matrices
from keyhole.constructions.shared.rounding import Scores
from keyhole.errors import DoesNotFit, InvalidInput
from keyhole.models.attention import SelfAttention
from keyhole.models.stack import Block, Layer, Transformer
from keyhole.models.tensor import TensorAttention
from keyhole.tasks import Match2, Match3, Match4

# Codes of residues that are enclosed, of all frequencies together.
MOST = 2**20


def prove_wave_unit(task: Match2 | Match3 | Match4, model: Transformer) -> Proof:
    """Enclosures of every score, and of the answers to all inputs of the length.

    Args:
        task: matching of two, three or four numbers.
        model: one unit of that order with a blank token, of any number of frequencies.

    Raises:
        DoesNotFit: python-flint is not installed, or there are too many residues.
        InvalidInput: the weights are not those of a matching unit.
    """
    flint = import_flint()
    block = model.blocks[0]
    angles = block.map
    order = {"match2": 2, "match3": 3, "match4": 4}[task.name]
    if not isinstance(angles, Angles) or len(model.blocks) != 1 or model.out is not None:
        raise InvalidInput("proofs are about one unit behind a map to angles.")
    if angles.modulus != task.modulus or task.modulus * len(angles.frequencies) > MOST:
        raise DoesNotFit(
            f"codes are enclosed for up to {MOST:,} residues of all frequencies together, of the"
            f" modulus of the task; got {angles.modulus:,} and {task.modulus:,}."
        )
    unit, blank = _read_weights(block, order, len(angles.frequencies))
    moved = (1 + _enclose_deviation(angles, flint)) ** order - 1
    gap = flint.arb(prove_gap(task.modulus, [int(f) for f in angles.frequencies]))
    scale = flint.arb(unit * len(angles.frequencies))
    lowest = (scale * (1 - moved) - blank).lower()
    highest = (scale * (1 - gap + moved) - blank).upper()
    return _prove_labels(task.length, order, lowest, highest, flint.arb(blank))


def _prove_labels(length: int, order: int, lowest: Any, highest: Any, blank: Any) -> Proof:
    """Answers from scores above the blank's; tuples with some blanks score 0 and are worth 0."""
    tuples = length ** (order - 1)
    mixed = (length + 1) ** (order - 1) - tuples - 1
    matched = 1 / (1 + (-lowest).exp() + mixed * (-lowest - blank).exp())
    leak = tuples * highest.exp()
    return Proof(
        round_down(lowest),
        round_up(highest),
        round_down(matched.lower()),
        round_up((leak / (1 + leak)).upper()),
    )


def _read_weights(block: Block, order: int, count: int) -> tuple[float, float]:
    """The weight of a query and the score of the blank, of weights that are exactly as built.

    Raises:
        InvalidInput: some weight is another.
    """
    layer = block.layer
    held = np.zeros(0) if block.blank is None else block.blank
    fits = isinstance(layer, TensorAttention) if order > 2 else isinstance(layer, SelfAttention)
    if fits and _find_order(layer) == order and _find_queries(layer).shape[0] == 2 * count + 2:
        Q = _find_queries(layer)
        unit, blank = float(Q[0, 0]), float(Q[2 * count, -1])
        chosen = Scores(unit * count, unit, blank, inf, 0.0, 0.0, 0.0)
        wanted = [*matrices(build_wave_unit(order, count, chosen)), build_blank_row(2 * count + 2)]
        weights = [*matrices(layer), held]
        if len(weights) == len(wanted) and all(map(np.array_equal, weights, wanted)):
            return unit, blank
    raise InvalidInput("proofs are about weights of a matching unit as they are built.")


def _find_order(layer: Layer) -> int:
    return layer.order if isinstance(layer, TensorAttention) else 2


def _find_queries(layer: Any) -> Any:
    return layer.Q if isinstance(layer, TensorAttention) else layer.Q[0]


def _enclose_deviation(angles: Angles, flint: Any) -> Any:
    """No code of a residue is farther from the angle it stands for."""
    count = len(angles.frequencies)
    codes = angles(np.arange(angles.modulus, dtype=np.float64)[None, :, None])[0]
    if not (codes[:, -2:] == [1.0, 0.0]).all():
        raise InvalidInput("tokens of a matching unit end in 1 and 0.")
    farthest = flint.arb(0)
    for residue, row in enumerate(codes):
        for k, f in enumerate(angles.frequencies):
            turn = flint.fmpq(2 * (int(f) * residue % angles.modulus), angles.modulus)
            cos = abs(flint.arb(float(row[k])) - flint.arb.cos_pi_fmpq(turn))
            sin = abs(flint.arb(float(row[count + k])) - flint.arb.sin_pi_fmpq(turn))
            apart = (cos + sin).upper()
            farthest = apart if apart > farthest else farthest
    return farthest
