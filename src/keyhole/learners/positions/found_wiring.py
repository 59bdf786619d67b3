r"""What a few questions tell of a wiring: norm, residual, eps, and whether positions act.

Lone tokens are affine without a norm. Behind one, far tokens are answered by their direction, but
for a residual; a LayerNorm does not see what is added to all entries; and without absolute
positions lone tokens act oddly. Equal tokens are answered as one but for absolute positions, and
tokens before the last may change places where there are none at all.

Far lone tokens are answered by b + M n and, with a residual, themselves: what grows with them is
the residual. Along one direction u of mean square 1 the part behind the norm is proportional to
$s/\sqrt{s^2 + \epsilon}$: of its sizes $N_1$ at $s_1 = 1$ and $N_2$ at $s_2$

$$q = \Big(\frac{N_1 s_2}{N_2 s_1}\Big)^2, \qquad
\epsilon = \frac{s_2^2 - q s_1^2}{q - 1},$$

where $s_2 = 10^{-4}$ first, then $\sqrt\epsilon$.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import FORMATS, Matrix, Vector, rms
from keyhole.errors import BadAnswer, InvalidInput, TargetFailed
from keyhole.oracles import Oracle
from keyhole.oracles.base import read_imperfection

_FAR = 1e6
_COARSE_FAR = 1e2  # beside a longer token rounding to float32 hides what a norm leaves of it
_ROUNDS = 2
_SAME = 1e-9  # of answers, which rounding of float64 does not exceed
_ROUNDINGS = 32.0  # of coarser answers
_FOLLOWS = 1e-4  # of far answers, which follow the direction of a token
_WINDOW_LENGTHS = (257, 129, 65, 33)
_UNSEEN = 1e-13  # of answers: what a token outside the window changes
_CONTENT = 0.5  # size of the entries of tokens whose order is changed
_MANY = 4096  # equal tokens, beside which a sink takes little
_MANY_AT_LEAST = 256
_ROUND = 1e-3  # of eps, from which one digit of it may differ


@dataclass(frozen=True, slots=True)
class FoundNorm:
    """What lone tokens tell.

    Args:
        norm: none, rms or layer; None where they are those of no such layer.
        residual: whether the last token is added to answers; None where that does not show.
        odd: whether opposite tokens have opposite answers, but for the constant.
    """

    norm: str | None
    residual: bool | None
    odd: bool


def find_norm(oracle: Oracle, *, rng: np.random.Generator) -> FoundNorm:
    """Norm and residual, from seven lone tokens at most."""
    same = _find_tolerance(oracle)
    x = rng.normal(size=oracle.width)
    zero, plus, minus, double = _ask_lone(oracle, [0 * x, x, -x, 2 * x])
    # A sum of opposite answers is held against their size.
    odd = float(np.abs(plus + minus - 2 * zero).max()) <= same * float(np.abs(plus).max())
    if odd and _agree(double + zero, 2 * plus, same):
        return FoundNorm("none", None, odd)
    length = _FAR if same == _SAME else _COARSE_FAR
    far, farther, lifted = _ask_lone(oracle, [length * x, 2 * length * x, x + 1.0])
    residual = _grows_along(far, length * x)
    bypass = x if residual else np.zeros(len(far))
    if not _agree(farther - 2 * length * bypass, far - length * bypass, _FOLLOWS):
        return FoundNorm(None, residual, odd)
    centred = _agree(lifted - (1.0 if residual else 0.0), plus, same)
    return FoundNorm("layer" if centred else "rms", residual, odd)


def _find_tolerance(oracle: Oracle) -> float:
    """Share of an answer within which two are the same."""
    return max(_SAME, _ROUNDINGS * read_imperfection(oracle).roundoff)


def _ask_lone(oracle: Oracle, tokens: list[Vector]) -> Matrix:
    return oracle.ask(np.stack(tokens)[:, None])


def _agree(a: Vector, b: Vector, share: float = _SAME) -> bool:
    size = max(float(np.abs(a).max()), float(np.abs(b).max()))
    return float(np.abs(a - b).max()) <= share * size


def _grows_along(answer: Vector, token: Vector) -> bool:
    """Whether a far token is added to its answer."""
    return len(answer) == len(token) and float(answer @ token) > 0.5 * float(token @ token)


@dataclass(frozen=True, slots=True)
class FoundOrder:
    """What the order and the number of tokens tell.

    Args:
        positions: none, absolute, rope beside sinks, or None for others by displacement.
        sinks: whether something that is no token takes weight.
    """

    positions: str | None
    sinks: bool = False


def find_kind_of_order(oracle: Oracle, norm: str, *, rng: np.random.Generator) -> FoundOrder:
    """Positions, from four to six questions."""
    same = _find_tolerance(oracle)
    a, b, y = _CONTENT * rng.normal(size=(3, oracle.width))
    lone, equal = (oracle.ask(np.stack([y] * count)[None])[0] for count in (1, 2))
    if not _agree(lone, equal, same):
        if norm == "none":
            return FoundOrder("absolute")
        # Behind a norm vectors of places keep opposite lone tokens from opposite answers.
        minus, zero = _ask_lone(oracle, [-y, 0 * y])
        size = float(np.abs(lone).max())
        odd = float(np.abs(lone + minus - 2 * zero).max()) <= same * size
        return FoundOrder("rope", sinks=True) if odd else FoundOrder("absolute")
    one, other = oracle.ask(np.stack([np.stack([a, b, y]), np.stack([b, a, y])]))
    return FoundOrder("none" if _agree(one, other, same) else None)


def draw_direction(width: int, *, rng: np.random.Generator) -> Vector:
    """A direction of mean 0 and mean square 1, which both norms read alike."""
    drawn = rng.normal(size=width)
    drawn -= drawn.mean()
    return drawn / rms(drawn)


def find_residual(oracle: Oracle, u: Vector) -> bool:
    """Whether a far token is added to its answer; behind a norm nothing else grows."""
    # Squares of tokens must stay within the range of answers, which may be float16.
    far = min(_FAR, 2.0 ** (0.4 * FORMATS[read_imperfection(oracle).format].largest))
    return _grows_along(oracle.ask((far * u)[None, None])[0], far * u)


def find_eps(oracle: Oracle, u: Vector, *, residual: bool) -> float:
    """The eps of a norm, from six questions; 0 where it is too small to show."""
    constant = oracle.ask(np.zeros((1, 1, len(u))))[0]

    def measure(s: float) -> float:
        answer = oracle.ask((s * u)[None, None])[0] - constant
        return float(np.linalg.norm(answer - s * u if residual else answer))

    eps = _solve_eps(measure)
    # Coarse answers tell a few digits, of a number that people write with one.
    return eps if _find_tolerance(oracle) == _SAME else _round_eps(eps)


def find_eps_beside_sinks(
    oracle: Oracle, u: Vector, *, residual: bool, longest: int | None
) -> float:
    """The same from many equal tokens, beside which sinks take little, as a round number.

    What they take falls as one over the number of tokens, nearly: turns of rotary positions let it
    waver, so that three digits are all that is seen. 0 too where sequences are short.
    """
    most = min(longest or _MANY, _MANY)
    if most < _MANY_AT_LEAST:
        return 0.0

    def measure(s: float) -> float:
        token = s * u
        few, many = (oracle.ask(np.tile(token, (1, count, 1)))[0] for count in (most // 2, most))
        answer = 2.0 * many - few
        return float(np.linalg.norm(answer - token if residual else answer))

    return _round_eps(_solve_eps(measure))


def _round_eps(eps: float) -> float:
    """The number of one digit that it nearly is; 0 where it is near to none."""
    near = float(f"{eps:.0e}")
    return near if abs(near - eps) < _ROUND * eps else 0.0


def _solve_eps(measure: Callable[[float], float]) -> float:
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


def find_window(oracle: Oracle, longest: int | None, *, rng: np.random.Generator) -> int | None:
    """The displacement from which on a token changes nothing, None where all of them count."""
    for length in _WINDOW_LENGTHS:
        try:
            return _halve_window(oracle, min(length, longest or length), rng)
        # The target may refuse sequences of that length.
        except (BadAnswer, InvalidInput, TargetFailed):
            continue
    return None


def _halve_window(oracle: Oracle, reach: int, rng: np.random.Generator) -> int | None:
    """The same; one token stands before zero ones, and its displacement is halved till it shows."""
    x, y = _CONTENT * rng.normal(size=(2, oracle.width))

    def place(at: int | None) -> Vector:
        tokens = np.zeros((1, reach, oracle.width))
        tokens[0, -1] = y
        if at is not None:
            tokens[0, reach - 1 - at] = x
        return oracle.ask(tokens)[0]

    without = place(None)
    seen, unseen = 0, reach - 1
    if unseen < 1 or not _agree(place(unseen), without, _UNSEEN):
        return None
    while unseen - seen > 1:
        middle = (seen + unseen) // 2
        if _agree(place(middle), without, _UNSEEN):
            unseen = middle
        else:
            seen = middle
    # That no earlier token counts is no window, but a token of too small a score.
    return unseen if unseen > 1 else None


def describe_fields(fields: dict[str, Any]) -> str:
    """Fields of a wiring in words."""
    return ", ".join(f"{name} {_write_value(value)}" for name, value in fields.items())


def _write_value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else f"{value}"
