"""Attention units with free values: softmax or linear, of order two or three, queries free or tied to the keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from keyhole._arrays import Array
from keyhole.lab.training.nets import gaussian
from keyhole.lab.training.reading import Numbers, Reading, Weights
from keyhole.models.attention import SelfAttention
from keyhole.models.linear import LinearAttention
from keyhole.models.stack import Block, Transformer
from keyhole.models.tensor import TensorAttention


@dataclass(frozen=True, slots=True)
class Unit:
    r"""One attention layer, heads summed: $\sum_h \mathrm{softmax}(X Q_h K_h^\top X^\top) X V_h$ on read tokens X.

    Args:
        reading: how tokens are read.
        outputs: numbers of an answer.
        embed: width of queries and keys.
        heads: how many heads.
        linear: scores are weights as they are, without softmax.
    """

    reading: Reading
    outputs: int
    embed: int
    heads: int = 1
    linear: bool = False

    @property
    def fixed(self) -> frozenset[str]:
        """Codes, unless they are learned."""
        return self.reading.fixed

    def initial(self, rng: np.random.Generator) -> dict[str, Array]:
        """Gaussian weights."""
        w = self.reading.features
        Q, K = (gaussian(rng, self.heads, w, self.embed) for _ in range(2))
        return self.reading.initial(rng) | {"Q": Q, "K": K, "V": gaussian(rng, self.heads, w, self.outputs)}

    def _projected(self, w: Weights, X: Tensor, name: str, codes: Tensor | None) -> Tensor:
        """Queries, keys or values: seeds x batch x heads x length x columns."""
        P = w[name].transpose(1, 2).flatten(2)
        return in_heads(self.reading.project(w, X, P, codes), self.heads)

    def _weights(self, w: Weights, X: Tensor, codes: Tensor | None) -> Tensor:
        queries, keys = (self._projected(w, X, name, codes) for name in "QK")
        scores = queries @ keys.transpose(-1, -2)
        return scores if self.linear else scores.softmax(dim=-1)

    def __call__(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor:
        """Answers."""
        return (self._weights(w, X, codes) @ self._projected(w, X, "V", codes)).sum(dim=2)

    def attention(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor | None:
        """The mean over heads."""
        return self._weights(w, X, codes).mean(dim=2)

    def exported(self, w: Numbers) -> Transformer:
        """A token map and a layer."""
        layer = (LinearAttention if self.linear else SelfAttention)(w["Q"], w["K"], w["V"])
        return Transformer((Block(self.reading.exported(w), layer),))


@dataclass(frozen=True, slots=True)
class TiedUnit:
    r"""A unit of sparse averaging whose query is the sum of the codes of the positions a token names.

    $$\mathrm{score}_{ij} = \sum_{k \in y_i} u_k^\top W u_j, \qquad \mathrm{value}_j = z_j$$

    with W the identity where codes are learned.

    Args:
        reading: how tokens are read; the last coded column is the token's own position.
        linear: scores are weights as they are, without softmax.
    """

    reading: Reading
    linear: bool = False

    @property
    def fixed(self) -> frozenset[str]:
        """Codes, or W where codes are learned."""
        return self.reading.fixed or frozenset({"W"})

    def initial(self, rng: np.random.Generator) -> dict[str, Array]:
        """Codes of length about 1, and W = 0 unless it stays the identity."""
        square = np.eye(self.reading.width)
        return self.reading.initial(rng) | {"W": square if self.reading.kind == "learned" else 0.0 * square}

    def _weights(self, w: Weights, coded: Tensor) -> Tensor:
        queries = torch.einsum("sbnd,sde->sbne", coded[..., :-1, :].sum(dim=-2), w["W"])
        scores = queries @ coded[..., -1, :].transpose(-1, -2)
        return scores if self.linear else scores.softmax(dim=-1)

    def __call__(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor:
        """Answers."""
        z, coded = self.reading.read(w, X, codes)
        return self._weights(w, coded) @ z

    def attention(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor | None:
        """The weights."""
        return self._weights(w, self.reading.read(w, X, codes)[1])

    def exported(self, w: Numbers) -> Transformer:
        """A token map and a layer: Q repeats W for every position named, K takes the token's own code, V its vector."""
        plain, named, width = self.reading.columns.plain, self.reading.columns.coded - 1, self.reading.width
        Q, K = np.zeros((2, self.reading.features, width))
        Q[plain:-width], K[-width:] = np.tile(w["W"], (named, 1)), np.eye(width)
        V = np.eye(self.reading.features, plain)
        layer = (LinearAttention if self.linear else SelfAttention)(Q[None], K[None], V[None])
        return Transformer((Block(self.reading.exported(w), layer),))


@dataclass(frozen=True, slots=True)
class ThirdOrderUnit:
    r"""One unit that attends to pairs of tokens, with free values.

    Args:
        reading: how tokens are read.
        outputs: numbers of an answer.
        embed: columns of queries and keys.
    """

    reading: Reading
    outputs: int
    embed: int

    @property
    def fixed(self) -> frozenset[str]:
        """Codes, unless they are learned."""
        return self.reading.fixed

    def initial(self, rng: np.random.Generator) -> dict[str, Array]:
        """Gaussian weights."""
        w = self.reading.features
        keys = {name: gaussian(rng, w, self.embed) for name in ("Q", "K1", "K2")}
        return self.reading.initial(rng) | keys | {name: gaussian(rng, w, self.outputs) for name in ("V1", "V2")}

    def __call__(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor:
        """Answers."""
        Q, K1, K2, V1, V2 = (self.reading.project(w, X, w[name], codes) for name in ("Q", "K1", "K2", "V1", "V2"))
        scores = pair_scores(Q, K1, K2)
        weights = scores.flatten(-2).softmax(dim=-1).reshape(scores.shape)
        return torch.einsum("sbijk,sbjo,sbko->sbio", weights, V1, V2)

    def attention(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor | None:
        """None: weights belong to pairs."""
        return None

    def exported(self, w: Numbers) -> Any:
        """A token map and a layer of order three."""
        layer = TensorAttention(w["Q"], (w["K1"], w["K2"]), (w["V1"], w["V2"]))
        return Transformer((Block(self.reading.exported(w), layer),))


def in_heads(X: Tensor, heads: int) -> Tensor:
    """Columns split among heads: seeds x batch x heads x length x columns."""
    return X.reshape(*X.shape[:3], heads, -1).transpose(2, 3)


def pair_scores(Q: Tensor, K1: Tensor, K2: Tensor) -> Tensor:
    """Scores of pairs (j, k) for each i: seeds x batch x length x length x length."""
    length = Q.shape[2]
    products = (Q[:, :, :, None] * K1[:, :, None]).flatten(2, 3)
    return (products @ K2.transpose(-1, -2)).reshape(*Q.shape[:2], length, length, length)
