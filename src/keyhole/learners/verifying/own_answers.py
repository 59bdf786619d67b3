"""What a run was answered, kept: a model that is to be called exact explains that first."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keyhole._arrays import Answers, Indices, Matrix, PerSequence, Sequences, Stack
from keyhole.claims import Verdict
from keyhole.errors import BudgetSpent
from keyhole.learners.base import Counterexample, Recovery
from keyhole.learners.verifying.ending import contradict
from keyhole.models import Model
from keyhole.oracles import Declared, Imperfection, Oracle, read_imperfection

_ROOM = 2**23  # numbers in the questions that are kept: 64 MB
# Only these verdicts speak of answers that were never asked.
_CLAIMS = (Verdict.EXACT, Verdict.NOT_IDENTIFIABLE)
_GROSS = 1e-6  # a gap above this share of an answer's parts is none of rounding
_MOVED = 1e-6  # an answer that hangs by less than this share of its tokens denies no model
_DRAWS = 4
_LEEWAY = 16.0  # a few random moves may all miss the steepest direction


@dataclass(frozen=True, eq=False, slots=True)
class _Kept:
    """Questions of one batch with their answers, and the how-manieth of the run each was."""

    numbers: Indices
    X: Stack
    y: Matrix

    def thin(self, stride: int) -> _Kept:
        """Those whose number the stride divides."""
        left = self.numbers % stride == 0
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
        other._asked, other._size = self._asked, self._size
        return other

    def by_length(self) -> list[tuple[Stack, Matrix]]:
        """All that was kept, one pair of arrays per length of sequence, the shortest first."""
        groups: defaultdict[int, list[_Kept]] = defaultdict(list)
        for part in self._kept:
            groups[part.X.shape[1]].append(part)
        return [
            (np.concatenate([p.X for p in groups[n]]), np.concatenate([p.y for p in groups[n]]))
            for n in sorted(groups)
        ]

    def check(self, recovery: Recovery[Any], *, rng: np.random.Generator) -> Recovery[Any]:
        """The recovery; UNVERIFIED where its model gives other answers than were kept."""
        model = recovery.model
        # A declared error may explain any gap, so that only exact answers can contradict.
        if model is None or recovery.verdict not in _CLAIMS or not read_imperfection(self).perfect:
            return recovery
        case = find_contradiction(model, self.by_length(), rng=rng.spawn(1)[0])
        return recovery if case is None else contradict(recovery, case)


def find_contradiction(
    model: Model, kept: list[tuple[Stack, Matrix]], *, rng: np.random.Generator
) -> Counterexample | None:
    """The shortest question whose kept answer differs by far more than rounding, or None."""
    typical = _find_typical_size(kept)
    for X, y in kept:
        predicted = model(X)
        gap = np.abs(y - predicted).max(axis=1)
        parts = np.maximum(np.abs(y), np.abs(predicted)).max(axis=1)
        allowed = _GROSS * np.maximum(parts, model.magnitude(X))
        doubtful = np.flatnonzero(gap > allowed)
        # Shaking costs the model many more passes, so it is done for doubtful answers only.
        if len(doubtful):
            shake = _measure_shake(model, X[doubtful], predicted[doubtful], typical, rng)
            allowed[doubtful] += _LEEWAY * shake
            worst = int(np.argmax(gap - allowed))
            if gap[worst] > allowed[worst]:
                return Counterexample(X[worst], y[worst], predicted[worst])
    return None


def _find_typical_size(kept: list[tuple[Stack, Matrix]]) -> float:
    """The size of tokens that tells of answers to zeros: the median of those asked, at most 1."""
    sizes = np.concatenate([np.zeros(0), *(np.abs(X).max(axis=(1, 2)) for X, _ in kept)])
    return min(1.0, float(np.median(sizes[sizes > 0]))) if sizes.any() else 1.0


def _measure_shake(
    model: Model, X: Stack, predicted: Matrix, typical: float, rng: np.random.Generator
) -> PerSequence:
    """By how much answers move with tokens; near a tie, one of two opposite moves crosses it."""
    size = _MOVED * np.maximum(np.abs(X).max(axis=2, keepdims=True), typical)
    steps = rng.normal(size=(_DRAWS, *X.shape))
    moves = [sign * size * step for step in steps for sign in (-1, 1)]
    return np.max([np.abs(model(X + move) - predicted).max(axis=1) for move in moves], axis=0)
