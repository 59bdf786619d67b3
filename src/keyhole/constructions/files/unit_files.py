"""Built Transformers as files of kind `unit`: layers as layer.I.*, named token maps as map.I.*."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from keyhole._arrays import Array, check_shape
from keyhole._files import refuse_damage
from keyhole.constructions.matching.adjacency import CycleLabels, RowSlots
from keyhole.constructions.matching.closed_walks import EdgeAngles
from keyhole.constructions.matching.one_window import PlacedSlots, WindowLabels
from keyhole.constructions.matching.successors import PairAngles, Successors
from keyhole.constructions.matching.waves import Angles
from keyhole.constructions.matching.windows import PairLabels, ValueSlots
from keyhole.constructions.pointers.composing import IndexPointers, ValuePointers
from keyhole.constructions.pointers.gathering import PlacedValues, WholeAnswers
from keyhole.constructions.pointers.hopping import (
    DoublingPointers,
    PreviousPointers,
    SymbolAngles,
)
from keyhole.constructions.pointers.pointed_rows import FetchedBits
from keyhole.constructions.shared.coded_tokens import CodedTokens, Perceptron
from keyhole.constructions.sparse_averages.set_queries import SetQueries
from keyhole.constructions.split_sets.split_queries import SplitQueries
from keyhole.errors import DoesNotFit, InvalidInput
from keyhole.models import files
from keyhole.models.attention import SelfAttention
from keyhole.models.layers.causal_attention import CausalAttention
from keyhole.models.linear import LinearAttention
from keyhole.models.named_tensors import stack_heads, unstack_heads
from keyhole.models.stack import Block, Layer, TokenMap, Transformer
from keyhole.models.tensor import TensorAttention, TensorHeads

# Layers of a file: a number in a stranger's file must not make us build for hours.
_MOST = 64
# Settings stay below: whole numbers beyond are not exact in JSON.
_LARGEST = 2**53

# How files call weights that are not the softmax over all tokens.
_WEIGHTS: dict[type, str] = {LinearAttention: "linear", CausalAttention: "causal"}
_KINDS: dict[str, Callable[..., Layer]] = {
    "softmax": SelfAttention,
    "linear": LinearAttention,
    "causal": CausalAttention,
}

# A map is made again from its settings and its arrays, all by name; makers check them.
TOKEN_MAPS: dict[str, Callable[..., TokenMap]] = {
    "angles": Angles,
    "coded-tokens": CodedTokens,
    "cycle-labels": CycleLabels,
    "doubling-pointers": DoublingPointers,
    "edge-angles": EdgeAngles,
    "fetched-bits": FetchedBits,
    "index-pointers": IndexPointers,
    "pair-angles": PairAngles,
    "pair-labels": PairLabels,
    "perceptron": Perceptron,
    "placed-slots": PlacedSlots,
    "placed-values": PlacedValues,
    "previous-pointers": PreviousPointers,
    "row-slots": RowSlots,
    "set-queries": SetQueries,
    "split-queries": SplitQueries,
    "successors": Successors,
    "symbol-angles": SymbolAngles,
    "value-pointers": ValuePointers,
    "value-slots": ValueSlots,
    "whole-answers": WholeAnswers,
    "window-labels": WindowLabels,
}


def save(
    model: Any, path: str | os.PathLike[str], *, bars: Mapping[str, Array] | None = None
) -> None:
    """Write any model to `path` as safetensors; the file is complete or not there.

    Args:
        model: a head, a sum of heads, a self-attention unit, a network, a head and a network, or a
            built Transformer.
        path: where to write.
        bars: error bars by tensor name, stored as NAME.bar.

    Raises:
        InvalidInput: the model is of no kind that can be saved, or the place cannot be written to.
    """
    if not isinstance(model, Transformer):
        return files.save(model, path, bars=bars)
    metadata: dict[str, str] = {"kind": "unit", "layers": str(len(model.blocks))}
    tensors: dict[str, Array] = {}
    for i, block in enumerate(model.blocks):
        tensors |= {
            f"layer.{i}.{name}": array for name, array in _list_layer_tensors(block.layer).items()
        }
        tensors |= {} if block.blank is None else {f"layer.{i}.blank": block.blank}
        metadata[f"layer.{i}.residual"] = "true" if block.residual else "false"
        # Softmax over all tokens is what files without this word mean.
        if type(block.layer) in _WEIGHTS:
            metadata[f"layer.{i}.weights"] = _WEIGHTS[type(block.layer)]
        _describe_map(f"map.{i}", block.map, metadata, tensors)
    if model.out is not None:
        _describe_map("out", model.out, metadata, tensors)
    return files.write_tensors(Path(path), metadata, tensors)


def _list_layer_tensors(layer: Layer) -> dict[str, Array]:
    if isinstance(layer, SelfAttention | LinearAttention | CausalAttention):
        return {"Q": layer.Q, "K": layer.K, "V": layer.V}
    if isinstance(layer, TensorAttention):
        several = {"K": layer.K, "V": layer.V}
        named = {
            f"{name}{t}": array
            for name, arrays in several.items()
            for t, array in enumerate(arrays, start=1)
        }
        return {"Q": layer.Q, **named}
    if isinstance(layer, TensorHeads):
        return stack_heads(layer)
    raise InvalidInput(
        "layers of files are self-attention, causal, linear or of higher order; got"
        f" {type(layer).__name__}."
    )


def _describe_map(
    place: str, token_map: TokenMap, metadata: dict[str, str], tensors: dict[str, Array]
) -> None:
    if token_map.name not in TOKEN_MAPS:
        raise InvalidInput(
            f"token maps of files are {', '.join(TOKEN_MAPS)}; got {token_map.name!r}."
        )
    metadata[place] = token_map.name
    metadata[f"{place}.settings"] = json.dumps(dict(token_map.settings), sort_keys=True)
    tensors |= {f"{place}.{name}": array for name, array in token_map.tensors.items()}


def load(path: str | os.PathLike[str]) -> Any:
    """Read a model file back, checked; the file says which model it is.

    Raises:
        InvalidInput: the file is missing, is not safetensors, or is not one of ours.
    """
    metadata, tensors = files.read_tensors(Path(path))
    if (
        metadata.get("kind") != "unit"
        or "layers" not in metadata
        or metadata.get("format") != files.FORMAT
    ):
        return files.load(path)
    with refuse_damage(path, "unit file"):
        return _read_transformer(metadata, dict(tensors))


def _read_transformer(metadata: Mapping[str, str], tensors: dict[str, Array]) -> Transformer:
    count = metadata["layers"]
    if not count.isascii() or not count.isdecimal() or not 1 <= int(count[:4]) <= _MOST:
        raise InvalidInput(f"a unit has 1 to {_MOST} layers; got {count[:40]!r}.")
    blocks = tuple(_read_block(i, metadata, tensors) for i in range(int(count)))
    out = _read_token_map("out", metadata, tensors) if "out" in metadata else None
    # Every array must have been taken: one that is left over was meant to act.
    if tensors:
        raise InvalidInput(
            f"a unit holds layer.I.* and the arrays of its maps; unknown {sorted(tensors)[:8]}."
        )
    return Transformer(blocks, out)


def _read_block(i: int, metadata: Mapping[str, str], tensors: dict[str, Array]) -> Block:
    residual = metadata.get(f"layer.{i}.residual", "false")
    if residual not in ("true", "false"):
        raise InvalidInput(f"layer.{i}.residual is true or false; got {residual!r}.")
    weights = metadata.get(f"layer.{i}.weights", "softmax")
    if weights not in _KINDS:
        raise InvalidInput(f"layer.{i}.weights is {', '.join(_KINDS)}; got {weights!r}.")
    parts = _take_arrays(f"layer.{i}", tensors)
    blank = parts.pop("blank", None)
    layer = _read_layer(i, parts, weights)
    return Block(_read_token_map(f"map.{i}", metadata, tensors), layer, blank, residual == "true")


def _take_arrays(place: str, tensors: dict[str, Array]) -> dict[str, Array]:
    """The arrays of one place, by their own names; they are removed from the others."""
    names = [name for name in tensors if name.startswith(f"{place}.")]
    return {name.removeprefix(f"{place}."): tensors.pop(name) for name in names}


def _read_layer(i: int, parts: dict[str, Array], weights: str) -> Layer:
    order = (len(parts) + 1) // 2
    several = {"Q", *(f"{name}{t}" for name in "KV" for t in range(1, order))}
    if set(parts) == {"Q", "K", "V"}:
        heads = {name: array[None] if array.ndim == 2 else array for name, array in parts.items()}
        _check_axes(i, heads, 3)
        check_shape(f"layer.{i}.K", heads["K"], heads["Q"].shape)
        check_shape(f"layer.{i}.V", heads["V"], (*heads["Q"].shape[:2], None))
        return _KINDS[weights](**heads)
    if weights != "softmax":
        raise InvalidInput(
            f"layer.{i} is {weights} and holds Q, K and V; got {sorted(parts)[:12]}."
        )
    if order > 1 and set(parts) == several and parts["Q"].ndim == 3:
        _check_axes(i, parts, 3)
        return unstack_heads(**parts)
    if order > 1 and set(parts) == several:
        _check_axes(i, parts, 2)
        K, V = (tuple(parts[f"{name}{t}"] for t in range(1, order)) for name in "KV")
        return TensorAttention(parts["Q"], K, V)
    raise InvalidInput(
        f"layer.{i} holds Q, K and V, or Q, K1 .. and V1 ..; got {sorted(parts)[:12]}."
    )


def _check_axes(i: int, parts: Mapping[str, Array], axes: int) -> None:
    for name, array in parts.items():
        if array.ndim != axes:
            raise InvalidInput(f"layer.{i}.{name} has {axes} axes; got shape {array.shape}.")


def _read_token_map(place: str, metadata: Mapping[str, str], tensors: dict[str, Array]) -> TokenMap:
    name = metadata.get(place)
    if name not in TOKEN_MAPS:
        raise InvalidInput(f"{place} names one of {', '.join(TOKEN_MAPS)}; got {name!r}.")
    settings = _read_settings(place, metadata)
    arrays = _take_arrays(place, tensors)
    if both := set(settings) & set(arrays):
        raise InvalidInput(f"{place} has {sorted(both)} both as settings and as arrays.")
    try:
        made = TOKEN_MAPS[name](**settings, **arrays)
    except (TypeError, AttributeError, LookupError, ArithmeticError, DoesNotFit) as error:
        raise InvalidInput(f"{place} is no {name} map: {error}.") from error
    if dict(made.settings) != settings or set(made.tensors) != set(arrays):
        raise InvalidInput(f"{place} is no {name} map: its settings are {sorted(made.settings)}.")
    return made


def _read_settings(place: str, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Numbers and words of a map, from JSON."""
    text = metadata.get(f"{place}.settings", "{}")
    try:
        settings: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{place}.settings is not JSON.") from error
    if isinstance(settings, dict):
        values = cast(dict[str, Any], settings)
        if all(map(_is_plain, values.values())):
            return values
    raise InvalidInput(f"{place}.settings is an object of numbers and words; got {text[:40]!r}.")


def _is_plain(value: Any) -> bool:
    """Whether a setting is a word, or a number of a size that computing with it can bear."""
    return isinstance(value, str) or (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST
    )
