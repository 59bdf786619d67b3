r"""What a run's own answers say of one head while the run is still asking.

Tokens $x_1 .. x_N$ that stand $n_i$ times each are answered $c + \sum_i p_i\, x_i V$ with

$$\log\frac{p_i}{p_N} - \log\frac{n_i}{n_N} = (x_i - x_N)^\top (W x_N + h).$$

Lone tokens tell V and c. The shares p follow from an answer where there are at most as many of them
as it has numbers, and then each is one linear equation for W. What is read is the least W that
satisfies those that were answered: the true one as soon as there are enough of them, nothing along
what was not asked yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator, lsqr

from keyhole._arrays import Answers, Array, Matrix, Sequences, Vector

_CLEAR = 3e-3  # a share tells a score where it is so much larger than what blurs it
_APART = 30.0  # tokens so much shorter or longer than usual are left out: they swell errors
_FITS = 0.02  # relative misfit up to which one head explains the answers
_STEPS = 400  # of the iteration for W
_LONGEST = 16  # tokens of a question whose shares are read


@dataclass(frozen=True, eq=False, slots=True)
class ReadHead:
    """What is known of a head by now.

    Args:
        W: the least attention matrix that explains the answers.
        V: the readout.
        equations: how many numbers of answers bore on W.
    """

    W: Matrix
    V: Matrix
    equations: int


@dataclass(frozen=True, eq=False, slots=True)
class Heard:
    """Questions of as many distinct tokens each, how often these stand there, and answers."""

    tokens: Array
    counts: Array
    answers: Answers


@dataclass(frozen=True, eq=False, slots=True)
class Equations:
    """What scores are known to be: apart^T (W last + h) = score, row by row."""

    apart: Matrix
    last: Matrix
    scores: Vector


@dataclass(slots=True)
class HeadReader:
    """Collects questions that tell something of one head.

    Args:
        width: of a token.
    """

    width: int
    _lone: list[Heard] = field(default_factory=list[Heard], init=False)
    _several: list[Heard] = field(default_factory=list[Heard], init=False)

    def hear(self, X: Sequences, answers: Answers) -> None:
        """Keep those questions of a batch that can be read."""
        length = X.shape[1]
        last = X[:, -1]
        other = (last[:, None] != X).any(axis=2)
        count = other.sum(axis=1)
        first = X[np.arange(len(X)), other.argmax(axis=1)]
        two = (count > 0) & ((first[:, None] == X).all(axis=2) == other).all(axis=1)
        lone = count == 0
        self._lone.append(Heard(last[lone], np.ones(int(lone.sum())), answers[lone]))
        repeats = np.stack([count, length - count], axis=1).astype(np.float64)
        tokens = np.stack([first, last], axis=1)
        self._several.append(Heard(tokens[two], repeats[two], answers[two]))
        if 2 < length <= min(_LONGEST, answers.shape[1] + 1):
            rest = ~(two | lone)
            ones = np.ones((int(rest.sum()), length))
            self._several.append(Heard(X[rest], ones, answers[rest]))

    def read(self) -> ReadHead | None:
        """What the answers so far say; None where V is not known yet, or no head explains them."""
        readout = self._read_values()
        if readout is None:
            return None
        V, c = readout
        equations = self._list_equations(V, c)
        for biased in (False, True):
            W, misfit = _solve_least(equations, biased=biased)
            if misfit <= _FITS:
                return ReadHead(W, V, len(equations.scores))
        return None

    def _read_values(self) -> tuple[Matrix, Vector] | None:
        """V and c from lone tokens, once these span all directions."""
        tokens = np.concatenate([heard.tokens for heard in self._lone])
        answers = np.concatenate([heard.answers for heard in self._lone])
        if not len(tokens) or np.linalg.matrix_rank(tokens) < self.width:
            return None
        # Tokens may be a thousand times as long as others: each counts once.
        scale = 1.0 / (1.0 + np.linalg.norm(tokens, axis=1, keepdims=True))
        lifted = np.column_stack([tokens, np.ones(len(tokens))]) * scale
        V = _solve_scaled(tokens, answers, scale)
        c = np.zeros(answers.shape[1])
        # With fewer tokens a constant, which most heads do not have, cannot be told.
        if np.linalg.matrix_rank(lifted) > self.width:
            found = _solve_scaled(lifted / scale, answers, scale)
            V, c = found[:-1], found[-1]
        misfit = _measure_relative_misfit((tokens @ V + c) * scale, answers * scale)
        return (V, c) if misfit <= _FITS else None

    def _list_equations(self, V: Matrix, c: Vector) -> Equations:
        """All that is known of scores, but for what errors would spoil."""
        parts = [_read_scores(heard, V, c) for heard in self._several]
        apart, last, scores = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("apart", "last", "scores")
        )
        reach = np.linalg.norm(apart, axis=1) * np.linalg.norm(last, axis=1)
        usual = float(np.median(reach)) if len(reach) else 1.0
        kept = (reach > usual / _APART) & (reach < usual * _APART)
        return Equations(apart[kept], last[kept], scores[kept])


def _read_scores(heard: Heard, V: Matrix, c: Vector) -> Equations:
    """Shares of tokens from answers, and the scores that they tell."""
    X = heard.tokens
    values = X @ V
    spans = np.swapaxes(values[:, :-1] - values[:, -1:], 1, 2)
    inverses = np.linalg.pinv(spans)
    known = heard.answers - c - values[:, -1]
    p = (inverses @ known[:, :, None])[:, :, 0]
    rest = 1.0 - p.sum(axis=1, keepdims=True)
    # An error of an answer, which has the size of its parts, moves shares by the inverse.
    blur = np.linalg.norm(values, axis=2).max(axis=1) + float(np.linalg.norm(c))
    blur *= np.linalg.norm(inverses, axis=(1, 2))
    clear = np.minimum(p, rest) > _CLEAR * blur[:, None]
    rows, tokens = np.nonzero(clear & (p > 0) & (rest > 0))
    often = np.log(heard.counts[rows, tokens] / heard.counts[rows, -1])
    scores = np.log(p[rows, tokens] / rest[rows, 0]) - often
    return Equations(X[rows, tokens] - X[rows, -1], X[rows, -1], scores)


def _solve_scaled(tokens: Matrix, answers: Answers, scale: Array) -> Matrix:
    """Least squares with a weight for every row."""
    found = np.linalg.lstsq(tokens * scale, answers * scale, rcond=1e-12)[0]
    return np.asarray(found, dtype=np.float64)


def _measure_relative_misfit(predicted: Array, answers: Array) -> float:
    size = float(np.linalg.norm(answers))
    return float(np.linalg.norm(predicted - answers)) / size if size else 0.0


def _solve_least(equations: Equations, *, biased: bool) -> tuple[Matrix, float]:
    """The least W, with the least h where there is one, of all that satisfy the equations."""
    last, count = equations.last, len(equations.scores)
    width = last.shape[1]
    if not count:
        return np.zeros((width, width)), 0.0
    # A bias is one more coordinate of the last token, which is 1.
    ends = np.column_stack([last, np.ones(count)]) if biased else last
    sizes = np.linalg.norm(equations.apart, axis=1) * np.linalg.norm(ends, axis=1)
    rows, goals = equations.apart / sizes[:, None], equations.scores / sizes
    shape = (width, ends.shape[1])

    def score(flat: Array) -> Array:
        return ((rows @ flat.reshape(shape)) * ends).sum(axis=1)

    def spread(values: Array) -> Array:
        return ((rows * values[:, None]).T @ ends).ravel()

    operator: Any = LinearOperator
    system = operator((count, shape[0] * shape[1]), matvec=score, rmatvec=spread, dtype=np.float64)
    solve: Any = lsqr
    found: Array = solve(system, goals, atol=1e-10, btol=1e-10, iter_lim=_STEPS)[0]
    return found.reshape(shape)[:, :width], _measure_relative_misfit(score(found), goals)
