r"""What an owner may answer instead of logits: log-probabilities, or only the largest of them.

Rounding and noise are the wrappers of every other oracle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Answers, Array, Indices, Int, Matrix, Sequences
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.oracles.tokens.ids import unpack_ids
from keyhole.oracles.wrappers import ChangedAnswers, Wrapper

# Ids that are raised, a row for every question; none where nothing may be raised.
Raised = Int[np.ndarray, "_ _"]


def normalise_logits(logits: Array) -> Array:
    r"""Log-probabilities, $z_i - \log \sum_j e^{z_j}$ over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@dataclass(slots=True)
class LogProbabilities(ChangedAnswers):
    """Answers the logarithms of probabilities: logits up to one constant per prompt."""

    def change(self, answers: Answers) -> Answers:
        """Log-probabilities."""
        return normalise_logits(answers)


@dataclass(slots=True)
class TopAnswers(Wrapper):
    r"""Answers the `count` likeliest ids with their log-probabilities, 2 count numbers in all.

    The ids come first, the likeliest one first. Where a caller may set a bias, a question is a
    prompt followed by `count` ids whose logits are raised by `bias` before anything else is done.

    Args:
        inner: the oracle of logits.
        count: k, how many are answered.
        bias: what a caller may raise logits by; 0 where nothing may be raised.
    """

    count: int
    bias: float = 0.0

    def __post_init__(self) -> None:
        vocabulary = self.inner.outputs or 0
        if not 1 <= self.count <= vocabulary:
            raise InvalidInput(f"the likeliest 1 to {vocabulary} ids; got {self.count}.")
        if not 0.0 <= self.bias < np.inf:
            raise InvalidInput(f"a bias is a finite number >= 0; got {self.bias}.")

    @property
    def outputs(self) -> int:
        """As many ids as log-probabilities."""
        return 2 * self.count

    @property
    def raises(self) -> bool:
        """Whether a question ends with ids to raise."""
        return self.bias > 0

    def ask(self, X: Sequences) -> Answers:
        """Answers to prompts, each followed by the ids to raise where that is allowed."""
        prompts, raised = self._split_question(X)
        # A prompt that comes with many sets of raised ids is worked out once.
        different, places = np.unique(prompts, axis=0, return_inverse=True)
        if len(different) == len(prompts):
            different, places = prompts, np.arange(len(prompts))
        try:
            logits = self.inner.ask(different)
        except BudgetSpent as spent:
            answered = 0 if spent.answers is None else len(spent.answers)
            # A budget inside cuts prompts; only what all came before the cut is handed on.
            done = int(np.argmax(places >= answered)) if answered else 0
            if not done or spent.answers is None:
                raise BudgetSpent(str(spent)) from spent
            cut = self._choose_likeliest(spent.answers, places[:done], raised[:done])
            raise BudgetSpent(str(spent), cut) from spent
        return self._choose_likeliest(logits, places, raised)

    def _split_question(self, X: Sequences) -> tuple[Any, Raised]:
        if not self.raises:
            return X, np.empty((len(X), 0), dtype=np.int64)
        if X.shape[1] <= self.count:
            raise InvalidInput(
                f"a question is a prompt followed by {self.count} ids to raise; got"
                f" {X.shape[1]} ids in all."
            )
        raised = unpack_ids(X[:, -self.count :], self.inner.outputs or 0)
        if (np.diff(np.sort(raised, axis=1), axis=1) == 0).any():
            raise InvalidInput("the ids to raise must differ; one came twice.")
        return X[:, : -self.count], raised

    def _choose_likeliest(self, logits: Matrix, places: Indices, raised: Raised) -> Matrix:
        """The likeliest ids of every question, among those raised and those likeliest before."""
        k = self.count
        before = np.argpartition(-logits, k - 1, axis=1)[:, :k]
        candidates = np.concatenate([raised, before[places]], axis=1)
        values = logits[places[:, None], candidates]
        values[:, : raised.shape[1]] += self.bias
        # An id that is raised and was among the likeliest anyway counts once.
        twice = (before[places][:, :, None] == raised[:, None, :]).any(axis=2)
        values[:, raised.shape[1] :][twice] = -np.inf
        values -= self._sum_exponentials(logits, places, raised)
        order = np.argsort(-values, axis=1, kind="stable")[:, :k]
        ids = np.take_along_axis(candidates, order, axis=1).astype(np.float64)
        return np.concatenate([ids, np.take_along_axis(values, order, axis=1)], axis=1)

    def _sum_exponentials(self, logits: Matrix, places: Indices, raised: Raised) -> Matrix:
        """The logarithm of the sum of exponentials after raising, a column."""
        peak = logits.max(axis=1)
        rest = np.exp(logits - peak[:, None])
        whole = rest.sum(axis=1)[places]
        if not raised.shape[1]:
            return (peak[places] + np.log(whole))[:, None]
        lifted = rest[places[:, None], raised].sum(axis=1)
        with np.errstate(divide="ignore"):
            others = peak[places] + np.log(np.maximum(whole - lifted, 0.0))
        # By their own peak: far below the largest logit their exponentials would be none.
        chosen = logits[places[:, None], raised]
        top = chosen.max(axis=1)
        own = top + np.log(np.exp(chosen - top[:, None]).sum(axis=1))
        return np.logaddexp(others, own + self.bias)[:, None]
