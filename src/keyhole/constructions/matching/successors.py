r"""Match3Bigram by two layers of one head: one fetches the next token, one matches pairs.

Positions lie on a circle of L = N + 1, of which the blank token has the last: position i asks for i
+ 1, and the last token finds the blank, which has no value. What is fetched, $(x_{i+1}/M, 1)$, is
added to the token. Rounding recovers the number; the second layer is a Match2 unit whose keys are
angles of $x_j + x_{j+1}$, and 0 where there is no next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Array, Sequences, Stack
from keyhole.claims import Check
from keyhole.constructions.matching.positions import Sharp, encode_positions
from keyhole.constructions.matching.wave_units import (
    build_blank_row,
    draw_near_misses,
    state_score_assumptions,
)
from keyhole.constructions.matching.waves import Wavy, evaluate_waves, use_single_frequency
from keyhole.constructions.matching.windows import (
    EVEN,
    GATHERED,
    bound_gathered_error,
    sharpen_own_position,
    state_position_assumptions,
)
from keyhole.constructions.shared.base import Evaluate
from keyhole.constructions.shared.certifying import (
    LABELS,
    Distances,
    Draft,
    Recipe,
    measure_label_distances,
)
from keyhole.constructions.shared.layout import Layout, Weights
from keyhole.constructions.shared.rounding import (
    Scores,
    bound_answer_rounding,
    bound_moved_score,
    choose_scores,
    narrow_gap,
)
from keyhole.errors import DoesNotFit
from keyhole.models.attention import SelfAttention
from keyhole.models.numbers import NumberFormat
from keyhole.models.stack import Block, Transformer
from keyhole.tasks import Task
from keyhole.tasks.base import round_to_whole


def lay_out_fetching_rows(harmonics: int) -> Layout:
    """Tokens of the first layer; what is fetched comes last."""
    return Layout.of(key=2 * harmonics, query=2 * harmonics, own=1, real=1, value=1, present=1)


@dataclass(frozen=True, eq=False, slots=True)
class Successors:
    """Tokens as codes of their position and the next, x / M, a 1, and room for what is fetched.

    Args:
        modulus: M.
        positions: of the circle.
        harmonics: of the codes.
    """

    modulus: int
    positions: int
    harmonics: int

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        return "successors"

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """Its numbers."""
        return {"modulus": self.modulus, "positions": self.positions, "harmonics": self.harmonics}

    @property
    def tensors(self) -> Mapping[str, Array]:
        """None."""
        return {}

    def __call__(self, X: Sequences) -> Stack:
        """The mapped tokens."""
        places = np.arange(X.shape[1], dtype=np.int64)
        codes = [encode_positions(places + step, self.positions, self.harmonics) for step in (0, 1)]
        codes = np.broadcast_to(np.concatenate(codes, axis=1), (*X.shape[:2], 4 * self.harmonics))
        real = np.ones((*X.shape[:2], 1))
        return np.concatenate(
            [codes, X[..., :1] / self.modulus, real, np.zeros((*X.shape[:2], 2))], axis=-1
        )


@dataclass(frozen=True, eq=False, slots=True)
class PairAngles(Wavy):
    """Tokens as angles: of their number to ask with, of the pair's sum to be found by."""

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        return "pair-angles"

    def __call__(self, X: Sequences) -> Stack:
        """The mapped tokens."""
        own = X[..., -4]
        value = X[..., -2]
        present = X[..., -1:] > 0.5
        number, following = (
            round_to_whole(np.clip(part, -1.0, 2.0) * self.modulus) for part in (own, value)
        )
        asking = evaluate_waves(number % self.modulus, self.modulus, self.frequencies)
        found = [
            present * part
            for part in evaluate_waves(
                (number + following) % self.modulus, self.modulus, self.frequencies
            )
        ]
        real = np.ones((*X.shape[:2], 1))
        return np.concatenate([*asking, *found, real, present * real, np.zeros_like(real)], axis=-1)


def build_fetching_layer(sharp: Sharp) -> SelfAttention:
    """The layer that adds the next token's value and presence to a token."""
    rows = lay_out_fetching_rows(len(sharp.weights))
    codes = Layout.of(code=2 * len(sharp.weights))
    weights = np.diag(np.concatenate([sharp.weights, sharp.weights]))
    Q = Weights.zeros(rows, codes).place("query", "code", weights).array
    K = Weights.zeros(rows, codes).place("key", "code", 1.0).array
    V = Weights.zeros(rows, rows).place("own", "value", 1.0).place("real", "present", 1.0).array
    return SelfAttention(Q[None], K[None], V[None])


def build_pairing_layer(count: int, chosen: Scores) -> SelfAttention:
    """The Match2 unit whose queries are numbers and whose keys are sums of pairs."""
    rows = Layout.of(
        cos=count, sin=count, pair_cos=count, pair_sin=count, real=1, present=1, blank=1
    )
    columns = Layout.of(cos=count, sin=count, blank=1)
    Q = Weights.zeros(rows, columns).place("real", "blank", chosen.blank)
    Q = Q.place("cos", "cos", chosen.unit).place("sin", "sin", chosen.unit)
    K = Weights.zeros(rows, columns).place("blank", "blank", 1.0)
    # cos(a + b) = cos a cos b - sin a sin b: the score is largest where the sum is 0.
    K = K.place("pair_cos", "cos", 1.0).place("pair_sin", "sin", -1.0)
    V = Weights.zeros(rows, Layout.of(label=1)).place("present", "label", 1.0).array
    return SelfAttention(Q.array[None], K.array[None], V[None])


@dataclass(frozen=True, slots=True)
class Bigrams(Recipe):
    """Match3Bigram by two layers of one head, with key width 3."""

    @property
    def name(self) -> str:
        """What people call it."""
        return "bigram-successors"

    @property
    def theorem(self) -> str:
        """The id of the theorem behind it."""
        return "SHT23/bigram"

    def embed(self, task: Task, accuracy: float) -> int:
        """The key width."""
        return 3

    def work(self, task: Task) -> float:
        """Products of numbers that one sequence costs, about."""
        return 30.0 * (task.length + 1) ** 2

    def inputs(
        self, task: Any, model: Transformer, size: int, *, rng: np.random.Generator
    ) -> Iterator[Stack]:
        """Inputs whose sums miss by the residues that fall short least."""
        yield draw_near_misses(task, model, size, rng=rng)

    def distances(
        self, task: Any, model: Transformer, X: Stack, evaluate: Evaluate | None
    ) -> tuple[Stack, Distances]:
        """Answers, how far what is fetched is from the next number, and answers from 1 and 0."""
        first, second = model.blocks
        rows = first(X, evaluate)
        following = np.concatenate(
            [X[:, 1:, :1] / task.modulus, np.ones_like(X[:, 1:, :1])], axis=-1
        )
        ideal = np.concatenate([following, np.zeros((len(X), 1, 2))], axis=1)
        Y = second(rows, evaluate)
        fetched = float(np.abs(rows[..., -2:] - ideal).max())
        return Y, (fetched, *measure_label_distances(task, Y, X))

    def draft(
        self, task: Any, *, form: NumberFormat, embed: int | None, rng: np.random.Generator
    ) -> Draft:
        """A sharp shift, then a Match2 unit.

        Raises:
            DoesNotFit: the key width asked for is too small.
        """
        if embed is not None and embed < 3:
            raise DoesNotFit(f"{self.name} has key width 3; asked for {embed}.")
        n = task.length
        M = task.modulus
        single = use_single_frequency(task.modulus)
        shift = sharpen_own_position(n, M, form, embed)
        lost = 2 * bound_answer_rounding(form, n + 1)
        gap = narrow_gap(single.gap, 2)
        rho = bound_moved_score(form, 2, 2)
        chosen = choose_scores(gap, tuples=n, mixed=1, factor=1, rho=rho, form=form)
        blank = np.zeros(lay_out_fetching_rows(len(shift.weights)).width)
        blank[: 2 * len(shift.weights)] = encode_positions(
            np.array([n]), n + 1, len(shift.weights)
        )[0]
        first = Block(
            Successors(M, n + 1, len(shift.weights)),
            build_fetching_layer(shift),
            blank,
            residual=True,
        )
        second = Block(
            PairAngles(M, single.values), build_pairing_layer(1, chosen), build_blank_row(7)
        )
        fetched = bound_gathered_error(shift, lost, alone=True)
        assumptions = (
            *state_position_assumptions(form, EVEN, shift),
            Check("recovered numbers, off by", M * (2 * shift.leak + lost), 0.25),
            *state_score_assumptions(chosen, form),
        )
        bounds = (
            (GATHERED, fetched),
            *zip(LABELS, (chosen.matched, chosen.unmatched), strict=True),
        )
        embed = max(3, 2 * len(shift.weights))
        return Draft(
            Transformer((first, second)), embed, blank.size, 1, single.gap, assumptions, bounds
        )
