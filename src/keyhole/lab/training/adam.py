"""Adam, written out: torch's own brings its compiler along, which takes longer to load than a small
training takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt

import torch
from torch import Tensor

from keyhole.lab.training.nets.token_reading import Weights

_FIRST, _SECOND, _SMALL = 0.9, 0.999, 1e-8


@dataclass(slots=True)
class Adam:
    r"""Steps of size rate $\hat m / (\sqrt{\hat v} + 10^{-8})$, entry by entry, so that no seed
    feels another.

    Args:
        weights: what is trained, changed in place.
        taken: steps so far.
        mean: running means of the gradient.
        square: running means of its square.
    """

    weights: Weights
    taken: int = 0
    mean: Weights = field(default_factory=dict[str, Tensor])
    square: Weights = field(default_factory=dict[str, Tensor])

    def __post_init__(self) -> None:
        for held in (self.mean, self.square):
            for name, part in self.weights.items():
                held.setdefault(name, torch.zeros_like(part))

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step along the gradients, which are cleared."""
        self.taken += 1
        first, second = 1.0 - _FIRST**self.taken, sqrt(1.0 - _SECOND**self.taken)
        for name, part in self.weights.items():
            gradient = part.grad
            if gradient is None:
                continue
            m, v = self.mean[name].lerp_(gradient, 1.0 - _FIRST), self.square[name]
            v.mul_(_SECOND).addcmul_(gradient, gradient, value=1.0 - _SECOND)
            part.addcdiv_(m, v.sqrt().div_(second).add_(_SMALL), value=-rate / first)
            part.grad = None
