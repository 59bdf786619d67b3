"""What a run was answered, kept: a model that is to be called exact explains that first."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from keyhole._arrays import EPS, Answers, Indices, Mask, Matrix, Sequences, Stack
from keyhole.claims import Verdict
from keyhole.errors import BudgetSpent
from keyhole.learners.base import Counterexample, Recovery
from keyhole.learners.verifying.declared_errors import choose_ruler
from keyhole.learners.verifying.ending import contradict
from keyhole.learners.verifying.examination import Ruler
from keyhole.models import Model, MultiHead, read_longest
from keyhole.oracles import Declared, Imperfection, Oracle, read_imperfection

_ROOM = 2**23  # numbers in the questions that are kept: 64 MB
# Only these verdicts speak of answers that were never asked.
_CLAIMS = (Verdict.EXACT, Verdict.WITHIN_TOLERANCE, Verdict.NOT_IDENTIFIABLE)
_AT_ONCE = 1 << 12  # questions that are evaluated together
# Tokens that a model is evaluated on: of short runs all, of long ones a tenth of what they asked.
_TOKENS = 1 << 13
_SHARE = 10
_SHORT = 4  # tokens of a question that measures rather than examines
_NEAR = 0.1  # of the tolerance, within which a gap needs no yardstick
_EDGE = 2.0**-28  # a relative move of tokens: about as far as an examination tells weights
_STEEP = 32.0  # a change of an answer over that of tokens, of scores beyond those examined
_MOVES = 64
# Moves after which the model may give the very answer, and the gap, over the size, from which on
# no smooth change does so by accident.
_NEARBY = 2.0 ** -np.arange(24.0, 28.5)
_WHOLE = 1e-4
_SAME = 0.02  # of the gap
_ALIKE = 1e-3  # of the size of W: heads that answers hardly tell apart
_FAR = 1e-2  # of an answer's parts: labels tell more only near the boundary


@dataclass(frozen=True, eq=False, slots=True)
class _Kept:
    """Questions of one batch with their answers, and the how-manieth of the run each was."""

    numbers: Indices
    X: Stack
    y: Matrix

    def thin(self, stride: int) -> _Kept:
        """Those whose number the stride divides."""
        return self.keep(self.numbers % stride == 0)

    def keep(self, left: Mask) -> _Kept:
        """Those that are marked."""
        return _Kept(self.numbers[left], self.X[left], self.y[left])


@dataclass(slots=True)
class Remembered:
    """Keeps questions and answers: all while there is room, then every second, every fourth.

    Args:
        inner: the oracle that is asked.
        room: numbers in the kept questions, at most.
    """

    inner: Oracle
    room: int = _ROOM
    _kept: list[_Kept] = field(default_factory=list["_Kept"], init=False)
    _stride: int = field(default=1, init=False)
    _asked: int = field(default=0, init=False)
    _size: int = field(default=0, init=False)
    _tokens: int = field(default=0, init=False)

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.inner.width

    @property
    def outputs(self) -> int | None:
        """Numbers per answer."""
        return self.inner.outputs

    def ask(self, X: Sequences) -> Answers:
        """Answers to a batch, kept."""
        chosen = np.flatnonzero((self._asked + np.arange(len(X))) % self._stride == 0)
        questions = X[chosen]
        try:
            answers = self.inner.ask(X)
        except BudgetSpent as spent:
            if spent.answers is not None:
                self._keep(chosen[chosen < len(spent.answers)], questions, spent.answers)
            raise
        self._keep(chosen, questions, answers)
        return answers

    def _keep(self, chosen: Indices, questions: Stack, answers: Matrix) -> None:
        self._kept.append(_Kept(self._asked + chosen, questions[: len(chosen)], answers[chosen]))
        self._asked += len(answers)
        self._tokens += len(answers) * questions.shape[1]
        self._size += self._kept[-1].X.size
        # Doubling keeps the numbers of what is left spread evenly over the whole run.
        while self._size > self.room and self._stride < self._asked:
            self._stride *= 2
            thinned = (part.thin(self._stride) for part in self._kept)
            self._kept = [part for part in thinned if len(part.X)]
            self._size = sum(part.X.size for part in self._kept)

    def declare(self, seen: Imperfection) -> Remembered:
        """The same memory, of a target whose answers were seen to lack more than it declares."""
        other = Remembered(Declared(self.inner, seen), self.room)
        other._kept, other._stride = self._kept, self._stride
        other._asked, other._size, other._tokens = self._asked, self._size, self._tokens
        return other

    def by_length(self) -> list[tuple[Stack, Matrix]]:
        """All that was kept, one pair of arrays per length of sequence, the shortest first."""
        return _group_by_length(self._kept)

    def choose_checked(self) -> list[tuple[Stack, Matrix]]:
        """What a model is held against: spread evenly over the run where all would take long."""
        room = max(_TOKENS, self._tokens // _SHARE)
        short = [part for part in self._kept if part.X.shape[1] <= _SHORT]
        long = [part for part in self._kept if part.X.shape[1] > _SHORT]
        # Long ones were examined already; they get what short ones leave, and half at least.
        chosen = _thin_to(short, max(room // 2, room - _count_tokens(long)))
        return _group_by_length([*chosen, *_thin_to(long, room - _count_tokens(chosen))])

    def check(self, recovery: Recovery[Any], *, rng: np.random.Generator) -> Recovery[Any]:
        """The recovery, with how many answers it explains; UNVERIFIED where one contradicts it."""
        model = recovery.model
        stated = read_imperfection(self)
        # A random error of unknown size explains anything.
        if model is None or recovery.verdict not in _CLAIMS or np.isnan(stated.noise):
            return recovery
        find = find_contradiction if stated.levels is None else find_wrong_label
        ruler = choose_ruler(stated, model, recovery.bars, rng=rng.spawn(1)[0])
        # A model claims nothing of sequences longer than those it answers.
        longest = read_longest(model)
        checked = [(X, y) for X, y in self.choose_checked() if X.shape[1] <= (longest or np.inf)]
        case = find(model, checked, ruler)
        if case is not None:
            return contradict(recovery, case, _name_nearest_heads(model))
        return replace(recovery, explained=sum(len(X) for X, _ in checked))


def _count_tokens(parts: list[_Kept]) -> int:
    return sum(part.X.shape[0] * part.X.shape[1] for part in parts)


def _thin_to(parts: list[_Kept], tokens: int) -> list[_Kept]:
    """Every so many-th question, so that they hold about so many tokens."""
    stride = max(1, -(-_count_tokens(parts) // max(1, tokens)))
    chosen: list[_Kept] = []
    before = 0
    for part in parts:
        # By place among these: numbers of what is left of a long run share factors with the stride.
        place = before + np.arange(len(part.X))
        chosen.append(part.keep(place % stride == 0))
        before += len(part.X)
    return chosen


def _group_by_length(parts: list[_Kept]) -> list[tuple[Stack, Matrix]]:
    groups: defaultdict[int, list[_Kept]] = defaultdict(list)
    for part in parts:
        if len(part.X):
            groups[part.X.shape[1]].append(part)
    return [
        (np.concatenate([p.X for p in groups[n]]), np.concatenate([p.y for p in groups[n]]))
        for n in sorted(groups)
    ]


def find_contradiction(
    model: Model, kept: list[tuple[Stack, Matrix]], ruler: Ruler
) -> Counterexample | None:
    """The shortest question whose kept answer nothing explains, or None."""
    ruler = ruler.fit_to(model, [y for _, y in kept])
    constant = model(np.zeros((1, 1, model.width)))
    for X, y in kept:
        for part in range(0, len(X), _AT_ONCE):
            asked, answers = X[part : part + _AT_ONCE], y[part : part + _AT_ONCE]
            predicted = model(asked)
            gap = np.abs(answers - predicted).max(axis=1)
            # An answer without its constant is no larger than the token values it is made of.
            near = _NEAR * ruler.tolerance * np.abs(predicted - constant).max(axis=1)
            doubtful = np.flatnonzero(~(gap <= near))
            if not len(doubtful):
                continue
            excess = gap[doubtful] - ruler.measure(model, asked[doubtful]).most
            contrary = doubtful[~(excess <= 0.0)]
            contrary = contrary[~_find_undecided(model, asked[contrary], answers[contrary])]
            if len(contrary):
                first = contrary[0]
                return Counterexample(asked[first], answers[first], predicted[first])
    return None


def _name_nearest_heads(model: Model) -> str:
    """A sentence on two heads whose W hardly differ, sign apart; nothing where there are none."""
    if not isinstance(model, MultiHead):
        return ""
    W = model.W.reshape(len(model.W), -1)
    sizes = np.linalg.norm(W, axis=1)
    pairs = [
        (float(min(np.linalg.norm(W[i] - W[j]), np.linalg.norm(W[i] + W[j])) / sizes[i]), i, j)
        for i, j in combinations(range(len(W)), 2)
        if sizes[i] > 0
    ]
    distance, i, j = min(pairs, default=(np.inf, 0, 0))
    if distance > _ALIKE:
        return ""
    return (
        f"Heads {i} and {j} of the model are a pair that doubles hardly tell apart: their W differ"
        f" by {distance:.0e} of their size."
    )


def _find_undecided(model: Model, X: Stack, answers: Matrix) -> Mask:
    """Questions on an edge, where weights known as well as any examination asks do not tell more.

    Either a move of tokens by 4e-9 changes half of the gap or more, or the model gives the very
    answer to tokens moved by at most 6e-8. Learners bisect hard softmaxes: between the switches of
    two nearly equal heads such a move tells which of them is on; heads that were merged have no
    such answer.
    """
    if len(X) == 0:
        return np.zeros(0, dtype=bool)
    before = model(X)
    size = model.yardstick(X, EPS).size
    gaps = np.abs(answers - before).max(axis=1)
    signs = np.random.default_rng(len(X)).choice([-1.0, 1.0], (_MOVES, *X.shape[1:]))
    moved = {edge: [model(X * (1.0 + edge * sign)) for sign in signs] for edge in _NEARBY.tolist()}
    change = np.max([np.abs(y - before).max(axis=1) for y in moved[_EDGE]], axis=0)
    left = np.min([np.abs(y - answers).max(axis=1) for ys in moved.values() for y in ys], axis=0)
    # Away from an edge answers move about as far as tokens do, and every gap counts.
    steep = (change >= _STEEP * _EDGE * size) & (change >= gaps / 2.0)
    return steep | ((gaps >= _WHOLE * size) & (left <= _SAME * gaps))


def find_wrong_label(
    model: Model, kept: list[tuple[Stack, Matrix]], ruler: Ruler
) -> Counterexample | None:
    """The shortest question whose kept label is that of the other side, by far, or None.

    Labels are asked nearer and nearer to where answers change sign: there both count.
    """
    for X, labels in kept:
        predicted = model(X)
        size = model.yardstick(X, EPS).size
        wrong = ((labels > 0) != (predicted > 0)) & (np.abs(predicted) > _FAR * size[:, None])
        if wrong.any():
            first = int(np.argmax(wrong.any(axis=1)))
            return Counterexample(X[first], labels[first], predicted[first])
    return None
