"""Train the one-layer Transformers of tests/data: sparse averaging and Match2, with and without a
residual.

    python -m venv build/recipes
    build/recipes/bin/pip install torch==2.13.0 safetensors
    build/recipes/bin/python bench/recipes/train_layers.py tests/data

The layer is softmax attention read at its last token, biases everywhere, then a network of 4 d ReLU
units: f(X) = g(softmax(X (W x_N + h))^T X V + c (+ x_N)). AdamW with a short warm-up, batches drawn
afresh.

- averaging: a token is (z; code of its position; codes of the q = 2 positions it asks for, summed),
  width 4 + 6 + 6; the answer is the mean of the two z. Length 6.
- match2: a token is (cos, sin of 2 pi k x / 7 for k = 1, 2, 3; 1; 0), a blank (0, .., 0, 1) comes
  first, width 8; the answer is +1 when some token x_i has x_i + x_N = 0 mod 7, else -1. Length
  5 and the blank.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

Batch = tuple[torch.Tensor, torch.Tensor]
SEEDS, STEPS, BATCH, MODULUS = 3, 1500, 128, 7


def averaging(size: int) -> Batch:
    """Sequences of length 6, and the mean of the two vectors that the last token asks for."""
    length, q, z = 6, 2, torch.randn(size, 6, 4)
    asked = torch.rand(size, length, length).argsort(dim=2)[..., :q]
    wanted = torch.zeros(size, length, length).scatter_(2, asked, 1.0)
    tokens = torch.cat([z, torch.eye(length).expand(size, -1, -1), wanted], dim=2)
    return tokens, wanted[:, -1:].bmm(z)[:, 0] / q


def match2(size: int) -> Batch:
    """Residues behind a blank, and whether one of them is the last one's opposite; half of the
    sequences have one.
    """
    x = torch.randint(1, MODULUS, (size, 5))
    x[:, 0] = torch.where(torch.rand(size) < 0.4, MODULUS - x[:, -1], x[:, 0])
    angle = 2 * torch.pi * x[..., None] * torch.arange(1, 4) / MODULUS
    real = torch.cat(
        [angle.cos(), angle.sin(), torch.ones(size, 5, 1), torch.zeros(size, 5, 1)], dim=2
    )
    blank = torch.zeros(size, 1, 8)
    blank[..., -1] = 1.0
    found = ((x + x[:, -1:]) % MODULUS == 0).any(dim=1)
    return torch.cat([blank, real], dim=1), 2.0 * found[:, None] - 1.0


class Layer(torch.nn.Module):
    """Attention read at the last token, and a network."""

    def __init__(self, width: int, outputs: int, residual: bool) -> None:
        super().__init__()
        self.W = torch.nn.Parameter(torch.randn(width, width) / width)
        self.V = torch.nn.Parameter(torch.randn(width, width) / width**0.5)
        self.h, self.c = (torch.nn.Parameter(torch.zeros(width)) for _ in "hc")
        self.first, self.second = (
            torch.nn.Linear(width, 4 * width),
            torch.nn.Linear(4 * width, outputs),
        )
        self.residual = residual

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """Answers to a batch."""
        last = X[:, -1]
        weights = torch.einsum("bnd,bd->bn", X, last @ self.W.T + self.h).softmax(dim=1)
        mixed = torch.einsum("bn,bnd->bd", weights, X) @ self.V + self.c
        return self.second(self.first(mixed + last if self.residual else mixed).relu())

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights by the names of a model file."""
        head = {f"head.{name}": getattr(self, name) for name in ("W", "V", "h", "c")}
        linear = {"1": self.first, "2": self.second}
        net = {
            f"net.{name}{i}": p
            for i, l in linear.items()
            for name, p in (("W", l.weight), ("b", l.bias))
        }
        return {name: p.detach().contiguous() for name, p in (head | net).items()}


def trained(task: Callable[[int], Batch], residual: bool, seed: int) -> tuple[Layer, float]:
    """One layer, and its mean squared error on fresh sequences beside that of answering the
    mean.
    """
    torch.manual_seed(seed)
    X, y = task(1)
    layer = Layer(X.shape[2], y.shape[1], residual)
    steps = torch.optim.AdamW(layer.parameters(), lr=1e-2, weight_decay=1e-2)
    pace = torch.optim.lr_scheduler.OneCycleLR(steps, 1e-2, total_steps=STEPS)
    for _ in range(STEPS):
        X, y = task(BATCH)
        steps.zero_grad()
        (layer(X) - y).square().mean().backward()
        steps.step()
        pace.step()
    X, y = task(2000)
    return layer, ((layer(X) - y).square().mean() / y.var()).item()


def main() -> None:
    """Train, say how well, and write one file per layer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    for task in (averaging, match2):
        for kind in ("plain", "residual"):
            for seed in range(SEEDS):
                layer, error = trained(task, kind == "residual", seed)
                about = {
                    "kind": "onelayer",
                    "format": "1",
                    "net_kind": "relu",
                    "activation": "relu",
                }
                about["residual"] = "true" if layer.residual else "false"
                save_file(
                    layer.tensors(), folder / f"{task.__name__}-{kind}-{seed}.safetensors", about
                )
                print(
                    f"{task.__name__}, {kind}, seed {seed}: {error:.1e} of the variance is left",
                    flush=True,
                )


if __name__ == "__main__":
    main()
