"""A unit of third order from its answers, step by step, with another basis where one fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Array, Indices, Matrix, Stack, pin_one_thread
from keyhole.learners.third_order.exchanged_scores import split_exchanged_scores
from keyhole.learners.third_order.few_products import Products, find_products
from keyhole.learners.third_order.lone_values import Ask, LoneValues, read_lone_values
from keyhole.learners.third_order.score_table import ScoreTable, Unreadable
from keyhole.learners.third_order.spread_basis import spread_tokens
from keyhole.learners.third_order.token_scale import find_token_length
from keyhole.learners.third_order.unit_fit import refine_unit
from keyhole.learners.verifying.informative_scales import find_cubic_scale
from keyhole.models import TensorAttention
from keyhole.models.layers.tensor_row import TensorRow, third_order_freedom

Phase = Callable[[str], AbstractContextManager[None]]

TRIES = 6
CHECKED = 4
_SHORTER = 0.7  # by which tokens shrink from one try to the next
_FEW = 3  # tries for few products, before all scores are measured
_CHECK_LENGTH, _CHECK_SPREAD = 6, 10.0
_FIT_LENGTH, _FIT_SPREADS = 4, (1.0, 3.0, 10.0)
FIT_SHARE = 1.3  # answers of the fit per number they determine
_RIGHT = 2e-11  # of the largest value, up to which checked answers need no fit
_NEAR = 1e-2  # a relative gap from which a fit finds its way
_ROUNDINGS = 300.0  # of coarse answers, that a right unit may be off by


@dataclass(frozen=True, eq=False, slots=True)
class LearnedUnit:
    """A unit as it was measured, not yet verified by anyone else.

    Args:
        row: the unit; None where none was found.
        rank: how many products T is a sum of, None where all of it was measured.
        parallel: whether every output has one value vector in both places.
        dead: whether no output has values.
        gap: of checked answers, beside their values.
    """

    row: TensorRow | None = None
    rank: int | None = None
    parallel: bool = False
    dead: bool = False
    gap: float = np.inf


@dataclass(slots=True)
class Measuring:
    """One recovery under way.

    Args:
        ask: answers to sequences.
        width: of a token.
        roundoff: relative rounding of answers.
        phase: books what is asked inside it under a name.
        rng: source of every random choice.
    """

    ask: Ask
    width: int
    roundoff: float
    phase: Phase
    rng: np.random.Generator
    V: tuple[Matrix, Matrix] = field(init=False)

    def learn(self) -> LearnedUnit:
        """The best unit that was found in a few tries."""
        with pin_one_thread(), np.errstate(all="ignore"):
            values, length = self._read_values()
            if values.dead.all():
                return LearnedUnit(dead=True)
            best = LearnedUnit()
            for attempt in range(TRIES):
                try:
                    found = self._try(values, length * _SHORTER**attempt, attempt)
                except (Unreadable, np.linalg.LinAlgError):
                    continue
                best = min(best, found, key=lambda one: one.gap)
                if best.gap <= self._allow():
                    break
            return best

    def _allow(self) -> float:
        return max(_RIGHT, _ROUNDINGS * self.roundoff) if self.roundoff > 1e-15 else _RIGHT

    def _read_values(self) -> tuple[LoneValues, float]:
        """Values in the coordinates of tokens, and the length at which scores show."""
        with self.phase("scale"):
            length = find_token_length(self.ask, self.width, self.roundoff, rng=self.rng)
        tokens = length * np.linalg.qr(self.rng.normal(size=(self.width, self.width)))[0]
        with self.phase("values"):
            values = read_lone_values(self.ask, tokens, self.roundoff)
        inverse = tokens.T / length**2
        self.V = inverse @ values.first, inverse @ values.second
        return values, length

    def _try(self, values: LoneValues, length: float, attempt: int) -> LearnedUnit:
        clear = ~values.dead & ~values.parallel
        symmetric = not clear.any()
        used = np.flatnonzero(~values.dead if symmetric else clear)
        first, second = (part[:, used[0]] for part in self.V)
        tokens = length * spread_tokens(first, second, rng=self.rng)
        with self.phase("scores"):
            self._align_outputs(tokens, used, values)
            table = self._open_table(tokens, used, values, symmetric)
            if symmetric:
                return self._learn_exchanged(table)
            few = None
            if attempt < _FEW:
                few = find_products(table, max(1e-9, 1e3 * self.roundoff))
            if few is None:
                table.measure_all()
        unit = self._assemble(tokens, table.T if few is None else few)
        rank = None if few is None else few.Q.shape[1]
        return self._check(unit, rank)

    def _open_table(
        self, tokens: Matrix, used: Indices, values: LoneValues, symmetric: bool
    ) -> ScoreTable:
        first, second = (tokens @ part[:, used] for part in self.V)
        ours = LoneValues(first, second, values.parallel[used], values.dead[used])
        return ScoreTable(lambda asked: self.ask(asked)[:, used], tokens, ours, symmetric)

    # Places may be exchanged in every output for itself: one pair, read by the first output alone,
    # tells how the others stand to it.
    def _align_outputs(self, tokens: Matrix, used: Indices, values: LoneValues) -> None:
        if len(used) < 2 or self.width < 2:
            return
        table = self._open_table(tokens, used[:1], values, symmetric=False)
        table.measure_block(0, [0, 1])
        pair = tokens[[1, 0]]
        answer = self.ask([pair])[0]
        weights = np.exp(table.T[0][np.ix_([1, 0], [1, 0])])
        first, second = (pair @ part for part in self.V)
        gaps = [
            np.abs(np.einsum("ij,io,jo->o", each, first, second) / weights.sum() - answer)
            for each in (weights, weights.T)
        ]
        turned = gaps[1] < gaps[0]
        turned[[o for o in range(len(turned)) if o not in used[1:]]] = False
        V1, V2 = self.V
        self.V = np.where(turned, V2, V1), np.where(turned, V1, V2)

    def _learn_exchanged(self, table: ScoreTable) -> LearnedUnit:
        """Scores that are symmetric in both places, or else told apart with signs."""
        table.measure_all()
        found = self._check(self._assemble(table.tokens, table.T), None, parallel=True)
        if found.gap <= self._allow():
            return found
        with self.phase("signs"):
            T = split_exchanged_scores(table)
        other = self._check(self._assemble(table.tokens, T), None, parallel=True)
        return min(found, other, key=lambda one: one.gap)

    def _assemble(self, tokens: Matrix, scores: Array | Products) -> TensorRow:
        """A unit from its scores on a basis; where T is no sum of few products, of all d^2."""
        inverse = tokens.T / float(tokens[0] @ tokens[0])
        if isinstance(scores, Products):
            Q, *K = (inverse @ part for part in (scores.Q, scores.K1, scores.K2))
            return TensorRow(TensorAttention(*_balance(Q, *K), self.V))
        T = np.einsum("yi,aj,bk,ijk->yab", inverse, inverse, inverse, scores, optimize=True)
        eye = np.eye(self.width)
        places = np.repeat(eye, self.width, axis=1), np.tile(eye, self.width)
        return TensorRow(TensorAttention(T.reshape(self.width, -1), places, self.V))

    def _check(self, row: TensorRow, rank: int | None, *, parallel: bool = False) -> LearnedUnit:
        """The unit with its gap on a few sequences; fitted to more answers where it is near."""
        with self.phase("check"):
            X = self._draw_sequences(row, CHECKED, _CHECK_LENGTH, (_CHECK_SPREAD,))
            answers = self.ask(list(X))
        gap = _measure_unit_gap(row, X, answers)
        if self._allow() < gap < _NEAR:
            refined = self._refine(row, rank)
            left = _measure_unit_gap(refined, X, answers)
            if left < gap:
                return LearnedUnit(refined, rank, parallel, gap=left)
        return LearnedUnit(row, rank, parallel, gap=gap)

    def _refine(self, row: TensorRow, rank: int | None) -> TensorRow:
        count = count_unit_answers(self.width, rank, row.outputs)
        with self.phase("fit"):
            X = self._draw_sequences(row, count, _FIT_LENGTH, _FIT_SPREADS)
            answers = self.ask(list(X))
        return refine_unit(row, X, answers, keys=rank is not None)

    def _draw_sequences(
        self, row: TensorRow, count: int, length: int, spreads: tuple[float, ...]
    ) -> Stack:
        """Generic sequences whose scores have these spreads, in turn."""
        drawn = self.rng.normal(size=(count, length, self.width))
        scales = [find_cubic_scale(row, X, spreads[i % len(spreads)]) for i, X in enumerate(drawn)]
        return drawn * np.array([1.0 if c is None else c for c in scales])[:, None, None]


def count_unit_answers(width: int, rank: int | None, outputs: int) -> int:
    """Answers that a fit takes."""
    freedom = third_order_freedom(width, rank=rank, outputs=outputs)
    return int(np.ceil(FIT_SHARE * freedom / outputs)) + 10


def _measure_unit_gap(row: TensorRow, X: Stack, answers: Matrix) -> float:
    size = row.magnitude(X)
    gap = np.abs(row(X) - answers).max(axis=1)
    worst = float((gap / np.where(size > 0, size, 1.0)).max())
    return worst if np.isfinite(worst) else np.inf


def _balance(Q: Matrix, K1: Matrix, K2: Matrix) -> tuple[Matrix, tuple[Matrix, Matrix]]:
    """The same products with factors of equal length in every column."""
    lengths = np.stack([np.linalg.norm(part, axis=0) for part in (Q, K1, K2)])
    lengths = np.where(lengths > 0, lengths, 1.0)
    common = np.cbrt(lengths.prod(axis=0))
    parts = [part / own * common for part, own in zip((Q, K1, K2), lengths, strict=True)]
    return parts[0], (parts[1], parts[2])
