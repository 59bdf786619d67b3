"""Nets without attention: fully connected, and recurrent ones that read once or more often."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from keyhole._arrays import Array
from keyhole.lab.training.nets.net import draw_gaussian_weights
from keyhole.lab.training.nets.token_reading import Numbers, TokenReading, Weights, apply_affine_map
from keyhole.models.baselines import CELLS, UNROUNDED, Cell, Mlp, Recurrent


@dataclass(frozen=True, slots=True)
class MlpNet:
    """All tokens side by side, affine maps with ReLU between them.

    Args:
        reading: how tokens are read.
        length: tokens of an input.
        outputs: numbers of an answer.
        hidden: units of a hidden layer.
        layers: hidden layers.
        labels: whether answers are log-odds.
    """

    reading: TokenReading
    length: int
    outputs: int
    hidden: int
    layers: int = 1
    labels: bool = False

    @property
    def fixed(self) -> frozenset[str]:
        """Codes, unless they are learned."""
        return self.reading.fixed

    def initial(self, rng: np.random.Generator) -> dict[str, Array]:
        """Gaussian weights, no biases."""
        sizes = [
            self.length * self.reading.features,
            *[self.hidden] * self.layers,
            self.length * self.outputs,
        ]
        layers = {
            # ReLU halves the variance behind it.
            f"W{k}": draw_gaussian_weights(rng, d, e) * (np.sqrt(2.0) if k else 1.0)
            for k, (d, e) in _number_layers(sizes)
        }
        return (
            self.reading.initial(rng)
            | layers
            | {f"b{k}": np.zeros(e) for k, (_, e) in _number_layers(sizes)}
        )

    def __call__(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor:
        """Answers."""
        x = self.reading.tokens(w, X, codes).flatten(2)
        for k in range(self.layers + 1):
            x = torch.baddbmm(w[f"b{k}"][:, None], torch.relu(x) if k else x, w[f"W{k}"])
        return x.reshape(*x.shape[:2], self.length, self.outputs)

    def on_read_tokens(self) -> MlpNet:
        """The same net on tokens that were read before."""
        return replace(self, reading=self.reading.read_already())

    def attention(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor | None:
        """None."""
        return None

    def exported(self, w: Numbers) -> Mlp:
        """The same network."""
        W = tuple(w[f"W{k}"].T for k in range(self.layers + 1))
        b = [w[f"b{k}"] for k in range(self.layers + 1)]
        b[-1] = b[-1] + 0.5 * self.labels  # an answer above 1/2 is yes
        return Mlp(W, tuple(b), self.length, tuple(range(self.reading.columns.plain)), w["codes"])


def _number_layers(sizes: list[int]) -> list[tuple[int, tuple[int, int]]]:
    return list(enumerate(pairwise(sizes)))


@dataclass(frozen=True, slots=True)
class RecurrentNet:
    """A GRU or LSTM that reads the whole input, perhaps again, and answers the last time.

    A model that reads once cannot know what comes: only its last token can be answered right.
    Where the state is rounded, gradients pass the rounding as if it were not there.

    Args:
        reading: how tokens are read.
        outputs: numbers of an answer.
        cell: gru or lstm.
        hidden: units of a layer.
        layers: how many.
        passes: how often the input is read.
        labels: whether answers are log-odds.
        state_bits: bits of a number of the state, a grid from -1 to 1; not rounded when absent.
    """

    reading: TokenReading
    outputs: int
    cell: str
    hidden: int
    layers: int = 1
    passes: int = 2
    labels: bool = False
    state_bits: int | None = None

    @property
    def fixed(self) -> frozenset[str]:
        """Codes, unless they are learned."""
        return self.reading.fixed

    def initial(self, rng: np.random.Generator) -> dict[str, Array]:
        """Gaussian weights, no biases."""
        gates = CELLS[self.cell] * self.hidden
        held = self.reading.initial(rng)
        for k in range(self.layers):
            inputs = self.hidden if k else self.reading.features
            held |= {
                f"Wx{k}": draw_gaussian_weights(rng, inputs, gates),
                f"Wh{k}": draw_gaussian_weights(rng, self.hidden, gates),
            }
            held |= {f"bx{k}": np.zeros(gates), f"bh{k}": np.zeros(gates)}
        return held | {
            "Wo": draw_gaussian_weights(rng, self.hidden, self.outputs),
            "bo": np.zeros(self.outputs),
        }

    def __call__(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor:
        """Answers of the last reading."""
        rows = self.reading.tokens(w, X, codes)
        length = rows.shape[2]
        # Every reading but the first knows what comes.
        rows = rows.repeat(1, 1, self.passes, 1)
        for k in range(self.layers):
            rows = self._layer(w, rows, k)
        return apply_affine_map(rows[:, :, -length:], w["Wo"], w["bo"])

    def _layer(self, w: Weights, rows: Tensor, k: int) -> Tensor:
        """One layer over the whole sequence; what comes from the inputs is multiplied at once."""
        Wh, bh = w[f"Wh{k}"], w[f"bh{k}"][:, None]
        inputs = apply_affine_map(rows, w[f"Wx{k}"], w[f"bx{k}"])
        h = c = rows.new_zeros(*rows.shape[:2], self.hidden)
        seen: list[Tensor] = []
        for a in inputs.unbind(2):
            b = torch.baddbmm(bh, h, Wh)
            if self.cell == "gru":
                h = _step_gru(a, b, h)
            else:
                h, c = _step_lstm(a + b, c)
            fresh, h, c = h, self._rounded(h), self._rounded(c)
            # The layer above sees what was not yet put into the state; an answer is of the state.
            seen.append(h if k == self.layers - 1 else fresh)
        return torch.stack(seen, dim=2)

    def _rounded(self, state: Tensor) -> Tensor:
        """The nearest state on the grid, with the gradient of the state inside it."""
        if self.state_bits is None:
            return state
        inside, levels = state.clamp(-1.0, 1.0), 2.0**self.state_bits - 1.0
        nearest = 2.0 * (0.5 * levels * (inside.detach() + 1.0)).round() / levels - 1.0
        return inside + (nearest - inside.detach())

    def on_read_tokens(self) -> RecurrentNet:
        """The same net on tokens that were read before."""
        return replace(self, reading=self.reading.read_already())

    def attention(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor | None:
        """None."""
        return None

    def exported(self, w: Numbers) -> Recurrent:
        """The same network."""
        names = [
            tuple(f"{name}{k}" for name in ("Wx", "Wh", "bx", "bh")) for k in range(self.layers)
        ]
        cells = tuple(Cell(w[Wx].T, w[Wh].T, w[bx], w[bh]) for Wx, Wh, bx, bh in names)
        plain = tuple(range(self.reading.columns.plain))
        # Nets answer log-odds; of a model, an answer above 1/2 is yes.
        bo = w["bo"] + 0.5 * self.labels
        return Recurrent(
            self.cell,
            cells,
            w["Wo"].T,
            bo,
            plain,
            w["codes"],
            state_bits=UNROUNDED if self.state_bits is None else self.state_bits,
            passes=self.passes,
        )


def _step_gru(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    r, u, n = a.chunk(3, dim=-1)
    rh, uh, nh = b.chunk(3, dim=-1)
    keep = torch.sigmoid(u + uh)
    fresh = torch.tanh(n + torch.sigmoid(r + rh) * nh)
    return fresh + keep * (h - fresh)


def _step_lstm(sums: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = sums.chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c
