"""Which inequalities hold for which task: what the registry of tasks names."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from keyhole.bounds.disjointness import Reduction, reduce_cycles_of_one_node, reduction
from keyhole.bounds.formulas import (
    Inequality,
    Sizes,
    bound_by_answers,
    bound_by_counting,
    bound_by_disjointness,
    bound_by_embedding,
    bound_by_exchanged_rows,
    bound_by_kernel,
    bound_by_partition_message,
    bound_by_prefixes,
    bound_by_radon,
    bound_triples_by_message,
)
from keyhole.claims import THEOREMS
from keyhole.tasks import Composition, FourCycles, KHop, Match3, SparseAverage, Task, find_kind


def list_average_bounds(task: SparseAverage, sizes: Sizes) -> tuple[Inequality, ...]:
    """What is known of attention that averages."""
    return (
        bound_by_counting(task, sizes),
        bound_by_radon(task, sizes),
        bound_by_answers(task, sizes),
        bound_by_disjointness(task, sizes),
        bound_by_embedding(task, sizes),
    )


def list_cycle_bounds(task: FourCycles, sizes: Sizes) -> tuple[Inequality, ...]:
    """What is known of attention that finds cycles of four nodes."""
    # Its rows together decide more than one row, at any depth; one row says more of one layer.
    one_row = _list_row_bounds(task, sizes, reduce_cycles_of_one_node)
    return (bound_by_exchanged_rows(task, sizes), *one_row)


def list_one_row_bounds(task: Task, sizes: Sizes) -> tuple[Inequality, ...]:
    """What is known of attention where one public row decides disjointness."""
    return _list_row_bounds(task, sizes, reduction)


def _list_row_bounds(
    task: Task, sizes: Sizes, reduce_row: Callable[[Any], Reduction | None]
) -> tuple[Inequality, ...]:
    both = (
        bound_by_partition_message(task, sizes, wide=wide, reduce_row=reduce_row)
        for wide in (False, True)
    )
    return tuple(one for one in both if one is not None)


def list_triple_bounds(task: Match3, sizes: Sizes) -> tuple[Inequality, ...]:
    """What is known of attention that matches triples."""
    both = (bound_triples_by_message(task, sizes, wide=wide) for wide in (False, True))
    return tuple(one for one in both if one is not None)


def quote_conjecture(task: Task, sizes: Sizes) -> str:
    """What is conjectured, and not proved, of these sizes: SHT23/conjecture; empty where nothing.

    One layer has a bound of its own, which needs no conjecture.
    """
    if not isinstance(task, Match3) or sizes.layers < 2:
        return ""
    said = THEOREMS["SHT23/conjecture"].statement
    return f"{said} (SHT23/conjecture; proved nowhere, so that the verdict does not rest on it.)"


# n^(2^(-4L)) is below 2 for two layers and any n up to 2^256: sizes are never excluded by it.
def quote_published_depth(task: Task, sizes: Sizes) -> str:
    """What is published of several layers that compose: CPW24/composition; empty where nothing.

    Its constant is explicit, and so small that no verdict can rest on it.
    """
    if not isinstance(task, Composition | KHop) or sizes.layers < 2:
        return ""
    most = float(task.length) ** 2.0 ** (-4 * sizes.layers)
    return (
        f"{THEOREMS['CPW24/composition'].statement} (CPW24/composition; for {sizes.layers} layers"
        f" and {task.length:,} tokens that is H d p of at most {most:.3f}, and another task than"
        f" this one, so that the verdict does not rest on it.)"
    )


def list_inequalities(task: Task, sizes: Sizes) -> tuple[Inequality, ...]:
    """All that is known of a Transformer that does a task, the most telling first."""
    list_bounds = find_kind(task).load("inequalities")
    found: tuple[Inequality, ...] = () if list_bounds is None else list_bounds(task, sizes)
    return tuple(
        sorted(
            found,
            key=lambda one: (not one.applies, one.available / one.needed if one.needed else inf),
        )
    )


def bound_average_network(
    task: SparseAverage, hidden: int | None, state_bits: int | None, accuracy: float
) -> Inequality:
    """A fully connected network by its first layer, or a recurrent one by its state."""
    if hidden is not None:
        return bound_by_kernel(task, hidden, accuracy)
    return bound_by_prefixes(task, float(state_bits or 0), accuracy)
