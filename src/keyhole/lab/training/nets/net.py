"""What a net is, to the loop that trains it and to the numpy models it becomes."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from keyhole._arrays import Array
from keyhole.lab.training.nets.token_reading import Numbers, TokenReading, Weights


@runtime_checkable
class Net(Protocol):
    """An architecture; its weights are kept apart, many seeds of them stacked."""

    @property
    def reading(self) -> TokenReading:
        """How tokens are read."""
        ...

    @property
    def fixed(self) -> frozenset[str]:
        """Weights that are not trained."""
        ...

    def initial(self, rng: np.random.Generator) -> dict[str, Array]:
        """Weights of one seed to begin with."""
        ...

    def __call__(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor:
        """Answers, seeds x batch x length x outputs; log-odds where answers are yes or no."""
        ...

    def on_read_tokens(self) -> Net | None:
        """The same net given tokens that were read before; None where it needs their numbers."""
        ...

    def attention(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor | None:
        """Attention weights, seeds x batch x length x length, where there is one table of them."""
        ...

    def exported(self, w: Numbers) -> Any:
        """The same model of one seed in numpy, whose answers to labels are probabilities."""
        ...


def draw_gaussian_weights(rng: np.random.Generator, *shape: int, fan: int | None = None) -> Array:
    """Weights of size 1 / sqrt(inputs)."""
    return rng.normal(size=shape) / np.sqrt(max(1, shape[-2] if fan is None else fan))
