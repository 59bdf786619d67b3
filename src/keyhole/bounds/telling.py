r"""Tasks one row of which tells any symbol of somebody's: what one layer must be told.

Alice holds n symbols of s kinds, Bob an index, and one public row of the task answers with the
symbol there. Who says one thing to Bob, before she knows his index, must tell all symbols apart:
$n \log_2 s$ bits. In one layer of attention she says a log-partition and an average for each head,
as for Match3. In a conversation Bob could name his index, so that this bounds no more than one
layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log2
from typing import Any

import numpy as np

from keyhole._arrays import Array, Int, Sequences
from keyhole.bounds.base import Inequality, Sizes
from keyhole.bounds.formulas import (
    ENTRIES,
    ONE_LAYER,
    ROBUST,
    ROBUST_WIDE,
    SCORES,
    SCORES_WIDE,
    STANDARD,
    STREAM,
    measure_partition_message,
)
from keyhole.claims import Check
from keyhole.errors import InvalidInput
from keyhole.tasks import Composition, IndexLookup, InductionHeads, KHop, Task, find_kind
from keyhole.tasks.base import Labels
from keyhole.tasks.pointing import read_bits

Symbols = Int[np.ndarray, "batch n"]
Indices = Int[np.ndarray, "batch"]


@dataclass(frozen=True, slots=True)
class Telling:
    """A task one row of which tells any of Alice's symbols.

    Args:
        task: the task.
        size: n, symbols that Alice holds.
        kinds: s, different ones.
        alice: the positions that depend on her symbols.
        bob: the positions that depend on Bob's index; all others are public.
        row: the row that answers, which is public.
        offset: answers are this much larger than the symbol.
        write: symbols and indices as inputs.
    """

    task: Task
    size: int
    kinds: int
    alice: tuple[int, ...]
    bob: tuple[int, ...]
    row: int
    offset: int
    write: Callable[[Any, Any], Array]

    @property
    def bits(self) -> float:
        """Bits that tell all of Alice's symbols apart."""
        return self.size * log2(self.kinds)

    def inputs(self, symbols: Symbols, index: Indices) -> Sequences:
        """The inputs that stand for these symbols and indices."""
        if symbols.ndim != 2 or symbols.shape[1] != self.size or len(index) != len(symbols):
            raise InvalidInput(
                f"Alice holds rows of {self.size} symbols, and Bob an index for each row; got"
                f" {symbols.shape} and {index.shape}."
            )
        return self.write(symbols, index)

    def read(self, Y: Labels) -> Indices:
        """The symbols that answers tell."""
        return read_bits(Y[:, self.row]) - self.offset


def telling(task: Task) -> Telling | None:
    """How a task tells symbols; None where nothing is known, or it is too small."""
    tell_task = find_kind(task).load("telling")
    return None if tell_task is None else tell_task(task)


# The last token asks for x = 0. Bob's g(0) is his index, Alice's f her symbols.
def tell_functions(task: Composition) -> Telling:
    """f(g(0)) is any of Alice's values of f, by Bob's value of g."""
    n = task.symbols

    def write(symbols: Any, index: Any) -> Array:
        x = np.zeros((len(symbols), task.length))
        x[:, 0] = index
        x[:, n : 2 * n] = symbols
        return x[..., None]

    alice = tuple(range(n, 2 * n))
    return Telling(task, n, n, alice, (0,), task.length - 1, 0, write)


# Symbols 0 .. k - 1 lead the way, the others are Alice's. From the right: the last token is 0;
# before it stand the pairs 0 1, then 1 2, .., k - 2, k - 1, each left of the one before; then n
# pairs of one of Bob's and one of Alice's. Bob writes k - 1 before the symbol he wants and a
# symbol of Alice's kind elsewhere. Every hop goes left: from the last token to the 1 behind the
# 0, to the 2 behind the 1, .., to the k - 1, and from there to what stands behind Bob's mark, since
# k - 1 stands nowhere else before it.
def tell_payloads(task: InductionHeads | KHop) -> Telling | None:
    """The last token is led to the symbol that Bob has marked."""
    k = task.hops
    size = (task.length - 2 * k + 1) // 2
    kinds = task.symbols - k
    if size < 1 or kinds < 2:
        return None
    first = task.length - 1 - 2 * (k - 1) - 2 * size
    bob = tuple(range(first, first + 2 * size, 2))
    alice = tuple(j + 1 for j in bob)
    leads = [symbol for low in range(k - 2, -1, -1) for symbol in (low, low + 1)]

    def write(symbols: Any, index: Any) -> Array:
        x = np.full((len(symbols), task.length), k)
        x[:, alice] = symbols + k
        x[np.arange(len(x)), np.array(bob)[index]] = k - 1
        x[:, task.length - 1 - len(leads) :] = [*leads, 0]
        return x[..., None].astype(np.float64)

    return Telling(task, size, kinds, alice, bob, task.length - 1, 1 + k, write)


_GROWTH = {
    "composition": "PNP24: one layer fails where H (d + 1) p < n log n (recalled)",
    "induction-heads": "SHT24/induction-heads: h m p >= c N for some constant c > 0",
    "k-hop": "SHT24/induction-heads: h m p >= c N for some constant c > 0, for one hop",
}
_THEOREM = {"composition": "PNP24/composition"}


def bound_by_telling(task: Task, sizes: Sizes, *, wide: bool = False) -> Inequality | None:
    """One layer that tells any of n symbols of s kinds: H (v p + b_L) >= n log2 s.

    Args:
        task: the task.
        sizes: of the layer.
        wide: whether scores may be as large as p-bit queries and keys make them.
    """
    found = telling(task)
    if found is None:
        return None
    return Inequality(
        "partition-message-wide" if wide else "partition-message",
        _THEOREM.get(task.name, "SHT24/induction-heads"),
        found.bits,
        measure_partition_message(sizes, found.size, wide=wide),
        "bits",
        (Check("layers", float(sizes.layers), 1.0),),
        (
            ONE_LAYER,
            SCORES_WIDE if wide else SCORES,
            "answers stay right when every number of a head output moves by less than 2^-F",
        ),
        "n log2 s <= H (v p + b_L)",
        _GROWTH[task.name],
        ROBUST_WIDE if wide else ROBUST,
    )


def list_telling_bounds(task: Task, sizes: Sizes) -> tuple[Inequality, ...]:
    """What is known of attention where one public row tells symbols."""
    both = (bound_by_telling(task, sizes, wide=wide) for wide in (False, True))
    return tuple(one for one in both if one is not None)


# Let only the last token's index t vary, over the other N - 1 positions. Two indices that send one
# message get one answer, whatever the symbols are, and these may differ at the two.
def bound_by_counting_indices(task: IndexLookup, sizes: Sizes) -> Inequality:
    """Look-up sends a message per index: H (2m + v) p >= log2(N - 1)."""
    message = sizes.heads * (2 * sizes.embed + sizes.value_width)
    return _bound_look_up(
        "counting",
        log2(max(1, task.length - 1)),
        message * sizes.bits,
        (Check("residual", float(sizes.residual), 0.0),),
        (STANDARD, ENTRIES, STREAM),
        "log2(N-1) <= H (2m + v) p",
        "attention of any depth without residuals whose queries, keys and values have p bits",
    )


def bound_by_named_symbols(task: IndexLookup, sizes: Sizes) -> Inequality:
    """Every symbol may be the answer: H v p >= log2 s."""
    return _bound_look_up(
        "answers",
        log2(task.symbols),
        sizes.heads * sizes.value_width * sizes.bits,
        (Check("residual", float(sizes.residual), 0.0),),
        (ENTRIES, STREAM),
        "log2 s <= H v p",
        "attention of any depth without residuals whose head outputs have p bits",
    )


def bound_by_token_codes(task: IndexLookup, sizes: Sizes) -> Inequality:
    """A token behind the token map tells its index: d p >= log2(N - 1)."""
    width = sizes.token_width
    return _bound_look_up(
        "embedding",
        log2(max(1, task.length - 1)),
        inf if width is None else width * sizes.bits,
        (Check("token width that is not given", float(width is None), 0.0),),
        ("tokens behind the token map are d numbers of p bits", "anything stands behind them"),
        "log2(N-1) <= d p",
        "models of any kind behind a token map into d numbers of p bits",
    )


def _bound_look_up(
    name: str,
    needed: float,
    available: float,
    checks: tuple[Check, ...],
    assumptions: tuple[str, ...],
    formula: str,
    excludes: str,
    unit: str = "bits",
) -> Inequality:
    growth = "BHBK24: one layer of size log N is enough, and recurrent networks need size N"
    return Inequality(
        name,
        "BHBK24/index-lookup",
        needed,
        available,
        unit,
        checks,
        assumptions,
        formula,
        growth,
        excludes,
    )


def list_look_up_bounds(task: IndexLookup, sizes: Sizes) -> tuple[Inequality, ...]:
    """What is known of attention that looks up."""
    return (
        bound_by_counting_indices(task, sizes),
        bound_by_named_symbols(task, sizes),
        bound_by_token_codes(task, sizes),
    )


# Two prefixes of N - 1 symbols that leave one state get one answer, and the last token may ask
# where they differ.
def bound_look_up_network(
    task: IndexLookup, hidden: int | None, state_bits: int | None, accuracy: float
) -> Inequality:
    """A recurrent network that reads left to right needs (N - 1) log2 s bits of state.

    Raises:
        InvalidInput: units of a first layer are given: one real number tells all symbols.
    """
    if state_bits is None:
        raise InvalidInput(
            "index-lookup has a bound for --state-bits alone: one unit of real numbers holds any"
            f" number of symbols; got --hidden {hidden}."
        )
    return _bound_look_up(
        "prefixes",
        (task.length - 1) * log2(task.symbols),
        float(state_bits),
        (),
        (
            "one pass from left to right",
            "the state between two tokens is all that is remembered",
            "the last token asks",
        ),
        "(N - 1) log2 s <= bits of state",
        "recurrent networks that read once from left to right",
        "bits of state",
    )
