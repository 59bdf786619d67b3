"""Proofs about Match2 units for all inputs, in the ball arithmetic of the extra `rigorous`.

Weights and token codes are taken as the float64 numbers they are; sums, products and exponentials
are enclosed. What is proven is the unit in exact arithmetic; the rounding of an evaluation is
counted in the certificates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from keyhole.errors import DoesNotFit, InvalidInput
from keyhole.models.attention import SelfAttention
from keyhole.models.stack import Transformer
from keyhole.tasks import Match2

# Bits: more than twice those of the numbers enclosed, so that products are exact.
PRECISION = 128
# Of a modulus all of whose pairs are enclosed.
LARGEST = 2_000


@dataclass(frozen=True, slots=True)
class Proof:
    """What was proven of a unit, for every input of its length.

    Args:
        lowest: no pair that matches scores less.
        highest: no other pair scores more.
        matched: every answer to a match is at least this.
        unmatched: every answer to no match is at most this.
    """

    lowest: float
    highest: float
    matched: float
    unmatched: float

    @property
    def separates(self) -> bool:
        """Whether answers lie on the right side of 1/2."""
        return self.unmatched < 0.5 < self.matched


def import_flint() -> Any:
    """The library of balls, with the precision set.

    Raises:
        DoesNotFit: it is not installed.
    """
    try:
        flint: Any = import_module("flint")
    except ImportError as error:
        raise DoesNotFit(
            "rigorous enclosures need python-flint: pip install keyhole[rigorous]."
        ) from error
    flint.ctx.prec = PRECISION
    return flint


def prove_gap(modulus: int, frequencies: Sequence[int]) -> float:
    """A proven lower bound of the least shortfall over all residues that are not 0.

    Raises:
        DoesNotFit: python-flint is not installed.
    """
    flint = import_flint()
    least = flint.arb(2)
    for residue in range(1, modulus // 2 + 1):
        total = flint.arb(0)
        for f in frequencies:
            angle = flint.fmpq(2 * (int(f) * residue % modulus), modulus)
            total += 1 - flint.arb.cos_pi_fmpq(angle)
        short = (total / len(frequencies)).lower()
        least = short if short < least else least
    return float(least) * (1 - 1e-15)


def prove_match2(task: Match2, model: Transformer) -> Proof:
    """Enclosures of every score of two residues, and of the answers to all inputs.

    Raises:
        DoesNotFit: python-flint is not installed, or there are too many pairs.
        InvalidInput: the model is not one self-attention unit.
    """
    flint = import_flint()
    if task.modulus > LARGEST:
        raise DoesNotFit(
            f"all pairs are enclosed for a modulus up to {LARGEST}; got {task.modulus}."
        )
    queries, keys, blank = _project_residues(task, model, flint)
    lowest: list[Any] = []
    highest: list[Any] = []
    for x, query in enumerate(queries):
        scores = [_dot(query, key) for key in keys]
        match = scores[-x % task.modulus]
        rest = [score.upper() for y, score in enumerate(scores) if (x + y) % task.modulus]
        lowest.append((match - _dot(query, blank)).lower())
        highest.append(max(rest) - _dot(query, blank).lower())
    above = min(lowest)
    below = max(highest)
    matched = (1 / (1 + (-above).exp())).lower()
    leak = task.length * flint.arb(below).exp()
    return Proof(
        float(above), float(below), round_down(matched), round_up((leak / (1 + leak)).upper())
    )


def round_down(bound: Any) -> float:
    """A number that is surely below."""
    return float(np.nextafter(float(bound), -np.inf))


def round_up(bound: Any) -> float:
    """A number that is surely above."""
    return float(np.nextafter(float(bound), np.inf))


def _dot(a: Sequence[Any], b: Sequence[Any]) -> Any:
    return sum((p * q for p, q in zip(a, b, strict=True)), start=a[0] * 0)


def _project_residues(
    task: Match2, model: Transformer, flint: Any
) -> tuple[list[list[Any]], list[list[Any]], list[Any]]:
    """Queries and keys of all residues, and the blank's key, as exact sums of products."""
    block = model.blocks[0]
    layer = model.blocks[0].layer
    if (
        len(model.blocks) != 1
        or not isinstance(layer, SelfAttention)
        or len(layer.Q) != 1
        or block.blank is None
    ):
        raise InvalidInput(
            "proofs are about one self-attention unit of one head with a blank token."
        )
    tokens = block.map(np.arange(task.modulus, dtype=np.float64)[None, :, None])[0]
    Q, K = (_convert_to_balls(weights, flint) for weights in (layer.Q[0].T, layer.K[0].T))
    rows = _convert_to_balls(tokens, flint)
    queries, keys = (
        [[_dot(row, column) for column in matrix] for row in rows] for matrix in (Q, K)
    )
    (blank,) = _convert_to_balls(block.blank[None], flint)
    return queries, keys, [_dot(blank, column) for column in K]


def _convert_to_balls(matrix: Any, flint: Any) -> list[list[Any]]:
    return [[flint.arb(float(entry)) for entry in row] for row in matrix]
