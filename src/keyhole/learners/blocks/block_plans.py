"""How many answers settle a block of a size."""

from __future__ import annotations

import math

_MORE = 1.3  # answers for a number that they determine


def guess_rank(width: int) -> int:
    """The size of heads that is planned for."""
    return next((rank for rank in (8, 16, 4) if width % rank == 0), width)


def count_numbers(numbers: int, outputs: int) -> int:
    """Answers that determine so many numbers, with some to spare."""
    return math.ceil(_MORE * max(0, numbers) / outputs)


def count_lone_queries(dimension: int, hidden: int) -> int:
    """Lone tokens that settle a network of so many units."""
    D, o = dimension, dimension + 1
    numbers = hidden * (D + 1 + o) + o + o * D + D
    return count_numbers(numbers, o) + 8


def count_sequence_queries(dimension: int, heads: int, rank: int) -> int:
    """Sequences that settle so many heads."""
    D, o = dimension, dimension + 1
    numbers = heads * (rank * (D + o) + rank * (2 * D + 1) - 2 * rank**2)
    return count_numbers(numbers, o) + 4
