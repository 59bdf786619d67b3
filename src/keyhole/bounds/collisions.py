r"""Two prefixes that leave a recurrent network in the same state.

Prefixes are grown token by token, +e_1 or -e_1, and states are compared at every length: two that
agree go on alike, whatever follows. A few million states at a time meet, by the birthday paradox,
among up to about $2^{40}$.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from keyhole._arrays import Array, Stack
from keyhole.models.baselines import UNROUNDED, Recurrent, encode_tokens
from keyhole.tasks import SparseAverage

# States that are compared at a time.
SEARCHED = 1 << 21
# States stepped at a time.
_CHUNK = 1 << 16
# Tokens that are varied: their signs fit one integer.
_HISTORY = 62


def find_two_prefixes(
    model: Recurrent, task: SparseAverage, *, rng: np.random.Generator, limit: int = SEARCHED
) -> Stack | None:
    """Two sequences of N - 1 vectors +-e_1 that leave the same state; None where none was met.

    Args:
        model: the network.
        task: its task.
        rng: chooses which prefixes are grown further, where there are too many.
        limit: states that are compared at a time.
    """
    others = task.length - 1
    varied = min(others, _HISTORY)
    tokens = _encode_prefix_tokens(model, task)
    states = model.start(1)
    for t in range(others - varied):
        states = model.step(states, tokens[1, t][None])
    history = np.zeros(1, dtype=np.int64)
    for t in range(others - varied, others):
        if 2 * len(states) > limit:
            kept = rng.choice(len(states), limit // 2, replace=False)
            states = states[kept]
            history = history[kept]
        states = np.concatenate([_step_states(model, states, token) for token in tokens[:, t]])
        history = np.concatenate([history << 1, (history << 1) | 1])
        pair = _find_equal_rows(model, states)
        if pair is not None:
            grown = t + 1 - (others - varied)
            return _decode_histories(history[list(pair)], grown, others - varied, task)
    return None


def _encode_prefix_tokens(model: Recurrent, task: SparseAverage) -> Array:
    """Every position's token with -e_1 and with +e_1, encoded, naming the first q positions."""
    z = np.zeros((2, task.length, task.dimension))
    z[0, :, 0], z[1, :, 0] = -1.0, 1.0
    y = np.broadcast_to(np.arange(task.q), (2, task.length, task.q))
    return encode_tokens(task.tokens(z, y), model.z, model.codes)


def _step_states(model: Recurrent, states: Array, token: Array) -> Array:
    """One more token, some states at a time."""
    parts = [states[k : k + _CHUNK] for k in range(0, len(states), _CHUNK)]
    return np.concatenate(
        [model.step(part, np.broadcast_to(token, (len(part), len(token)))) for part in parts]
    )


def _find_equal_rows(model: Recurrent, states: Array) -> tuple[int, int] | None:
    """Two equal rows."""
    # -0 and 0 are one number of different bytes; grid points are whole numbers.
    numbers = states + 0.0 if model.state_bits == UNROUNDED else model.grid(states)
    rows = np.ascontiguousarray(numbers)
    words: Any = rows.view([("", rows.dtype)] * rows.shape[1])[:, 0]
    order = np.argsort(_hash_rows(rows), kind="stable")
    same = np.flatnonzero(words[order[1:]] == words[order[:-1]])
    return None if not len(same) else (int(order[same[0]]), int(order[same[0] + 1]))


def _hash_rows(rows: Any) -> Any:
    """A 64-bit hash of every row."""
    mixed = np.zeros(len(rows), dtype=np.uint64)
    for column in rows.view(np.uint64).T:
        mixed = (mixed ^ column) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def _decode_histories(history: Any, grown: int, fixed: int, task: SparseAverage) -> Stack:
    """Histories as vectors: +e_1 before and after what was varied."""
    z = np.zeros((2, task.length - 1, task.dimension))
    z[..., 0] = 1.0
    bits = (history[:, None] >> np.arange(grown - 1, -1, -1)) & 1
    z[:, fixed : fixed + grown, 0] = 2.0 * bits - 1.0
    return z
