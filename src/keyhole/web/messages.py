"""What the server, its processes and the page say to each other."""

from __future__ import annotations

import msgspec

from keyhole.lab.runs.record_parts import Number
from keyhole.lab.runs.recovery_records import LearnRecord
from keyhole.lab.runs.task_records import BoundRecord, Plane

NOTHING = msgspec.Raw(b"null")


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request of the page.

    Args:
        kind: what is asked for.
        fields: its particulars, a JSON object that is read by whoever knows the kind.
    """

    kind: str
    fields: msgspec.Raw


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What the explorer was started with: no request of a page can name another.

    Args:
        target: as `keyhole learn` takes it.
        width: size of a token, where the target does not say.
        outputs: numbers per answer, where the target does not say.
        layer: one layer of it.
        truth: a saved model that is compared with what is found.
    """

    target: str
    width: int | None = None
    outputs: int | None = None
    layer: str | None = None
    truth: str | None = None


class Order(msgspec.Struct, frozen=True):
    """A request for a process, with the directory it may write to and the target it may ask."""

    kind: str
    fields: msgspec.Raw
    place: str | None
    target: Target | None = None


class CoursePoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What so many queries tell of a single head: its matrix, packed, and the error of that."""

    queries: int
    error: Number = None
    found: str = ""
    difference: str = ""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job tells on its way.

    Args:
        doing: what it does now, in words.
        asked: queries by phase, so far.
        limit: the fewest queries any learner can ask.
        hidden: the matrices that are to be recovered, packed.
        reading: what the answers so far tell of one head.
    """

    doing: str | None = None
    asked: dict[str, int] | None = None
    limit: int | None = None
    hidden: list[str] | None = None
    reading: CoursePoint | None = None


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a process: that it is ready, an event, and in the end a result or a sentence.

    Args:
        ready: it has loaded what it needs.
        event: what a job tells on its way.
        result: what came of it.
        failed: why nothing came of it.
    """

    ready: bool = False
    event: msgspec.Raw = NOTHING
    result: msgspec.Raw = NOTHING
    failed: str | None = None


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the page is told of a job, with the events it has not seen yet."""

    id: str
    kind: str
    state: str
    sentence: str | None
    next: int
    events: list[msgspec.Raw]
    result: msgspec.Raw


class Portrait(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The matrices of a true head, where it is known, and of the one that matches it, packed."""

    truth: str | None
    values: list[float]
    found: str | None
    difference: str = ""
    found_values: list[float] = []


class NamedMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """One matrix of a model, packed."""

    name: str
    rows: int
    columns: int
    numbers: str


class RecoveryResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a recovery, as the page shows it.

    Args:
        record: of the run.
        command: that does the same.
        heads: those of a model that is a sum of heads, each beside the true one where it is known.
        matrices: those of a model of another kind.
        course: what the answers told on the way, and in the end.
        error: of W, where the truth is known.
        compared: in words, how far the model is from the truth.
        run: its directory.
    """

    record: LearnRecord
    command: str
    heads: list[Portrait]
    matrices: list[NamedMatrix]
    course: list[CoursePoint]
    error: Number
    compared: str | None
    run: str


class BoundResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a bound, and the plane around it."""

    record: BoundRecord
    plane: Plane | None
