r"""Answers under a policy as a matrix of prompts x ids, whose errors are white.

Where only the likeliest ids are answered and a caller may raise logits, k - 1 ids are raised
together with a reference: differences of their log-probabilities are differences of logits,
whatever was raised. That takes ceil((V - 1)/(k - 1)) questions per prompt. The reference's error is
shared by the differences of a question, covariance $\sigma^2(I + 1 1^T)$; $(I + 1 1^T)^{-1/2}$
makes it white again, and changes no rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Indices, Matrix, Sequences, Vector
from keyhole.errors import BadAnswer, BudgetSpent
from keyhole.learners.logits.caps import undo_cap
from keyhole.learners.logits.spectra import choose_own_columns
from keyhole.oracles import Oracle
from keyhole.oracles.tokens.ids import pack_ids
from keyhole.oracles.wrappers import Wrapper

_MASKED = 1e9  # a logarithm of a probability below minus this is that of none
_FEWEST = 32  # prompts that ids must have in common where only the likeliest are answered


@dataclass(frozen=True, slots=True)
class Reading:
    """How answers are read.

    Args:
        kind: logits, log-probabilities, raised (likeliest ids with a bias) or likeliest.
        vocabulary: V.
        count: k, how many ids are answered.
        cap: the soft cap on logits that is undone; 0 for none.
    """

    kind: str
    vocabulary: int
    count: int = 0
    cap: float = 0.0

    @property
    def per_prompt(self) -> int:
        """Questions that read one prompt."""
        return -(-(self.vocabulary - 1) // (self.count - 1)) if self.kind == "raised" else 1

    @property
    def numbers(self) -> int:
        """Numbers of one answer that are not ids."""
        return self.count or self.vocabulary

    def ask(self, oracle: Oracle, prompts: Sequences) -> Matrix:
        """What is answered to prompts, one row each, in as many questions as that takes."""
        if self.kind == "raised":
            return self._read_raised_prompts(oracle, prompts)
        return oracle.ask(prompts)

    def arrange(self, answered: Matrix) -> Matrix:
        """One row per prompt; a column for every id, or for those that many prompts have."""
        if self.kind == "likeliest":
            return choose_common_ids(answered, self.vocabulary)
        if self.kind == "log-probabilities":
            return _take_constant_away(answered)
        return undo_cap(answered, self.cap) if self.cap else answered

    def restore(self, rows: Matrix) -> Matrix:
        """Rows of an arranged matrix as logits, less their mean over the vocabulary if need be."""
        if self.kind not in ("raised", "log-probabilities"):
            return rows
        logits = _scale_block_means(rows, self.count, 0.5) if self.kind == "raised" else rows
        return logits - logits.mean(axis=1, keepdims=True)

    def show(self, answered: Matrix) -> Matrix:
        """Answers as logits, less their mean over the vocabulary where a policy hides that."""
        return self.restore(self.arrange(answered))

    def centre(self, logits: Matrix) -> Matrix:
        """Logits as far as this policy shows them."""
        hidden = 0.0 if self.kind == "logits" else logits.mean(axis=1, keepdims=True)
        return logits - hidden

    def _read_raised_prompts(self, oracle: Oracle, prompts: Sequences) -> Matrix:
        read: list[Vector] = []
        for prompt in prompts:
            try:
                read.append(self._read_raised_prompt(oracle, prompt))
            # Of a prompt that was cut nothing is kept, but those before it are whole.
            except BudgetSpent as spent:
                raise BudgetSpent(str(spent), np.stack(read) if read else None) from spent
        return np.stack(read)

    def _read_raised_prompt(self, oracle: Oracle, prompt: Matrix) -> Vector:
        """Logits of one prompt less that of id 0, in blocks with white errors; 0 for id 0."""
        blocks = list_blocks(self.vocabulary, self.count)
        raised = np.concatenate([np.zeros((len(blocks), 1)), blocks.astype(np.float64)], axis=1)
        question = np.concatenate(
            [np.broadcast_to(prompt, (len(blocks), *prompt.shape)), pack_ids(raised)], axis=1
        )
        answers = oracle.ask(question)
        values = _sort_by_raised(answers, raised)
        logits = np.zeros(self.vocabulary)
        differences = values[:, 1:] - values[:, :1]
        # Ids of the last block may stand in the one before too, whose value is taken.
        logits[blocks[-1]] = differences[-1]
        logits[blocks[:-1]] = differences[:-1]
        return whiten_blocks(logits[None], self.count)[0]


@dataclass(slots=True)
class ReadLogits(Wrapper):
    """Logits as a policy shows them: less their mean over the vocabulary, where it hides that.

    Args:
        inner: the policy.
        reading: how its answers are read; all ids are answered, or can be raised.
    """

    reading: Reading

    @property
    def outputs(self) -> int:
        """A number for every id."""
        return self.reading.vocabulary

    def ask(self, X: Sequences) -> Matrix:
        """Logits, or what is known of them."""
        return self.reading.show(self.reading.ask(self.inner, X))


def _take_constant_away(answered: Matrix) -> Matrix:
    """Log-probabilities less their mean over ids; 0 for ids that are masked, and never come.

    Of ids that are answered alike one stands in the mean: they share the error of rounding.
    """
    masked: Any = (answered < -_MASKED).any(axis=0)
    own = choose_own_columns(answered)[0]
    counted = own[~masked[own]] if not masked[own].all() else own
    shown = answered - answered[:, counted].mean(axis=1, keepdims=True)
    shown[:, masked] = 0.0
    return shown


def list_blocks(vocabulary: int, count: int) -> Indices:
    """Ids 1 to V - 1 in rows of k - 1; the last row goes back where they do not come out even."""
    size = count - 1
    starts = np.minimum(np.arange(1, vocabulary, size), max(1, vocabulary - size))
    return starts[:, None] + np.arange(size)


def _sort_by_raised(answers: Matrix, raised: Matrix) -> Matrix:
    """Log-probabilities in the order in which ids were raised.

    Raises:
        BadAnswer: other ids were answered.
    """
    count = raised.shape[1]
    ids, values = answers[:, :count], answers[:, count:]
    order, wanted = np.argsort(ids, axis=1), np.argsort(raised, axis=1)
    if not np.array_equal(
        np.take_along_axis(ids, order, axis=1), np.take_along_axis(raised, wanted, axis=1)
    ):
        raise BadAnswer(
            "the likeliest ids are not those that were raised: the bias is too small to lift them"
            " above all others."
        )
    sorted_values = np.empty_like(values)
    np.put_along_axis(sorted_values, wanted, np.take_along_axis(values, order, axis=1), axis=1)
    return sorted_values


def whiten_blocks(differences: Matrix, count: int) -> Matrix:
    """Differences to id 0 with independent errors: block means shrunk by 1/sqrt(size + 1)."""
    return _scale_block_means(differences, count, -0.5)


def _scale_block_means(differences: Matrix, count: int, power: float) -> Matrix:
    scaled = differences.copy()
    size = count - 1
    whole = (differences.shape[1] - 1) // size * size
    for start, end in ((1, 1 + whole), (1 + whole, differences.shape[1])):
        # The last block may be shorter.
        width = min(size, end - start)
        if width:
            blocks = differences[:, start:end].reshape(len(differences), -1, width)
            change = (width + 1.0) ** power - 1.0
            means = blocks.mean(axis=2, keepdims=True)
            scaled[:, start:end] = (blocks + change * means).reshape(len(differences), -1)
    return scaled


def choose_common_ids(answers: Matrix, vocabulary: int) -> Matrix:
    """Log-probabilities of ids that many prompts have in common, less their mean; one id at least.

    Ids are taken one by one, each time that which most of the prompts left have; so it goes on
    while enough are left to see a rank.
    """
    count = answers.shape[1] // 2
    ids, values = answers[:, :count].astype(np.intp), answers[:, count:]
    table = np.full((len(answers), vocabulary), np.nan)
    np.put_along_axis(table, ids, values, axis=1)
    known = ~np.isnan(table)
    left = np.ones(len(answers), dtype=bool)
    chosen: list[int] = []
    for _ in range(count):
        held = known[left].sum(axis=0)
        held[chosen] = -1
        best = int(held.argmax())
        if chosen and held[best] < max(_FEWEST, 2 * len(chosen)):
            break
        chosen.append(best)
        left &= known[:, best]
    common = table[left][:, chosen]
    return common - common.mean(axis=1, keepdims=True)
