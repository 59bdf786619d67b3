"""Which sets of positions are asked: every one, or hard ones and random ones, for a rate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, combinations
from math import comb

import numpy as np

from keyhole._arrays import Array
from keyhole.constructions.sparse_averages.directions import Sets
from keyhole.tasks import SparseAverage

# Sets: every one is asked where there are no more.
ALL = 1_000_000
# The same where queries are solved one by one.
ONE_BY_ONE = 20_000
# Random sets otherwise: none of them failing, at most 3 in 1,000 of all sets do, surely to 95 %.
ASKED = 1_000
# Of each regular kind.
EACH = 18

# Sets of one size to an array, one row each.
Groups = tuple[Sets, ...]


def count_sets(task: SparseAverage) -> int:
    """How many sets a token may name."""
    return sum(comb(task.length, size) for size in set_sizes(task))


def set_sizes(task: SparseAverage) -> range:
    """How many positions a set may hold."""
    return range(1 if task.at_most else task.q, task.q + 1)


def list_every_set(task: SparseAverage) -> Groups:
    """All sets, by size, in lexicographic order."""
    return tuple(_list_subsets(task.length, size) for size in set_sizes(task))


def _list_subsets(length: int, size: int) -> Sets:
    numbers = chain.from_iterable(combinations(range(length), size))
    return np.fromiter(numbers, np.int64, comb(length, size) * size).reshape(-1, size)


def merge_groups(*parts: Groups) -> Groups:
    """The sets of all parts, by size, each once."""
    found: dict[int, list[Sets]] = {}
    for sets in chain.from_iterable(parts):
        found.setdefault(sets.shape[1], []).append(sets)
    return tuple(np.unique(np.concatenate(found[size]), axis=0) for size in sorted(found))


def draw_sets(task: SparseAverage, count: int, *, rng: np.random.Generator) -> Groups:
    """Random sets, every size as often as it is among all sets."""
    sizes = list(set_sizes(task))
    counts = [comb(task.length, size) for size in sizes]
    # Shares of whole numbers: the counts themselves may be beyond float64.
    shares = np.array([count / sum(counts) for count in counts])
    drawn = rng.multinomial(count, shares / shares.sum())
    return tuple(
        _draw_subsets(task.length, size, int(n), rng)
        for size, n in zip(sizes, drawn, strict=True)
        if n
    )


def _draw_subsets(length: int, size: int, count: int, rng: np.random.Generator) -> Sets:
    """The places of the smallest of `length` random numbers are a uniform subset."""
    step = max(1, 2**22 // length)
    blocks = [
        np.argpartition(rng.random((min(step, count - start), length)), size - 1, axis=1)[:, :size]
        for start in range(0, count, step)
    ]
    return np.sort(np.concatenate(blocks), axis=1).astype(np.int64)


def choose_hard_sets(task: SparseAverage, keys: Array, *, rng: np.random.Generator) -> Groups:
    """Crowds around a key, neighbours and alternating sets: keys that fail often do so here."""
    found = [
        *_list_crowds(task, keys, rng),
        *_draw_named_sets(task, "contiguous", rng),
        *_draw_named_sets(task, "alternating", rng),
        *(tuple(range(size)) for size in set_sizes(task)),
    ]
    distinct = list(dict.fromkeys(found))
    return tuple(
        np.array([y for y in distinct if len(y) == size], dtype=np.int64)
        for size in sorted({len(y) for y in distinct})
    )


def _draw_named_sets(
    task: SparseAverage, kind: str, rng: np.random.Generator
) -> list[tuple[int, ...]]:
    """Sets as the task draws them."""
    X = task.sample(-(-EACH // task.length), rng=rng, kind=kind)
    rows = X[..., task.dimension : task.dimension + task.q].reshape(-1, task.q)[:EACH]
    return [tuple(sorted(int(j) for j in row if j >= 0)) for row in rows]


def _list_crowds(
    task: SparseAverage, keys: Array, rng: np.random.Generator
) -> Iterator[tuple[int, ...]]:
    """The keys nearest to one that is left out: sets whose hull comes closest to another key."""
    # A set that holds everybody leaves no key out.
    count = min(EACH, task.length) if task.q < task.length else 0
    for j in rng.choice(task.length, count, replace=False):
        order = np.argsort(-(keys @ keys[j]), kind="stable")
        yield tuple(sorted(int(k) for k in order[order != j][: task.q]))


def describe_rate(task: SparseAverage, asked: int) -> str:
    """How many of how many sets were asked, and what that says of the others (rule of three)."""
    count = count_sets(task)
    there = f"{count:,}" if count < 10**9 else f"about 10^{math.log10(count):.0f}"
    return f"{asked:,} of {there} sets; at most {3 / asked:.2g} of them fail, with 95 % confidence"
