r"""When a gap between a model and an answer is not rounding: size, rounding and last digits.

Absolute values are taken entry by entry. Of one head with scores $s_i = x_i^\top(Wy + h)$, weights
$a = \mathrm{softmax}(s)$, $S_i = |x_i|^\top(|W||y| + |h|)$ and unit roundoff e, rounding moves a
score by a few $e S_i$ and a value by a few $e |x_i|^\top|V|$, so that an answer moves by

$$E = e(\sqrt n + 4 + 2\lambda S)\,T + 4e(|y|^\top|U| + |c|),$$

S and T the largest $S_i$ and $|x_i|^\top|V|$ over tokens whose weight may exceed e once scores are
rounded, $s_i - \max s + 32 e \max_j S_j > \log e$. A token alone in its softmax feels no error of a
score: $\lambda = \min(1, 2\sum_i \min(1, e^{s_i - \max s + 32 e \max_j S_j}))$, the sum over all
but the first. Sums of heads add their E. Behind a hidden layer of slope at most 1.2 it is $E_g =
(1.2 E_z|W_1| + \sqrt{k + d}\,e\,p)|W_2|$ with $p = |z||W_1| + |b_1|$.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Float, Matrix, PerSequence, Sequences, Vector

_SLOPE = 1.2  # no activation in use is steeper
_SURE = 32.0  # roundings of a score beyond which it may be another's


@dataclass(frozen=True, eq=False, slots=True)
class Yardstick:
    """What a gap is measured by, per sequence, the largest over the outputs.

    Args:
        size: what the parts of the model contribute before they cancel.
        rounding: what rounding alone does to the answer.
        coarse: what weights that are known to a few last digits of their largest entry do to it.
    """

    size: PerSequence
    rounding: PerSequence
    coarse: PerSequence


@dataclass(frozen=True, eq=False, slots=True)
class Reach:
    """The same per output, as it travels from one part of a model to the next."""

    size: Matrix
    rounding: Matrix
    coarse: Matrix

    def __add__(self, other: Reach) -> Reach:
        return Reach(
            self.size + other.size,
            self.rounding + other.rounding,
            self.coarse + other.coarse,
        )

    def summarise(self) -> Yardstick:
        """The largest over the outputs."""
        parts = (self.size, self.rounding, self.coarse)
        return Yardstick(*(part.max(axis=1, initial=0.0) for part in parts))


def blur_entries(array: Array) -> Array:
    """The array with every entry replaced by its largest size: what is known of small ones."""
    return np.full(array.shape, np.abs(array).max(initial=0.0))


def measure_head(
    X: Sequences,
    scores: Float[Array, "batch length"],
    q: Matrix,
    blurred_q: Matrix,
    V: Matrix,
    eps: float,
) -> Reach:
    """The reach of one head.

    Args:
        X: sequences.
        scores: of their tokens.
        q: $|W||y| + |h|$ per sequence.
        blurred_q: the same with every matrix replaced by its largest entry.
        V: the read-out.
        eps: unit roundoff.
    """
    size = np.abs(X @ V).max(axis=1)
    tokens = np.abs(X)
    S, blurred_S = ((tokens @ part[:, :, None])[:, :, 0] for part in (q, blurred_q))
    rounding = bound_mixture(scores, S, tokens @ np.abs(V), eps)
    # With all entries of V equal every output has the same sum.
    T = np.abs(V).max(initial=0.0) * tokens.sum(axis=2, keepdims=True)
    coarse = np.broadcast_to(bound_mixture(scores, blurred_S, T, eps), size.shape)
    return Reach(size, rounding, coarse)


def bound_mixture(
    scores: Float[Array, "batch length"],
    S: Float[Array, "batch length"],
    T: Float[Array, "batch length outputs"],
    eps: float,
) -> Matrix:
    """The E of a head above, from the S and T of its tokens."""
    # How far below the largest score a token may lie after rounding, as a logarithm of its weight.
    behind = scores - scores.max(axis=1, keepdims=True) + _SURE * eps * S.max(axis=1, keepdims=True)
    acting = behind > np.log(eps)
    largest = np.where(acting[..., None], T, 0.0).max(axis=1)
    S = np.where(acting, S, 0.0).max(axis=1)
    shared = _share_with_others(scores, behind)
    return eps * (np.sqrt(scores.shape[1]) + 4.0 + 2.0 * shared * S)[:, None] * largest


def _share_with_others(
    scores: Float[Array, "batch length"], behind: Float[Array, "batch length"]
) -> PerSequence:
    """What others than the first token may weigh, twice, at most 1."""
    others = np.exp(np.minimum(behind, 0.0))
    others[np.arange(len(scores)), scores.argmax(axis=1)] = 0.0
    return np.minimum(1.0, 2.0 * others.sum(axis=1))


def measure_beside(
    y: Matrix, U: Matrix | None, c: Vector | None, outputs: int, eps: float
) -> Reach:
    """What a residual and a constant add; a constant adds to no size, lest it hides the tokens."""
    none = np.zeros((len(y), outputs))
    size = none if U is None else np.abs(y @ U)
    steady = none if c is None else none + np.abs(c)
    rounding = steady if U is None else np.abs(y) @ np.abs(U) + steady
    coarse = steady if U is None else np.abs(y) @ blur_entries(U) + steady
    return Reach(size, 4.0 * eps * rounding, 4.0 * eps * coarse)


def measure_network(
    into: Reach, W1: Matrix, b1: Vector, W2: Matrix, b2: Vector, eps: float
) -> Reach:
    """The reach of a hidden layer; constants add to no size, lest they hide how answers vary.

    Args:
        into: reach of what the layer is given.
        W1: one row per hidden unit.
        b1: biases of hidden units.
        W2: one row per output.
        b2: constants of the outputs.
        eps: unit roundoff.
    """
    fine = np.abs(W1), np.abs(b1), np.abs(W2)
    blurred = blur_entries(W1), blur_entries(b1), blur_entries(W2)
    size = (into.size @ fine[0].T) @ fine[2].T
    steady = 4.0 * eps * np.abs(b2)
    rounding = _bound_layer(into.rounding, into.size, *fine, eps)
    coarse = _bound_layer(into.coarse, into.size, *blurred, eps)
    return Reach(size, rounding + steady, coarse + steady)


def measure_linear_part(into: Reach, P: Matrix, eps: float) -> Reach:
    """The reach of a linear map."""
    fine, blurred = np.abs(P), blur_entries(P)
    few = np.sqrt(P.shape[1]) * eps
    return Reach(
        into.size @ fine.T,
        (into.rounding + few * into.size) @ fine.T,
        (into.coarse + few * into.size) @ blurred.T,
    )


def _bound_layer(
    moved: Matrix, reach: Matrix, W1: Matrix, b1: Vector, W2: Matrix, eps: float
) -> Matrix:
    hidden, width = W1.shape
    pre = reach @ W1.T + b1
    return (_SLOPE * moved @ W1.T + np.sqrt(hidden + width) * eps * pre) @ W2.T


def start_at_tokens(x: Matrix) -> Reach:
    """Tokens themselves, which carry no error."""
    none = np.zeros_like(x)
    return Reach(np.abs(x), none, none)
