"""Multi-layer Transformers: attention, then a network, each with a residual."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from keyhole._arrays import Array
from keyhole.constructions.shared.coded_tokens import Perceptron
from keyhole.errors import InvalidInput
from keyhole.lab.training.nets.net import draw_gaussian_weights
from keyhole.lab.training.nets.token_reading import Numbers, TokenReading, Weights, apply_affine_map
from keyhole.lab.training.nets.units import split_heads
from keyhole.models.attention import SelfAttention
from keyhole.models.stack import Block, Transformer


@dataclass(frozen=True, slots=True)
class LayersNet:
    r"""Attention and a network in turn, what they give added to each token.

    $$h \leftarrow h + \sum_h \mathrm{softmax}(h Q K^\top h^\top) h V O, \qquad
      h \leftarrow h + \mathrm{net}(h)$$

    Args:
        reading: how tokens are read.
        length: tokens of an input.
        outputs: numbers of an answer.
        embed: e, numbers of a token between layers; a head has e / heads.
        heads: heads of a layer.
        layers: how many.
        hidden: units of the network of a layer.
        places: whether the position in the sequence is read too, as a learned vector.
        labels: whether answers are log-odds.
    """

    reading: TokenReading
    length: int
    outputs: int
    embed: int
    heads: int
    layers: int
    hidden: int
    places: bool = False
    labels: bool = False

    def __post_init__(self) -> None:
        # Heads share the width of a token evenly.
        if self.embed % self.heads:
            raise InvalidInput(
                f"--embed {self.embed} is divided among --heads {self.heads}; give a multiple."
            )

    @property
    def fixed(self) -> frozenset[str]:
        """Codes, unless they are learned."""
        return self.reading.fixed

    def initial(self, rng: np.random.Generator) -> dict[str, Array]:
        """Gaussian weights; what is added to a token is small at first."""
        e, m, H = self.embed, self.embed // self.heads, self.heads
        # A one-hot code picks one row of E, which is then a token by itself.
        fan = 1 if self.reading.kind == "one-hot" else self.reading.features
        held = self.reading.initial(rng) | {
            "E": draw_gaussian_weights(rng, self.reading.features, e, fan=fan)
        }
        held |= {"places": 0.5 * rng.normal(size=(self.length, e))} if self.places else {}
        for k in range(self.layers):
            held |= {
                # The usual division of scores by sqrt(m), half on either side.
                f"Q{k}": draw_gaussian_weights(rng, H, e, m) / m**0.25,
                f"K{k}": draw_gaussian_weights(rng, H, e, m) / m**0.25,
            }
            held |= {
                f"V{k}": draw_gaussian_weights(rng, H, e, m),
                f"O{k}": draw_gaussian_weights(rng, H, m, e, fan=e),
            }
            held |= {
                f"W1{k}": draw_gaussian_weights(rng, e, self.hidden) * np.sqrt(2.0),
                f"b1{k}": np.zeros(self.hidden),
            }
            held |= {f"W2{k}": draw_gaussian_weights(rng, self.hidden, e), f"b2{k}": np.zeros(e)}
        return held | {
            "Wo": draw_gaussian_weights(rng, e, self.outputs),
            "bo": np.zeros(self.outputs),
        }

    def __call__(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor:
        """Answers."""
        h = self.reading.project(w, X, w["E"], codes)
        h = h + w["places"][:, None] if self.places else h
        for k in range(self.layers):
            h = h + self._attended(w, h, k)
            inner = torch.relu(apply_affine_map(h, w[f"W1{k}"], w[f"b1{k}"]))
            h = h + apply_affine_map(inner, w[f"W2{k}"], w[f"b2{k}"])
        return apply_affine_map(h, w["Wo"], w["bo"])

    def _attended(self, w: Weights, h: Tensor, k: int) -> Tensor:
        """What the heads give, summed."""
        parts = (apply_affine_map(h, w[f"{name}{k}"].transpose(1, 2).flatten(2)) for name in "QKV")
        Q, K, V = (split_heads(part, self.heads) for part in parts)
        mixed = ((Q @ K.transpose(-1, -2)).softmax(dim=-1) @ V).transpose(2, 3).flatten(3)
        return apply_affine_map(mixed, w[f"O{k}"].flatten(1, 2))

    def on_read_tokens(self) -> LayersNet:
        """The same net on tokens that were read before."""
        return replace(self, reading=self.reading.read_already())

    def attention(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor | None:
        """None: there are several tables."""
        return None

    def exported(self, w: Numbers) -> Transformer:
        """Token maps and layers; the network of a layer is the token map in front of the next."""
        front: Any = self.reading.exported(w, mixing=w["E"])
        blocks: list[Block] = []
        for k in range(self.layers):
            # O is multiplied into V: our heads are summed, not joined.
            layer = SelfAttention(w[f"Q{k}"], w[f"K{k}"], w[f"V{k}"] @ w[f"O{k}"])
            blocks.append(Block(front, layer, residual=True))
            front = self._network(w, k)
        return Transformer(tuple(blocks), front)

    def _network(self, w: Numbers, k: int) -> Perceptron:
        """The network of a layer; the read-out stands behind the last."""
        parts = w[f"W1{k}"], w[f"b1{k}"], w[f"W2{k}"], w[f"b2{k}"]
        if k < self.layers - 1:
            return Perceptron(*parts)
        return Perceptron(*parts, w["Wo"], w["bo"], "sigmoid" if self.labels else "none")
