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
_EVEN = 5e-3  # the same of a whole basis, which further steps make hardly better

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

    return _descend(X, measure, scale, steps, _SETTLED)


def balance_basis(X: Matrix, most: int, blocks: Sequence[Stack], steps: int) -> Matrix:
    """An orthonormal basis cut into groups of at most so many, from another."""

    def turn(trial: Matrix) -> Matrix:
        Q, R = np.linalg.qr(trial)
        return Q * np.where(np.diagonal(R) < 0, -1.0, 1.0)

    return _descend(X, lambda trial: _measure_groups(trial, most, blocks), turn, steps, _EVEN)


def cut_evenly(X: Matrix, most: int) -> list[Matrix]:
    """The rows of X in as few groups as hold at most so many, nearly equally large."""
    return np.array_split(X, -(-len(X) // most))


def join_equal(parts: Sequence[Matrix]) -> list[Stack]:
    """Groups of equal size side by side, in their order, where none is larger than those before."""
    sizes = sorted({len(part) for part in parts}, reverse=True)
    return [np.stack([part for part in parts if len(part) == size]) for size in sizes]


def _measure_groups(X: Matrix, most: int, blocks: Sequence[Stack]) -> tuple[float, Matrix]:
    found = [_measure_stack(part, blocks) for part in join_equal(cut_evenly(X, most))]
    slope = np.concatenate([slope.reshape(-1, X.shape[1]) for _, slope in found])
    return sum(value for value, _ in found), slope


def _measure_blocks(X: Matrix, blocks: Sequence[Stack]) -> tuple[float, Matrix]:
    value, slope = _measure_stack(X[None], blocks)
    return value, slope[0]


def _measure_stack(X: Stack, blocks: Sequence[Stack]) -> tuple[float, Stack]:
    """The sum over groups and blocks of squared norms of the inverse, and its gradient."""
    total, slope = 0.0, np.zeros_like(X)
    groups, size, width = X.shape
    for block in blocks:
        by_head = X.reshape(-1, width) @ block
        rows = by_head.reshape(len(block), groups, size, -1).swapaxes(0, 1)
        rows = rows.reshape(groups, len(block) * size, -1)
        turned = rows.swapaxes(1, 2)
        wide = rows.shape[1] <= rows.shape[2]
        try:
            inverse = np.linalg.inv(rows @ turned if wide else turned @ rows)
        except np.linalg.LinAlgError:
            return np.inf, slope
        traces = np.trace(inverse, axis1=1, axis2=2)
        # Beyond what double precision inverts the trace is no measure.
        if not (traces >= 0).all():
            return np.inf, slope
        total += float(traces.sum())
        against = inverse @ (inverse @ rows) if wide else rows @ inverse @ inverse
        heads = against.reshape(groups, len(block), size, -1).transpose(0, 2, 1, 3)
        sides = block.transpose(0, 2, 1).reshape(-1, width)
        slope -= 2.0 * heads.reshape(groups, size, -1) @ sides
    return total, slope


def _descend(X: Matrix, measure: Measure, retract: Retract, steps: int, settled: float) -> Matrix:
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
        if gain < settled:
            break
    return X
