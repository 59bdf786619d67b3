r"""Transformers of [SHT23]: token-wise maps of any kind between attention layers.

$$T = \phi_D \circ f_D \circ \phi_{D-1} \circ \dots \circ f_1 \circ \phi_0$$

Each $f_t$ is an attention layer, of any order, in front of which one constant blank token may be
put; its row is dropped again behind the layer. Maps are idealised networks: they see one token at a
time and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from keyhole._arrays import Array, Float, Sequences, Stack, check_finite, check_shape, freeze_array
from keyhole.drawing.faces import Face
from keyhole.errors import InvalidInput


@runtime_checkable
class Layer(Protocol):
    """An attention layer from sequences to sequences."""

    @property
    def width(self) -> int:
        """Size of a token."""
        ...

    @property
    def outputs(self) -> int:
        """Numbers answered per position."""
        ...

    def __call__(self, X: Sequences) -> Float[Array, "batch length outputs"]:
        """The new sequence."""
        ...


@runtime_checkable
class TokenMap(Protocol):
    """A map of every token by itself, told by words, numbers and arrays so that it can be saved."""

    @property
    def name(self) -> str:
        """By which it is found again when loaded."""
        ...

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """Its numbers and words."""
        ...

    @property
    def tensors(self) -> Mapping[str, Array]:
        """Its arrays."""
        ...

    def __call__(self, X: Sequences) -> Stack:
        """The mapped tokens."""
        ...


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Block(Face):
    r"""A token map, then an attention layer.

    Args:
        map: applied to every token.
        layer: applied to the mapped tokens.
        blank: a mapped token to put in front of the others; its row is dropped behind the layer.
        residual: whether the mapped tokens are added to what the layer gives.
    """

    map: TokenMap
    layer: Layer
    blank: Float[Array, "width"] | None = None
    residual: bool = False

    def __post_init__(self) -> None:
        if self.blank is not None:
            object.__setattr__(self, "blank", freeze_array(self.blank))
            check_shape("blank", self.blank, (self.layer.width,))
            check_finite("blank", self.blank)
        if self.residual and self.layer.width != self.layer.outputs:
            raise InvalidInput(
                "a residual needs a layer with as many outputs as a token has numbers,"
                f" {self.layer.width}; it has {self.layer.outputs}."
            )

    def tokens(self, X: Sequences) -> Stack:
        """What the layer is given."""
        mapped = self.map(X)
        if self.blank is None:
            return mapped
        return np.concatenate(
            [np.broadcast_to(self.blank, (len(mapped), 1, len(self.blank))), mapped], axis=1
        )

    def __call__(self, X: Sequences, apply: Callable[[Layer, Stack], Stack] | None = None) -> Stack:
        """The new sequence; `apply` evaluates layers otherwise, as under a number format."""
        tokens = self.tokens(X)
        rows = self.layer(tokens) if apply is None else apply(self.layer, tokens)
        rows = rows + tokens if self.residual else rows
        # Nobody asked for the blank's own row.
        return rows if self.blank is None else rows[:, 1:]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Transformer(Face):
    r"""Blocks in a row, then a last token map.

    Args:
        blocks: token maps and layers, first to last.
        out: the map behind the last layer; none when absent.
    """

    blocks: tuple[Block, ...]
    out: TokenMap | None = None

    def __post_init__(self) -> None:
        if not self.blocks:
            raise InvalidInput("a Transformer has at least one block; got none.")

    def __call__(self, X: Sequences, apply: Callable[[Layer, Stack], Stack] | None = None) -> Stack:
        """The answers, one row per token; `apply` evaluates layers in some other way."""
        for block in self.blocks:
            X = block(X, apply)
        return X if self.out is None else self.out(X)
