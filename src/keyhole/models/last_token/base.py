"""What networks that read the last token share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from keyhole._arrays import (
    Answers,
    Array,
    Float,
    PerSequence,
    Sequences,
    check_finite,
    check_sequences,
    freeze_array,
)
from keyhole.models.yardsticks import Reach, Yardstick, start_at_tokens

Points = Float[Array, "batch width"]


class LastToken(ABC):
    """A map on points that, asked sequences, reads the last token of each."""

    __slots__ = ()

    @property
    @abstractmethod
    def width(self) -> int:
        """Size of a token."""

    @abstractmethod
    def points(self, x: Points) -> Answers:
        """The map itself."""

    @abstractmethod
    def terms(self, x: Points) -> PerSequence:
        """Sum of the sizes of the terms of an answer."""

    @abstractmethod
    def reach(self, into: Reach, eps: float) -> Reach:
        """Size and rounding of the parts of an answer, from those of what the layer is given."""

    def logits(self, X: Sequences) -> Float[Array, "batch heads length"]:
        """No attention scores: there are no heads."""
        return np.zeros((len(X), 0, X.shape[1]))

    def magnitude(self, X: Sequences) -> PerSequence:
        """Largest sum of the sizes of the terms of an answer: what its rounding goes by."""
        return self.terms(X[:, -1])

    def yardstick(self, X: Sequences, eps: float) -> Yardstick:
        """What a gap is measured by; see `models.yardsticks`."""
        return self.reach(start_at_tokens(X[:, -1]), eps).summarise()

    def __call__(self, X: Sequences) -> Answers:
        """Answers to a batch of sequences, of which only the last token counts."""
        check_sequences(X, self.width)
        return self.points(X[:, -1])


def freeze_arrays(model: Any, *names: str) -> None:
    """Make arrays of a model read-only at birth; they must be finite."""
    for name in names:
        object.__setattr__(model, name, freeze_array(getattr(model, name)))
        check_finite(name, getattr(model, name))
