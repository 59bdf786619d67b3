r"""Attention between token ids: a sum of heads on one-hot tokens, and what bypasses them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Answers, Array, Float, PerSequence, Sequences, freeze_array
from keyhole.drawing.faces import Face
from keyhole.errors import InvalidInput
from keyhole.models.attention import MultiHead
from keyhole.models.yardsticks import Yardstick


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class TokenHeads(Face):
    r"""A one-layer language model of attention alone, by what its ids do to each other.

    $$f(t_1 .. t_n) = B[t_n] + \sum_h \sum_i \mathrm{softmax}_i(S_h[t_i, t_n])\,A_h[t_i]$$

    Not determined by answers: the order of heads, a constant added to a column of a head's scores,
    and vectors that are added to all values of each head and to all rows of B, where there is one,
    and sum to zero over them.

    Args:
        values: A, the logits that every id adds when it is read, H x V x V.
        scores: S, of a key id (row) for a query id (column), H x V x V.
        direct: B, the logits that the last id adds beside the heads, V x V; none when absent.
    """

    values: Float[Array, "heads vocabulary vocabulary"]
    scores: Float[Array, "heads vocabulary vocabulary"]
    direct: Float[Array, "vocabulary vocabulary"] | None = None
    _heads: MultiHead = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("values", "scores", "direct"):
            held = getattr(self, name)
            object.__setattr__(self, name, None if held is None else freeze_array(held))
        shape = self.values.shape
        if len(shape) != 3 or shape[1] != shape[2] or self.scores.shape != shape:
            raise InvalidInput(
                "values and scores have one shape, heads x vocabulary x vocabulary; got"
                f" {shape} and {self.scores.shape}."
            )
        if self.direct is not None and self.direct.shape != shape[1:]:
            raise InvalidInput(
                f"direct is vocabulary x vocabulary, {shape[1:]} here; got {self.direct.shape}."
            )
        object.__setattr__(self, "_heads", MultiHead(self.scores, self.values, U=self.direct))

    @property
    def width(self) -> int:
        """An id is one number."""
        return 1

    @property
    def outputs(self) -> int:
        """A logit for every id."""
        return self.values.shape[2]

    @property
    def heads(self) -> int:
        """Number of heads."""
        return len(self.values)

    def __call__(self, X: Sequences) -> Answers:
        """Logits after prompts of ids, batch x length x 1."""
        return self._heads(self._spread_ids(X))

    def logits(self, X: Sequences) -> Float[Array, "batch heads length"]:
        """Attention scores before the softmax."""
        return self._heads.logits(self._spread_ids(X))

    def magnitude(self, X: Sequences) -> PerSequence:
        """Largest value of an id per prompt."""
        return self._heads.magnitude(self._spread_ids(X))

    def yardstick(self, X: Sequences, eps: float) -> Yardstick:
        """That of the heads on one-hot tokens, which is what an id is."""
        return self._heads.yardstick(self._spread_ids(X), eps)

    def _spread_ids(self, X: Sequences) -> Float[Array, "batch length vocabulary"]:
        return np.eye(self.outputs)[X[:, :, 0].astype(np.intp)]
