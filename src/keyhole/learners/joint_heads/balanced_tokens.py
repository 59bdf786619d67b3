r"""Tokens at which solves for shares and for coordinates are well conditioned, by descent.

What a group of tokens X is asked for are the unknowns of some equations whose rows are $x_k^\top
C_1, \dots, x_k^\top C_n$ for every token $x_k$: with the read-outs $C_h = V_h$ they are the shares
of all heads. The solve amplifies rounding as the inverse of these rows does, and
$$\varphi(X) = \sum_{\mathrm{blocks}} \lVert R^+ \rVert_F^2 = \sum \mathrm{tr}\,(R R^\top)^{-1},
\qquad \frac{\partial\varphi}{\partial R} = -2\,(R R^\top)^{-2} R,$$
is smooth where it is finite. Random square R are badly conditioned; a few dozen steps down $\log
\varphi$ make them all well conditioned, as tokens hold many more numbers than there are blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from keyhole._arrays import Matrix, Stack

_STEP = 0.1  # the first, of the length of X
_LONGER = 1.5
_LEAST_STEP = 1e-5
_SETTLED = 1e-3  # of the logarithm, a gain below which descent ends

Measure = Callable[[Matrix], tuple[float, Matrix]]
Retract = Callable[[Matrix], Matrix]


def list_rows(X: Matrix, block: Stack) -> Matrix:
    """Rows x . C for all heads of a block and all tokens, heads first."""
    return (X @ block).reshape(-1, block.shape[2])


def measure_condition(X: Matrix, blocks: Sequence[Stack]) -> float:
    """The worst condition of the rows of any block, as far as their squares tell it."""
    worst = 1.0
    for block in blocks:
        rows = list_rows(X, block)
        wide = rows.shape[0] <= rows.shape[1]
        values = np.linalg.eigvalsh(rows @ rows.T if wide else rows.T @ rows)
        if len(values):
            worst = max(worst, float(np.sqrt(values[-1] / values[0])) if values[0] > 0 else np.inf)
    return worst


def balance_groups(
    X: Matrix, most: int, reading: Sequence[Stack], along: Sequence[Stack], steps: int
) -> Matrix:
    """Tokens of length one from the rows of X: each group reads well, all together solve well."""

    def scale(trial: Matrix) -> Matrix:
        return trial / np.linalg.norm(trial, axis=1, keepdims=True)

    def measure(trial: Matrix) -> tuple[float, Matrix]:
        value, slope = _measure_groups(trial, most, reading)
        more, steeper = _measure_blocks(trial, along)
        return value + more, slope + steeper

    return _descend(X, measure, scale, steps)


def balance_basis(X: Matrix, most: int, blocks: Sequence[Stack], steps: int) -> Matrix:
    """An orthonormal basis cut into groups of at most so many, from another."""

    def turn(trial: Matrix) -> Matrix:
        Q, R = np.linalg.qr(trial)
        return Q * np.where(np.diagonal(R) < 0, -1.0, 1.0)

    return _descend(X, lambda trial: _measure_groups(trial, most, blocks), turn, steps)


def cut_evenly(X: Matrix, most: int) -> list[Matrix]:
    """The rows of X in as few groups as hold at most so many, nearly equally large."""
    return np.array_split(X, -(-len(X) // most))


def _measure_groups(X: Matrix, most: int, blocks: Sequence[Stack]) -> tuple[float, Matrix]:
    found = [_measure_blocks(part, blocks) for part in cut_evenly(X, most)]
    return sum(value for value, _ in found), np.concatenate([slope for _, slope in found])


def _measure_blocks(X: Matrix, blocks: Sequence[Stack]) -> tuple[float, Matrix]:
    """The sum over blocks of squared norms of the inverse, and its gradient."""
    total, slope = 0.0, np.zeros_like(X)
    for block in blocks:
        rows = list_rows(X, block)
        wide = rows.shape[0] <= rows.shape[1]
        try:
            inverse = np.linalg.inv(rows @ rows.T if wide else rows.T @ rows)
        except np.linalg.LinAlgError:
            return np.inf, slope
        total += float(np.trace(inverse))
        against = inverse @ (inverse @ rows) if wide else rows @ inverse @ inverse
        by_head = against.reshape(len(block), len(X), -1)
        slope -= 2.0 * np.einsum("hko,hdo->kd", by_head, block, optimize=True)
    # Beyond what double precision inverts the trace is no measure.
    return (total, slope) if total >= 0 else (np.inf, slope)


def _descend(X: Matrix, measure: Measure, retract: Retract, steps: int) -> Matrix:
    """Steps against the gradient of the logarithm, longer while they help."""
    value, slope = measure(X)
    step = _STEP
    for _ in range(steps):
        size = float(np.linalg.norm(slope))
        if not (np.isfinite(value) and size > 0 and step > _LEAST_STEP):
            break
        trial = retract(X - step * np.sqrt(len(X)) / size * slope)
        lower, steeper = measure(trial)
        if not lower < value:
            step /= 2
            continue
        gain = float(np.log(value / lower))
        X, value, slope = trial, lower, steeper
        step *= _LONGER
        if gain < _SETTLED:
            break
    return X
