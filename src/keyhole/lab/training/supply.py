"""Where batches come from: each follows from the seed and the step alone.

A seed has a stream of its own for every purpose and every block of steps. Seeds trained side by
side therefore see what they would see alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from keyhole._arrays import Array
from keyhole.lab.training.inputs.lessons import Examples, Lesson
from keyhole.lab.training.inputs.streams import Purpose, open_stream
from keyhole.lab.training.nets.token_reading import TokenReading, Weights, tensor_of

_ROOM = 2**21  # numbers of a block, per seed
_KEPT = 2**26  # numbers of read tokens that are kept, of all seeds: 256 MB


class SeedBatch(NamedTuple):
    """Inputs, answers and, where they are resampled, codes; seeds on the first axis."""

    X: Tensor
    Y: Tensor
    codes: Tensor | None

    def examples(self, k: int) -> Examples:
        """The sequences of one seed as arrays."""
        return Examples(self.X[k].double().numpy(), self.Y[k].double().numpy())

    def part(self, chosen: Any) -> SeedBatch:
        """Some of the sequences, or those of one step."""
        return SeedBatch(
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
    _known: SeedBatch | None = None
    _number: int = -1
    _block: SeedBatch | Tensor | None = None

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

    def at(self, step: int) -> SeedBatch:
        """The batch of a step."""
        number, within = divmod(step, self.steps)
        if self._number != number or self._block is None:
            # Drawn many steps at a time: calls of numpy cost more than the numbers.
            self._number, self._block = number, self._draw(number)
        if isinstance(self._block, SeedBatch):
            return self._block.part(within)
        X, Y, _ = self.sample()
        chosen = self._block[within]
        return SeedBatch(self._pick(X, chosen), self._pick(Y, chosen), None)

    def _draw(self, number: int) -> SeedBatch | Tensor:
        """A block of steps: sequences, or the numbers of known ones."""
        rngs = [open_stream(seed, Purpose.BATCHES, number) for seed in self.seeds]
        size = self.steps * self.batch
        if self.samples is not None and self.reading.kind != "resampled":
            chosen = [rng.integers(self.samples, size=size) for rng in rngs]
            # Behind one another the samples of all seeds are one table.
            rows = np.stack(chosen) + self.samples * np.arange(len(rngs))[:, None]
            by_step = rows.reshape(len(rngs), self.steps, -1).swapaxes(0, 1)
            return tensor_of(by_step.reshape(self.steps, -1))
        drawn = [
            (*self._draw_sequences(k, size, rng), *self._codes(size, rng))
            for k, rng in enumerate(rngs)
        ]
        return _stack_seeds(drawn, self.steps)

    def _draw_sequences(self, k: int, size: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Sequences of one seed and their answers: fresh ones, or some of those it knows."""
        if self.samples is None:
            X = self.lesson.draw(size, rng=rng)
            return X, self.lesson.targets(X)
        known = self.sample()
        chosen = rng.integers(self.samples, size=size)
        return known.X[k].numpy()[chosen], known.Y[k].numpy()[chosen]

    def _pick(self, rows: Tensor, chosen: Tensor) -> Tensor:
        """Rows by their number among those of all seeds: seeds x batch x the rest."""
        found = rows.flatten(0, 1).index_select(0, chosen)
        return found.reshape(len(self.seeds), self.batch, *rows.shape[2:])

    def sample(self) -> SeedBatch:
        """The sequences each seed is trained on, where these are limited."""
        if self._known is None:
            rows: list[tuple[Array, ...]] = []
            for seed in self.seeds:
                X = self.lesson.draw(self.samples or 0, rng=open_stream(seed, Purpose.SAMPLE))
                rows.append((X, self.lesson.targets(X)))
            self._known = _stack_seeds(rows, None)
        return self._known

    def read_ahead(self, w: Weights) -> bool:
        """Read the tokens that are trained on now, once, where codes stay and there is room.

        Args:
            w: weights that hold the codes.
        """
        numbers = len(self.seeds) * self.lesson.task.length * self.reading.features
        if self.samples is None or not self.reading.settled or numbers * self.samples > _KEPT:
            return False
        X, Y, codes = self.sample()
        with torch.no_grad():
            self._known = SeedBatch(self.reading.tokens(w, X), Y, codes)
        return True

    def _codes(self, size: int, rng: np.random.Generator) -> tuple[Array, ...]:
        if self.reading.kind != "resampled":
            return ()
        return (self.reading.redrawn(size, self.lesson.task.columns.values, rng=rng),)

    def held_out(self, purpose: Purpose, size: int) -> SeedBatch:
        """Sequences that are not trained on."""
        rows: list[tuple[Array, ...]] = []
        for seed in self.seeds:
            rng = open_stream(seed, purpose)
            X = self.lesson.draw(size, rng=rng)
            rows.append((X, self.lesson.targets(X), *self._codes(size, rng)))
        return _stack_seeds(rows, None)


def _stack_seeds(rows: list[tuple[Array, ...]], steps: int | None) -> SeedBatch:
    """Arrays of every seed as tensors, split by steps where there are some."""
    X, Y, *codes = (
        # Made small before they are joined, which half of the time would go into otherwise.
        tensor_of(np.stack([one.astype(np.float32, copy=False) for one in part]))
        for part in zip(*rows, strict=True)
    )
    if steps is not None:
        X, Y, *codes = (
            part.reshape(len(rows), steps, -1, *part.shape[2:]) for part in (X, Y, *codes)
        )
    return SeedBatch(X, Y, codes[0] if codes else None)
