"""Anything that takes token ids, as an oracle: ids are tokens of width 1."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

import numpy as np

from keyhole._arrays import Answers, Int, Sequences
from keyhole.errors import BadAnswer, InvalidInput, KeyholeError, TargetFailed
from keyhole.oracles.base import LARGEST, check_answers

Ids = Int[np.ndarray, "batch length"]


def pack_ids(ids: Any) -> Sequences:
    """Whole numbers (batch, length) as the question an oracle is asked."""
    return np.asarray(ids, dtype=np.float64)[:, :, None]


def unpack_ids(X: Sequences, vocabulary: int) -> Ids:
    """The ids of a question.

    Raises:
        InvalidInput: they are not whole numbers from 0 to vocabulary - 1, one for every token.
    """
    if X.ndim != 3 or X.shape[2] != 1 or X.shape[1] < 1:
        raise InvalidInput(
            f"a batch of prompts has shape (batch, length >= 1, 1), an id for every token; got"
            f" {X.shape}. `pack_ids` makes one of whole numbers (batch, length)."
        )
    ids = X[:, :, 0]
    wrong = (ids != np.rint(ids)) | (ids < 0) | (ids >= vocabulary)
    if wrong.any():
        raise InvalidInput(
            f"a token id is a whole number from 0 to {vocabulary - 1}; got {ids[wrong][0]:g}. Is"
            f" --vocabulary {vocabulary} right?"
        )
    return ids.astype(np.int64)


@dataclass(slots=True)
class TokenIds:
    """A callable on whole numbers (batch, length) that answers a logit for every id.

    It may answer (batch, vocabulary), or (batch, length, vocabulary) of which the last position is
    taken, or an object that holds either as `logits`. A torch module is put into evaluation mode
    and asked without gradients.

    Args:
        answer: the callable, or the torch module.
        vocabulary: V, how many ids there are; the callable's `vocabulary` attribute when absent.
    """

    answer: Callable[[Any], Any]
    vocabulary: int | None = None
    _size: int = field(init=False)
    _asked: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        size: Any = self.vocabulary
        size = getattr(self.answer, "vocabulary", None) if size is None else size
        if not (isinstance(size, SupportsIndex) and 2 <= operator.index(size) <= LARGEST):
            raise InvalidInput(
                f"a vocabulary has 2 to {LARGEST} ids; got {size!r}. Give it (--vocabulary on the"
                " command line), or give the callable a `vocabulary` attribute."
            )
        self._size = operator.index(size)
        if _is_torch_module(self.answer):
            self.answer = _ask_torch_module(self.answer)

    @property
    def width(self) -> int:
        """An id is one number."""
        return 1

    @property
    def outputs(self) -> int:
        """One number for every id."""
        return self._size

    def ask(self, X: Sequences) -> Answers:
        """Logits of the token that would come next, for a batch of prompts of one length."""
        ids = unpack_ids(X, self._size)
        try:
            raw = self.answer(ids)
        # A target may be an oracle of ours, whose errors already say what to do.
        except KeyholeError:
            raise
        except (Exception, SystemExit) as error:
            raise TargetFailed(
                f"the target raised {type(error).__name__}: {error}, when asked token ids of shape"
                f" {ids.shape}. Are all ids below --vocabulary {self._size} its own?"
            ) from error
        answers = self._take_last_position(raw, ids)
        self._asked = True
        _refuse_masks(answers)
        return check_answers(answers, batch=len(X), outputs=self._size)

    def _take_last_position(self, raw: Any, ids: Ids) -> Any:
        """The logits after the last token.

        Raises:
            InvalidInput: the shape is wrong on the first call.
            BadAnswer: the shape is wrong later.
        """
        logits = getattr(raw, "logits", raw)
        if hasattr(logits, "detach"):
            logits = logits.detach().double().cpu().numpy()
        answers = np.asarray(logits)
        batch, length = ids.shape
        if answers.shape == (batch, length, self._size):
            return answers[:, -1]
        if answers.shape != (batch, self._size):
            problem = BadAnswer if self._asked else InvalidInput
            raise problem(
                f"the target must answer ids of shape {ids.shape} with ({batch}, {self._size}) or"
                f" ({batch}, {length}, {self._size}) numbers; got {answers.shape}. Is --vocabulary"
                f" {self._size} right?"
            )
        return answers


def _refuse_masks(answers: Any) -> None:
    """Refuse minus infinity, by which models mask ids.

    Raises:
        BadAnswer: an id has it.
    """
    masked: Any = answers == -np.inf
    if masked.any():
        ids = np.flatnonzero(masked.any(axis=0))
        raise BadAnswer(
            f"the target answered -inf for {len(ids)} of {answers.shape[1]} ids, the first of which"
            f" is {ids[0]}; answers must be finite. Leave ids that are masked out of the"
            " vocabulary, or answer one finite number for them, such as -1e4."
        )


def _is_torch_module(found: Any) -> bool:
    # Nothing can be a torch module unless torch is loaded.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(found, torch.nn.Module)


def _ask_torch_module(module: Any) -> Callable[[Any], Any]:
    """The module as a callable on numpy arrays; dropout is off."""
    import torch

    module.eval()

    def answer(ids: Ids) -> Any:
        with torch.no_grad():
            return module(torch.as_tensor(ids))

    return answer
