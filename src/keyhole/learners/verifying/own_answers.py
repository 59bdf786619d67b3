"""What a run was answered, kept: a model that is to be called exact explains that first."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from keyhole._arrays import EPS, Answers, Indices, Matrix, Sequences, Stack
from keyhole.claims import Verdict
from keyhole.errors import BudgetSpent
from keyhole.learners.base import Counterexample, Recovery
from keyhole.learners.verifying.declared_errors import choose_ruler
from keyhole.learners.verifying.ending import contradict
from keyhole.learners.verifying.examination import Ruler
from keyhole.models import Model
from keyhole.oracles import Declared, Imperfection, Oracle, read_imperfection

_ROOM = 2**23  # numbers in the questions that are kept: 64 MB
# Only these verdicts speak of answers that were never asked.
_CLAIMS = (Verdict.EXACT, Verdict.WITHIN_TOLERANCE, Verdict.NOT_IDENTIFIABLE)
_AT_ONCE = 1 << 12  # questions that are evaluated together
_FAR = 1e-2  # of an answer's parts: labels tell more only near the boundary


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
        """The recovery, with how many answers it explains; UNVERIFIED where one contradicts it."""
        model = recovery.model
        stated = read_imperfection(self)
        # A random error of unknown size explains anything.
        if model is None or recovery.verdict not in _CLAIMS or np.isnan(stated.noise):
            return recovery
        find = find_contradiction if stated.levels is None else find_wrong_label
        ruler = choose_ruler(stated, model, recovery.bars, rng=rng.spawn(1)[0])
        case = find(model, self.by_length(), ruler)
        if case is not None:
            return contradict(recovery, case)
        return replace(recovery, explained=sum(len(part.X) for part in self._kept))


def find_contradiction(
    model: Model, kept: list[tuple[Stack, Matrix]], ruler: Ruler
) -> Counterexample | None:
    """The shortest question whose kept answer nothing explains, or None."""
    ruler = ruler.fit_to(model, [y for _, y in kept])
    for X, y in kept:
        for part in range(0, len(X), _AT_ONCE):
            asked, answers = X[part : part + _AT_ONCE], y[part : part + _AT_ONCE]
            predicted = model(asked)
            gap = np.abs(answers - predicted).max(axis=1)
            excess = gap - ruler.measure(model, asked).most
            worst = int(np.argmax(excess))
            if not excess[worst] <= 0.0:
                return Counterexample(asked[worst], answers[worst], predicted[worst])
    return None


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
