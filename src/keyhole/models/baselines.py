r"""Networks that attention is compared with: fully connected, and recurrent ones.

Both are called on the tokens of sparse averaging, $(z ; y ; i)$, one answer per token. Where a
model has `codes`, a matrix with one row per position, it reads $(z ; \mathrm{code}(y_1), \dots,
\mathrm{code}(y_q) ; \mathrm{code}(i))$.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from keyhole._arrays import (
    Array,
    Float,
    Matrix,
    Rng,
    Sequences,
    Stack,
    Vector,
    as_generator,
    check_finite,
    check_sequences,
    check_shape,
    freeze_array,
)
from keyhole.drawing.faces import Face
from keyhole.errors import InvalidInput

# Gates of a cell.
CELLS = {"gru": 3, "lstm": 4}
# Numbers remembered per unit.
STATES = {"gru": 1, "lstm": 2}
# Bits of a number of state that is not rounded.
UNROUNDED = 64
# Times an input is read, at most: a number in a stranger's file must not make us work for hours.
PASSES = 1024

Hidden = Float[Array, "batch _"]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Mlp(Face):
    r"""A fully connected network on all tokens side by side: affine maps with ReLU between them.

    Args:
        W: weights, one matrix per layer, outputs x inputs.
        b: biases, one vector per layer.
        length: tokens of an input.
        z: which columns of a token are the vector z; the set and the position follow.
        codes: one row per position, where positions are read as codes.
    """

    W: tuple[Matrix, ...]
    b: tuple[Vector, ...]
    length: int
    z: tuple[int, ...] = (0,)
    codes: Matrix | None = None

    def __post_init__(self) -> None:
        for name in ("W", "b"):
            object.__setattr__(
                self, name, tuple(freeze_array(part) for part in getattr(self, name))
            )
        _freeze_codes(self)
        if not self.W or len(self.W) != len(self.b):
            raise InvalidInput(
                f"an mlp has as many W as b, at least one; got {len(self.W)} and {len(self.b)}."
            )
        if self.length < 1:
            raise InvalidInput(f"an mlp reads 1 token or more; got a length of {self.length}.")
        check_shape("W0", self.W[0], (None, None))
        inputs = self.W[0].shape[-1]
        for k, (W, b) in enumerate(zip(self.W, self.b, strict=True)):
            check_shape(f"W{k}", W, (b.size, inputs))
            check_shape(f"b{k}", b, (None,))
            check_finite(f"W{k}", W)
            check_finite(f"b{k}", b)
            inputs = len(b)
        # Tokens stand side by side, each with as many numbers.
        if self.W[0].shape[1] % self.length or inputs % self.length:
            raise InvalidInput(
                f"inputs and outputs of an mlp on {self.length} tokens are multiples of that; "
                f"got {self.W[0].shape[1]} and {inputs}."
            )
        _check_columns(self)

    @classmethod
    def random(cls, length: int, *, q: int, dimension: int, hidden: int, rng: Rng) -> Mlp:
        """One hidden layer with Gaussian weights of size 1 / sqrt(inputs)."""
        rng = as_generator(rng)
        sizes = (length * (dimension + q + 1), hidden, length * dimension)
        W = tuple(rng.normal(size=(k, d)) / np.sqrt(max(1, d)) for d, k in pairwise(sizes))
        return cls(
            W, tuple(0.1 * rng.normal(size=k) for k in sizes[1:]), length, tuple(range(dimension))
        )

    @property
    def inputs(self) -> int:
        """Numbers of a token, once its positions are codes."""
        return self.W[0].shape[1] // self.length

    @property
    def width(self) -> int:
        """Numbers of a token."""
        return _find_plain_width(self.inputs, self.z, self.codes)

    @property
    def outputs(self) -> int:
        """Numbers of an answer, per token."""
        return len(self.b[-1]) // self.length

    @property
    def hidden(self) -> int:
        """Units of the first layer."""
        return len(self.b[0])

    def first_layer(self, X: Sequences) -> Hidden:
        """What enters the first activation."""
        check_sequences(X, self.width)
        check_shape("an input", X, (None, self.length, None))
        return encode_tokens(X, self.z, self.codes).reshape(len(X), -1) @ self.W[0].T + self.b[0]

    def __call__(self, X: Sequences) -> Stack:
        """The answers, one row per token."""
        x = self.first_layer(X)
        for W, b in zip(self.W[1:], self.b[1:], strict=True):
            x = np.maximum(x, 0.0) @ W.T + b
        return x.reshape(len(X), self.length, self.outputs)


@dataclass(frozen=True, eq=False, slots=True)
class Cell:
    """The weights of one recurrent layer, gates stacked as torch does (r, z, n; i, f, g, o).

    Args:
        Wx: gates * units x inputs.
        Wh: gates * units x units.
        bx: gates * units.
        bh: gates * units.
    """

    Wx: Matrix
    Wh: Matrix
    bx: Vector
    bh: Vector

    def __post_init__(self) -> None:
        for name in ("Wx", "Wh", "bx", "bh"):
            object.__setattr__(self, name, freeze_array(getattr(self, name)))
            check_finite(name, getattr(self, name))
        check_shape("bx", self.bx, (None,))
        check_shape("Wx", self.Wx, (len(self.bx), None))
        check_shape("Wh", self.Wh, (len(self.bx), None))
        check_shape("bh", self.bh, self.bx.shape)
        if not self.Wh.size:
            raise InvalidInput(f"a cell has 1 unit or more; got Wh of shape {self.Wh.shape}.")

    @property
    def units(self) -> int:
        """Hidden units."""
        return self.Wh.shape[1]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Recurrent(Face):
    """A GRU or an LSTM, read left to right, that answers an affine map of its top layer.

    Args:
        cell: gru or lstm.
        cells: its layers, first to last.
        Wo: outputs x units.
        bo: outputs.
        z: which columns of a token are the vector z; the set and the position follow.
        codes: one row per position, where positions are read as codes.
        state_bits: bits of a number of the state, which is rounded to a grid between two tokens; 64
            is not rounded.
        state_range: the grid goes from minus this to this; what lies beyond is cut off.
        passes: how often the input is read, one time after another; answers are those of the last
            time.
    """

    cell: str
    cells: tuple[Cell, ...]
    Wo: Matrix
    bo: Vector
    z: tuple[int, ...] = (0,)
    codes: Matrix | None = None
    state_bits: int = UNROUNDED
    state_range: float = 1.0
    passes: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "Wo", freeze_array(self.Wo))
        object.__setattr__(self, "bo", freeze_array(self.bo))
        _freeze_codes(self)
        if self.cell not in CELLS or not self.cells:
            raise InvalidInput(
                "a recurrent network is made of gru or lstm cells, at least one; got"
                f" {self.cell!r}."
            )
        for part in self.cells:
            check_shape("bx", part.bx, (CELLS[self.cell] * part.units,))
        for before, part in pairwise(self.cells):
            check_shape("Wx", part.Wx, (None, before.units))
        check_shape("bo", self.bo, (None,))
        check_shape("Wo", self.Wo, (len(self.bo), self.cells[-1].units))
        check_finite("Wo", self.Wo)
        check_finite("bo", self.bo)
        if not (1 <= self.state_bits <= UNROUNDED and 0 < self.state_range < np.inf):
            raise InvalidInput(
                f"state_bits lie between 1 and {UNROUNDED}, and state_range is positive; got"
                f" {self.state_bits} and {self.state_range}."
            )
        _check_columns(self)
        if not 1 <= self.passes <= PASSES:
            raise InvalidInput(
                f"a recurrent network reads its input 1 to {PASSES} times; got {self.passes}"
                " passes."
            )

    @classmethod
    def random(
        cls,
        cell: str,
        *,
        q: int,
        dimension: int,
        units: int,
        rng: Rng,
        layers: int = 1,
        state_bits: int = UNROUNDED,
        state_range: float = 1.0,
    ) -> Recurrent:
        """Gaussian weights of size 1 / sqrt(units), as frameworks begin with."""
        rng = as_generator(rng)
        if cell not in CELLS:
            raise InvalidInput(f"a recurrent network is made of gru or lstm cells; got {cell!r}.")
        gates = CELLS[cell] * units
        widths = [dimension + q + 1, *[units] * (layers - 1)]
        cells = tuple(
            Cell(
                rng.normal(size=(gates, d)) / np.sqrt(units),
                rng.normal(size=(gates, units)) / np.sqrt(units),
                *0.1 * rng.normal(size=(2, gates)),
            )
            for d in widths
        )
        Wo = rng.normal(size=(dimension, units)) / np.sqrt(units)
        bo = np.zeros(dimension)
        return cls(cell, cells, Wo, bo, tuple(range(dimension)), None, state_bits, state_range)

    @property
    def inputs(self) -> int:
        """Numbers of a token, once its positions are codes."""
        return self.cells[0].Wx.shape[1]

    @property
    def width(self) -> int:
        """Numbers of a token."""
        return _find_plain_width(self.inputs, self.z, self.codes)

    @property
    def outputs(self) -> int:
        """Numbers of an answer, per token."""
        return len(self.bo)

    @property
    def remembered(self) -> int:
        """Numbers of the state."""
        return STATES[self.cell] * sum(part.units for part in self.cells)

    @property
    def bits(self) -> int:
        """Bits of the whole state."""
        return self.remembered * self.state_bits

    def start(self, size: int) -> Hidden:
        """The state before the first token."""
        return np.zeros((size, self.remembered))

    def step(self, state: Hidden, tokens: Hidden) -> Hidden:
        """The state behind one more (encoded) token, on its grid."""
        parts: list[Array] = []
        x = tokens
        for held, part in zip(self._split(state), self.cells, strict=True):
            after = (_step_gru if self.cell == "gru" else _step_lstm)(part, held, x)
            x = after[:, : part.units]
            parts.append(after)
        return self.round_state(np.concatenate(parts, axis=1))

    def _split(self, state: Hidden) -> list[Hidden]:
        ends = np.cumsum([STATES[self.cell] * part.units for part in self.cells])
        return np.split(state, ends[:-1], axis=1)

    def grid(self, state: Hidden) -> Any:
        """A rounded state as whole numbers 0 .. 2^state_bits - 1."""
        levels = 2.0**self.state_bits - 1.0
        share = (np.clip(state / self.state_range, -1.0, 1.0) + 1.0) / 2.0
        return np.rint(share * levels).astype(np.int64)

    def round_state(self, state: Hidden) -> Hidden:
        """The nearest state on the grid."""
        # Rounding a float64 to a grid of 2^64 points would lose bits, not keep them.
        if self.state_bits == UNROUNDED:
            return state
        return self.state_range * (2.0 * self.grid(state) / (2.0**self.state_bits - 1.0) - 1.0)

    def __call__(self, X: Sequences) -> Stack:
        """The answers, one row per token."""
        check_sequences(X, self.width)
        tokens = encode_tokens(X, self.z, self.codes)
        state = self.start(len(X))
        # The top layer stands last; of an LSTM its h, before its c.
        top = self.remembered - STATES[self.cell] * self.cells[-1].units
        rows: list[Array] = []
        for t in range(self.passes * X.shape[1]):
            state = self.step(state, tokens[:, t % X.shape[1]])
            rows.append(state[:, top : top + self.cells[-1].units] @ self.Wo.T + self.bo)
        return np.stack(rows[-X.shape[1] :], axis=1)


def _sigmoid(x: Array) -> Array:
    # The logistic function without an exponential that could overflow.
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def _step_gru(cell: Cell, h: Hidden, x: Hidden) -> Hidden:
    a = x @ cell.Wx.T + cell.bx
    b = h @ cell.Wh.T + cell.bh
    r, u, n = np.split(a, 3, axis=1)
    rh, uh, nh = np.split(b, 3, axis=1)
    keep = _sigmoid(u + uh)
    return (1.0 - keep) * np.tanh(n + _sigmoid(r + rh) * nh) + keep * h


def _step_lstm(cell: Cell, state: Hidden, x: Hidden) -> Hidden:
    h = state[:, : cell.units]
    c = state[:, cell.units :]
    i, f, g, o = np.split(x @ cell.Wx.T + cell.bx + h @ cell.Wh.T + cell.bh, 4, axis=1)
    c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
    return np.concatenate([_sigmoid(o) * np.tanh(c), c], axis=1)


def encode_tokens(X: Sequences, z: tuple[int, ...], codes: Matrix | None) -> Stack:
    """Tokens as a model reads them; where it has codes, positions are codes, and -1 is zeros."""
    if codes is None:
        return X
    rest = [k for k in range(X.shape[-1]) if k not in z]
    # Columns other than z hold positions, written as numbers.
    named = np.rint(X[..., rest])
    if named.max(initial=-1.0) >= len(codes):
        raise InvalidInput(
            f"positions are below {len(codes)}, one code each; got {named.max():.6g}."
        )
    named = named.astype(np.int64)
    coded = np.where(named[..., None] >= 0, codes[np.maximum(named, 0)], 0.0)
    return np.concatenate([X[..., list(z)], coded.reshape(*X.shape[:2], -1)], axis=-1)


def _find_plain_width(inputs: int, z: tuple[int, ...], codes: Matrix | None) -> int:
    return inputs if codes is None else len(z) + (inputs - len(z)) // codes.shape[1]


def _freeze_codes(model: Any) -> None:
    if model.codes is not None:
        object.__setattr__(model, "codes", freeze_array(model.codes))
        check_shape("codes", model.codes, (None, None))
        check_finite("codes", model.codes)
        if not model.codes.size:
            raise InvalidInput(f"codes have 1 number or more; got shape {model.codes.shape}.")


def _check_columns(model: Mlp | Recurrent) -> None:
    """Raise unless the columns that hold z are columns of a token."""
    if len(set(model.z)) < len(model.z) or not all(0 <= k < model.width for k in model.z):
        raise InvalidInput(
            f"z names different columns of a token, from 0 to {model.width - 1}; got"
            f" {str(model.z)[:80]}."
        )
