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


class Order(msgspec.Struct, frozen=True):
    """A request for a process, with the directory it may write to."""

    kind: str
    fields: msgspec.Raw
    place: str | None


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job tells on its way.

    Args:
        doing: what it does now, in words.
        asked: queries by phase, so far.
        limit: the fewest queries any learner can ask.
        hidden: the matrices that are to be recovered, packed.
    """

    doing: str | None = None
    asked: dict[str, int] | None = None
    limit: int | None = None
    hidden: list[str] | None = None


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
    """The matrices of a true head and of the one that matches it, packed."""

    truth: str
    values: list[float]
    found: str | None
    difference: str = ""
    found_values: list[float] = []


class CoursePoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The error that so many queries reach, and the matrices of a single head, packed."""

    queries: int
    error: Number
    found: str = ""
    difference: str = ""


class RecoveryResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a recovery, as the page shows it."""

    record: LearnRecord
    command: str
    heads: list[Portrait]
    course: list[CoursePoint]
    error: Number
    run: str


class BoundResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a bound, and the plane around it."""

    record: BoundRecord
    plane: Plane | None
