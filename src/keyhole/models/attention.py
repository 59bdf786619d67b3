"""Softmax attention as frozen values: one head, a sum of heads, a sequence-to-sequence unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from keyhole._arrays import (
    Answers,
    Array,
    Float,
    PerSequence,
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
from keyhole.models.yardsticks import Reach, Yardstick, blur_entries, measure_beside, measure_head

Scored = Float[Array, "heads batch length embed"]
Mixed = Float[Array, "heads batch length outputs"]


@runtime_checkable
class Model(Protocol):
    """A pure map from a batch of sequences to one row of answers per sequence."""

    @property
    def width(self) -> int:
        """Size of a token."""
        ...

    @property
    def outputs(self) -> int:
        """Numbers answered per sequence."""
        ...

    def __call__(self, X: Sequences) -> Answers:
        """Answers to a batch."""
        ...

    def logits(self, X: Sequences) -> Float[Array, "batch heads length"]:
        """Attention scores before the softmax, one row per head."""
        ...

    def magnitude(self, X: Sequences) -> PerSequence:
        """Largest token value per sequence: what its answers are made of."""
        ...

    def yardstick(self, X: Sequences, eps: float) -> Yardstick:
        """What a gap between its answers and others is measured by, at unit roundoff `eps`."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class Factored:
    r"""A matrix of low rank held as two factors, $W = A B^\top$; `np.asarray` makes it dense."""

    A: Float[Array, "width rank"]
    B: Float[Array, "width rank"]

    def __post_init__(self) -> None:
        object.__setattr__(self, "A", freeze_array(self.A))
        object.__setattr__(self, "B", freeze_array(self.B))
        check_shape("A", self.A, (None, None))
        check_shape("B", self.B, (len(self.A), self.A.shape[1]))
        for name in ("A", "B"):
            check_finite(name, getattr(self, name))

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the product."""
        return (len(self.A), len(self.B))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.A @ self.B.T, dtype=dtype)

    def apply(self, x: Float[Array, "batch width"]) -> Float[Array, "batch width"]:
        """Rows of `x` multiplied by W."""
        return (x @ self.B) @ self.A.T


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Head(Face):
    r"""One softmax head, read at the last token.

    $$f(X) = \mathrm{softmax}(X (W x_N + h))^\top X V + c + x_N^\top U$$

    where $x_N$ is the last row of $X \in \mathbb{R}^{N \times d}$. Of a layer with queries, keys
    and biases only $W = K^\top Q$, $h = K^\top b_q$ and $V$ act on answers: a key bias, and how $W$
    splits into factors, do not.

    Args:
        W: score matrix, dense or `Factored`.
        V: read-out, one column per output.
        h: score bias, zero when absent.
        c: constant added to the answer, zero when absent.
        U: residual read-out of the last token, zero when absent.
    """

    W: Float[Array, "width width"] | Factored
    V: Float[Array, "width outputs"]
    h: Float[Array, "width"] | None = None
    c: Float[Array, "outputs"] | None = None
    U: Float[Array, "width outputs"] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.W, Factored):
            object.__setattr__(self, "W", freeze_array(self.W))
        # Frozen at birth, so that a model can be shared and a plan stays true of it.
        for name in ("V", "h", "c", "U"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, freeze_array(getattr(self, name)))
        self._check()

    def _check(self) -> None:
        check_shape("V", self.V, (None, None))
        d, o = self.V.shape
        shapes = {"W": (d, d), "h": (d,), "c": (o,), "U": (d, o)}
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array is not None:
                check_shape(name, array, shape)
        for name in ("W", "V", "h", "c", "U"):
            if isinstance(getattr(self, name), np.ndarray):
                check_finite(name, getattr(self, name))

    @classmethod
    def random(
        cls,
        width: int,
        *,
        outputs: int = 1,
        rank: int | None = None,
        scale: float = 1.0,
        biases: bool = False,
        rng: Rng,
    ) -> Head:
        """A Gaussian head: entries of W have standard deviation `scale` / sqrt(width)."""
        rng = as_generator(rng)
        spread = scale / np.sqrt(width)
        W: Array | Factored = rng.normal(size=(width, width)) * spread
        if rank is not None:
            # The product of r terms has entries of size sqrt(r), which is divided out.
            A, B = rng.normal(size=(2, width, rank))
            W = Factored(A * spread / np.sqrt(max(1, rank)), B)
        h, c = (rng.normal(size=width), rng.normal(size=outputs)) if biases else (None, None)
        return cls(W, rng.normal(size=(width, outputs)), h, c)

    @property
    def width(self) -> int:
        """Size of a token."""
        return len(self.V)

    @property
    def outputs(self) -> int:
        """Numbers answered per sequence."""
        return self.V.shape[1]

    def queries(self, x: Float[Array, "batch width"]) -> Float[Array, "batch width"]:
        """The vectors W x + h that tokens are scored against."""
        queries = self.W.apply(x) if isinstance(self.W, Factored) else x @ self.W.T
        return queries if self.h is None else queries + self.h

    def scores(self, X: Sequences) -> Float[Array, "batch length"]:
        """Attention scores before the softmax."""
        return np.einsum("bnd,bd->bn", X, self.queries(X[:, -1]))

    def logits(self, X: Sequences) -> Float[Array, "batch heads length"]:
        """Attention scores before the softmax, as one row per head."""
        return self.scores(X)[:, None]

    def magnitude(self, X: Sequences) -> PerSequence:
        """Largest |x_i V| per sequence."""
        return np.abs(X @ self.V).max(axis=(1, 2))

    def reach(self, X: Sequences, eps: float) -> Reach:
        """Size and rounding of the parts of an answer, per output."""
        y = np.abs(X[:, -1])
        W = np.asarray(self.W)
        h = np.zeros(self.width) if self.h is None else self.h
        q = y @ np.abs(W).T + np.abs(h)
        blurred = y @ blur_entries(W).T + blur_entries(h)
        head = measure_head(X, self.scores(X), q, blurred, self.V, eps)
        return head + measure_beside(X[:, -1], self.U, self.c, self.outputs, eps)

    def yardstick(self, X: Sequences, eps: float) -> Yardstick:
        """What a gap is measured by; see `models.yardsticks`."""
        return self.reach(X, eps).summarise()

    def __call__(self, X: Sequences) -> Answers:
        """Answers to a batch."""
        check_sequences(X, self.width)
        answers = np.einsum("bn,bnd->bd", softmax(self.scores(X)), X) @ self.V
        if self.U is not None:
            answers += X[:, -1] @ self.U
        return answers if self.c is None else answers + self.c


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class MultiHead(Face):
    r"""A sum of heads, and what bypasses them.

    $$f(X) = c + x_N^\top U + \sum_h \mathrm{softmax}(X (W_h x_N + h_h))^\top X V_h$$

    The order of the heads is not determined by answers, nor is a split of V among heads of equal W.

    Args:
        W: score matrices.
        V: read-outs, one column per output.
        h: score biases, zero when absent.
        c: constant added to the answer, zero when absent.
        U: residual read-out of the last token, zero when absent.
    """

    W: Float[Array, "heads width width"]
    V: Float[Array, "heads width outputs"]
    h: Float[Array, "heads width"] | None = None
    c: Float[Array, "outputs"] | None = None
    U: Float[Array, "width outputs"] | None = None

    def __post_init__(self) -> None:
        for name in ("W", "V", "h", "c", "U"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, freeze_array(getattr(self, name)))
                check_finite(name, getattr(self, name))
        check_shape("V", self.V, (None, None, None))
        heads, d, o = self.V.shape
        shapes = {"W": (heads, d, d), "h": (heads, d), "c": (o,), "U": (d, o)}
        for name, shape in shapes.items():
            if getattr(self, name) is not None:
                check_shape(name, getattr(self, name), shape)

    @classmethod
    def random(
        cls,
        width: int,
        *,
        heads: int,
        outputs: int = 1,
        rank: int | None = None,
        scale: float = 1.0,
        rng: Rng,
    ) -> MultiHead:
        """Gaussian heads whose W and V have entries of size 1 / sqrt(width), W times `scale`."""
        rng = as_generator(rng)
        draws = [
            Head.random(width, outputs=outputs, rank=rank, scale=scale, rng=rng)
            for _ in range(heads)
        ]
        return cls(
            np.stack([np.asarray(head.W) for head in draws]),
            np.stack([head.V for head in draws]) / np.sqrt(width),
        )

    @property
    def heads(self) -> tuple[Head, ...]:
        """The summands; the constant and the residual go with the first."""
        h = [None] * len(self.W) if self.h is None else list(self.h)
        # A constant and a residual belong to no head, and must be counted once.
        c, U = ([part, *[None] * len(self.W)][: len(self.W)] for part in (self.c, self.U))
        return tuple(Head(*parts) for parts in zip(self.W, self.V, h, c, U, strict=True))

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.V.shape[1]

    @property
    def outputs(self) -> int:
        """Numbers answered per sequence."""
        return self.V.shape[2]

    def logits(self, X: Sequences) -> Float[Array, "batch heads length"]:
        """Attention scores before the softmax, one row per head."""
        queries = (X[:, -1] @ self.W.reshape(-1, self.width).T).reshape(len(X), *self.W.shape[:2])
        queries = queries if self.h is None else queries + self.h
        return queries @ X.swapaxes(1, 2)

    def magnitude(self, X: Sequences) -> PerSequence:
        """Largest |x_i V_h| over tokens and heads."""
        tokens = X.reshape(-1, self.width)
        # Head by head: all at once would hold heads x tokens x outputs numbers.
        values = [np.abs(tokens @ V).max(axis=1).reshape(X.shape[:2]).max(axis=1) for V in self.V]
        # A sum of no heads answers its constant, and has no values.
        return np.max([np.zeros(len(X)), *values], axis=0)

    def reach(self, X: Sequences, eps: float) -> Reach:
        """Size and rounding of the parts of an answer, per output, heads before they cancel."""
        alone = MultiHead(self.W, self.V, self.h)
        total = measure_beside(X[:, -1], self.U, self.c, self.outputs, eps)
        for head in alone.heads:
            total += head.reach(X, eps)
        return total

    def yardstick(self, X: Sequences, eps: float) -> Yardstick:
        """What a gap is measured by; see `models.yardsticks`."""
        return self.reach(X, eps).summarise()

    def __call__(self, X: Sequences) -> Answers:
        """Answers to a batch."""
        check_sequences(X, self.width)
        mixed = softmax(self.logits(X)) @ X
        answers = mixed.reshape(len(X), len(self.W) * self.width) @ self.V.reshape(-1, self.outputs)
        if self.U is not None:
            answers += X[:, -1] @ self.U
        return answers if self.c is None else answers + self.c


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class ProjectedHeads(Face):
    """What the heads of a sequence-to-sequence layer make of a token: queries, keys, values."""

    Q: Float[Array, "heads width embed"]
    K: Float[Array, "heads width embed"]
    V: Float[Array, "heads width outputs"]

    def __post_init__(self) -> None:
        for name in ("Q", "K", "V"):
            array = freeze_array(getattr(self, name))
            object.__setattr__(self, name, freeze_array(array[None]) if array.ndim == 2 else array)
            check_finite(name, getattr(self, name))
        check_shape("Q", self.Q, (None, None, None))
        check_shape("K", self.K, self.Q.shape)
        check_shape("V", self.V, (*self.Q.shape[:2], None))

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.Q.shape[1]

    @property
    def outputs(self) -> int:
        """Numbers answered per position."""
        return self.V.shape[2]

    def project(self, X: Sequences) -> tuple[Scored, Scored, Mixed]:
        """Queries, keys and values of every head at every position."""
        check_sequences(X, self.width)
        queries, keys, values = (np.einsum("bnd,hdm->hbnm", X, P) for P in (self.Q, self.K, self.V))
        return queries, keys, values


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class SelfAttention(ProjectedHeads):
    r"""A sequence-to-sequence layer whose heads are summed.

    $$F(X) = \sum_h \mathrm{softmax}(X Q_h K_h^\top X^\top) X V_h$$
    """

    def __call__(self, X: Sequences) -> Float[Array, "batch length outputs"]:
        """The new sequence."""
        queries, keys, values = self.project(X)
        return np.sum(softmax(queries @ keys.swapaxes(-1, -2)) @ values, axis=0)

    def read_last(self, c: Array | None = None) -> Head | MultiHead:
        r"""The last row read along `c`: heads with $W = K Q^\top$ and $V c$.

        Args:
            c: a vector, or a matrix with one column per answer; every output when absent.
        """
        read = np.eye(self.outputs) if c is None else np.asarray(c, dtype=np.float64)
        read = read[:, None] if read.ndim == 1 else read
        if read.ndim != 2 or len(read) != self.outputs:
            raise InvalidInput(
                f"c must have {self.outputs} rows, one per output; got shape {read.shape}."
            )
        W = self.K @ self.Q.swapaxes(-1, -2)
        V = self.V @ read
        return Head(W[0], V[0]) if len(W) == 1 else MultiHead(W, V)
