"""Fresh questions: sequences on which a model is asked to prove itself, one batch per length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Matrix, Stack
from keyhole.learners.verifying.informative_scales import (
    Subject,
    describe_subject,
    draw_quiet_last,
    find_cubic_scale,
    find_scale,
    find_typical_scale,
    raise_scores,
    spread_along_query,
    stretch_across,
    turn_from_bias,
)
from keyhole.learners.verifying.question_kinds import (
    AGAIN,
    KINDS,
    LEVELS,
    OF_MORE,
    OF_ONE,
    PERMUTED,
    STRETCHES,
    Kind,
)
from keyhole.models import Head, Model
from keyhole.oracles import Examining, Oracle, read_imperfection, walk_wrapped

# Lengths, drawn between two ends, with the number of questions; the last is the longest allowed.
STRATA = (
    *((1, 1, 16), (2, 2, 24), (3, 6, 30), (7, 14, 30)),
    *((17, 31, 24), (41, 64, 18), (80, 160, 10), (300, 300, 8)),
)
LONGEST = 300
QUERIES = sum(count for _, _, count in STRATA)
CALLS = len(STRATA)
_LEAST = 2  # in a call: a question, and the same again
# Lone tokens are answered alike at any length by heads, and by networks beyond their last bend.
_LONE_BY_HEADS = (1e-2, 1e1, 1e2, 1e3, 1e4, 1e-1)
_LONE_BY_NETWORKS = (1e-1, 1e1, 1e2, 1e3, 1e4, 1e5)
_SIZES = (1.0, 4.0)  # of tokens, in units of where a network bends


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Limits:
    """What may be asked.

    Args:
        lengths: the shortest and the longest sequence.
        bound: largest norm of a token, None where there is none.
        tokens: the only tokens that may be asked, one per row.
        size: how many questions.
    """

    lengths: tuple[int, int] = (1, LONGEST)
    bound: float | None = None
    tokens: Matrix | None = None
    size: int = QUERIES


ANYTHING = Limits()


def read_limits(
    oracle: Oracle, *, bound: float | None = None, tokens: Matrix | None = None
) -> Limits:
    """What an oracle declares that may be asked, and how many fresh questions it is to be asked.

    Args:
        oracle: the target.
        bound: largest norm of a token, where a learner keeps to less than is declared.
        tokens: the only tokens that may be asked.
    """
    stated = read_imperfection(oracle)
    bounds = [b for b in (bound, stated.token_bound) if b is not None]
    sizes = [part.questions for part in walk_wrapped(oracle) if isinstance(part, Examining)]
    return Limits(
        lengths=stated.lengths or (1, LONGEST),
        bound=min(bounds, default=None),
        tokens=tokens,
        size=sizes[0] if sizes else QUERIES,
    )


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """Questions of one length, with the kind of each; the last asks the first again."""

    X: Stack
    kinds: tuple[str, ...]

    @property
    def length(self) -> int:
        """Tokens per question."""
        return self.X.shape[1]

    def has_kind(self, names: tuple[str, ...]) -> bool:
        """Whether a question is of one of these kinds."""
        return any(kind in names for kind in self.kinds)

    def keep(self, chosen: list[int]) -> Batch:
        """The chosen questions."""
        return Batch(self.X[chosen], tuple(self.kinds[i] for i in chosen))

    def shorten(self, length: int) -> Batch:
        """The same questions without their first tokens."""
        return Batch(self.X[:, -length:], self.kinds)


def choose_lengths(limits: Limits, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Lengths with their numbers of questions, each length once.

    Where less than the usual longest is allowed, the ends of every stratum shrink alike, measured
    by their logarithms.
    """
    shortest, longest = limits.lengths
    shrink = np.log(max(1, min(longest, LONGEST))) / np.log(LONGEST)
    chosen: Counter[int] = Counter()
    for low, high, count in STRATA:
        least, most = (round(float(np.exp(shrink * np.log(end)))) for end in (low, high))
        length = int(np.clip(rng.integers(least, most + 1), shortest, longest))
        chosen[length] += max(_LEAST, round(count * limits.size / QUERIES))
    return sorted(chosen.items())


def draw_questions(
    model: Model, limits: Limits = ANYTHING, *, rng: np.random.Generator
) -> Iterator[Batch]:
    """The examination: one batch per length, kinds in turn, scaled by the model."""
    drawing = _Drawing(describe_subject(model), limits, rng)
    for length, count in choose_lengths(limits, rng):
        yield drawing.draw_batch(length, count)


def _list_kinds(subject: Subject, limits: Limits, length: int) -> list[str]:
    return [name for name in _choose_order(length) if _may_be_asked(name, subject, limits, length)]


def _choose_order(length: int) -> tuple[str, ...]:
    return OF_ONE if length == 1 else OF_MORE


def _may_be_asked(name: str, subject: Subject, limits: Limits, length: int) -> bool:
    if name == PERMUTED:
        return length >= 3
    kind = KINDS[name]
    # Far tokens do not fit into a ball, nor do scores of any level.
    outside = limits.bound is not None and name in ("levels", "far", "lone")
    foreign = kind.free and limits.tokens is not None
    scoreless = kind.scores and not subject.heads
    # Across one query scores stay small; across all pairs of a unit nothing does.
    cubic = name == "far" and subject.row is not None
    return length >= kind.shortest and not (outside or foreign or scoreless or cubic)


@dataclass(slots=True)
class _Drawing:
    """One examination being drawn; kinds and their spreads go on from call to call."""

    subject: Subject
    limits: Limits
    rng: np.random.Generator
    _turns: Counter[str] = field(default_factory=Counter[str], init=False)
    _waiting: list[int] = field(default_factory=list[int], init=False)

    def draw_batch(self, length: int, count: int) -> Batch:
        """Questions of one length; the last asks the first again."""
        kinds = _list_kinds(self.subject, self.limits, length)
        if not kinds:
            kinds = ["gauss"]
        asked: list[Matrix] = []
        names: list[str] = []
        while len(asked) < count - 1:
            name = kinds[self._turn(f"length {min(length, 2)}") % len(kinds)]
            # There is nothing to permute before the first question.
            name = "gauss" if name == PERMUTED and not asked else name
            asked.append(self._permute(asked[-1]) if name == PERMUTED else self._draw(name, length))
            names.append(name)
        X = np.stack([*asked, asked[0]])
        return Batch(next(shorten_to_bound([X], self.limits.bound)), (*names, AGAIN))

    def _turn(self, name: str) -> int:
        self._turns[name] += 1
        return self._turns[name] - 1

    def _choose_head(self) -> Head:
        """Heads of very different sizes each get their turn, in an order drawn anew each round."""
        if not self._waiting:
            self._waiting = self.rng.permutation(len(self.subject.heads)).tolist()
        return self.subject.heads[self._waiting.pop()]

    def _permute(self, X: Matrix) -> Matrix:
        order = self.rng.permutation(len(X) - 1)
        return np.vstack([X[:-1][order], X[-1:]])

    def _draw(self, name: str, length: int) -> Matrix:
        turn = self._turn(name)
        kind = KINDS[name]
        if self.limits.tokens is not None:
            rows = self.rng.integers(len(self.limits.tokens), size=length)
            return kind.shape(self.limits.tokens[rows], self.rng)
        head = None
        if self.subject.heads:
            head = self._choose_head()
        drawn = self.rng.normal(size=(length, self.subject.width)) / np.sqrt(self.subject.width)
        # A large score bias would hide W; coordinates are not turned away from it, nor what only
        # a bias acts on.
        if head is not None and turn % 2 and name not in ("one-hot", "sparse", "last zero"):
            drawn = turn_from_bias(head, drawn)
        tokens = kind.shape(drawn, self.rng)
        X = self._scale(head, kind, tokens, turn)
        return self._finish(name, head, X, turn)

    def _scale(self, head: Head | None, kind: Kind, tokens: Matrix, turn: int) -> Matrix:
        spread = kind.spreads[turn % len(kind.spreads)]
        kink = self.subject.kink
        # Behind attention half of the questions keep to where the network bends.
        if head is not None and kink is not None and turn % 2:
            return self._scale_to_kink(head, kink, tokens, spread, turn)
        scale = None if head is None else find_scale(head, tokens, spread)
        if self.subject.row is not None:
            scale = find_cubic_scale(self.subject.row, tokens, spread)
        if scale is None:
            scale = find_typical_scale(self.subject, head, turn, self.rng)
        return scale * tokens

    def _scale_to_kink(
        self, head: Head, kink: float, tokens: Matrix, spread: float, turn: int
    ) -> Matrix:
        size = kink * _SIZES[turn // 2 % len(_SIZES)]
        if len(tokens) == 1:
            return size * tokens
        X = size * tokens
        last = (tokens == tokens[-1]).all(axis=1)
        if tokens[-1].any():
            X[last] = draw_quiet_last(head, size, self.subject.width, self.rng)
        return spread_along_query(head, X, spread)

    def _finish(self, name: str, head: Head | None, X: Matrix, turn: int) -> Matrix:
        if name == "lone":
            factors = _LONE_BY_HEADS if self.subject.kink is None else _LONE_BY_NETWORKS
            return factors[turn % len(factors)] * X
        if name == "far":
            factor = STRETCHES[turn % len(STRETCHES)]
            return factor * X if head is None else stretch_across(head, X, factor, self.rng)
        if name == "levels" and head is not None:
            return raise_scores(head, X, LEVELS[turn % len(LEVELS)], self.rng)
        return X


def shorten_to_bound(batches: Iterable[Stack], bound: float | None) -> Iterator[Stack]:
    """The same sequences, shortened where a token would be longer than the bound."""
    if bound is None:
        yield from batches
        return
    for X in batches:
        longest = np.sqrt((X**2).sum(axis=2).max(axis=1))
        yield X * np.minimum(1.0, bound / np.maximum(longest, 1e-300))[:, None, None]
