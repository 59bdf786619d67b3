"""Asking by name: what was asked first and what was answered, kept for the learner that follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.errors import BadAnswer, BudgetSpent, InvalidInput, TargetFailed
from keyhole.learners.recognising.design import Questions
from keyhole.oracles import Counted


@dataclass(slots=True)
class FirstAnswers:
    """Questions and answers by name, in the order they were asked.

    Args:
        oracle: the target, counting.
        may_be_lost: whether a target may refuse a question without the run ending there.
    """

    oracle: Counted
    may_be_lost: Callable[[Matrix], bool]
    questions: dict[str, Matrix] = field(default_factory=dict[str, Matrix], init=False)
    answers: dict[str, Vector] = field(default_factory=dict[str, Vector], init=False)
    lost: list[str] = field(default_factory=list[str], init=False)

    def ask(self, asked: Questions) -> None:
        """Ask questions of one length in one call; where far ones are refused, without them.

        Raises:
            BudgetSpent: the budget ends here; what was still answered is kept.
            BadAnswer: a question near zero has no finite answer.
        """
        far = [name for name in asked if self.may_be_lost(asked[name])]
        near = [name for name in asked if name not in far]
        try:
            # The far ones come last: a budget cuts those first.
            self._ask_named(asked, [*near, *far])
        # A model of ours that knows so many positions refuses longer sequences as misuse.
        except (BadAnswer, InvalidInput, TargetFailed):
            if not far:
                raise
            self.lost += far
            if near:
                self._ask_named(asked, near)

    def _ask_named(self, asked: Questions, names: list[str]) -> None:
        try:
            answers = self.oracle.ask(np.stack([asked[name] for name in names]))
        except BudgetSpent as spent:
            if spent.answers is not None:
                self._keep(asked, names, spent.answers)
            raise
        self._keep(asked, names, answers)

    def _keep(self, asked: Questions, names: list[str], answers: Matrix) -> None:
        for name, answer in zip(names, answers, strict=False):
            self.questions[name], self.answers[name] = asked[name], answer

    def forget(self, names: Iterable[str]) -> None:
        """Take away what was asked at a scale that did not serve; it stays under another name."""
        for name in list(names):
            if name in self.answers:
                number = sum(kept.startswith(f"{name} before") for kept in self.answers)
                kept = f"{name} before {number + 1}"
                self.questions[kept] = self.questions.pop(name)
                self.answers[kept] = self.answers.pop(name)
