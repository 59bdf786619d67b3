"""Where batches come from: each follows from the seed and the step alone.

A seed has a stream of its own for every purpose and every block of steps. Seeds trained side by
side therefore see what they would see alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from keyhole._arrays import Array, Sequences
from keyhole.lab.training.inputs.lessons import Examples, Lesson
from keyhole.lab.training.inputs.streams import Purpose, open_stream
from keyhole.lab.training.nets.token_reading import TokenReading, tensor_of
from keyhole.tasks.base import Labels

_ROOM = 2**21  # numbers of a block, per seed


class Batch(NamedTuple):
    """Inputs, answers and, where they are resampled, codes; seeds on the first axis."""

    X: Tensor
    Y: Tensor
    codes: Tensor | None

    def examples(self, k: int) -> Examples:
        """The sequences of one seed as arrays."""
        return Examples(self.X[k].double().numpy(), self.Y[k].double().numpy())

    def part(self, chosen: Any) -> Batch:
        """Some of the sequences, or those of one step."""
        return Batch(
            self.X[:, chosen],
            self.Y[:, chosen],
            None if self.codes is None else self.codes[:, chosen],
        )


@dataclass(slots=True)
class Supply:
    """Batches of every seed.

    Args:
        lesson: what is learned.
        reading: how tokens are read.
        seeds: the seeds.
        batch: sequences of a step.
        samples: sequences to train on; fresh ones every step when absent.
    """

    lesson: Lesson[Any]
    reading: TokenReading
    seeds: tuple[int, ...]
    batch: int
    samples: int | None
    _kept: dict[int, tuple[Sequences, Labels]] = field(
        default_factory=dict[int, tuple[Sequences, Labels]]
    )
    _block: tuple[int, Batch | None] = (-1, None)

    @property
    def steps(self) -> int:
        """Steps of a block."""
        task = self.lesson.task
        # Resampled codes are the largest part of a block.
        codes = self.reading.width * task.length if self.reading.kind == "resampled" else 0
        return max(
            1,
            min(
                64,
                _ROOM
                // (self.batch * task.length * (task.width + task.outputs) + self.batch * codes),
            ),
        )

    def at(self, step: int) -> Batch:
        """The batch of a step."""
        number, within = divmod(step, self.steps)
        held, block = self._block
        if held != number or block is None:
            # Drawn many steps at a time: calls of numpy cost more than the numbers.
            block = _stack_seeds([self._drawn(seed, number) for seed in self.seeds], self.steps)
            self._block = number, block
        return block.part(within)

    def _drawn(self, seed: int, number: int) -> tuple[Array, ...]:
        rng = open_stream(seed, Purpose.BATCHES, number)
        size = self.steps * self.batch
        if self.samples is None:
            X = self.lesson.draw(size, rng=rng)
            Y = self.lesson.targets(X)
        else:
            known, answers = self.sample(seed)
            chosen = rng.integers(self.samples, size=size)
            X, Y = known[chosen], answers[chosen]
        return X, Y, *self._codes(size, rng)

    def sample(self, seed: int) -> tuple[Sequences, Labels]:
        """The sequences a seed is trained on, where these are limited."""
        if seed not in self._kept:
            X = self.lesson.draw(self.samples or 0, rng=open_stream(seed, Purpose.SAMPLE))
            self._kept[seed] = X, self.lesson.targets(X)
        return self._kept[seed]

    def _codes(self, size: int, rng: np.random.Generator) -> tuple[Array, ...]:
        if self.reading.kind != "resampled":
            return ()
        return (self.reading.redrawn(size, self.lesson.task.columns.values, rng=rng),)

    def held_out(self, purpose: Purpose, size: int) -> Batch:
        """Sequences that are not trained on."""
        rows: list[tuple[Array, ...]] = []
        for seed in self.seeds:
            rng = open_stream(seed, purpose)
            X = self.lesson.draw(size, rng=rng)
            rows.append((X, self.lesson.targets(X), *self._codes(size, rng)))
        return _stack_seeds(rows, None)


def _stack_seeds(rows: list[tuple[Array, ...]], steps: int | None) -> Batch:
    """Arrays of every seed as tensors, split by steps where there are some."""
    X, Y, *codes = (tensor_of(np.stack(part)).float() for part in zip(*rows, strict=True))
    if steps is not None:
        X, Y, *codes = (
            part.reshape(len(rows), steps, -1, *part.shape[2:]) for part in (X, Y, *codes)
        )
    return Batch(X, Y, codes[0] if codes else None)
