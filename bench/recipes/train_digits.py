"""Train the networks of tests/data: 64-128-10 ReLU on scikit-learn's digits, ten seeds, weights as
float32.

Neither torch nor scikit-learn is needed by the library, so this wants an environment of its own:

    python -m venv build/recipes
    build/recipes/bin/pip install torch==2.13.0 scikit-learn==1.9.1 safetensors
    build/recipes/bin/python bench/recipes/train_digits.py tests/data

The digits are the test set of the UCI "Optical Recognition of Handwritten Digits" (E. Alpaydin, C.
Kaynak): 1,797 images of 8 x 8 pixels from 0 to 16, here divided by 16; 297 of them are held out.
AdamW, 60 passes in batches of 64.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits

SEEDS, HIDDEN, PASSES, BATCH, HELD_OUT = 10, 128, 60, 64, 297


def trained(seed: int, x: torch.Tensor, y: torch.Tensor) -> torch.nn.Sequential:
    """One network."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        torch.nn.Linear(64, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 10)
    )
    steps = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
    for _ in range(PASSES):
        for batch in torch.randperm(len(x)).split(BATCH):
            steps.zero_grad()
            torch.nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            steps.step()
    return net


def main() -> None:
    """Train, say how well, and write one file per seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    for seed in range(SEEDS):
        net = trained(seed, x[HELD_OUT:], y[HELD_OUT:])
        right = (net(x[:HELD_OUT]).argmax(dim=1) == y[:HELD_OUT]).float().mean().item()
        names = ("W1", "b1", "W2", "b2")
        weights = {
            name: p.detach().contiguous() for name, p in zip(names, net.parameters(), strict=True)
        }
        about = {"kind": "relu", "format": "1", "activation": "relu"}
        save_file(weights, folder / f"digits-{seed}.safetensors", about)
        print(f"seed {seed}: {100 * right:.1f} % of {HELD_OUT} held out")


if __name__ == "__main__":
    main()
