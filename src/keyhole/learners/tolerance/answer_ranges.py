r"""All heads within given bounds of one head, and every answer they can give to a sequence.

Let $|W' - W| \le E$ and $|v' - v| \le e$ entry by entry, and let $s_i = x_i^\top W x_N$. Softmax
does not see a common shift, so take scores relative to the last token: they move by at most
$\delta_i = |x_i - x_N|^\top E |x_N|$, and the value $u_i = x_i \cdot v$ by at most $\eta_i =
|x_i|^\top e$. The greatest answer is the greatest weighted mean of $u_i + \eta_i$ over weights
between $e^{s_i - \delta_i}$ and $e^{s_i + \delta_i}$. Such a mean grows in $w_i$ where $u_i +
\eta_i$ is above it and falls where it is below. So the best weights are the largest for the k
greatest values and the least for the others, for one k between 0 and N: all are tried. The least
answer is that of $-u$, negated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix, PerSequence, Sequences, Vector, pin_one_thread, softmax


@dataclass(frozen=True, eq=False, slots=True)
class Box:
    """Heads of one output without biases, near one of them.

    Args:
        W: scores in the middle.
        E: how far each entry of W may be away.
        v: read-out in the middle.
        e: how far each entry of v may be away.
    """

    W: Matrix
    E: Matrix
    v: Vector
    e: Vector

    def answers(self, X: Sequences) -> tuple[PerSequence, PerSequence]:
        """The least and the greatest answer to each sequence that heads in the box give."""
        with pin_one_thread():
            last = X[:, -1]
            scores = np.einsum("bnd,bd->bn", X, last @ self.W.T)
            away = np.einsum("bnd,bd->bn", np.abs(X - last[:, None]), np.abs(last) @ self.E.T)
            values = X @ self.v
            doubt = np.abs(X) @ self.e
        least = -_find_greatest_mean(doubt - values, scores, away)
        return least, _find_greatest_mean(values + doubt, scores, away)


def _find_greatest_mean(values: Matrix, scores: Matrix, away: Matrix) -> PerSequence:
    """The greatest mean of `values` with weights exp(s), s within `away` of `scores`."""
    order = np.argsort(-values, axis=1)
    u, s, delta = (np.take_along_axis(A, order, axis=1) for A in (values, scores, away))
    # Row k: up for the first k, down for the others.
    sides = 2.0 * np.tri(u.shape[1] + 1, u.shape[1], -1) - 1.0
    return np.einsum("bkn,bn->bk", softmax(s[:, None] + sides * delta[:, None]), u).max(axis=1)
