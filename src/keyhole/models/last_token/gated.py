r"""Networks whose hidden layer is gated, as in SwiGLU and GEGLU."""

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
    as_generator,
    check_shape,
)
from keyhole.drawing.faces import Face
from keyhole.errors import InvalidInput
from keyhole.models.last_token.activations import ACTIVATIONS
from keyhole.models.last_token.base import LastToken, Points, freeze_arrays
from keyhole.models.yardsticks import Reach, blur_entries


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Gated(LastToken, Face):
    r"""A gated network, $g(x) = C\,\big(\phi(A x + a) \circ (B x + b)\big) + c$.

    Answers do not determine the order of units, nor a factor between a row of (B, b) and its column
    of C.

    Args:
        A: gates, one row per hidden unit.
        a: biases of the gates.
        B: the other factors, one row per hidden unit.
        b: biases of these.
        C: one row per output.
        c: constant added to the answer.
        activation: of the gates: silu (SwiGLU), gelu (GEGLU), gelu_tanh, softplus or relu.
    """

    A: Float[Array, "hidden width"]
    a: Float[Array, "hidden"]
    B: Float[Array, "hidden width"]
    b: Float[Array, "hidden"]
    C: Float[Array, "outputs hidden"]
    c: Float[Array, "outputs"]
    activation: str = "silu"

    def __post_init__(self) -> None:
        freeze_arrays(self, "A", "a", "B", "b", "C", "c")
        check_shape("A", self.A, (None, None))
        check_shape("a", self.a, (len(self.A),))
        check_shape("B", self.B, self.A.shape)
        check_shape("b", self.b, (len(self.A),))
        check_shape("C", self.C, (None, len(self.A)))
        check_shape("c", self.c, (len(self.C),))
        if self.activation not in ACTIVATIONS:
            raise InvalidInput(
                f"an activation is one of {', '.join(ACTIVATIONS)}; got {self.activation!r}."
            )

    @classmethod
    def random(
        cls,
        width: int,
        *,
        hidden: int,
        outputs: int = 1,
        scale: float = 1.0,
        activation: str = "silu",
        rng: Rng,
    ) -> Gated:
        """Gaussian weights of size 1/sqrt(inputs), biases of 1; gates about 1 / `scale` from 0."""
        rng = as_generator(rng)
        A = scale * rng.normal(size=(hidden, width)) / np.sqrt(width)
        B = rng.normal(size=(hidden, width)) / np.sqrt(width)
        C = rng.normal(size=(outputs, hidden)) / np.sqrt(max(1, hidden))
        a, b = rng.normal(size=(2, hidden))
        return cls(A, a, B, b, C, rng.normal(size=outputs), activation)

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.A.shape[1]

    @property
    def hidden(self) -> int:
        """Number of hidden units."""
        return len(self.A)

    @property
    def outputs(self) -> int:
        """Numbers per answer."""
        return len(self.C)

    @property
    def degrees_of_freedom(self) -> int:
        """Numbers that values determine, $k(2d + 1 + m) + m$."""
        return gated_freedom(self.width, hidden=self.hidden, outputs=self.outputs)

    def points(self, x: Points) -> Answers:
        """Answers to points."""
        gates = ACTIVATIONS[self.activation](x @ self.A.T + self.a)
        return (gates * (x @ self.B.T + self.b)) @ self.C.T + self.c

    def reach(self, into: Reach, eps: float) -> Reach:
        r"""Size and rounding of the parts of an answer.

        With p = |z||A| + |a| and r = |z||B| + |b| an error E of z moves a product by $1.2 E|A| r +
        p\, E|B|$, its own rounding by $\sqrt{k + 2d}\, e\, p r$. Constants add to no size.
        """
        steady = 4.0 * eps * np.abs(self.c)
        A, a, B, b, C = (self.A, self.a, self.B, self.b, self.C)
        fine = np.abs(A), np.abs(a), np.abs(B), np.abs(b), np.abs(C)
        blurred = (
            blur_entries(A),
            blur_entries(a),
            blur_entries(B),
            blur_entries(b),
            blur_entries(C),
        )
        gates, others = into.size @ fine[0].T, into.size @ fine[2].T
        size = ((gates + fine[1]) * (others + fine[3]) - fine[1] * fine[3]) @ fine[4].T
        rounding = _bound_gates(into.rounding, into.size, *fine, eps)
        coarse = _bound_gates(into.coarse, into.size, *blurred, eps)
        return Reach(size, rounding + steady, coarse + steady)

    def terms(self, x: Points) -> PerSequence:
        """Largest sum of the sizes of the terms of an answer."""
        gates = np.abs(x) @ np.abs(self.A).T + np.abs(self.a)
        others = np.abs(x) @ np.abs(self.B).T + np.abs(self.b)
        return ((gates * others) @ np.abs(self.C).T + np.abs(self.c)).max(axis=1)


def _bound_gates(
    moved: Matrix,
    size: Matrix,
    A: Matrix,
    a: Array,
    B: Matrix,
    b: Array,
    C: Matrix,
    eps: float,
) -> Matrix:
    hidden, width = A.shape
    gates, others = size @ A.T + a, size @ B.T + b
    product = 1.2 * (moved @ A.T) * others + gates * (moved @ B.T)
    return (product + np.sqrt(hidden + 2 * width) * eps * gates * others) @ C.T


def gated_freedom(width: int, *, hidden: int, outputs: int) -> int:
    """Numbers that the values of a gated network determine, $k(2d + 1 + m) + m$.

    A gate has d + 1 (its width included), the other factor d beside its scale, which C holds.
    """
    return hidden * (2 * width + 1 + outputs) + outputs
