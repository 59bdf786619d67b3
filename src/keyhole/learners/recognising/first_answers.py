"""Asking by name: what was asked first and what was answered, kept for the learner that follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.errors import BadAnswer, BudgetSpent, InvalidInput, TargetFailed
from keyhole.learners.recognising.design import Questions
from keyhole.oracles import Counted

_ZEROS_REFUSED = (
    "The questions of that batch without a zero token were answered. Every class is recognised with"
    " zero tokens: let the target answer them."
)


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
            TargetFailed: the target fails on a question near zero.
        """
        far = [name for name in asked if self.may_be_lost(asked[name])]
        near = [name for name in asked if name not in far]
        if not far:
            self._ask_near(asked, near)
            return
        try:
            # The far ones come last: a budget cuts those first.
            self._ask_named(asked, [*near, *far])
        # A model of ours that knows so many positions refuses longer sequences as misuse.
        except (BadAnswer, InvalidInput, TargetFailed):
            self.lost += far
            if near:
                self._ask_near(asked, near)

    def _ask_near(self, asked: Questions, names: list[str]) -> None:
        """Ask what nothing can be told without; a refusal says where zero tokens are its reason."""
        try:
            self._ask_named(asked, names)
        except (BadAnswer, TargetFailed) as refusal:
            others = [name for name in names if asked[name].any(axis=1).all()]
            if len(others) in (0, len(names)):
                raise
            # These fail too where zero tokens are not the reason.
            self._ask_named(asked, others)
            raise type(refusal)(f"{refusal} {_ZEROS_REFUSED}") from refusal

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
