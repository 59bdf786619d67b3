r"""The normal distribution function as a graph of plain operations.

Runtimes have `Erf` in float32 only. With $y = |z|/\sqrt2$ and $t = 2/(2+y)$ in $(0, 1]$,

$$\Phi(-|z|) = \tfrac12 \mathrm{erfc}(y) = \tfrac12 e^{-y^2}\, t\, g(t),
\quad g(t) = \mathrm{erfcx}(y) / t,$$

and g is smooth on the whole interval, so that a Chebyshev series of 32 terms has it to rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from scipy.special import erfcx

from keyhole._arrays import Vector
from keyhole.lab.onnx.graph import Graph

_DEGREE = 31


def add_normal_share(graph: Graph, z: str) -> str:
    """The share of a standard normal variable below z."""
    size = graph.add("Abs", z)
    y = graph.add("Mul", size, graph.weight(np.array(np.sqrt(0.5))))
    two = graph.weight(np.array(2.0))
    t = graph.add("Div", two, graph.add("Add", y, two))
    fall = graph.add("Exp", graph.add("Neg", graph.add("Mul", y, y)))
    tail = graph.add("Mul", fall, graph.add("Mul", t, _add_series(graph, t)))
    below = graph.add("Mul", tail, graph.weight(np.array(0.5)))
    above = graph.add("Sub", graph.weight(np.array(1.0)), below)
    return graph.add("Where", graph.add("Less", z, graph.weight(np.array(0.0))), below, above)


def _fit_series() -> Vector:
    """Coefficients of g in the variable s = 2t - 1 from -1 to 1."""

    def scaled(s: Vector) -> Vector:
        t = (1.0 + s) / 2.0
        return erfcx(2.0 / t - 2.0) / t

    interpolate: Any = chebyshev.chebinterpolate  # its types know numbers alone
    return interpolate(scaled, _DEGREE)


def _add_series(graph: Graph, t: str) -> str:
    """The series by Clenshaw's recurrence, $b_k = c_k + 2 s b_{k+1} - b_{k+2}$."""
    first, *rest = (graph.weight(np.array(c)) for c in _fit_series())
    one = graph.weight(np.array(1.0))
    s = graph.add("Sub", graph.add("Add", t, t), one)
    twice = graph.add("Add", s, s)
    after, later = rest[-1], graph.weight(np.array(0.0))
    for coefficient in reversed(rest[:-1]):
        grown = graph.add("Sub", graph.add("Mul", twice, after), later)
        after, later = graph.add("Add", coefficient, grown), after
    return graph.add("Sub", graph.add("Add", first, graph.add("Mul", s, after)), later)
