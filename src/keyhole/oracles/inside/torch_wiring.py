"""How an attention layer of torch is wired: positions, masks, caps, from what it says of itself.

Only attributes, names of arguments and configurations are read, and no name of an architecture: a
layer of an unknown make that says the same is read the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from keyhole.oracles.inside.described import AttentionPart, Positions, Told
from keyhole.oracles.part_names import CROSS, ROPE_BASES, ROPE_SHARES, SOFTCAPS
from keyhole.oracles.torch_found import Attention, read_matrix_sizes
from keyhole.oracles.torch_module import torch

_FORMATS = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
}


@dataclass(frozen=True, slots=True)
class Says:
    """What a module says of itself: its attributes first, then those of configurations."""

    module: Any
    configs: tuple[Any, ...]

    def find(self, *names: str) -> Any:
        """The first value that is told under one of the names; None where none is."""
        told = (
            getattr(place, name, None) for place in (self.module, *self.configs) for name in names
        )
        return next((value for value in told if value is not None), None)

    def find_number(self, *names: str) -> float | None:
        """The first number that is told under one of the names."""
        value = self.find(*names)
        return float(value) if isinstance(value, int | float) else None


def list_arguments(module: Any) -> Mapping[str, inspect.Parameter]:
    """The arguments that a module is called with, by name; none where it does not tell."""
    try:
        return inspect.signature(module.forward).parameters
    # Scripted modules have no signature in Python.
    except (TypeError, ValueError):
        return {}


def name_class(module: Any) -> str:
    """The name of a module's class, as it was before it was scripted."""
    return str(getattr(module, "original_name", type(module).__name__))


def name_format(weights: Any) -> str:
    """The short name of the type of weights."""
    return _FORMATS.get(weights.dtype, str(weights.dtype).removeprefix("torch."))


def describe_attention(model: Any, layer: Attention) -> AttentionPart:
    """The description of an attention layer that was found in a model."""
    configs = (getattr(layer.module, "config", None), getattr(model, "config", None))
    says = Says(layer.module, configs)
    sizes = _read_head_sizes(layer)
    weights = next(layer.module.parameters())
    positions = _find_positions(layer.module, says)
    window = says.find_number("sliding_window") if _looks_through_window(layer.module) else None
    return AttentionPart(
        name=layer.name,
        layout=layer.layout,
        width=layer.width,
        heads=layer.heads,
        **sizes,
        outputs=layer.rows[0] if layer.output is None else read_matrix_sizes(layer.output)[1],
        biases=any(getattr(part, "bias", None) is not None for part in _list_linear(layer)),
        causal=_find_causality(says),
        cross=any(word in layer.name.lower() for word in CROSS),
        positions=positions,
        **(_describe_rotation(layer, says) if positions == "rope" else {}),
        window=None if window is None else int(window),
        softcap=says.find_number(*SOFTCAPS),
        qk_norm=any(hasattr(layer.module, name) for name in ("q_norm", "k_norm", "q_layernorm")),
        sinks=isinstance(getattr(layer.module, "sinks", None), torch.Tensor),
        dtype=name_format(weights),
    )


def _list_linear(layer: Attention) -> list[Any]:
    """Whatever of a layer may add a constant; torch's own layer keeps its biases itself."""
    own = [layer.module.out_proj] if layer.fused and layer.module.in_proj_bias is not None else []
    return [*own, *layer.sources, layer.output]


def _read_head_sizes(layer: Attention) -> Told:
    """Sizes of heads, groups and the factor of scores, where the number of heads fits the rows."""
    rows, shared = layer.rows
    heads = layer.heads
    if heads is None or rows % heads or shared % (rows // heads):
        return {}
    return {"head_size": layer.head_size, "groups": layer.groups, "scale": layer.scale}


def _find_positions(module: Any, says: Says) -> Positions:
    taken = list_arguments(module)
    # Falcon takes both; its configuration says which is meant.
    tilted = "alibi" in taken and says.find("alibi") is not False
    if tilted and ("position_embeddings" not in taken or says.find("alibi") is True):
        return "alibi"
    rotated = ("position_embeddings", "freqs_cis", "rotary_pos_emb")
    if any(name in taken for name in rotated) or hasattr(module, "rotary_emb"):
        return "rope"
    if getattr(module, "rotary_dim", None) is not None:
        return "rope"
    if hasattr(module, "has_relative_attention_bias") or hasattr(module, "relative_attention_bias"):
        return "table"
    return "none"


def _describe_rotation(layer: Attention, says: Says) -> Told:
    """Base, share and rule of rotary positions."""
    told = says.find("rope_parameters", "rope_scaling")
    rope: Told = {}
    if isinstance(told, Mapping):
        rope = cast("Told", told)
    base = rope.get("rope_theta", says.find_number(*ROPE_BASES))
    share = rope.get("partial_rotary_factor", says.find_number(*ROPE_SHARES))
    size = says.find_number("rotary_dim", "rotary_ndims")
    if share is None and size is not None and layer.heads is not None:
        share = size / layer.head_size
    rule = rope.get("rope_type", rope.get("type", "default"))
    return {
        "rope_base": None if base is None else float(base),
        "rotary_share": 1.0 if share is None else float(share),
        "rope_scaling": None if rule == "default" else str(rule),
    }


def _looks_through_window(module: Any) -> bool:
    # A configuration tells the window of those layers that have one, not which ones have.
    return getattr(module, "sliding_window", None) is not None


def _find_causality(says: Says) -> bool | None:
    causal = says.find("is_causal", "is_decoder")
    return causal if isinstance(causal, bool) else None
