"""How coarse the numbers may be that people send to run trained models."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from keyhole.bounds.formulas import count_disjointness_bits
from keyhole.bounds.protocol import effective_bits
from keyhole.errors import InvalidInput
from keyhole.lab.runs.task_records import Coarseness
from keyhole.lab.training.inputs.lessons import Lesson
from keyhole.models.attention import SelfAttention
from keyhole.models.stack import Transformer

_SAMPLED = 8  # inputs of each kind the task has


def measure_coarseness(
    models: list[Any], lesson: Lesson[Any], *, rng: np.random.Generator
) -> Coarseness:
    """Fewest bits of a number with which each model does the task, and what its queries then carry.

    A query of m numbers of b bits is a message of m b bits; deciding whether two sets meet takes
    `needed`. Averages tell sets that meet from sets that do not where errors are below 1/q: right
    answers are 2/q apart.

    Raises:
        InvalidInput: the models are not Transformers of standard attention.
    """
    task = lesson.task
    allowed = lesson.allowed
    numbers = [_count_query_numbers(model) for model in models]
    # Each model is asked its own inputs, however many stand before it.
    streams = rng.spawn(len(models))
    found = [
        effective_bits(model, task, allowed=allowed, rng=one, sampled=_SAMPLED).bits
        for model, one in zip(models, streams, strict=True)
    ]
    messages = [
        None if bits is None else bits * count for bits, count in zip(found, numbers, strict=True)
    ]
    return _describe_coarseness(found, messages, count_disjointness_bits(task), allowed)


def _count_query_numbers(model: Any) -> int:
    """Numbers of the queries of one token, over heads and layers."""
    layers = [block.layer for block in model.blocks] if isinstance(model, Transformer) else []
    sizes = [
        layer.Q.shape[0] * layer.Q.shape[2] for layer in layers if isinstance(layer, SelfAttention)
    ]
    # One layer of another kind would send numbers that are not counted here.
    if not sizes or len(sizes) < len(layers):
        raise InvalidInput(
            "--effective-bits is for models of standard attention: attention and layers."
        )
    return sum(sizes)


def _describe_coarseness(
    found: list[int | None], messages: list[int | None], needed: int, allowed: float
) -> Coarseness:
    known = [bits for bits in messages if bits is not None]
    said = "no model does the task even with 40 bits a number"
    if known:
        said = (
            f"queries of {min(known)} to {max(known)} bits do for {len(known)} of {len(found)}"
            f" models (error at most {allowed:.3g}); deciding disjointness takes {needed}"
        )
    return Coarseness(
        bits=found,
        message=messages,
        median_message=statistics.median(known) if known else None,
        needed=needed,
        ratio=min(known) / needed if known and needed else None,
        allowed=allowed,
        sentence=said,
    )
