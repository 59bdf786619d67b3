"""A norm with its gain and shift."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Float, Matrix, check_finite, check_shape, freeze_array
from keyhole.drawing.faces import Face
from keyhole.errors import InvalidInput
from keyhole.models.layers.norms import measure_spread, normalise
from keyhole.models.layers.wiring import USUAL_EPS
from keyhole.models.yardsticks import Reach, blur_entries

KINDS = ("rms", "layer")


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Norm(Face):
    r"""RMSNorm or LayerNorm with its gain and shift.

    $$g \circ \frac{x}{\sqrt{\mathrm{mean}\, x^2 + \epsilon}} + s, \qquad
    g \circ \frac{x - \bar x}{\sqrt{\mathrm{var}\, x + \epsilon}} + s$$

    Args:
        kind: rms or layer; only the latter takes the mean off.
        eps: what is added to the mean square, or to the variance.
        gain: factors behind the norm; 1 when absent.
        shift: what is added to these products; 0 when absent.
    """

    kind: str = "layer"
    eps: float = USUAL_EPS
    gain: Float[Array, "width"] | None = None
    shift: Float[Array, "width"] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInput(f"a norm is one of {', '.join(KINDS)}; got {self.kind!r}.")
        if not 0.0 <= self.eps <= 1.0:
            raise InvalidInput(f"the eps of a norm lies between 0 and 1; got {self.eps!r}.")
        for name in ("gain", "shift"):
            held = getattr(self, name)
            if held is not None:
                object.__setattr__(self, name, freeze_array(held))
                check_finite(name, held)

    def check_width(self, width: int) -> None:
        """Raise unless gain and shift are as wide as a token."""
        for name in ("gain", "shift"):
            if getattr(self, name) is not None:
                check_shape(name, getattr(self, name), (width,))

    def spell_out(self, width: int) -> tuple[Array, Array]:
        """Gain and shift where they are absent too."""
        gain = np.ones(width) if self.gain is None else self.gain
        shift = np.zeros(width) if self.shift is None else self.shift
        return gain, shift

    def __call__(self, x: Array) -> Array:
        """Vectors, along the last axis, behind the norm."""
        n = normalise(x, self.kind, self.eps)
        n = n if self.gain is None else n * self.gain
        return n if self.shift is None else n + self.shift

    def reach(self, x: Matrix, into: Reach, eps: float, *, last: bool = False) -> Reach:
        r"""Size and rounding of what the norm makes of x, from those of x.

        With $\sigma$ what it divides by, an error E of x moves the answer by $|g|(E + \bar E + |n|
        \sqrt{\mathrm{mean} E^2})/\sigma$, its own rounding by a few $e(|g|(|x| + |\bar x|)/\sigma +
        |s|)$. A shift adds to no size where nothing follows, lest it hides the tokens.
        """
        gain, shift = (np.abs(part) for part in self.spell_out(x.shape[1]))
        centred, spread = measure_spread(x, self.kind, self.eps)
        spread = np.where(spread > 0, spread, 1.0)
        size = gain * self._add_mean(into.size) / spread
        own = 4.0 * eps * (size + shift)
        fine = self._carry_error(into.rounding, centred, spread)
        coarse = self._carry_error(into.coarse, centred, spread)
        return Reach(
            size if last else size + shift,
            gain * fine + own,
            blur_entries(gain) * coarse + own,
        )

    def _add_mean(self, size: Matrix) -> Matrix:
        return size + size.mean(axis=1, keepdims=True) if self.kind == "layer" else size

    def _carry_error(self, moved: Matrix, centred: Matrix, spread: Matrix) -> Matrix:
        root = np.sqrt(np.mean(moved**2, axis=1, keepdims=True))
        return (self._add_mean(moved) + np.abs(centred / spread) * root) / spread
