r"""The last row of a unit of higher order, as a model that is asked and recovered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import (
    Answers,
    Array,
    Float,
    Matrix,
    PerSequence,
    Rng,
    Sequences,
    Stack,
    check_sequences,
)
from keyhole.drawing.faces import Face
from keyhole.errors import InvalidInput
from keyhole.models.attention import Head, MultiHead, SelfAttention
from keyhole.models.tensor import TensorAttention, khatri_rao
from keyhole.models.yardsticks import Reach, Yardstick, blur_entries, bound_mixture


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class TensorRow(Face):
    r"""A unit of order s read at its last token y.

    $$f(X) = \frac{\sum_{ij} e^{T(y, x_i, x_j)}\,(V_1^\top x_i) \circ (V_2^\top x_j)}
    {\sum_{ij} e^{T(y, x_i, x_j)}}, \qquad T(y, a, b) = \sum_e (q_e y)(k^1_e a)(k^2_e b)$$

    for order 3; the sums go over all ordered pairs, the last token and i = j included. Of a unit of
    order 3 answers determine the products $v^1_o v^{2\top}_o$ and T, up to exchanging the two
    places in all of them at once; how T splits into columns they do not.

    Args:
        unit: the unit that is read.
    """

    unit: TensorAttention

    @classmethod
    def random(
        cls,
        width: int,
        *,
        embed: int,
        outputs: int = 1,
        scale: float = 1.0,
        rng: Rng,
    ) -> TensorRow:
        """The last row of a random unit of order 3."""
        return cls(
            TensorAttention.random(width, embed=embed, outputs=outputs, scale=scale, rng=rng)
        )

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.unit.width

    @property
    def outputs(self) -> int:
        """Numbers per answer."""
        return self.unit.outputs

    def __call__(self, X: Sequences) -> Answers:
        """Answers to a batch."""
        check_sequences(X, self.width)
        return self.unit.rows(X[:, -1:], X)[:, 0]

    def logits(self, X: Sequences) -> Float[Array, "batch heads tuples"]:
        """Scores of all tuples, in lexicographic order."""
        return _score(X, self.unit.Q, self.unit.K)[:, None]

    def magnitude(self, X: Sequences) -> PerSequence:
        """Largest value of a tuple per sequence."""
        return np.abs(khatri_rao([X @ V for V in self.unit.V])).max(axis=(1, 2))

    def yardstick(self, X: Sequences, eps: float) -> Yardstick:
        """That of one head whose tokens are the tuples.

        With absolute values entry by entry, a score moves by a few e times the product of |y||Q|
        and the |x||K| summed over columns, a value by a few e times the product of the |x||V|.
        """
        unit = self.unit
        scores = _score(X, unit.Q, unit.K)
        fine = [np.abs(part) for part in (unit.Q, *unit.K, *unit.V)]
        blurred = [blur_entries(part) for part in fine]
        size = np.abs(khatri_rao([X @ V for V in unit.V])).max(axis=1)
        rounding, coarse = (
            _bound_rounding(np.abs(X), scores, parts, len(unit.K), eps) for parts in (fine, blurred)
        )
        return Reach(size, rounding, coarse).summarise()

    def expand(self) -> Stack:
        """T of a unit of order 3, indexed by the asking token and the two places.

        Raises:
            InvalidInput: the unit is of another order.
        """
        if self.unit.order != 3:
            raise InvalidInput(f"T has three places; the unit is of order {self.unit.order}.")
        return np.einsum("ye,ae,be->yab", self.unit.Q, *self.unit.K)


def _score(X: Sequences, Q: Matrix, K: tuple[Matrix, ...]) -> Float[Array, "batch tuples"]:
    # The last place by one matrix product: products of all places would be length^(s - 1) rows.
    *before, last = (X @ k for k in K)
    queries = (X[:, -1] @ Q)[:, None]
    scaled = khatri_rao(before) * queries if before else queries
    return (scaled @ last.swapaxes(-1, -2)).reshape(len(X), -1)


def _bound_rounding(
    X: Sequences, scores: Float[Array, "batch tuples"], parts: list[Matrix], places: int, eps: float
) -> Matrix:
    Q, *others = parts
    S = _score(X, Q, tuple(others[:places]))
    return bound_mixture(scores, S, khatri_rao([X @ V for V in others[places:]]), eps)


def read_last_row(layer: SelfAttention | TensorAttention) -> Head | MultiHead | TensorRow:
    """What the last row of a layer answers: heads, or a unit of higher order."""
    return TensorRow(layer) if isinstance(layer, TensorAttention) else layer.read_last()


def third_order_freedom(width: int, *, rank: int | None = None, outputs: int = 1) -> int:
    """Numbers that answers of a unit of order 3 determine.

    $d^3$ for T, or $r(3d - 2)$ where it is a sum of r products, and $2d - 1$ for the values of
    every output.
    """
    scores = width**3 if rank is None else min(width**3, rank * (3 * width - 2))
    return scores + outputs * (2 * width - 1)
