"""What is inside a .safetensors file of a common architecture: names and shapes, no numbers.

A weight file says nothing of heads, positions or activations. The config.json that transformers
writes beside it does; without one, what nobody says stays open.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from keyhole._files import find_file, read_file, refuse_damage
from keyhole.errors import InvalidInput
from keyhole.oracles.inside.described import (
    AttentionPart,
    Inside,
    NetworkPart,
    NormPart,
    Part,
    Positions,
    Told,
)
from keyhole.oracles.part_names import (
    BEHIND,
    CROSS,
    FUSED,
    GATED,
    GROUPS,
    HEADS,
    NEXT_TO,
    PAIRS,
    ROPE_BASES,
    ROPE_SHARES,
    SOFTCAPS,
    TRIPLES,
)

_FORMATS = {"F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16"}
_EPS = ("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps", "norm_epsilon")
_ACTS = (
    "hidden_act",
    "hidden_activation",
    "activation_function",
    "feed_forward_proj",
    "activation",
)
# Names that configurations give the activations we know.
_KNOWN_ACTS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "swish": "silu"}
_PLACED = ("wpe", "position_embeddings", "embed_positions", "pos_embed")


@dataclass(frozen=True, slots=True)
class Weights:
    """Tensors of a file by name, without their numbers, and the configuration beside it.

    Args:
        shapes: of every tensor.
        formats: the type of every tensor.
        config: what config.json says; empty where there is none.
    """

    shapes: Mapping[str, tuple[int, ...]]
    formats: Mapping[str, str]
    config: Told

    def tell(self, *names: str) -> Any:
        """What the configuration says under the first of the names that it has."""
        said = (self.config.get(name) for name in names)
        return next((value for value in said if value is not None), None)

    def find(self, *places: str) -> str:
        """The first of the names under which the file has a matrix; empty where it has none."""
        return next((place for place in places if len(self.read_shape(place)) == 2), "")

    def read_shape(self, place: str) -> tuple[int, ...]:
        """Shape of the weights at a place; empty where there are none."""
        return self.shapes.get(f"{place}.weight", ())


def look_inside_weights(path: Path) -> Inside:
    """Attention layers, networks and norms by the names of a file's tensors.

    Raises:
        InvalidInput: there is no such file, it is damaged, or it is a model of keyhole.
    """
    weights = _read_weights(path)
    holders = dict.fromkeys(_list_holders(weights))
    parts: list[Part] = []
    for holder in holders:
        parts += _find_parts(weights, holder)
    return Inside("safetensors", tuple(parts))


def _read_weights(path: Path) -> Weights:
    import safetensors

    library: Any = safetensors  # its types are partial
    find_file(path, f"no weight file at {path}. Check the path.")
    with refuse_damage(str(path), "safetensors file"), library.safe_open(path, "np") as file:
        metadata: dict[str, str] = file.metadata() or {}
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
        formats = {name: str(part.get_dtype()) for name, part in slices.items()}
    if "kind" in metadata:
        raise InvalidInput(
            f"{path} is a saved model of keyhole, a {metadata['kind']}: `keyhole learn {path}`"
            " recovers it whole. inspect looks into models of others."
        )
    return Weights(shapes, formats, _read_config(path.parent / "config.json"))


def _read_config(path: Path) -> Told:
    if not path.is_file():
        return {}
    try:
        told: Any = json.loads(read_file(path, f"no file at {path}."))
    except ValueError as error:
        raise InvalidInput(
            f"{path} is no JSON ({error}). Mend it, or take it away: then only names and shapes"
            " are read."
        ) from error
    return _as_mapping(told)


def _as_mapping(told: Any) -> Told:
    return cast("Told", told) if isinstance(told, dict) else {}


def _list_holders(weights: Weights) -> Iterator[str]:
    """Every place that tensors are below, in the order of the file."""
    yield ""
    # Numbers count as numbers, so that layer 10 comes after layer 2.
    for name in sorted(weights.shapes, key=_sort_by_numbers):
        parts = name.split(".")
        yield from (".".join(parts[:count]) for count in range(1, len(parts)))


def _sort_by_numbers(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]


def _find_parts(weights: Weights, holder: str) -> Iterator[Part]:
    yield from _find_attention(weights, holder)
    yield from _find_network(weights, holder)
    norm = _read_norm(weights, holder)
    if norm is not None:
        yield norm


def _join(holder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{holder}.{name}".lstrip(".") for name in names)


def _find_attention(weights: Weights, holder: str) -> Iterator[AttentionPart]:
    above = holder.rpartition(".")[0]
    output = weights.find(*_join(holder, *BEHIND), *_join(above, *NEXT_TO))
    for names in TRIPLES:
        places = _join(holder, *names)
        if all(len(weights.read_shape(place)) == 2 for place in places):
            (rows, width), (shared, _) = (weights.read_shape(place) for place in places[:2])
            yield _describe(weights, holder, width, (rows, shared), places, names, output)
    for name in FUSED:
        place = _join(holder, name)[0]
        if len(shape := weights.read_shape(place)) == 2:
            # GPT-2 keeps its matrices the other way round: the longer side is that of all three.
            width, rows = min(shape), max(shape)
            yield from _read_joined(weights, holder, width, rows, place, output)
    joined = weights.shapes.get(_join(holder, "in_proj_weight")[0], ())
    if len(joined) == 2 and joined[0] == 3 * joined[1]:
        place = _join(holder, "in_proj_weight")[0]
        sizes = joined[1], (joined[1], joined[1])
        yield _describe(weights, holder, *sizes, (place,), ("in_proj_weight",), output)


def _read_joined(
    weights: Weights, holder: str, width: int, rows: int, place: str, output: str
) -> Iterator[AttentionPart]:
    heads = weights.tell(*HEADS)
    groups = weights.tell(*GROUPS)
    heads = heads if isinstance(heads, int) else None
    shared = groups if isinstance(groups, int) and heads else heads
    name = place.rpartition(".")[2]
    if heads is None:
        sizes = (rows // 3, rows // 3) if rows % 3 == 0 else None
    else:
        size, rest = divmod(rows, heads + 2 * (shared or heads))
        sizes = None if rest else (heads * size, (shared or heads) * size)
    if sizes is not None:
        yield _describe(weights, holder, width, sizes, (place,), (name,), output)


def _describe(
    weights: Weights,
    holder: str,
    width: int,
    rows: tuple[int, int],
    places: tuple[str, ...],
    names: tuple[str, ...],
    output: str,
) -> AttentionPart:
    told = weights.tell(*HEADS)
    heads = told if isinstance(told, int) and told > 0 and rows[0] % told == 0 else None
    size = None if heads is None else rows[0] // heads
    positions = _find_positions(weights, holder)
    said = output.removeprefix(f"{holder}.") if output else ""
    first = places[0] if places[0] in weights.formats else f"{places[0]}.weight"
    return AttentionPart(
        name=holder,
        layout=", ".join(filter(None, (*names, said))),
        width=width,
        heads=heads,
        head_size=size,
        groups=None if size is None else rows[1] // size,
        biases=any(f"{place}.bias" in weights.shapes for place in (*places, output)),
        cross=any(word in holder.lower() for word in CROSS),
        positions=positions,
        **(_describe_rotation(weights) if positions == "rope" else {}),
        softcap=weights.tell(*SOFTCAPS),
        qk_norm=any(f"{place}.weight" in weights.shapes for place in _join(holder, "q_norm")),
        sinks=_join(holder, "sinks")[0] in weights.shapes,
        dtype=_FORMATS.get(weights.formats[first], weights.formats[first].lower()),
    )


def _find_positions(weights: Weights, holder: str) -> Positions:
    """How positions are told, by tensors and configuration; unknown where neither says."""
    # A table stands in the first layer of a stack, for all of them.
    if any("relative_attention_bias" in name for name in weights.shapes):
        return "table"
    if weights.tell("rope_parameters", "rope_scaling", "rotary_dim", *ROPE_BASES, *ROPE_SHARES):
        return "rope"
    if weights.tell("alibi"):
        return "alibi"
    # Positions that are added to the tokens are none of the layer's own.
    placed = any(word in name for name in weights.shapes for word in _PLACED)
    return "none" if placed else "unknown"


def _describe_rotation(weights: Weights) -> Told:
    rope = _as_mapping(weights.tell("rope_parameters", "rope_scaling"))
    rule = rope.get("rope_type", rope.get("type", "default"))
    return {
        "rope_base": rope.get("rope_theta", weights.tell(*ROPE_BASES)),
        "rotary_share": rope.get("partial_rotary_factor", weights.tell(*ROPE_SHARES) or 1.0),
        "rope_scaling": None if rule == "default" else str(rule),
    }


def _find_network(weights: Weights, holder: str) -> Iterator[NetworkPart]:
    for names in (*GATED, *PAIRS):
        places = _join(holder, *names)
        shapes = [weights.read_shape(place) for place in places]
        if all(len(shape) == 2 for shape in shapes):
            yield _describe_network(weights, holder, names, places, shapes)
            return


def _describe_network(
    weights: Weights,
    holder: str,
    names: tuple[str, ...],
    places: tuple[str, ...],
    shapes: list[tuple[int, ...]],
) -> NetworkPart:
    # Up and down share the hidden units: of two sizes of either it is the one in common, and a
    # matrix that is kept the other way round is told by that.
    up, down = shapes[0], shapes[-1]
    turned = up[0] != down[1] or (up[0] == down[0] and "c_fc" in names)
    hidden, width = (up[1], up[0]) if turned else (up[0], up[1])
    inside = [name for name in weights.shapes if name.startswith(f"{holder}.")]
    alone = all(name.startswith(tuple(f"{place}." for place in places)) for name in inside)
    told = weights.tell(*_ACTS)
    return NetworkPart(
        name=holder if alone else places[0],
        layout=", ".join(names),
        width=width,
        hidden=hidden,
        outputs=down[1] if turned else down[0],
        activation=_KNOWN_ACTS.get(told, told) if isinstance(told, str) else None,
        gated=len(names) == 3,
        biases=any(f"{place}.bias" in weights.shapes for place in places),
        dtype=_FORMATS.get(weights.formats[f"{places[0]}.weight"], "other"),
    )


def _read_norm(weights: Weights, holder: str) -> NormPart | None:
    shape = weights.read_shape(holder)
    last = holder.rpartition(".")[2].lower()
    if len(shape) != 1 or not ("norm" in last or last.startswith("ln")):
        return None
    # Only a LayerNorm has a shift; without one it is taken for what norms without a shift are.
    norm = "layer" if f"{holder}.bias" in weights.shapes else "rms"
    said = weights.tell(*_EPS)
    dtype = _FORMATS.get(weights.formats[f"{holder}.weight"], "other")
    eps = float(said) if isinstance(said, int | float) else None
    return NormPart(name=holder, width=shape[0], norm=norm, eps=eps, dtype=dtype)
