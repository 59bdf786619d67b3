"""How far a training is, and how long it will still take, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

SECONDS = 10.0  # between two lines of progress


@dataclass(slots=True)
class TimeLeft:
    """Lines that say which step a training has reached and about how long it will take.

    Args:
        what: what is trained, for the line.
        steps: steps of one group of seeds.
        groups: groups that are trained one after another.
        clock: seconds since some moment.
    """

    what: str
    steps: int
    groups: int
    clock: Callable[[], float] = time.monotonic
    _done: int = 0
    _begun: float = field(init=False)
    _told: float = field(init=False)

    def __post_init__(self) -> None:
        self._begun = self._told = self.clock()

    def tell(self, group: int, seeds: tuple[int, ...], step: int) -> None:
        """One more step of a group has been taken; now and then a line is written."""
        # Steps taken before a resumption took none of this run's time.
        self._done += 1
        now = self.clock()
        if now - self._told >= SECONDS:
            self._told = now
            left = (self.groups - group) * self.steps - step
            seconds = (now - self._begun) / self._done * left
            sys.stderr.write(
                f"training {self.what}, seeds {seeds[0]} to {seeds[-1]}: step {step:,} of"
                f" {self.steps:,}, about {format_duration(seconds)} left\n"
            )


def format_duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
