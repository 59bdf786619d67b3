"""What a run was asked, what came of it, and the command that does it again."""

from __future__ import annotations

from itertools import islice

from keyhole.drawing.html import format_number
from keyhole.lab.jobs import COMMANDS
from keyhole.lab.runs.command_lines import format_command_line
from keyhole.lab.runs.other_records import OtherRecord, SweepRecord
from keyhole.lab.runs.record_parts import Given
from keyhole.lab.runs.records import Envelope, RunRecord
from keyhole.lab.runs.recovery_records import (
    AuditRecord,
    CompareRecord,
    DemoRecord,
    LearnRecord,
    RecoveryRecord,
    Stop,
    TwinsRecord,
)
from keyhole.lab.runs.rows import (
    Rows,
    list_bound_rows,
    list_build_rows,
    list_expectation_rows,
    list_recovery_rows,
    list_time_rows,
    list_token_audit_rows,
    list_training_rows,
)
from keyhole.lab.runs.tables import flatten_record, format_value
from keyhole.lab.runs.task_records import BoundRecord, BuildRecord, TrainRecord

_GOOD = ("EXACT", "WITHIN_TOLERANCE", "HOLDS", "ENOUGH")
LINES = 8  # rows between the sentence and where the page is
# A summary has few lines: these rows are for the terminal and the page of the run itself.
_RECOVERY = (
    *("status", "determined", "error bar"),
    *("recognised", "found", "excluded", "to try", "not seen at first"),
    *("examined", "not asked", "explained"),
)


def describe_question(record: Envelope) -> str:
    """What was asked, in a sentence; nothing where that is not known."""
    command = COMMANDS.get(record.kind)
    describe = None if command is None else command.load("question")
    return f"Asked: {describe(record)}" if describe is not None else ""


def describe_demo_question(record: DemoRecord) -> str:
    """What a tour asks."""
    del record
    return "hide models of every kind, recover them from answers alone, build and bound others."


def describe_learn_question(record: LearnRecord) -> str:
    """What a recovery asks."""
    budget = f", with at most {record.budget:,} queries" if record.budget else ""
    return f"what weights are behind {record.target}{budget}."


def describe_audit_question(record: AuditRecord) -> str:
    """What an audit asks."""
    if record.tokens is not None:
        return f"what the answers of {record.target}, a language model, give away."
    return f"which output policy of {record.target} keeps how much back."


def describe_compare_question(record: CompareRecord) -> str:
    """What a comparison asks."""
    return f"whether {record.a} and {record.b} are one function."


def describe_twins_question(record: TwinsRecord) -> str:
    """What is asked of twins."""
    return f"which other weights answer like {record.model}."


def describe_build_question(record: BuildRecord) -> str:
    """What weights were asked for."""
    return f"weights for {_describe_task(record.task, record.sizes)}."


def describe_bound_question(record: BoundRecord) -> str:
    """What a bound is asked."""
    return f"is this size enough for {_describe_task(record.task, record.task_sizes)}?"


def describe_train_question(record: TrainRecord) -> str:
    """What a training asks."""
    return f"what {record.model_name} learns of {_describe_task(record.task, record.task_sizes)}."


def describe_sweep_question(record: SweepRecord) -> str:
    """What a sweep asks."""
    return f"every job of {record.file}."


def _describe_task(name: str, sizes: dict[str, Given]) -> str:
    told = [
        key if value is True else f"{key} {value}"
        for key, value in sizes.items()
        if value is not False
    ]
    return f"{name} ({', '.join(told).replace('_', ' ')})" if told else name


def restore_command(record: Envelope) -> str:
    """The command that gives this record again; nothing where it is not known."""
    # Most records hold their command; those of recoveries are put together from their fields.
    if isinstance(record, RunRecord) and record.command:
        return record.command
    if isinstance(record, DemoRecord):
        return format_command_line("demo", (), {"seed": record.seed})
    if isinstance(record, TwinsRecord):
        return format_command_line("twins", (record.model,), {"seed": record.seed})
    if isinstance(record, SweepRecord):
        return format_command_line("sweep", (record.file,), {"out": record.run})
    return _restore_learn_command(record) if isinstance(record, LearnRecord) else ""


def _restore_learn_command(record: LearnRecord) -> str:
    options: dict[str, Given] = {
        "learner": record.learner,
        "seed": record.seed,
        "budget": record.budget,
        **record.options,
    }
    target = str(record.target)
    # A saved model says its own width; any other target may need to be told.
    if not target.endswith(".safetensors"):
        options = {"width": record.width, **options}
    return format_command_line("learn", (target,), options)


def describe_versions(record: Envelope) -> str:
    """What the run was made with."""
    made = {"keyhole": record.version}
    if isinstance(record, RunRecord):
        made |= {"numpy": record.numpy, "Python": record.python}
    return ", ".join(f"{name} {version}" for name, version in made.items() if version)


def summarise_record(record: Envelope, room: int = LINES) -> list[tuple[str, str]]:
    """The record in a few rows, to stand under its sentence."""
    command = COMMANDS.get(record.kind)
    summarise = None if command is None else command.load("summary")
    rows = list((summarise or _summarise_other)(record))
    again = restore_command(record)
    more = [("again", again)] if again else []
    return [*rows[: room - len(more)], *more]


def _leave_out(rows: Rows, *names: str) -> Rows:
    return (row for row in rows if row[0] not in names)


def summarise_recovery(record: RecoveryRecord) -> Rows:
    """A recovery in short."""
    return _leave_out(list_recovery_rows(record), *_RECOVERY)


def summarise_build(record: BuildRecord) -> Rows:
    """Built weights in short."""
    return _leave_out(list_build_rows(record), "format", "frontier")


def summarise_bound(record: BoundRecord) -> Rows:
    """A bound in short."""
    return _leave_out(list_bound_rows(record), "assumes", "growth", "not built", "not proved")


def summarise_training(record: TrainRecord) -> Rows:
    """A training in short."""
    return _leave_out(list_training_rows(record), "errors")


def summarise_demo(record: DemoRecord) -> Rows:
    """A tour in short."""
    # A tour is summed up by its first recovery, and room is left for its stops.
    yield from islice(summarise_recovery(record), 5)
    good = sum(map(_is_good_stop, record.stops))
    yield "stops", f"{good} of {len(record.stops)} came out as they should"
    yield from list_time_rows(record.seconds)


def _is_good_stop(stop: Stop) -> bool:
    # A verdict is worth nothing where the truth says otherwise.
    held = stop.certificate
    return stop.verdict in _GOOD and (held is None or held.outcome != "REFUTED")


def summarise_audit(record: AuditRecord) -> Rows:
    """An audit in short."""
    if record.tokens is not None:
        yield "target", record.target
        yield from list_token_audit_rows(record.tokens)
        return
    rows = record.policies
    keep = [row.policy for row in rows if row.protects]
    yield "target", record.target
    yield "policies", f"{len(rows)}; protecting: {', '.join(keep) or 'none'}"
    known = [(error, row) for row in rows if (error := row.nearest.error) is not None]
    # The best and the worst policy for an extractor say more than an average.
    for said_of, pick in (("least error", min), ("largest error", max)) if known else ():
        error, row = pick(known, key=lambda pair: pair[0])
        yield said_of, f"{format_number(error)} of {record.error_of}: {row.policy}"
    yield "cost", f"{record.queries.total:,} queries in all"
    yield from list_time_rows(record.seconds)


def summarise_sweep(record: SweepRecord) -> Rows:
    """A sweep in short."""
    jobs = record.jobs
    yield "jobs", f"{jobs.done:,} of {jobs.total:,} done, {jobs.failed:,} failed"
    yield from list_expectation_rows(record.expectations)


def _summarise_other(record: Envelope) -> Rows:
    fields = record.fields if isinstance(record, OtherRecord) else flatten_record(record)
    yield from ((name, format_value(value)) for name, value in fields.items() if name != "sentence")
