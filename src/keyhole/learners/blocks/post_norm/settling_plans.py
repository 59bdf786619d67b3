"""How many answers settle a post-norm block of a size."""

from __future__ import annotations

import math

from keyhole.learners.blocks.post_norm.attention_fit import count_attention_numbers
from keyhole.learners.blocks.post_norm.output_norm import count_norm_queries
from keyhole.learners.blocks.post_norm.weight_reading import count_weight_queries

_MORE = 1.3  # answers for a number that they determine
_FEWEST = 24  # sequences of other lengths than those that showed weights


def count_token_queries(width: int, hidden: int) -> int:
    """Lone tokens that settle a token map of so many units, those of the last norm included."""
    D = width - 1
    numbers = hidden * (2 * D + 1) + D + width + D * width + D
    return max(count_norm_queries(width), math.ceil(_MORE * numbers / (D - 1)) + 8)


def count_whole_queries(width: int, heads: int, rank: int) -> int:
    """Sequences that settle so many heads, beside those that showed weights."""
    wanted = math.ceil(_MORE * max(0, count_attention_numbers(width, heads, rank)) / (width - 2))
    return max(_FEWEST, wanted - count_weight_queries(width, heads, rank))
