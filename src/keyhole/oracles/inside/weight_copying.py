"""Weights of one layer of an ordinary .safetensors file as a model of ours.

Matrices are kept outputs x inputs, as torch's linear maps keep them; GPT-2's the other way round.
Three projections in one stand below each other: queries, keys, values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole._files import read_file, refuse_damage
from keyhole.errors import InvalidInput
from keyhole.models.last_token.gated import Gated
from keyhole.models.layers.attention_layer import AttentionLayer
from keyhole.models.layers.wiring import Wiring
from keyhole.models.relu import ReluNet
from keyhole.oracles.inside.described import AttentionPart, NetworkPart
from keyhole.oracles.inside.naming import suggest_layers
from keyhole.oracles.inside.weight_reading import look_inside_weights
from keyhole.oracles.part_names import FUSED

_JOINED = "in_proj_weight"
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def copy_file_layer(
    path: Path, name: str, heads: int | None = None
) -> AttentionLayer | ReluNet | Gated:
    """One attention layer or network of a weight file, as a model that answers.

    Args:
        path: the file; a config.json beside it says what names and shapes do not.
        name: the layer, as `keyhole.inspect` names it.
        heads: number of heads, where no config.json says.

    Raises:
        InvalidInput: there is no such layer, or the file does not say enough to compute it.
    """
    parts = {
        part.name: part
        for part in look_inside_weights(path).parts
        if isinstance(part, AttentionPart | NetworkPart)
    }
    part = parts.get(name)
    if part is None:
        raise InvalidInput(suggest_layers(name, list(parts)))
    tensors = _Tensors(path)
    if isinstance(part, NetworkPart):
        return _copy_file_network(tensors, part)
    return _copy_attention(tensors, part, heads)


class _Tensors:
    """Tensors of a file in float64, and linear maps by their places."""

    def __init__(self, path: Path) -> None:
        import safetensors

        library: Any = safetensors  # its types are partial
        said = f"no weight file at {path}. Check the path."
        with refuse_damage(str(path), "safetensors file"):
            held = library.deserialize(read_file(path, said))
            # Others, such as masks and codes of quantised weights, are no weights as they stand.
            self.held: dict[str, Array] = {
                name: _read_tensor(part) for name, part in held if part["dtype"] in _DTYPES
            }

    def read(self, name: str) -> Array:
        """A tensor by its name.

        Raises:
            InvalidInput: the file keeps it in a format that is not read.
        """
        if name not in self.held:
            raise InvalidInput(
                f"{name} is kept in a format that is not read; known are {', '.join(_DTYPES)}."
                " Compare the torch module instead: package.module:object."
            )
        return self.held[name]

    def read_map(self, place: str, inputs: int) -> tuple[Matrix, Vector | None]:
        """A linear map (outputs x inputs) and its bias; one kept the other way round is turned."""
        M = self.read(f"{place}.weight")
        bias = self.held.get(f"{place}.bias")
        turned = place.rpartition(".")[2] in ("c_attn", "c_proj", "c_fc") or M.shape[1] != inputs
        return (M.T if turned else M), bias


def _read_tensor(part: Mapping[str, Any]) -> Array:
    """A tensor in float64; bf16, which numpy does not have, is the upper half of a float32."""
    if part["dtype"] == "BF16":
        bits = np.frombuffer(part["data"], dtype="<u2").astype("<u4") << 16
        return bits.view("<f4").reshape(part["shape"]).astype(np.float64)
    numbers = np.frombuffer(part["data"], dtype=_DTYPES[part["dtype"]])
    return numbers.reshape(part["shape"]).astype(np.float64)


def _copy_attention(tensors: _Tensors, part: AttentionPart, heads: int | None) -> AttentionLayer:
    heads = heads or part.heads
    if heads is None:
        raise InvalidInput(
            f"nothing says how many heads {part.name} has: give --heads, or put the config.json"
            " beside the file."
        )
    _check_computable(part)
    return _join_heads(tensors, part, heads)


def _split_layout(part: AttentionPart) -> tuple[list[str], str]:
    """Names of the projections before the heads, and of the one behind them; empty without one."""
    names = part.layout.split(", ")
    # Three projections or one that joins them; whatever is more stands behind the heads.
    return (names[:-1], names[-1]) if len(names) in (2, 4) else (names, "")


def _check_computable(part: AttentionPart) -> None:
    """Raise unless names, shapes and configuration say all that answers depend on."""
    strange = {
        "alibi": part.positions == "alibi",
        "a table of positions": part.positions == "table",
        f"the rotary rule {part.rope_scaling}": part.rope_scaling is not None,
        "norms of queries and keys": part.qk_norm,
        "sinks": part.sinks,
        "keys of other tokens": part.cross,
        "queries, keys and values head by head": any(
            FUSED.get(name, False) for name in part.layout.split(", ")
        ),
    }
    if found := [name for name, there in strange.items() if there]:
        raise InvalidInput(
            f"{part.name} has {', '.join(found)}, which are not read from a weight file. Compare"
            " the torch module instead: package.module:object."
        )


def _join_heads(tensors: _Tensors, part: AttentionPart, heads: int) -> AttentionLayer:
    (Q, q), (K, k), (V, v) = _read_projections(tensors, part)
    size = len(Q) // heads
    groups = len(K) // size
    O, o = _read_output(tensors, part, len(Q))
    rope = part.positions == "rope"
    wiring = Wiring(
        positions="rope" if rope else "none",
        rope_base=part.rope_base if rope else None,
        rotary_share=part.rotary_share if rope else None,
        softcap=part.softcap,
    )
    return AttentionLayer(
        Q.reshape(heads, size, part.width),
        K.reshape(groups, size, part.width),
        V.reshape(groups, size, part.width),
        O.reshape(len(O), heads, size).swapaxes(0, 1),
        wiring,
        bq=None if q is None else q.reshape(heads, size),
        bk=None if k is None else k.reshape(groups, size),
        bv=None if v is None else v.reshape(groups, size),
        bo=o,
    )


def _read_projections(tensors: _Tensors, part: AttentionPart) -> list[tuple[Matrix, Vector | None]]:
    """Queries, keys and values, each with its bias."""
    names, _ = _split_layout(part)
    if len(names) == 3:
        return [tensors.read_map(_place(part.name, name), part.width) for name in names]
    if names == [_JOINED]:
        whole = tensors.read(_place(part.name, _JOINED))
        bias = tensors.held.get(_place(part.name, "in_proj_bias"))
    else:
        whole, bias = tensors.read_map(_place(part.name, names[0]), part.width)
    rows = [part.heads or 1, part.groups or part.heads or 1, part.groups or part.heads or 1]
    ends = np.cumsum(rows)[:-1] * (len(whole) // sum(rows))
    biases = [None] * 3 if bias is None else np.split(bias, ends)
    return list(zip(np.split(whole, ends), biases, strict=True))


def _read_output(
    tensors: _Tensors, part: AttentionPart, joined: int
) -> tuple[Matrix, Vector | None]:
    """The projection behind the heads; they stand side by side where there is none."""
    _, name = _split_layout(part)
    if not name:
        return np.eye(joined), None
    inside = _place(part.name, name)
    # Some architectures keep it beside the layer, whose place is then told in full.
    return tensors.read_map(inside if f"{inside}.weight" in tensors.held else name, joined)


def _place(holder: str, name: str) -> str:
    return f"{holder}.{name}".lstrip(".")


def _copy_file_network(tensors: _Tensors, part: NetworkPart) -> ReluNet | Gated:
    if part.activation is None:
        raise InvalidInput(
            f"nothing says which activation {part.name} has: put the config.json beside the file."
        )
    names = part.layout.split(", ")
    # A network that shares its place with others is named by its first projection.
    holder = part.name.removesuffix(names[0]).rstrip(".")
    first, *more, last = [_place(holder, name) for name in names]
    A, a = tensors.read_map(first, part.width)
    C, c = tensors.read_map(last, part.hidden)
    a, c = _fill(a, len(A)), _fill(c, len(C))
    if not more:
        return ReluNet(A, a, C, c, part.activation)
    B, b = tensors.read_map(more[0], part.width)
    return Gated(A, a, B, _fill(b, len(B)), C, c, part.activation)


def _fill(bias: Vector | None, count: int) -> Vector:
    return np.zeros(count) if bias is None else bias
