r"""What the shortest queries tell when answers carry errors: c, V, a residual, a score bias.

The identities are those of `one_head.readout`; what differs is that every decision is a test
against the size of the errors, and that tokens are as long as they may be, since an absolute error
counts for less the longer they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Answers, Array, Matrix, Sequences, Vector, rms
from keyhole.learners.one_head.readout import Readout
from keyhole.oracles import Counted, Imperfection, read_imperfection

_PROBES = 8  # answers averaged, and random vectors that decide whether a bias or a residual acts
_FALSE_ALARM = 1e-7  # probability of seeing one where there is none
# Share of the token values that errors may have where tokens may be of any length.
_NEGLIGIBLE = 1e-15
_LONGEST = 1e60  # tokens that are answered with nothing beyond errors up to here have no values


@dataclass(frozen=True, slots=True)
class Errors:
    """Size of the error of one answer.

    Args:
        noise: standard deviation of the part that is drawn anew for every answer.
        tolerance: largest size of the part that is not.
        roundoff: relative rounding.
    """

    noise: float
    tolerance: float
    roundoff: float

    @classmethod
    def of(cls, stated: Imperfection) -> Errors:
        """Those an oracle declares."""
        return cls(stated.noise, stated.tolerance, stated.roundoff)

    @property
    def absolute(self) -> float:
        """Standard deviation of one answer, rounding apart; a tolerance counts in full."""
        return float(np.hypot(self.noise, self.tolerance))

    def deviation(self, size: Array | float, repeats: int = 1) -> Array:
        """Standard deviation of the mean of `repeats` answers of that size."""
        rounded = 4.0 * self.roundoff * np.abs(size)
        return np.asarray(np.sqrt(self.noise**2 / repeats + self.tolerance**2 + rounded**2))


def estimate_noise(oracle: Counted, *, rng: np.random.Generator) -> float:
    """Noise as the spread of two answers to each of sixteen sequences."""
    bound = read_imperfection(oracle).token_bound
    X = _draw_unit_tokens(rng, 16, oracle.width)[:, None] * (1.0 if bound is None else bound)
    first, second = (oracle.ask(X.copy()) for _ in range(2))
    return rms(first - second) / float(np.sqrt(2.0))


@dataclass(frozen=True, eq=False, slots=True)
class NoisyReading:
    """What was read, and how well.

    Args:
        readout: c, V, U and whether a score bias acts.
        length: norm of the longest token that is asked.
        reach: norm up to which a score bias leaves shares readable; `length` where none acts.
        deviation: standard error of an entry of V + U; of V sqrt 2 times that where U acts.
        best: unit vector that V sees best, along which V is known better.
        share: how much smaller its standard error is along `best`.
        constant: standard error of c; 0 where c was taken for zero.
    """

    readout: Readout
    length: float
    reach: float
    deviation: float
    best: Vector
    share: float
    constant: float

    def drawn(self, rng: np.random.Generator) -> Readout:
        """The read-out as it might have been read."""
        readout = self.readout
        shape = readout.V.shape
        total = readout.total + self._error(shape, rng)
        c = readout.c + self.constant * rng.normal(size=readout.c.shape)
        if readout.U is None:
            return replace(readout, c=c, V=total)
        V = readout.V + np.sqrt(2.0) * self._error(shape, rng)
        return replace(readout, c=c, V=V, U=total - V)

    def _error(self, shape: tuple[int, ...], rng: np.random.Generator) -> Matrix:
        error = self.deviation * rng.normal(size=shape)
        return error - (1.0 - self.share) * np.outer(self.best, self.best @ error)


def measure_noisy_readout(
    oracle: Counted,
    errors: Errors,
    *,
    bound: float | None,
    repeats: int,
    rng: np.random.Generator,
    full: bool = False,
) -> NoisyReading | None:
    """Read c, V and U; None where no answer depends on the tokens, beyond the errors.

    A constant, a bias or a residual that the errors explain is left out, unless `full` asks for all
    of them.
    """
    c, constant = _read_constant(oracle, errors, full)
    length = bound if bound is not None else _find_token_length(oracle, c, errors, rng)
    if length is None:
        return None
    x = _draw_unit_tokens(rng, _PROBES, oracle.width)
    alone = oracle.ask((length * x)[:, None])
    half, middle = _halve_opposite_pair(oracle, length * x, c)
    error = float(errors.deviation(rms(alone))) + constant
    biased = full or _is_significant(middle, error)
    residual = full or _is_significant(alone - c - 2.0 * half, 1.8 * error)
    reach = _find_reach(oracle, x, c, length, half, middle) if biased else length
    V, U, deviation = _read_noisy_matrices(oracle, c, length, errors, repeats, residual=residual)
    best = np.linalg.svd(V, full_matrices=False)[0][:, 0]
    share = 1.0
    # Only random errors average out.
    if errors.noise > 0 and V.any() and not residual:
        V, share = _sharpen_readout(oracle, V, c, length, best, repeats)
    readout = Readout(V, U, c, biased, (length * x[:1, None], alone[:1]))
    if not c.any():
        constant = 0.0
    return NoisyReading(readout, length, reach, deviation, best, share, constant)


def _draw_unit_tokens(rng: np.random.Generator, count: int, width: int) -> Matrix:
    x = rng.normal(size=(count, width))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def _is_significant(values: Matrix, deviation: float) -> bool:
    """Whether normal errors of that deviation would hardly ever be as large, all together."""
    from scipy.special import chdtri

    return bool((values**2).sum() > deviation**2 * float(chdtri(values.size, _FALSE_ALARM)))


def _read_constant(oracle: Counted, errors: Errors, full: bool) -> tuple[Vector, float]:
    """The constant c and its standard error; zero where errors explain it, unless `full`."""
    count = _PROBES if errors.noise > 0 else 1
    c: Vector = oracle.ask(np.zeros((count, 1, oracle.width))).mean(axis=0)
    error = float(errors.deviation(rms(c), count))
    return (c if full or np.abs(c).max() > 4.0 * error else np.zeros_like(c)), error


def _find_token_length(
    oracle: Counted, c: Vector, errors: Errors, rng: np.random.Generator
) -> float | None:
    """A token norm at which absolute errors are negligible, where any norm may be asked."""
    length = 1.0
    while length < _LONGEST:
        x = length * _draw_unit_tokens(rng, 4, oracle.width)
        size = max(rms(oracle.ask(x[:, None]) - c), rms(_halve_opposite_pair(oracle, x, c)[0]))
        if size > 100.0 * errors.absolute:
            return max(1.0, length * errors.absolute / (_NEGLIGIBLE * size))
        length *= 2.0**10
    return None


def _append_zero_token(x: Matrix) -> Sequences:
    return np.stack([x, np.zeros_like(x)], axis=1)


def _halve_opposite_pair(oracle: Counted, x: Matrix, c: Vector) -> tuple[Matrix, Matrix]:
    """Half the difference and half the sum, c taken off, of f([x;0]) and f([-x;0])."""
    plus, minus = (oracle.ask(_append_zero_token(sign * x)) for sign in (1.0, -1.0))
    return (plus - minus) / 2.0, (plus + minus) / 2.0 - c


def _find_reach(
    oracle: Counted, x: Matrix, c: Vector, length: float, half: Matrix, middle: Matrix
) -> float:
    """The largest length at which x . h, middle / half being tanh(x . h / 2), is of order one."""
    for _ in range(200):
        share = np.abs((middle * half).sum(axis=1)) / np.maximum((half * half).sum(axis=1), 1e-300)
        # Beyond that tanh is flat, and tells no length.
        if share.max() < 0.6:
            break
        length /= 4.0
        half, middle = _halve_opposite_pair(oracle, length * x, c)
    return length


def _read_noisy_matrices(
    oracle: Counted, c: Vector, length: float, errors: Errors, repeats: int, *, residual: bool
) -> tuple[Matrix, Matrix | None, float]:
    """V (zero where errors explain all of it), U, and the standard error of entries of V + U."""
    basis = length * np.eye(oracle.width)
    again = count_reads(oracle.width) * repeats if errors.noise > 0 else 1
    answers = _average_answers(oracle, basis[:, None], again)
    total = (answers - c) / length
    deviation = float(errors.deviation(rms(answers), again)) / length
    if not residual:
        return _keep_significant(total, deviation), None, deviation
    plus, minus = (
        _average_answers(oracle, _append_zero_token(sign * basis), again) for sign in (1.0, -1.0)
    )
    V = _keep_significant((plus - minus) / length, 1.5 * deviation)
    return V, total - V, deviation


def _keep_significant(V: Matrix, deviation: float) -> Matrix:
    return V if _is_significant(V, deviation) else np.zeros_like(V)


def _sharpen_readout(
    oracle: Counted, V: Matrix, c: Vector, length: float, best: Vector, repeats: int
) -> tuple[Matrix, float]:
    """V, its error along `best`, which every share is divided by, averaged over more answers."""
    more = _PROBES * repeats
    seen = (_average_answers(oracle, length * best[None, None], more)[0] - c) / length
    weight = more / (more + count_reads(len(V)) * repeats)
    correction = best[:, None] * (weight * (seen - best @ V))
    return V + correction, float(np.sqrt(1.0 - weight))


def count_reads(width: int) -> int:
    """How often V is read where errors are random."""
    # Its error is in every form, and reading it costs little beside them.
    return 4 if width <= 64 else 2


def _average_answers(oracle: Counted, X: Sequences, repeats: int) -> Answers:
    """The mean of several answers to the same questions."""
    return sum((oracle.ask(X.copy()) for _ in range(repeats - 1)), oracle.ask(X.copy())) / repeats
