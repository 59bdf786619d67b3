r"""Units for labels: a token answers the share of its attention on real tokens.

In front of the tokens stands a blank one. Tokens have value 1, the blank 0, and every token scores
the blank (with order three, the pair of two blanks) by one learned number b; pairs of a token and a
blank score 0. With scores $s$ the answer is

$$p_i = \frac{\sum e^{s}}{\sum e^{s} + e^{b}\;[+\, 2N]}, \qquad
  \log\frac{p_i}{1 - p_i} = \log \sum e^{s} - \log(e^{b}\;[+\, 2N])$$

so the log-odds of the logistic loss cost no cancellation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log

import numpy as np
import torch
from torch import Tensor

from keyhole._arrays import Array
from keyhole.errors import InvalidInput
from keyhole.lab.training.nets.net import draw_gaussian_weights
from keyhole.lab.training.nets.token_reading import Numbers, TokenReading, Weights
from keyhole.lab.training.nets.units import score_pairs
from keyhole.models.attention import SelfAttention
from keyhole.models.stack import Block, Layer, Transformer
from keyhole.models.tensor import TensorAttention

_NAMES = {2: ("Q", "K1"), 3: ("Q", "K1", "K2")}


@dataclass(frozen=True, slots=True)
class FlagUnit:
    """A unit of order two or three with flags as values.

    Args:
        reading: how tokens are read.
        embed: columns of queries and keys, the blank's own one apart.
        order: two attends to tokens, three to pairs of tokens.
    """

    reading: TokenReading
    embed: int
    order: int = 2

    def __post_init__(self) -> None:
        if self.order not in _NAMES:
            raise InvalidInput(f"units with flags are of order 2 or 3; got {self.order}.")

    @property
    def fixed(self) -> frozenset[str]:
        """Codes, unless they are learned."""
        return self.reading.fixed

    def initial(self, rng: np.random.Generator) -> dict[str, Array]:
        """Gaussian tables, and a blank that scores 0."""
        # A one-hot code picks one row: its length should be about 1.
        fan = self.embed if self.reading.kind == "one-hot" else self.reading.features
        tables = {
            name: draw_gaussian_weights(rng, self.reading.features, self.embed, fan=fan)
            for name in _NAMES[self.order]
        }
        return self.reading.initial(rng) | tables | {"blank": np.zeros(1)}

    def _scores(self, w: Weights, X: Tensor, codes: Tensor | None) -> Tensor:
        queries, *keys = self.reading.project_each(
            w, X, [w[name] for name in _NAMES[self.order]], codes
        )
        if self.order == 2:
            return queries @ keys[0].transpose(-1, -2)
        return score_pairs(queries, *keys).flatten(-2)

    def __call__(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor:
        """Log-odds."""
        blank = w["blank"][:, :, None]
        # Pairs of a token and a blank score 0: there are 2N of them.
        if self.order == 3:
            blank = torch.logaddexp(blank, torch.full_like(blank, log(2.0 * X.shape[2])))
        return (self._scores(w, X, codes).logsumexp(dim=-1) - blank)[..., None]

    def on_read_tokens(self) -> FlagUnit:
        """The same net on tokens that were read before."""
        return replace(self, reading=self.reading.read_already())

    def attention(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor | None:
        """Weights among the tokens, the blank left out; none where they belong to pairs."""
        return self._scores(w, X, codes).softmax(dim=-1) if self.order == 2 else None

    def exported(self, w: Numbers) -> Transformer:
        """A token map with flags, a layer, a blank token."""
        width = self.reading.features + 2
        tables = {name: _border_table(w[name]) for name in _NAMES[self.order]}
        # A further column scores the blank alone, the same for every token.
        tables["Q"][-2, -1] = float(w["blank"][0])
        for name in _NAMES[self.order][1:]:
            tables[name][-1, -1] = 1.0
        V = np.zeros((width, 1))
        # The flag of real tokens is the value; the blank has none.
        V[-2] = 1.0
        block = Block(
            self.reading.exported(w, flagged=True), self._layer(tables, V), np.eye(width)[-1]
        )
        return Transformer((block,))

    def _layer(self, tables: dict[str, Array], V: Array) -> Layer:
        if self.order == 2:
            return SelfAttention(tables["Q"][None], tables["K1"][None], V[None])
        return TensorAttention(tables["Q"], (tables["K1"], tables["K2"]), (V, V))


def _border_table(P: Array) -> Array:
    """With two rows, for the flags, and one column, for the blank, more."""
    return np.pad(P, ((0, 2), (0, 1)))
