"""Prompts that are asked once, however many policies look at their answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice, takewhile

import numpy as np

from keyhole._arrays import Answers, Array, Sequences
from keyhole.errors import BudgetSpent
from keyhole.oracles.wrappers import Wrapper

_SAMPLE = 64  # answers that show what all of them look like


@dataclass(slots=True)
class Remembered(Wrapper):
    """Keeps every answer in memory, and asks no prompt twice.

    Where a budget inside cuts a batch, what was answered is kept, and handed on up to the first
    prompt that has no answer.
    """

    _known: dict[bytes, Array] = field(default_factory=dict[bytes, Array], init=False)

    def ask(self, X: Sequences) -> Answers:
        """Answers to a batch, of which only new prompts are asked."""
        keys = [sequence.tobytes() for sequence in X]
        new = {key: place for place, key in enumerate(keys) if key not in self._known}
        if new:
            try:
                answers = self.inner.ask(X[list(new.values())])
            except BudgetSpent as spent:
                some = () if spent.answers is None else spent.answers
                self._known.update(zip(new, some, strict=False))
                before = list(takewhile(self._known.__contains__, keys))
                raise BudgetSpent(str(spent), self._stack(before) if before else None) from spent
            self._known.update(zip(new, answers, strict=True))
        return self._stack(keys)

    @property
    def largest(self) -> float:
        """The largest number that was answered so far, by size."""
        return max((float(np.abs(row).max()) for row in self._known.values()), default=0.0)

    def sample_answers(self) -> Answers | None:
        """A few of the answers so far; none before the first."""
        keys = list(islice(self._known, _SAMPLE))
        return self._stack(keys) if keys else None

    def _stack(self, keys: list[bytes]) -> Answers:
        return np.stack([self._known[key] for key in keys])
