r"""Induction heads and k hops by one head a layer: previous token, find, then doubling.

With positions from 1 and the blank at 0, find(i) is the largest j <= i whose predecessor holds the
symbol of i, and 0 where there is none.

- Layer 1: position i fetches the symbol of i - 1; position 1 finds the blank.
- Layer 2, behind a causal mask: the score is $\beta(\lambda \cos(x_i - x'_j) + j)$ with x the angle
  of a symbol among s, x' that of the predecessor's, and $\lambda (1 - \cos(2 \pi/s)) = 2N$: the
  largest matching j wins by $\beta$. The blank scores $\beta(\lambda - N/2)$, below all matches and
  above all else; position 1, which has no predecessor, $-\beta N$.
- Doubling: a row knows $\mathrm{find}^e$ and $\mathrm{find}^{e+1}$ of its position, fetches the
  same two numbers at one of the two, and so comes from e to 2e or 2e + 1. From e = 0 the digits of
  k - 1 lead to $\mathrm{find}^k$: $2 + \lceil \log_2 k \rceil$ layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from keyhole._arrays import Array, Sequences, Stack
from keyhole.claims import Check
from keyhole.constructions.matching.waves import rotate_residues
from keyhole.constructions.matching.windows import SHARE, sharpen_own_position
from keyhole.constructions.pointers.pointed_rows import (
    FETCHED,
    OFF,
    FetchedBits,
    FetchingRecipe,
    Pointing,
    build_blank,
    build_pointing_layer,
    judge_fetching,
    recover_levels,
    write_pointed_rows,
)
from keyhole.constructions.shared.certifying import Draft
from keyhole.constructions.shared.layout import Layout, Weights
from keyhole.constructions.shared.rounding import U, bound_answer_rounding, is_fixed, is_rounding
from keyhole.errors import DoesNotFit
from keyhole.models.layers.causal_attention import CausalAttention
from keyhole.models.numbers import NumberFormat
from keyhole.models.stack import Block, Transformer
from keyhole.tasks import Task
from keyhole.tasks.base import round_to_whole

# Two positions and a symbol.
STATE = 3


def count_levels(length: int, symbols: int) -> int:
    """Numbers of rows are multiples of one over this: positions, and 1 + symbols."""
    return max(length, symbols) + 1


@dataclass(frozen=True, eq=False, slots=True)
class Hops(Pointing):
    """What the maps of hops have in common.

    Args:
        length: N.
        symbols: s.
    """

    length: int
    symbols: int

    @property
    def levels(self) -> int:
        """By which numbers are divided."""
        return count_levels(self.length, self.symbols)

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """Its numbers."""
        return {"length": self.length, "symbols": self.symbols}

    def read_rows(self, X: Sequences) -> tuple[Any, Any, Any]:
        """Own position, what a row is known by, and what it fetched, as whole numbers."""
        whole = np.minimum(recover_levels(X[..., -1 - 2 * STATE :], self.levels), self.levels - 1)
        return whole[..., 0], whole[..., 1 : 1 + STATE], whole[..., 1 + STATE :]

    # Some unused slots stay 0.
    def write_state(self, first: Any, second: Any, symbol: Any) -> Stack:
        """Two positions and a symbol, divided."""
        return np.stack(np.broadcast_arrays(first, second, symbol), axis=-1) / self.levels


@dataclass(frozen=True, eq=False, slots=True)
class PreviousPointers(Hops):
    """Tokens that point to the one before them and are known by 1 + their symbol.

    Args:
        harmonics: of the codes.
    """

    harmonics: int

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        return "previous-pointers"

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """Its numbers."""
        return {"length": self.length, "symbols": self.symbols, "harmonics": self.harmonics}

    def __call__(self, X: Sequences) -> Stack:
        """The mapped tokens."""
        own = np.broadcast_to(np.arange(1, X.shape[1] + 1, dtype=np.int64), X.shape[:2])
        state = self.write_state(0, 0, round_to_whole(X[..., 0]) + 1)
        return write_pointed_rows(self.length + 1, self.harmonics, own, own - 1, state, self.levels)


def lay_out_finding_rows() -> Layout:
    """Angles to ask with and to be found by, then what all rows of hops end in."""
    return Layout.of(ask=2, one=1, found=2, rank=1, own=1, state=STATE, fetched=STATE)


@dataclass(frozen=True, eq=False, slots=True)
class SymbolAngles(Hops):
    """Rows that ask by the angle of their symbol and are found by that of their predecessor's."""

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        return "symbol-angles"

    def __call__(self, X: Sequences) -> Stack:
        """The mapped tokens."""
        own, known, fetched = self.read_rows(X)
        asked, before = known[..., 2], fetched[..., 2]
        there = before > 0
        ask, found = (
            np.stack(rotate_residues((number - 1) % self.symbols, self.symbols), axis=-1)
            for number in (asked, before)
        )
        rank = np.where(there, own, -self.length).astype(np.float64)
        state = self.write_state(0, own, asked)
        one = np.ones((*X.shape[:2], 1))
        parts = [ask, one, found * there[..., None], rank[..., None], own[..., None] / self.levels]
        return np.concatenate([*parts, state, np.zeros_like(state)], axis=-1)


@dataclass(frozen=True, eq=False, slots=True)
class DoublingPointers(Hops):
    """Rows that know find^e and find^(e+1) of their position, and point to one of the two.

    Args:
        harmonics: of the codes.
        first: 1 behind the layer that finds, where e = 0 and find^0 is the position itself.
        later: 1 to point to find^(e+1), 0 to find^e.
    """

    harmonics: int
    first: int
    later: int

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        return "doubling-pointers"

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """Its numbers."""
        names = ("length", "symbols", "harmonics", "first", "later")
        return {name: getattr(self, name) for name in names}

    def __call__(self, X: Sequences) -> Stack:
        """The mapped tokens."""
        own, _, fetched = self.read_rows(X)
        near = own if self.first else fetched[..., 0]
        far = fetched[..., 1]
        pointers = np.minimum(far if self.later else near, self.length)
        state = self.write_state(near, far, fetched[..., 2])
        own = np.minimum(own, self.length)
        return write_pointed_rows(
            self.length + 1, self.harmonics, own, pointers, state, self.levels
        )


class Finding(NamedTuple):
    """The scores of the layer that finds.

    Args:
        match: lambda.
        scale: beta.
        blank: the blank's rank.
        gap: least distance of ranks between what must be found and what must not.
        leak: attention elsewhere, rounding counted.
        largest: of a score.
    """

    match: float
    scale: float
    blank: float
    gap: float
    leak: float
    largest: float


# A score adds three products whose absolute values sum to at most S = lambda + R, R the largest
# rank. Floats round tokens, weights, queries, keys and the score, six units in all; fixed point
# rounds queries and keys, by half a spacing each; float64 rounds each factor and each sum, and an
# angle by a few units, which eight more cover.
def _bound_moved_rank(form: NumberFormat, match: float, largest: float) -> tuple[float, float]:
    """What rounding moves a score by at most: a multiple of the scale, and what is left of it."""
    own = 16 * U * (match + largest)
    if not is_rounding(form):
        return own, 0.0
    half = form.spacing / 2
    if is_fixed(form):
        return own + half * (math.sqrt(2) * match + 1), half * (2 + largest) + 3 * half**2
    return own + 6.1 * half * (match + largest), 0.0


def choose_finding(length: int, symbols: int, form: NumberFormat) -> Finding:
    """The scale at which the largest match gets all but a small share, by the form's rounding."""
    match = 2 * length / (1 - math.cos(2 * math.pi / symbols))
    blank = match - length / 2
    largest = max(float(length), abs(blank))
    gap = min(1.0, length / 2)
    wanted = math.log((length + 1) * SHARE * count_levels(length, symbols))
    share, rest = _bound_moved_rank(form, match, largest)
    left = gap - 2 * share
    scale = (wanted + 2 * rest) / (left if left > 0 else gap)
    leak = (length + 1) * math.exp(min(20.0, 2 * rest - scale * left))
    return Finding(match, scale, blank, gap, leak, scale * (match + largest))


def build_finding_layer(finding: Finding) -> CausalAttention:
    """The layer that fetches position and symbol of the last match up to a row."""
    rows = lay_out_finding_rows()
    keys = Layout.of(angle=2, rank=1)
    Q = Weights.zeros(rows, keys).place("ask", "angle", finding.scale * finding.match)
    Q = Q.place("one", "rank", finding.scale)
    K = Weights.zeros(rows, keys).place("found", "angle", 1.0).place("rank", "rank", 1.0)
    V = Weights.zeros(rows, rows).place("state", "fetched", 1.0).array
    return CausalAttention(Q.array[None], K.array[None], V[None])


def build_finding_blank(finding: Finding) -> Array:
    """The row that is found where nothing else is."""
    rows = lay_out_finding_rows()
    blank = np.zeros(rows.width)
    blank[rows["rank"]] = finding.blank
    return blank


@dataclass(frozen=True, slots=True)
class Doubling(FetchingRecipe):
    """Induction heads and k hops by 2 + ceil(log2 k) layers of one head, key width 3."""

    @property
    def name(self) -> str:
        """What people call it."""
        return "hop-doubling"

    @property
    def theorem(self) -> str:
        """The id of the theorem behind it."""
        return "SHT24/k-hop"

    def embed(self, task: Task, accuracy: float) -> int:
        """The key width with one harmonic."""
        return 3

    def work(self, task: Any) -> float:
        """Products of numbers that one sequence costs, about."""
        return 20.0 * (2 + (task.hops - 1).bit_length()) * (task.length + 1) ** 2

    def count_levels(self, task: Any) -> int:
        """Positions and symbols."""
        return count_levels(task.length, task.symbols)

    def count_state(self, task: Task) -> int:
        """Two positions and a symbol."""
        return STATE

    def draft(
        self, task: Any, *, form: NumberFormat, embed: int | None, rng: np.random.Generator
    ) -> Draft:
        """Previous token, find, and a layer for every binary digit of k - 1.

        Raises:
            DoesNotFit: the key width asked for is too small.
        """
        if embed is not None and embed < 3:
            raise DoesNotFit(f"{self.name} has key width 3; asked for {embed}.")
        n, s, levels = task.length, task.symbols, self.count_levels(task)
        sharp = sharpen_own_position(n, levels, form, embed)
        finding = choose_finding(n, s, form)
        harmonics = len(sharp.weights)
        pointing = build_pointing_layer(sharp, STATE)
        blank = build_blank(n + 1, sharp, STATE)
        start = Block(PreviousPointers(n, s, harmonics), pointing, blank, residual=True)
        find = Block(
            SymbolAngles(n, s),
            build_finding_layer(finding),
            build_finding_blank(finding),
            residual=True,
        )
        digits = [int(digit) for digit in f"{task.hops - 1:b}"] if task.hops > 1 else []
        jumps = [
            Block(DoublingPointers(n, s, harmonics, int(k == 0), digit), pointing, blank, True)
            for k, digit in enumerate(digits)
        ]
        fetching = judge_fetching(sharp, levels, n + 1, form)
        off = levels * (2 * finding.leak + 2 * bound_answer_rounding(form, n + 1))
        assumptions = (
            *fetching.assumptions,
            Check("numbers found, off by", off, OFF),
            Check("largest score of the layer that finds", finding.largest, form.range[1]),
        )
        return Draft(
            Transformer((start, find, *jumps), FetchedBits(levels, s + 1)),
            max(3, 2 * harmonics),
            pointing.outputs,
            1,
            finding.gap,
            assumptions,
            ((FETCHED, max(fetching.off, off)),),
        )
