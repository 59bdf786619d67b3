"""Blocks as words and named tensors, for their files, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping

from keyhole._arrays import Array
from keyhole.errors import InvalidInput
from keyhole.models.blocks.norm import Norm
from keyhole.models.blocks.transformer_block import TransformerBlock
from keyhole.models.last_token.gated import Gated
from keyhole.models.named_tensors import (
    GATED,
    RELU,
    SMOOTH,
    Tensors,
    Words,
    describe_layer,
    restore_layer,
    take_part,
)

_NETWORKS = {kind.name: kind for kind in (RELU, SMOOTH, GATED)}
_PARTS = ("attention", "network", "norm1", "norm2")


def describe_block(model: TransformerBlock) -> tuple[Words, Tensors]:
    """Words and tensors of a block, named attention.*, network.*, norm1.* and norm2.*."""
    about, attention = describe_layer(model.attention)
    kind = _name_network(model)
    words, network = _NETWORKS[kind].describe(model.network)
    words = about | words | {"style": model.style, "network_kind": kind}
    parts = {"attention": attention, "network": network}
    for name, norm in (("norm1", model.norm1), ("norm2", model.norm2)):
        words[name] = json.dumps({"kind": norm.kind, "eps": norm.eps})
        held = {"gain": norm.gain, "shift": norm.shift}
        parts[name] = {key: array for key, array in held.items() if array is not None}
    tensors = {f"{part}.{key}": a for part, named in parts.items() for key, a in named.items()}
    return words, tensors


def _name_network(model: TransformerBlock) -> str:
    if isinstance(model.network, Gated):
        return "gated"
    return "relu" if model.network.activation == "relu" else "smooth"


def restore_block(words: Mapping[str, str], tensors: Mapping[str, Array]) -> TransformerBlock:
    """A block from its parts.

    Raises:
        InvalidInput: a part is missing, unknown, or makes no sense.
    """
    kind = words.get("network_kind")
    if kind not in _NETWORKS:
        raise InvalidInput(
            f"a block file says network_kind ({' or '.join(_NETWORKS)}) in its metadata; got"
            f" {kind!r}."
        )
    parts = {part: take_part(tensors, part) for part in _PARTS}
    known = {f"{part}.{name}" for part, named in parts.items() for name in named}
    if extra := set(tensors) - known:
        raise InvalidInput(
            f"a block file holds {', '.join(f'{part}.*' for part in _PARTS)}; unknown"
            f" {sorted(extra)}."
        )
    return TransformerBlock(
        restore_layer(words, parts["attention"]),
        _NETWORKS[kind].restore(words, parts["network"]),
        *(_restore_norm(name, words.get(name), parts[name]) for name in ("norm1", "norm2")),
        style=words.get("style", ""),
    )


def _restore_norm(name: str, told: str | None, parts: Tensors) -> Norm:
    try:
        about = json.loads(told or "")
        kind, eps = str(about["kind"]), float(about["eps"])
    except (ValueError, TypeError, LookupError) as error:
        raise InvalidInput(
            f"a block file says kind and eps of {name}, as JSON, in its metadata; got {told!r}."
        ) from error
    if extra := set(parts) - {"gain", "shift"}:
        raise InvalidInput(f"{name} of a block has gain and shift; unknown {sorted(extra)}.")
    return Norm(kind, eps, **parts)
