"""Attention layers, networks and norms of a model as plain values: names and sizes, no weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# What modules and configurations of others say, by name.
Told = Mapping[str, Any]
Positions = Literal["none", "rope", "alibi", "table", "unknown"]
Source = Literal["torch", "onnx", "safetensors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPart:
    """An attention layer.

    Args:
        name: what `--layer` takes.
        layout: where queries, keys, values and the output projection are, in words.
        width: size of a token.
        heads: their number; None where nothing says.
        head_size: numbers of one head; None where nothing says.
        groups: sets of keys and values; as many as heads where none are shared.
        outputs: numbers of an answer.
        scale: what scores are multiplied by.
        biases: whether a projection adds a constant.
        causal: whether a token sees none behind it; the last one sees all in any case.
        cross: whether keys and values come from other tokens.
        positions: how the layer itself tells positions.
        rope_base: base of rotary positions.
        rotary_share: share of a head that is rotated.
        rope_scaling: the name of a rule that bends the frequencies; None for the plain ones.
        window: tokens that a token sees at most.
        softcap: scores are held below this.
        qk_norm: whether queries and keys are normed.
        sinks: whether heads have scores that belong to no token.
        trouble: why it cannot be asked by itself; empty where it can, or was not tried.
        dtype: f64, f32, f16, bf16, or the name of another.
        arithmetic: what of it is computed in a narrower type than that of its weights, in words.
    """

    name: str
    layout: str
    width: int
    heads: int | None = None
    head_size: int | None = None
    groups: int | None = None
    outputs: int | None = None
    scale: float | None = None
    biases: bool = False
    causal: bool | None = None
    cross: bool = False
    positions: Positions = "none"
    rope_base: float | None = None
    rotary_share: float | None = None
    rope_scaling: str | None = None
    window: int | None = None
    softcap: float | None = None
    qk_norm: bool = False
    sinks: bool = False
    trouble: str = ""
    dtype: str = "f64"
    arithmetic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPart:
    """A feed-forward network of one hidden layer, the same for every token.

    Args:
        name: what `--layer` takes.
        layout: the projections it is made of, in words.
        width: size of a token.
        hidden: hidden units.
        outputs: numbers of an answer.
        activation: relu, gelu, gelu_tanh, silu, or the name of another; None where nothing says.
        gated: whether units are multiplied by a linear map.
        biases: whether a projection adds a constant.
        dtype: f64, f32, f16, bf16, or the name of another.
    """

    name: str
    layout: str
    width: int
    hidden: int
    outputs: int
    activation: str | None = None
    gated: bool = False
    biases: bool = False
    dtype: str = "f64"


@dataclass(frozen=True, slots=True, kw_only=True)
class NormPart:
    """A norm.

    Args:
        name: its name.
        width: size of a token.
        norm: layer or rms.
        eps: what is added under the root; None where nothing says.
        dtype: f64, f32, f16, bf16, or the name of another.
    """

    name: str
    width: int
    norm: str
    eps: float | None = None
    dtype: str = "f64"


Part = AttentionPart | NetworkPart | NormPart


@dataclass(frozen=True, slots=True)
class Inside:
    """What was found in a model.

    Args:
        source: what it was read from.
        parts: attention layers, networks and norms, in the order of the model.
    """

    source: Source
    parts: tuple[Part, ...]

    @property
    def attention(self) -> tuple[AttentionPart, ...]:
        """The attention layers."""
        return tuple(part for part in self.parts if isinstance(part, AttentionPart))

    @property
    def networks(self) -> tuple[NetworkPart, ...]:
        """The feed-forward networks."""
        return tuple(part for part in self.parts if isinstance(part, NetworkPart))

    @property
    def norms(self) -> tuple[NormPart, ...]:
        """The norms."""
        return tuple(part for part in self.parts if isinstance(part, NormPart))
