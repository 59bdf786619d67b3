r"""What a few questions tell of a wiring: the residual, and the eps of a norm.

Far lone tokens are answered by b + M n and, with a residual, themselves: what grows with them is
the residual. Along one direction u of mean square 1 the part behind the norm is proportional to
$s/\sqrt{s^2 + \epsilon}$: of its sizes $N_1$ at $s_1 = 1$ and $N_2$ at $s_2$

$$q = \Big(\frac{N_1 s_2}{N_2 s_1}\Big)^2, \qquad
\epsilon = \frac{s_2^2 - q s_1^2}{q - 1},$$

where $s_2 = 10^{-4}$ first, then $\sqrt\epsilon$.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import FORMATS, Vector, rms
from keyhole.oracles import Oracle
from keyhole.oracles.base import read_imperfection

_FAR = 1e6
_ROUNDS = 2


def draw_direction(width: int, *, rng: np.random.Generator) -> Vector:
    """A direction of mean 0 and mean square 1, which both norms read alike."""
    drawn = rng.normal(size=width)
    drawn -= drawn.mean()
    return drawn / rms(drawn)


def find_residual(oracle: Oracle, u: Vector) -> bool:
    """Whether a far token is added to its answer; behind a norm nothing else grows."""
    # Squares of tokens must stay within the range of answers, which may be float16.
    far = min(_FAR, 2.0 ** (0.4 * FORMATS[read_imperfection(oracle).format].largest))
    answer = oracle.ask((far * u)[None, None])[0]
    return len(answer) == len(u) and float(answer @ u) / (far * float(u @ u)) > 0.5


def find_eps(oracle: Oracle, u: Vector, *, residual: bool) -> float:
    """The eps of a norm, from six questions; 0 where it is too small to show."""
    constant = oracle.ask(np.zeros((1, 1, len(u))))[0]

    def measure(s: float) -> float:
        answer = oracle.ask((s * u)[None, None])[0] - constant
        return float(np.linalg.norm(answer - s * u if residual else answer))

    size, s, eps = measure(1.0), 1e-4, 0.0
    for _ in range(1 + _ROUNDS):
        smaller = measure(s)
        if smaller == 0.0:
            return 0.0
        q = (size * s / smaller) ** 2
        eps = (s * s - q) / (q - 1.0) if q != 1.0 else 0.0
        if not 0.0 < eps < 1.0:
            return 0.0
        s = float(np.sqrt(eps))
    return eps
