"""Norms and networks with one hidden layer as torch modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np

from keyhole.models.blocks.norm import Norm
from keyhole.models.last_token.gated import Gated
from keyhole.models.relu import AbsAffine, ReluNet

try:
    import torch as _torch
except ImportError as missing:
    raise ImportError("a torch module needs torch: pip install 'keyhole[torch]'.") from missing

torch: Any = _torch  # its types are partial

_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "relu": torch.nn.functional.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda z: torch.nn.functional.gelu(z, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "softplus": lambda z: torch.logaddexp(z, torch.zeros_like(z)),
}


def hold_arrays(module: Any, model: Any, names: list[str]) -> None:
    """Register arrays of a model as parameters of a module, by their names."""
    for name in names:
        held = getattr(model, name)
        weight = None if held is None else torch.nn.Parameter(torch.tensor(np.array(held)))
        module.register_parameter(name, weight)


class TorchNorm(torch.nn.Module):
    """The function of a `Norm`."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.kind, self.eps = norm.kind, norm.eps
        hold_arrays(self, norm, ["gain", "shift"])

    def forward(self, x: Any) -> Any:
        """Vectors behind the norm."""
        centred = x - x.mean(dim=-1, keepdim=True) if self.kind == "layer" else x
        n = divide_by_spread(centred, self.eps)
        n = n if self.gain is None else n * self.gain
        return n if self.shift is None else n + self.shift


class TorchNetwork(torch.nn.Module):
    """The function of a network on points, with the names of its file as parameters."""

    def __init__(self, net: ReluNet | Gated) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.width, self.outputs = net.width, net.outputs
        self.phi = _FUNCTIONS[net.activation]
        self.gated = isinstance(net, Gated)
        hold_arrays(self, net, [item.name for item in fields(net) if item.name != "activation"])

    def forward(self, x: Any) -> Any:
        """Answers to points, or to the last tokens of sequences."""
        x = read_last_points(x)
        if self.gated:
            gates = self.phi(x @ self.A.T + self.a)
            return (gates * (x @ self.B.T + self.b)) @ self.C.T + self.c
        return self.phi(x @ self.W1.T + self.b1) @ self.W2.T + self.b2


class TorchNormalForm(torch.nn.Module):
    """The function of an `AbsAffine`."""

    def __init__(self, net: AbsAffine) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.width, self.outputs = net.width, net.outputs
        hold_arrays(self, net, ["n", "t", "D", "P", "q"])

    def forward(self, x: Any) -> Any:
        """Answers to points, or to the last tokens of sequences."""
        x = read_last_points(x)
        return (x @ self.n.T - self.t).abs() @ self.D / 2 + x @ self.P.T + self.q


def read_last_points(x: Any) -> Any:
    """Points as they are, and of sequences the last token."""
    return x[:, -1] if x.ndim == 3 else x


def divide_by_spread(x: Any, eps: float) -> Any:
    """Vectors over the root of their mean square and eps; 0 stays 0, as torch's own does not."""
    # Scaled first, as in `models.layers.norms`: the square of a huge token would overflow.
    largest = x.detach().abs().amax(dim=-1, keepdim=True).clamp(min=1.0)
    square = (x / largest).square().mean(dim=-1, keepdim=True)
    spread = largest * (square + eps / largest**2).sqrt()
    return x / torch.where(spread > 0, spread, 1.0)
