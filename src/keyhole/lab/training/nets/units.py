"""Attention units with free values: softmax or linear, of order two or three."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from keyhole._arrays import Array
from keyhole.lab.training.nets.attending import attend_by_softmax
from keyhole.lab.training.nets.net import Net, draw_gaussian_weights
from keyhole.lab.training.nets.token_reading import Numbers, TokenReading, Weights, apply_affine_map
from keyhole.models.attention import SelfAttention
from keyhole.models.linear import LinearAttention
from keyhole.models.stack import Block, Transformer
from keyhole.models.tensor import TensorAttention


@dataclass(frozen=True, slots=True)
class Unit:
    r"""One attention layer on read tokens X, heads summed.

    $$\sum_h \mathrm{softmax}(X Q_h K_h^\top X^\top) X V_h$$

    Args:
        reading: how tokens are read.
        outputs: numbers of an answer.
        embed: width of queries and keys.
        heads: how many heads.
        linear: scores are weights as they are, without softmax.
        temperature: what the scores are divided by at the start.
    """

    reading: TokenReading
    outputs: int
    embed: int
    heads: int = 1
    linear: bool = False
    temperature: float = 1.0

    @property
    def fixed(self) -> frozenset[str]:
        """Codes, unless they are learned."""
        return self.reading.fixed

    def initial(self, rng: np.random.Generator) -> dict[str, Array]:
        """Gaussian weights."""
        w = self.reading.features
        # Half of the temperature on either side.
        size = self.temperature**-0.5
        Q, K = (size * draw_gaussian_weights(rng, self.heads, w, self.embed) for _ in range(2))
        return self.reading.initial(rng) | {
            "Q": Q,
            "K": K,
            "V": draw_gaussian_weights(rng, self.heads, w, self.outputs),
        }

    def _parts(self, w: Weights, X: Tensor, codes: Tensor | None) -> list[Tensor]:
        """Queries, keys and values, seeds x batch x heads x length x columns."""
        parts = [w[name].transpose(1, 2).flatten(2) for name in "QKV"]
        projected = self.reading.project_each(w, X, parts, codes)
        return [split_heads(part, self.heads) for part in projected]

    def _joined(self, w: Weights, tokens: Tensor) -> list[Tensor]:
        """The same with Q K^T in one on the side of queries, and tokens as keys."""
        whole = torch.cat([torch.bmm(w["Q"][:, 0], w["K"][:, 0].mT), w["V"][:, 0]], dim=-1)
        rows = apply_affine_map(tokens, whole)
        return [rows[..., : tokens.shape[-1]], tokens, rows[..., tokens.shape[-1] :]]

    def __call__(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor:
        """Answers."""
        # Tokens as keys save products where they have no more numbers than queries and keys.
        if self._reads_nothing() and self.heads == 1 and self.reading.features <= 2 * self.embed:
            queries, keys, values = (part[:, :, None] for part in self._joined(w, X))
        else:
            queries, keys, values = self._parts(w, X, codes)
        if self.linear:
            answers = mix_values(queries @ keys.mT, values)
        else:
            answers = attend_by_softmax(queries, keys, values)
        return answers[:, :, 0] if self.heads == 1 else answers.sum(dim=2)

    def _reads_nothing(self) -> bool:
        """Whether tokens come as they are, so that no gradient goes to them."""
        return not self.reading.columns.coded

    def on_read_tokens(self) -> Unit:
        """The same net on tokens that were read before."""
        return replace(self, reading=self.reading.read_already())

    def attention(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor | None:
        """The mean over heads."""
        queries, keys, _ = self._parts(w, X, codes)
        scores = queries @ keys.mT
        return (scores if self.linear else scores.softmax(dim=-1)).mean(dim=2)

    def exported(self, w: Numbers) -> Transformer:
        """A token map and a layer."""
        layer = (LinearAttention if self.linear else SelfAttention)(w["Q"], w["K"], w["V"])
        return Transformer((Block(self.reading.exported(w), layer),))


@dataclass(frozen=True, slots=True)
class TiedUnit:
    r"""A unit of sparse averaging whose query is a sum over the positions named.

    $$\mathrm{score}_{ij} = \sum_{k \in y_i} u_k^\top Q K^\top u_j,
    \qquad \mathrm{value}_j = z_j V$$

    With one-hot codes u the rows of Q and K are learned codes of positions.

    Args:
        reading: how tokens are read; the last coded column is the token's own position.
        embed: width of queries and keys.
        linear: scores are weights as they are, without softmax.
        temperature: what the scores are divided by at the start.
    """

    reading: TokenReading
    embed: int
    linear: bool = False
    temperature: float = 1.0

    @property
    def fixed(self) -> frozenset[str]:
        """Codes, unless they are learned."""
        return self.reading.fixed

    def initial(self, rng: np.random.Generator) -> dict[str, Array]:
        """Queries and keys of length about 1, less without softmax, and V the identity."""
        # Without softmax nothing keeps answers of long sequences from growing.
        size = (0.3 if self.linear else 1.0) * self.temperature**-0.5
        Q, K = (
            size * draw_gaussian_weights(rng, self.reading.width, self.embed, fan=self.embed)
            for _ in range(2)
        )
        return self.reading.initial(rng) | {"Q": Q, "K": K, "V": np.eye(self.reading.columns.plain)}

    def _weights(self, w: Weights, X: Tensor, codes: Tensor | None) -> Tensor:
        # Read one code at a time: the same Q serves every position that is named.
        own = replace(self.reading, columns=replace(self.reading.columns, plain=0, coded=1))
        plain = self.reading.columns.plain
        named = X[..., plain:-1]
        queries = own.project(w, named.flatten(2)[..., None], w["Q"], codes)
        queries = queries.reshape(*named.shape, -1).sum(dim=-2)
        scores = queries @ own.project(w, X[..., -1:], w["K"], codes).transpose(-1, -2)
        return scores if self.linear else scores.softmax(dim=-1)

    def __call__(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor:
        """Answers."""
        z = X[..., : self.reading.columns.plain]
        return apply_affine_map(mix_values(self._weights(w, X, codes), z), w["V"])

    def on_read_tokens(self) -> Net | None:
        """None: which positions are named is read apart."""
        return None

    def attention(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor | None:
        """The weights."""
        return self._weights(w, X, codes)

    def exported(self, w: Numbers) -> Transformer:
        """A token map and a layer: Q for every position named, K of the own code."""
        plain = self.reading.columns.plain
        named = self.reading.columns.coded - 1
        width = self.reading.width
        Q, K = np.zeros((2, self.reading.features, self.embed))
        Q[plain:-width] = np.tile(w["Q"], (named, 1))
        K[-width:] = w["K"]
        V = np.concatenate([w["V"], np.zeros((self.reading.features - plain, plain))])
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

    reading: TokenReading
    outputs: int
    embed: int

    @property
    def fixed(self) -> frozenset[str]:
        """Codes, unless they are learned."""
        return self.reading.fixed

    def initial(self, rng: np.random.Generator) -> dict[str, Array]:
        """Gaussian weights."""
        w = self.reading.features
        keys = {name: draw_gaussian_weights(rng, w, self.embed) for name in ("Q", "K1", "K2")}
        return (
            self.reading.initial(rng)
            | keys
            | {name: draw_gaussian_weights(rng, w, self.outputs) for name in ("V1", "V2")}
        )

    def __call__(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor:
        """Answers."""
        parts = [w[name] for name in ("Q", "K1", "K2", "V1", "V2")]
        Q, K1, K2, V1, V2 = self.reading.project_each(w, X, parts, codes)
        scores = score_pairs(Q, K1, K2)
        weights = scores.flatten(-2).softmax(dim=-1).reshape(scores.shape)
        return torch.einsum("sbijk,sbjo,sbko->sbio", weights, V1, V2)

    def on_read_tokens(self) -> ThirdOrderUnit:
        """The same net on tokens that were read before."""
        return replace(self, reading=self.reading.read_already())

    def attention(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor | None:
        """None: weights belong to pairs."""
        return None

    def exported(self, w: Numbers) -> Any:
        """A token map and a layer of order three."""
        layer = TensorAttention(w["Q"], (w["K1"], w["K2"]), (w["V1"], w["V2"]))
        return Transformer((Block(self.reading.exported(w), layer),))


def split_heads(X: Tensor, heads: int) -> Tensor:
    """Columns split among heads: seeds x batch x heads x length x columns."""
    return X.reshape(*X.shape[:3], heads, -1).transpose(2, 3)


def mix_values(weights: Tensor, values: Tensor) -> Tensor:
    """Sums of values: weights times values, columns of which are few."""
    # Products with few rows are twice as fast as products with few columns, backwards too.
    return (values.transpose(-1, -2) @ weights.transpose(-1, -2)).transpose(-1, -2)


def score_pairs(Q: Tensor, K1: Tensor, K2: Tensor) -> Tensor:
    """Scores of pairs (j, k) for each i: seeds x batch x length x length x length."""
    length = Q.shape[2]
    # One large product with K2 is faster than a sum over three indices.
    products = (Q[:, :, :, None] * K1[:, :, None]).flatten(2, 3)
    return (products @ K2.transpose(-1, -2)).reshape(*Q.shape[:2], length, length, length)
