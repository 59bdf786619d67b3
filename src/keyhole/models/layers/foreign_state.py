"""Attention layers as the tensors that modules of other libraries load."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from keyhole._arrays import Array
from keyhole.errors import InvalidInput
from keyhole.models.layers.attention_layer import AttentionLayer

_LLAMA = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}
_BERT = {"q": "self.query", "k": "self.key", "v": "self.value", "o": "output.dense"}
# By which positions a module scores.
_MODULES = {"multihead": "none", "gpt2": "none", "bert": "none", "llama": "rope"}


def export_state(layer: AttentionLayer, module: str) -> dict[str, Array]:
    """The tensors of a layer by the names of a module, where the layer is one that it can be.

    Norm and residual stand outside such modules: a layer that has them is exported whole by
    `export_torch`.

    Args:
        layer: what was recovered or written down.
        module: multihead (`torch.nn.MultiheadAttention`, with `batch_first=True`); of transformers
            gpt2 (`GPT2Attention`), bert (`BertAttention`, loaded with `strict=False`: the norm and
            the residual behind it are its own) or llama (`LlamaAttention`, whose config has the
            layer's sizes and rotary base).

    Raises:
        InvalidInput: the module has no place for something that the layer has.
    """
    if module not in _MODULES:
        raise InvalidInput(f"a module is one of {', '.join(_MODULES)}; got {module!r:.80}.")
    if misfits := list(_list_misfits(layer, module)):
        raise InvalidInput(
            f"the layer does not fit a {module} module: it has {', '.join(misfits)}. keyhole's own"
            " torch module, or ONNX, takes every layer."
        )
    return _NAMED[module](layer)


def _list_misfits(layer: AttentionLayer, module: str) -> Iterator[str]:
    """What the layer has and the module has not."""
    wiring = layer.wiring
    if wiring.positions != _MODULES[module]:
        yield f"positions {wiring.positions}"
    if module == "llama" and wiring.rotary_share not in (None, 1.0):
        yield f"a rotary share of {wiring.rotary_share}"
    if wiring.norm != "none":
        yield f"norm {wiring.norm}"
    for name in ("residual", "window", "softcap", "sinks", "qk_norm"):
        if getattr(wiring, name):
            yield name
    if module != "llama" and not layer.width == layer.outputs == layer.heads * layer.rank:
        yield f"{layer.heads} heads of size {layer.rank} for width {layer.width}"
    if layer.width != layer.outputs:
        yield f"{layer.outputs} outputs for width {layer.width}"


def _join_heads(layer: AttentionLayer, shared: int = 1) -> dict[str, tuple[Array, Array | None]]:
    """Weights and biases of all heads in one matrix each, keys and values `shared` times."""
    made: dict[str, tuple[Array, Array | None]] = {}
    for name, W, b, times in (
        ("q", layer.Wq, layer.bq, 1),
        ("k", layer.Wk, layer.bk, shared),
        ("v", layer.Wv, layer.bv, shared),
    ):
        repeated = np.repeat(W, times, axis=0).reshape(-1, layer.width)
        made[name] = (repeated, None if b is None else np.repeat(b, times, axis=0).reshape(-1))
    out = layer.Wo.transpose(1, 0, 2).reshape(layer.outputs, -1)
    return made | {"o": (out, layer.bo)}


def _name_multihead(layer: AttentionLayer) -> dict[str, Array]:
    """As `torch.nn.MultiheadAttention(width, heads)` names them; groups are written out."""
    parts = _fill_biases(layer)
    return {
        "in_proj_weight": np.concatenate([parts[name][0] for name in "qkv"]),
        "in_proj_bias": np.concatenate([parts[name][1] for name in "qkv"]),
        "out_proj.weight": parts["o"][0],
        "out_proj.bias": parts["o"][1],
    }


def _fill_biases(layer: AttentionLayer) -> dict[str, tuple[Array, Array]]:
    """Weights and biases, zero where there are none; groups are written out."""
    parts = _join_heads(layer, layer.heads // layer.groups)
    return {name: (W, np.zeros(len(W)) if b is None else b) for name, (W, b) in parts.items()}


def _name_gpt2(layer: AttentionLayer) -> dict[str, Array]:
    """As `GPT2Attention` names them, whose matrices lie on their side."""
    state = _name_multihead(layer)
    return {
        "c_attn.weight": np.ascontiguousarray(state["in_proj_weight"].T),
        "c_attn.bias": state["in_proj_bias"],
        "c_proj.weight": np.ascontiguousarray(state["out_proj.weight"].T),
        "c_proj.bias": state["out_proj.bias"],
    }


def _name_bert(layer: AttentionLayer) -> dict[str, Array]:
    """As `BertAttention` names them."""
    parts = _fill_biases(layer)
    weights = {f"{_BERT[name]}.weight": W for name, (W, _) in parts.items()}
    return weights | {f"{_BERT[name]}.bias": b for name, (_, b) in parts.items()}


def _name_llama(layer: AttentionLayer) -> dict[str, Array]:
    """As `LlamaAttention` names them; with any bias all are there, as `attention_bias` has it."""
    parts = _join_heads(layer)
    state = {f"{_LLAMA[name]}.weight": W for name, (W, _) in parts.items()}
    if all(b is None for _, b in parts.values()):
        return state
    biases = {name: np.zeros(len(W)) if b is None else b for name, (W, b) in parts.items()}
    return state | {f"{_LLAMA[name]}.bias": b for name, b in biases.items()}


_NAMED: dict[str, Callable[[AttentionLayer], dict[str, Array]]] = {
    "multihead": _name_multihead,
    "gpt2": _name_gpt2,
    "bert": _name_bert,
    "llama": _name_llama,
}
