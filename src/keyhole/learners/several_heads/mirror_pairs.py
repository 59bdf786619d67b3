r"""A mirror pair W, -W with equal read-outs: on pairs of tokens it is a mean, on triples it is not.

On $[y + tx; y + tx; y]$ the two heads count with $V \cdot x\, \kappa(a)$, $a = \tau x^\top W y$ and
$$\kappa(a) = s(a + \ln 2) + s(\ln 2 - a) = \frac{4 \cosh a + 8}{4 \cosh a + 5},$$
4/3 at a = 0, as for a mean, and 1 where the softmax is hard. All other heads being known, hard
triples give V, and soft ones $|x^\top W y|$ in closed form. Signs follow from sums: $|a(x, y) +
a(x', y)|$ is the sum or the difference of the two sizes. The sign of W itself is free, since the
pair is both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Vector, find_power_of_two
from keyhole.learners.several_heads.pairs import Unresolved
from keyhole.models import MultiHead
from keyhole.oracles import Counted

_HARD = 1e30  # product of lengths at which any head is hard
_RATIO = 2.0**-13  # |y| / |x|, as for pairs
_ROUNDS = 60
_SOFT = (0.2, 0.7)  # departures from the mean, of a hard one, that tell the logit well
_TINY = 1e-12  # departures that are rounding


def add_unseen_pair(oracle: Counted, model: MultiHead, rng: np.random.Generator) -> MultiHead:
    """The model with one mirror pair of equal read-outs taken out of its mean: about 2 d^2 queries.

    Raises:
        Unresolved: triples do not differ from the model as one such pair would make them.
    """
    d = model.width
    P: Matrix = np.linalg.qr(rng.normal(size=(d, d)))[0].astype(np.float64)
    Q: Matrix = np.linalg.qr(rng.normal(size=(d, d)))[0].astype(np.float64)
    triples = Triples(oracle, model)
    V = _measure_pair_readout(triples, P, rng)
    top = np.linalg.svd(V)[0][:, 0]
    # Tilted towards the read-out, every x sees it.
    P += np.outer(np.where(P @ top < 0, -1.0, 1.0), top)
    tau = _find_soft_product(triples, V, P, Q)
    W: Matrix = np.linalg.inv(P).astype(np.float64) @ _sign_forms(triples, V, P, Q, tau) @ Q / tau
    return _take_pair_out(model, W, V)


@dataclass(frozen=True, eq=False, slots=True)
class Triples:
    """What triples show beyond a model, in units of a read-out."""

    oracle: Counted
    model: MultiHead

    def beyond(self, X: Matrix, Y: Matrix, tau: float) -> Matrix:
        """V.x (kappa - 4/3) for every row."""
        sx = find_power_of_two(float(np.sqrt(tau / _RATIO)))
        y = Y * (tau / sx)
        tokens = np.stack([y + sx * X, y + sx * X, y], axis=1)
        return (self.oracle.ask(tokens.copy()) - self.model(tokens)) / sx


def _measure_pair_readout(triples: Triples, P: Matrix, rng: np.random.Generator) -> Matrix:
    """V from hard triples, which show -V.x/3."""
    once = triples.beyond(P, rng.normal(size=P.shape), _HARD)
    again = triples.beyond(P, rng.normal(size=P.shape), _HARD)
    size = float(np.abs(once).max())
    if not (size > _TINY and np.abs(once - again).max() <= 1e-6 * size):
        raise Unresolved
    return P.T @ once * -3.0  # P is orthogonal


def _measure_logit_sizes(
    triples: Triples, V: Matrix, X: Matrix, Y: Matrix, tau: float
) -> tuple[Vector, Vector]:
    """|a| for every row, and the departure from the mean that gave it, 1 where hard."""
    J = X @ V
    rho = -3 * (triples.beyond(X, Y, tau) * J).sum(axis=1) / (J * J).sum(axis=1)
    cosh = (9 / (1 - np.clip(rho, 0.0, 1 - _TINY)) - 5) / 4
    return np.arccosh(np.maximum(cosh, 1.0)), rho


def _find_soft_product(triples: Triples, V: Matrix, P: Matrix, Q: Matrix) -> float:
    """A product of lengths at which logits are of order one."""
    low, high = 0.0, np.inf
    tau = 1.0
    for _ in range(_ROUNDS):
        middle = float(np.median(_measure_logit_sizes(triples, V, P, Q, tau)[1]))
        if _SOFT[0] <= middle <= _SOFT[1]:
            return tau
        if middle < _SOFT[0]:
            low = tau
        else:
            high = tau
        if low > 0 and high < np.inf:
            tau = float(np.sqrt(low * high))
        else:
            tau *= 1e3 if low > 0 else 1e-3
    raise Unresolved


def _sign_forms(triples: Triples, V: Matrix, P: Matrix, Q: Matrix, tau: float) -> Matrix:
    """x_i^T W y_j with signs, from sizes and from sums along each column and one row."""
    d = len(P)

    def sizes(X: Array, Y: Array) -> Matrix:
        shape = np.broadcast_shapes(X.shape, Y.shape)
        x, y = (np.broadcast_to(Z, shape).reshape(-1, d) for Z in (X, Y))
        return _measure_logit_sizes(triples, V, x, y, tau)[0].reshape(shape[:2])

    A = sizes(P[:, None], Q[None])
    top = np.argmax(A, axis=0)
    A = A * _match_signs(A, A[top, range(d)][None], sizes(P[:, None] + P[top][None], Q[None]))
    # The row whose least size is largest: every column's sign hangs on its entry there.
    first = int(np.argmax(np.abs(A).min(axis=1)))
    best = int(np.argmax(np.abs(A[first])))
    sums = sizes(P[first][None, None], Q[None] + Q[best][None, None])[0]
    signs = _match_signs(np.abs(A[first]), np.abs(A[first, best : best + 1]), sums)
    return A * signs * np.sign(A[first])


def _match_signs(a: Array, b: Array, joint: Array) -> Array:
    """+1 where the size of the sum is nearer to a + b than to |a - b|, else -1."""
    return np.where(np.abs(joint - (a + b)) <= np.abs(joint - np.abs(a - b)), 1.0, -1.0)


def _take_pair_out(model: MultiHead, W: Matrix, V: Matrix) -> MultiHead:
    """The pair (W, V), (-W, V), with 2V less in the mean, which goes when nothing is left."""
    mean = ~model.W.any(axis=(1, 2))
    left = model.V[mean].sum(axis=0) - 2 * V
    keep = int(np.abs(left).max() > 1e-6 * np.abs(V).max())
    Ws = [*model.W[~mean], W, -W] + [np.zeros_like(W)] * keep
    Vs = [*model.V[~mean], V, V] + [left] * keep
    return MultiHead(np.stack(Ws), np.stack(Vs), None, model.c)
