"""Adam, written out: torch's own takes longer to load than a small training."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt

import torch
from torch import Tensor

from keyhole.lab.training.nets.token_reading import Weights

# The constants of the paper and of torch, so that results compare.
_FIRST, _SECOND, _SMALL = 0.9, 0.999, 1e-8


@dataclass(slots=True)
class Adam:
    r"""Steps of size rate $\hat m / (\sqrt{\hat v} + 10^{-8})$, entry by entry.

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
        # Means begin at zero; dividing by these undoes the bias of early steps.
        first, second = 1.0 - _FIRST**self.taken, sqrt(1.0 - _SECOND**self.taken)
        for name, part in self.weights.items():
            gradient = part.grad
            if gradient is None:
                continue
            m = self.mean[name].lerp_(gradient, 1.0 - _FIRST)
            v = self.square[name]
            v.mul_(_SECOND).addcmul_(gradient, gradient, value=1.0 - _SECOND)
            # Entry by entry: no seed feels another that is trained beside it.
            part.addcdiv_(m, v.sqrt().div_(second).add_(_SMALL), value=-rate / first)
            part.grad = None
