"""The loop: Adam on seeds side by side, checked, stopped early, kept, gone on with."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import cos, inf, pi
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from keyhole._arrays import Array, Matrix
from keyhole.errors import DifferentRun
from keyhole.lab.training.adam import Adam
from keyhole.lab.training.inputs.streams import Purpose, open_stream
from keyhole.lab.training.nets.net import Net
from keyhole.lab.training.nets.token_reading import Weights, tensor_of
from keyhole.lab.training.supply import SeedBatch, Supply
from keyhole.models.files import read_tensors, write_tensors

STACKED = 20  # seeds side by side: more are not faster
_CHUNK = 250  # sequences of a check at a time
EVERY, LAST = slice(None), slice(-1, None)  # rows of an input that are measured


@dataclass(frozen=True, slots=True)
class Course:
    """How long and how fast to train.

    Args:
        steps: steps of Adam.
        rate: the largest learning rate.
        warm_up: steps in which it is reached; it then falls to zero along a cosine.
        check_every: steps between two checks.
        patience: checks without a better one after which a seed stops; never when absent.
        checks: sequences of a check.
        keep_every: steps between two checkpoints.
    """

    steps: int
    rate: float
    warm_up: int
    check_every: int
    patience: int | None
    checks: int = 200
    keep_every: int | None = None

    def rate_at(self, step: int) -> float:
        """The learning rate of a step."""
        if step < self.warm_up:
            return self.rate * (step + 1) / self.warm_up
        return (
            0.5
            * self.rate
            * (1.0 + cos(pi * (step - self.warm_up) / max(1, self.steps - self.warm_up)))
        )


@dataclass(slots=True)
class Progress:
    """What has been seen of every seed so far.

    Args:
        steps: of the checks.
        errors: one row per check, one number per seed.
        aligned: likewise, the share of attention on the tokens that should be attended to; empty
            where none is told.
        best: the least error of each seed so far.
        best_steps: when it was seen.
        stopped: the step at which a seed was stopped for want of progress, or -1.
        pictures: attention of the first seed on one input, by step.
    """

    steps: list[int] = field(default_factory=list[int])
    errors: list[list[float]] = field(default_factory=list[list[float]])
    aligned: list[list[float]] = field(default_factory=list[list[float]])
    best: list[float] = field(default_factory=list[float])
    best_steps: list[int] = field(default_factory=list[int])
    stopped: list[int] = field(default_factory=list[int])
    pictures: dict[int, Matrix] = field(default_factory=dict[int, Matrix])

    def plain(self) -> dict[str, list[int] | list[float] | list[list[float]]]:
        """As JSON, pictures apart."""
        names = ("steps", "errors", "aligned", "best", "best_steps", "stopped")
        return {name: getattr(self, name) for name in names}


@contextmanager
def pin_torch_thread() -> Generator[None]:
    """Torch inside runs on one thread: two on a busy machine are many times slower."""
    before = torch.get_num_threads()
    # Small products gain nothing from threads, and lose much to waiting.
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Trainer:
    """Seeds of one net, trained side by side.

    Args:
        net: the architecture.
        supply: where batches come from.
        course: how long and how fast.
        identity: what a checkpoint is of; one of anything else is refused.
    """

    def __init__(self, net: Net, supply: Supply, course: Course, identity: str = "") -> None:
        """Weights to begin with."""
        self.net = net
        self.supply = supply
        self.course = course
        self.identity = identity
        starts = [net.initial(open_stream(seed, Purpose.WEIGHTS)) for seed in supply.seeds]
        self.weights: Weights = {
            # Drawn in numpy, seed by seed: a seed's weights do not depend on its neighbours.
            name: tensor_of(np.stack([start[name] for start in starts])).float()
            for name in starts[0]
        }
        self.trained = [name for name in self.weights if name not in net.fixed]
        for name in self.trained:
            self.weights[name].requires_grad_()
        self.adam = Adam({name: self.weights[name] for name in self.trained})
        self.taught = net
        # Tokens whose codes stay are read once, not in every step.
        if (ahead := net.on_read_tokens()) is not None and supply.read_ahead(self.weights):
            self.taught = ahead
        count = len(supply.seeds)
        self.progress = Progress(best=[inf] * count, best_steps=[0] * count, stopped=[-1] * count)
        self.best = {name: part.detach().clone() for name, part in self.weights.items()}
        self.step = 0
        # Drawn once: errors of different steps are of the same inputs.
        self.checks = supply.held_out(Purpose.CHECKS, course.checks)

    @property
    def parameters(self) -> int:
        """Numbers that are trained, of one seed."""
        return sum(self.weights[name][0].numel() for name in self.trained)

    def run(
        self, path: Path | None = None, shown: Callable[[int], None] = lambda step: None
    ) -> None:
        """Train to the end, or until every seed has stopped.

        Args:
            path: where checkpoints are written.
            shown: told every step.
        """
        every = self.course.keep_every
        while not self.ended():
            # After a checkpoint this step may have been measured already.
            if self.step % self.course.check_every == 0 and not self._checked():
                self._check()
                if self.ended():
                    break
            if path is not None and every and self.step and self.step % every == 0:
                self.keep(path)
            self._advance()
            shown(self.step)
        if not self._checked():
            self._check()

    def _checked(self) -> bool:
        """Whether the weights of this step, perhaps of a checkpoint, have been measured."""
        return self.progress.steps[-1:] == [self.step]

    def ended(self) -> bool:
        """Whether there is nothing left to do."""
        return self.step >= self.course.steps or all(step >= 0 for step in self.progress.stopped)

    def _advance(self) -> None:
        """One step of every seed; the loss is the sum, so that no seed feels another."""
        batch = self.supply.at(self.step)
        self._losses(batch).sum().backward()  # pyright: ignore[reportUnknownMemberType]
        self.adam.step(self.course.rate_at(self.step))
        self.step += 1

    def _losses(self, batch: SeedBatch) -> Tensor:
        """The loss of each seed."""
        answers = self.taught(self.weights, batch.X, batch.codes)
        if self.supply.lesson.labels:
            # Nets answer log-odds: from probabilities small losses would cancel.
            return functional.binary_cross_entropy_with_logits(
                answers, batch.Y, reduction="none"
            ).mean(dim=(1, 2, 3))
        gap = (answers - batch.Y).flatten(1)
        return gap.square().sum(dim=1) * (batch.Y.shape[-1] / gap.shape[1])

    @torch.no_grad()
    def errors(self, w: Weights, batch: SeedBatch, rows: slice = EVERY) -> Array:
        """Of each seed: relative squared error, or the share of wrong labels, over some rows."""
        wrong = np.zeros(len(batch.X))
        right = batch.Y[:, :, rows]
        # A chunk at a time bounds the memory that a check takes.
        for start in range(0, batch.X.shape[1], _CHUNK):
            part = batch.part(slice(start, start + _CHUNK))
            answers = self.net(w, part.X, part.codes)[:, :, rows]
            seen = self._count_wrong(answers, part.Y[:, :, rows])
            # A seed that diverged must count as the worst, not as unknown.
            wrong += seen.nan_to_num(nan=inf).sum(dim=(1, 2)).numpy()
        wrong /= right.shape[1] * right.shape[2]
        if self.supply.lesson.labels:
            return wrong
        return wrong / right.square().sum(dim=-1).mean(dim=(1, 2)).double().numpy()

    def _count_wrong(self, answers: Tensor, right: Tensor) -> Tensor:
        """Of every answer: whether its label is wrong, or its squared error."""
        if not self.supply.lesson.labels:
            return (answers - right).square().sum(dim=-1).double()
        wrong = ((answers > 0) != (right > 0.5)).logical_or(answers.isnan())
        return wrong.double().mean(dim=-1)

    def _check(self) -> None:
        """Measure every seed, remember its best weights, stop it where it gets no better."""
        seen = self.errors(self.weights, self.checks)
        progress = self.progress
        progress.steps.append(self.step)
        progress.errors.append([float(error) for error in seen])
        for k, error in enumerate(seen):
            # It is trained on beside the others, but its best weights stand.
            if progress.stopped[k] >= 0:
                continue
            if error < progress.best[k]:
                progress.best[k] = float(error)
                progress.best_steps[k] = self.step
                for name, part in self.weights.items():
                    self.best[name][k] = part.detach()[k]
            elif self.course.patience is not None:
                since = (self.step - progress.best_steps[k]) // self.course.check_every
                progress.stopped[k] = self.step if since >= self.course.patience else -1
        self._look()

    @torch.no_grad()
    def _look(self) -> None:
        """Where attention goes, for tasks that say where it should."""
        part = self.checks.part(slice(0, 50))
        weights = self.net.attention(self.weights, part.X, part.codes)
        if weights is None:
            return
        # A diverged seed has no attention to show.
        if weights[0, 0].isfinite().all():
            self._picture(_widen_to_float64(weights[0, 0]))
        ideal = [self.supply.lesson.members(x.double().numpy()) for x in part.X]
        if any(named is None for named in ideal):
            return
        inside = (weights * tensor_of(ideal)).sum(dim=-1).mean(dim=(1, 2))
        self.progress.aligned.append([float(share) for share in inside])

    def _picture(self, weights: Matrix) -> None:
        """Keep the first picture, an early one and the last."""
        held = self.progress.pictures
        held[self.step] = weights
        # The first check after a tenth of the training shows attention taking shape.
        early = next((step for step in sorted(held) if step >= 0.1 * self.course.steps), self.step)
        for step in set(held) - {min(held), early, self.step}:
            del held[step]

    def best_of(self, k: int) -> dict[str, Array]:
        """The best weights of one seed, in float64."""
        return {name: _widen_to_float64(part[k]) for name, part in self.best.items()}

    def keep(self, path: Path) -> None:
        """Write all that is needed to go on."""
        tensors: dict[str, Array] = {}
        for name, part in self.weights.items():
            tensors |= {
                f"now.{name}": _widen_to_float64(part),
                f"best.{name}": _widen_to_float64(self.best[name]),
            }
        for name in self.trained:
            tensors |= {
                f"mean.{name}": _widen_to_float64(self.adam.mean[name]),
                f"square.{name}": _widen_to_float64(self.adam.square[name]),
            }
        # Pictures of early steps could not be made again.
        tensors |= {f"picture.{step}": picture for step, picture in self.progress.pictures.items()}
        about = {"kind": "checkpoint", "identity": self.identity, "step": str(self.step)}
        write_tensors(path, about | {"progress": json.dumps(self.progress.plain())}, tensors)

    def go_on(self, path: Path) -> None:
        """Go on from a checkpoint.

        Raises:
            DifferentRun: it is of another run.
        """
        about, tensors = read_tensors(path)
        if about.get("kind") != "checkpoint" or about.get("identity") != self.identity:
            raise DifferentRun(
                f"{path} is a checkpoint of another training. Use --force to start anew."
            )
        self.step = int(about["step"])
        held = {name: tensor_of(a).float() for name, a in tensors.items()}
        for name, part in self.weights.items():
            part.data.copy_(held[f"now.{name}"])
            self.best[name].copy_(held[f"best.{name}"])
        # Adam's correction depends on how many steps it has taken.
        self.adam.taken = self.step
        for name in self.trained:
            self.adam.mean[name] = held[f"mean.{name}"]
            self.adam.square[name] = held[f"square.{name}"]
        pictures = {int(name[8:]): tensors[name] for name in tensors if name.startswith("picture.")}
        self.progress = Progress(**json.loads(about["progress"]), pictures=pictures)


def _widen_to_float64(part: Tensor) -> Array:
    """Numbers of float32 in float64, which holds them exactly."""
    return part.detach().double().numpy()
