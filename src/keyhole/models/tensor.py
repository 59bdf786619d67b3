r"""Attention of higher order: every position attends to tuples of positions.

$$F(X) = \mathrm{softmax}\big(XQ\,((XK^1) * \cdots * (XK^{s-1}))^\top\big)
\,\big((XV^1) * \cdots * (XV^{s-1})\big)$$

where * takes rows of its factors for every tuple of positions and multiplies them entry by entry
(the column-wise Kronecker product). Position i scores the tuple $(j_1, \dots, j_{s-1})$ by $\sum_e
q_{ie} k^1_{j_1 e} \cdots k^{s-1}_{j_{s-1} e}$. Order 2 is a self-attention unit with one head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keyhole._arrays import (
    Array,
    Float,
    Matrix,
    Rng,
    Sequences,
    as_generator,
    check_finite,
    check_sequences,
    check_shape,
    freeze_array,
    softmax,
)
from keyhole.drawing.faces import Face
from keyhole.errors import InvalidInput

# Scores held at a time: two megabytes, which caches hold.
ROOM = 2**18


@dataclass(frozen=True, eq=False, slots=True)
class Partial:
    r"""A softmax average over some of its terms, which cannot overflow and can be joined.

    $$\mathrm{total} = \sum_t e^{s_t - \mathrm{top}},
    \qquad \mathrm{weighted} = \sum_t e^{s_t - \mathrm{top}} v_t$$

    with top the largest score so far, so that total is at least 1.
    """

    top: Float[Array, "*batch rows"]
    total: Float[Array, "*batch rows"]
    weighted: Float[Array, "*batch rows outputs"]

    @classmethod
    def of(
        cls, scores: Float[Array, "*batch rows terms"], values: Float[Array, "*batch terms outputs"]
    ) -> Partial:
        """That of the terms of one table of scores."""
        top = scores.max(axis=-1)
        # A difference beyond the largest number is weight 0 all the same
        with np.errstate(over="ignore"):
            weights = scores - top[..., None]
        np.exp(weights, out=weights)
        return cls(top, weights.sum(axis=-1), weights @ values)

    def join(self, other: Partial) -> Partial:
        """That of both sets of terms."""
        top = np.maximum(self.top, other.top)
        with np.errstate(over="ignore"):
            mine = np.exp(self.top - top)
            theirs = np.exp(other.top - top)
        weighted = mine[..., None] * self.weighted + theirs[..., None] * other.weighted
        return Partial(top, mine * self.total + theirs * other.total, weighted)

    @property
    def mean(self) -> Float[Array, "*batch rows outputs"]:
        """The average over the terms so far."""
        return self.weighted / self.total[..., None]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class TensorAttention(Face):
    r"""A unit of order s, one more than its key matrices; the formula stands above.

    Answers determine the weights only up to factors moved between Q and the K within a column, and
    between the V.

    Args:
        Q: query matrix.
        K: one key matrix for each position of a tuple.
        V: one value matrix for each position of a tuple.
    """

    Q: Float[Array, "width embed"]
    K: tuple[Matrix, ...]
    V: tuple[Matrix, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "Q", freeze_array(self.Q))
        for name in ("K", "V"):
            object.__setattr__(
                self, name, tuple(freeze_array(array) for array in getattr(self, name))
            )
        self._check()

    def _check(self) -> None:
        if not self.K or len(self.K) != len(self.V):
            raise InvalidInput(
                "a unit of order s has s - 1 >= 1 key matrices and as many value matrices; "
                f"got {len(self.K)} and {len(self.V)}."
            )
        check_shape("Q", self.Q, (None, None))
        check_shape("V1", self.V[0], (len(self.Q), None))
        named = {"Q": self.Q}
        for t, (K, V) in enumerate(zip(self.K, self.V, strict=True), start=1):
            check_shape(f"K{t}", K, self.Q.shape)
            check_shape(f"V{t}", V, self.V[0].shape)
            named |= {f"K{t}": K, f"V{t}": V}
        for name, array in named.items():
            check_finite(name, array)

    @classmethod
    def random(
        cls,
        width: int,
        *,
        order: int = 3,
        embed: int,
        outputs: int = 1,
        scale: float = 1.0,
        rng: Rng,
    ) -> TensorAttention:
        """Gaussian weights; scores of unit Gaussian tokens have deviation about `scale`."""
        rng = as_generator(rng)
        shape = (order, width, embed)
        Q, *K = rng.normal(size=shape) / np.sqrt(width)
        V = rng.normal(size=(order - 1, width, outputs)) / np.sqrt(width)
        return cls(Q * (scale / np.sqrt(embed)), tuple(K), tuple(V))

    @property
    def width(self) -> int:
        """Size of a token."""
        return len(self.Q)

    @property
    def embed(self) -> int:
        """Columns of the queries and keys."""
        return self.Q.shape[1]

    @property
    def outputs(self) -> int:
        """Numbers answered per position."""
        return self.V[0].shape[1]

    @property
    def order(self) -> int:
        """Positions that meet in one score, the asking one included."""
        return len(self.K) + 1

    def __call__(self, X: Sequences) -> Float[Array, "batch length outputs"]:
        """The new sequence, in time length^order and memory that does not grow with it.

        Raises:
            InvalidInput: X does not fit, or a score is beyond the largest float64.
        """
        check_sequences(X, self.width)
        return self.rows(X, X)

    def rows(
        self, x: Float[Array, "batch rows width"], X: Float[Array, "batch length width"]
    ) -> Float[Array, "batch rows outputs"]:
        """What the tokens `x` answer when they attend to tuples of tokens of `X`."""
        # What overflows is found, and said, by `average_tuples`.
        with np.errstate(over="ignore", invalid="ignore"):
            queries = x @ self.Q
            keys = [X @ K for K in self.K]
            values = [X @ V for V in self.V]
            return average_tuples(queries, keys, values)

    def scores(self, X: Sequences) -> Float[Array, "batch length tuples"]:
        """All scores at once, tuples in lexicographic order; the table has length^order numbers."""
        return (X @ self.Q) @ khatri_rao([X @ K for K in self.K]).swapaxes(-1, -2)

    def values(self, X: Sequences) -> Float[Array, "batch tuples outputs"]:
        """What every tuple is worth, in the order of `scores`."""
        return khatri_rao([X @ V for V in self.V])

    def dense(self, X: Sequences) -> Float[Array, "batch length outputs"]:
        """The formula as written, with all scores: the reference for every faster form."""
        check_sequences(X, self.width)
        return softmax(self.scores(X)) @ self.values(X)


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class TensorHeads(Face):
    """A layer of units of one order, whose answers are added up.

    Answers determine the heads only up to their order, and each as a unit is determined.

    Args:
        heads: units of the same order, token width, key width and outputs.
    """

    heads: tuple[TensorAttention, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", tuple(self.heads))
        shapes = {(one.order, one.Q.shape, one.outputs) for one in self.heads}
        if len(shapes) != 1:
            raise InvalidInput(
                "heads of one layer have the same order, widths and outputs, and there is one at"
                f" least; got {len(self.heads)} heads of {len(shapes)} kinds."
            )

    @classmethod
    def random(
        cls,
        width: int,
        *,
        heads: int = 2,
        order: int = 3,
        embed: int,
        outputs: int = 1,
        scale: float = 1.0,
        rng: Rng,
    ) -> TensorHeads:
        """Gaussian weights; scores of unit Gaussian tokens have deviation about `scale`."""
        rng = as_generator(rng)
        drawn = [
            TensorAttention.random(
                width, order=order, embed=embed, outputs=outputs, scale=scale, rng=rng
            )
            for _ in range(heads)
        ]
        return cls(tuple(drawn))

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.heads[0].width

    @property
    def embed(self) -> int:
        """Columns of the queries and keys of a head."""
        return self.heads[0].embed

    @property
    def outputs(self) -> int:
        """Numbers answered per position."""
        return self.heads[0].outputs

    @property
    def order(self) -> int:
        """Positions that meet in one score, the asking one included."""
        return self.heads[0].order

    def __call__(self, X: Sequences) -> Float[Array, "batch length outputs"]:
        """The new sequence, in time length^order for each head.

        Raises:
            InvalidInput: X does not fit, or a score is beyond the largest float64.
        """
        return np.sum([head(X) for head in self.heads], axis=0)

    def dense(self, X: Sequences) -> Float[Array, "batch length outputs"]:
        """The formula as written, with all scores."""
        return np.sum([head.dense(X) for head in self.heads], axis=0)


def khatri_rao(
    factors: Sequence[Float[Array, "batch length columns"]],
) -> Float[Array, "batch tuples columns"]:
    """Products of rows, one from each factor, for every tuple of rows in lexicographic order."""
    product = factors[0]
    for factor in factors[1:]:
        batch = len(product)
        columns = product.shape[-1]
        product = (product[:, :, None] * factor[:, None]).reshape(batch, -1, columns)
    return product


# Where one factor of a product is huge and another tiny, a partial product may overflow though the
# whole does not. Dividing every column of the keys by a power of two, its largest entry's, rounds
# nothing and bounds every partial product by 1; what was divided out is multiplied into the
# queries, where it overflows only if a score does.
def average_tuples(
    queries: Float[Array, "batch rows embed"],
    keys: Sequence[Float[Array, "batch length embed"]],
    values: Sequence[Float[Array, "batch length outputs"]],
) -> Float[Array, "batch rows outputs"]:
    """Softmax averages over all tuples of positions, block by block.

    Raises:
        InvalidInput: a score is not finite.
    """
    keys, of_keys = scale_factors(keys)
    values, of_values = scale_factors(values)
    with np.errstate(over="ignore", invalid="ignore"):
        queries = np.ldexp(queries, of_keys)
    if not all(np.isfinite(array).all() for array in (queries, *keys, *values)):
        raise InvalidInput(
            "scores or values go beyond the largest float64; scale the tokens or the weights down."
        )
    means = np.empty((*queries.shape[:2], values[0].shape[-1]))
    for chosen, blocks in group_sequences(
        queries.shape[1], len(queries), keys[0].shape[1] ** len(keys)
    ):
        parts = (
            Partial.of(
                queries[chosen] @ multiply_rows(keys, chosen, block).swapaxes(-1, -2),
                multiply_rows(values, chosen, block),
            )
            for block in blocks()
        )
        means[chosen] = join_partials(parts).mean
    return np.ldexp(means, of_values)


def join_partials(parts: Iterator[Partial]) -> Partial:
    """The average over the terms of all parts, of which there is at least one."""
    whole = next(parts)
    for part in parts:
        whole = whole.join(part)
    return whole


def group_sequences(
    rows: int, batch: int, tuples: int
) -> Iterator[tuple[slice, Callable[[], Iterator[range]]]]:
    """Groups of sequences with their blocks of tuples, about `ROOM` scores at a time."""
    # Blocks of tuples first, then as many sequences as still fit.
    step = min(tuples, max(1, ROOM // rows))
    size = max(1, ROOM // (rows * step))
    for start in range(0, batch, size):
        yield (
            slice(start, start + size),
            lambda: (range(a, min(a + step, tuples)) for a in range(0, tuples, step)),
        )


def multiply_rows(factors: Sequence[Array], chosen: slice, block: range) -> Array:
    """Products of the rows that a block of tuples names."""
    length = factors[0].shape[1]
    # A tuple is a number in base N: blocks need no table of tuples.
    places: Any = np.unravel_index(np.arange(block.start, block.stop), (length,) * len(factors))
    product = factors[0][chosen, places[0]]
    for factor, place in zip(factors[1:], places[1:], strict=True):
        product = product * factor[chosen, place]
    return product


def scale_factors(factors: Sequence[Array]) -> tuple[list[Array], NDArray[np.intc]]:
    """Columns divided by powers of two to at most 1, and the sums of the exponents."""
    exponents = [np.frexp(np.abs(factor).max(axis=1, keepdims=True))[1] for factor in factors]
    scaled = [
        np.ldexp(factor, -exponent) for factor, exponent in zip(factors, exponents, strict=True)
    ]
    return scaled, np.stack(exponents).sum(axis=0, dtype=np.intc)
