"""Recoveries from Python that are kept in a file, and shown while they go on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import numpy as np

from keyhole import __version__
from keyhole.errors import InvalidInput
from keyhole.learners.base import Learner
from keyhole.learners.registry import Hints
from keyhole.oracles.base import Oracle
from keyhole.oracles.transcript import Recorded
from keyhole.oracles.wrappers import Budgeted, Told, Watched, watch_batches


@dataclass(frozen=True, slots=True)
class Settings:
    """What a recovery starts from: a record belongs to the run of one such.

    Args:
        learner: a learner, or the name of one.
        hints: what is known of the target beforehand.
        rng: source of every random choice, as it is before the first of them.
    """

    learner: str | Learner
    hints: Hints
    rng: np.random.Generator

    def identify(self, width: int) -> dict[str, Any]:
        """What two runs that ask the same questions have in common."""
        # A learner that was made by hand says its options in its repr.
        chosen = self.learner if isinstance(self.learner, str) else repr(self.learner)
        parts = {item.name: getattr(self.hints, item.name) for item in fields(self.hints)}
        hints = {name: _sign(value) for name, value in parts.items() if value is not None}
        state = _sign(str(self.rng.bit_generator.state))
        named = {"learner": chosen, "hints": hints, "rng": state}
        return named | {"width": width, "version": __version__, "from": "keyhole.learn"}


def _sign(value: Any) -> str:
    """A short text that differs where the value does; arrays are too long to be kept."""
    if isinstance(value, np.ndarray):
        array = cast(Any, value)
        value = (array.shape, array.tobytes())
    if isinstance(value, tuple):
        value = [_sign(one) for one in cast("tuple[Any, ...]", value)]
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


@contextmanager
def keep_record(
    target: Oracle, settings: Settings, record: str | Path | None, budget: int | None
) -> Generator[Oracle]:
    """The target within its budget; with a record, what was answered before is not asked again.

    Raises:
        InvalidInput: the record is of another run, is no record, or has cost more than the budget.
    """
    if record is None:
        yield target if budget is None else Budgeted(target, budget)
        return
    kept = Recorded(target, Path(record), settings.identify(target.width))
    try:
        if budget is not None and budget < kept.charged:
            raise InvalidInput(
                f"the run in {record} has already asked {kept.charged} queries; budget={budget} is"
                " below that. Give at least as many."
            )
        yield kept if budget is None else Budgeted(kept, budget, kept.lost)
    finally:
        kept.close()


@contextmanager
def show_progress(
    oracle: Oracle, foresee: Callable[[], int], progress: bool | Told
) -> Generator[Oracle]:
    """The oracle, watched: by a bar in a terminal or notebook, or by whoever wants to be told."""
    if not progress:
        yield oracle
        return
    heard = progress if callable(progress) else None
    with ExitStack() as stack:
        if heard is not None:
            stack.enter_context(watch_batches(heard))
        watched = Watched(oracle, foresee(), title="learning", bar=heard is None)
        yield stack.enter_context(watched)
