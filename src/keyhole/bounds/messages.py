"""What the first attention layer sees of a token that names a set, and two sets it cannot tell."""

from __future__ import annotations

from itertools import combinations, islice
from math import comb
from typing import Any

import numpy as np

from keyhole._arrays import Array, Stack
from keyhole.models.numbers import NumberFormat
from keyhole.models.stack import Transformer
from keyhole.tasks import SparseAverage

# Beyond so many sets a sample is compared, and the sentence says how many were tried.
SETS = 400_000
# Numbers of the inputs that are made at a time.
_BATCH_NUMBERS = 200_000


def read_messages(model: Transformer, task: SparseAverage, sets: Any, held: NumberFormat) -> Array:
    """All that attention sees of the last token, for each of its sets, other tokens the same."""
    tokens = model.blocks[0].map(_build_inputs(task, sets))[:, -1]
    layer: Any = model.blocks[0].layer
    return np.concatenate(
        [held.round(tokens @ P) for part in (layer.Q, layer.K, layer.V) for P in part], axis=1
    )


def find_two_sets(
    model: Transformer, task: SparseAverage, held: NumberFormat, rng: np.random.Generator
) -> tuple[Any, Any] | None:
    """Two sets with the same message: all sets are tried where they are few, else random ones."""
    seen: dict[bytes, Any] = {}
    for sets in _list_set_batches(task, rng):
        # Adding 0 makes -0 and 0 the same bytes, as they are the same number.
        for y, told in zip(sets, read_messages(model, task, sets, held) + 0.0, strict=True):
            other = seen.setdefault(told.tobytes(), y)
            if not np.array_equal(other, y):
                return other, y
    return None


def _list_set_batches(task: SparseAverage, rng: np.random.Generator) -> Any:
    others = task.length - 1
    size = max(1, _BATCH_NUMBERS // (task.length * task.width))
    if comb(others, task.q) <= SETS:
        every = combinations(range(others), task.q)
        while batch := list(islice(every, size)):
            yield np.array(batch)
        return
    for _ in range(-(-SETS // size)):
        yield np.sort(
            np.stack([rng.choice(others, task.q, replace=False) for _ in range(size)]), axis=1
        )


def build_telling_inputs(task: SparseAverage, first: Any, second: Any) -> Stack:
    """Inputs that differ in the last token's set only.

    The vector is +e_1 at a position that only the first set has, and -e_1 everywhere else.
    """
    return _build_inputs(task, np.stack([first, second]), np.setdiff1d(first, second)[:1])


def _build_inputs(task: SparseAverage, sets: Any, raised: Any = ()) -> Stack:
    """Inputs whose last token names a set; vectors are -e_1, and +e_1 where raised."""
    z = np.zeros((len(sets), task.length, task.dimension))
    z[..., 0] = -1.0
    z[:, list(raised), 0] = 1.0
    return task.tokens(z, name_last_set(task, sets))


def name_last_set(task: SparseAverage, sets: Any) -> Any:
    """The positions every token names: the last a set of its own, the others the first q."""
    y = np.broadcast_to(np.arange(task.q), (len(sets), task.length, task.q)).copy()
    y[:, -1] = sets
    return y
