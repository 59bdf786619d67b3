"""Trainings per minute and core at the small cell of the recipes: sparse averaging with N = 20,
q = 3, random codes of 7 numbers, one unit of width 20, 1,000 sequences, batches of 32, 2,000 steps.

    python bench/training.py [--steps 1000] [--rounds 3]

Ours, 20 seeds side by side, against the loop one would write in torch: one seed, tokens encoded
beforehand, torch's own Adam. Both on one thread, in turns; CPU seconds are counted, since
neighbours take wall-clock time. Rates are scaled to 2,000 steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from keyhole.lab.jobs import TrainJob
from keyhole.lab.training.choosing import choose_net
from keyhole.lab.training.inputs.labelling import choose_lesson
from keyhole.lab.training.inputs.lessons import Averaging
from keyhole.lab.training.loop import STACKED, Course, Trainer, pin_torch_thread
from keyhole.lab.training.supply import Supply
from keyhole.tasks import SparseAverage

TASK = SparseAverage(20, 3, 4)
SAMPLES, BATCH, CODE, EMBED, STEPS = 1000, 32, 7, 20, 2000


def time_ours(steps: int) -> float:
    """CPU seconds of a training of one of the seeds that are trained side by side."""
    job = TrainJob(TASK.name, length=20, q=3, width=4, codes="random", embed=EMBED)
    lesson = choose_lesson(TASK)
    net = choose_net(job, lesson).net
    supply = Supply(lesson, net.reading, tuple(range(STACKED)), BATCH, SAMPLES)
    trainer = Trainer(net, supply, Course(steps, 0.01, 50, steps, None))
    return spend(trainer.run) / STACKED


class Plain(torch.nn.Module):
    """Attention as one would write it."""

    def __init__(self) -> None:
        super().__init__()
        features = TASK.dimension + (TASK.q + 1) * CODE
        for name, columns in (("Q", EMBED), ("K", EMBED), ("V", TASK.dimension)):
            setattr(self, name, torch.nn.Linear(features, columns, bias=False))

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """Answers at every token."""
        weights = (self.Q(X) @ self.K(X).transpose(-1, -2)).softmax(dim=-1)
        return weights @ self.V(X)


def time_plain(steps: int) -> float:
    """CPU seconds of a training of one seed."""
    rng = np.random.default_rng(0)
    X = Averaging(TASK).draw(SAMPLES, rng=rng)
    codes = rng.normal(size=(TASK.length, CODE))
    codes /= np.linalg.norm(codes, axis=1, keepdims=True)
    named = codes[X[..., TASK.dimension :].round().astype(int)].reshape(SAMPLES, TASK.length, -1)
    tokens = torch.tensor(np.concatenate([X[..., : TASK.dimension], named], axis=-1)).float()
    answers = torch.tensor(TASK.target(X)).float()
    net = Plain()
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)

    def run() -> None:
        for _ in range(steps):
            chosen = torch.randint(SAMPLES, (BATCH,))
            optimiser.zero_grad()
            gap = net(tokens[chosen]) - answers[chosen]
            gap.square().sum(dim=-1).mean().backward()
            optimiser.step()

    return spend(run)


def spend(work: Callable[[], None]) -> float:
    """CPU seconds of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    """Print both rates and their ratio, median and range over the rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with pin_torch_thread():
        # The first call of either loads what later ones find.
        time_ours(5)
        time_plain(5)
        pairs = [(time_ours(given.steps), time_plain(given.steps)) for _ in range(given.rounds)]
    for name, k in (("ours", 0), ("plain loop", 1)):
        rates = [60.0 / (pair[k] * STEPS / given.steps) for pair in pairs]
        print(
            f"{name}: {statistics.median(rates):.0f} trainings per CPU minute"
            f" ({min(rates):.0f} to {max(rates):.0f})"
        )
    ratios = [plain / ours for ours, plain in pairs]
    print(
        f"ours / plain: {statistics.median(ratios):.1f} x ({min(ratios):.1f} to {max(ratios):.1f})"
    )


if __name__ == "__main__":
    main()
