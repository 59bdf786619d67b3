"""The witness of a run, asked again."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from keyhole._arrays import Matrix
from keyhole.claims import Verdict
from keyhole.errors import InvalidInput
from keyhole.lab.commands.shared import REFUSED
from keyhole.lab.jobs import VerifyJob
from keyhole.lab.runs.reading import read_run
from keyhole.lab.runs.record_parts import (
    CounterexampleRecord,
    Numbers,
    ReplayRecord,
    Seconds,
)
from keyhole.lab.runs.recording import record_queries
from keyhole.lab.runs.records import Envelope, Record
from keyhole.lab.runs.recovery_records import RecoveryRecord, VerifyRecord
from keyhole.lab.runs.rows import list_replay_rows
from keyhole.learners.findings import Witness
from keyhole.learners.verifying.rules import Replayed, describe_witness, replay_witness
from keyhole.oracles import Counted, Oracle, count_asked_again


def read_witness(path: str) -> Witness:
    """The witness that a run was refuted by.

    Raises:
        InvalidInput: there is no record, it is damaged, or it holds no witness.
    """
    run = read_run(path)
    record: Envelope = run.data
    case = record.counterexample if isinstance(record, RecoveryRecord) else None
    if case is None or case.rule is None:
        said = record.verdict if isinstance(record, RecoveryRecord) else run.kind
        raise InvalidInput(
            f"{run.directory} holds no witness ({said}). Give the directory of a run of learn that"
            " ended with CLASS_REFUTED."
        )
    try:
        return _restore_witness(case, case.rule)
    except InvalidInput as error:
        raise InvalidInput(f"the witness in {run.directory} is damaged: {error}") from error


def _restore_witness(case: CounterexampleRecord, rule: str) -> Witness:
    questions = tuple(_read_matrix(question) for question in case.questions)
    answers = tuple(_read_matrix([answer])[0] for answer in case.answers)
    widths = {question.shape[1] for question in questions}
    if len(widths) != 1 or len({len(answer) for answer in answers}) != 1:
        raise InvalidInput("its questions or its answers are not of one width.")
    return Witness(rule, questions, answers, case.gap or 0.0, case.allowed or 0.0)


def _read_matrix(rows: Sequence[Numbers]) -> Matrix:
    try:
        numbers = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput("a question or an answer is no table of numbers.") from error
    if numbers.ndim != 2 or not numbers.size or not np.isfinite(numbers).all():
        raise InvalidInput("a question or an answer is no table of numbers.")
    return numbers


def replay_run_witness(
    job: VerifyJob, witness: Witness, oracle: Oracle, timed: Counted, start: float
) -> Record[VerifyRecord]:
    """Ask the witness again; exit code 0 where the rule is broken as before, else 3.

    Args:
        job: the command.
        witness: what was read from a run.
        oracle: the target within its budget.
        timed: the target, counting.
        start: when the command began.
    """
    width = witness.questions[0].shape[1]
    if oracle.width != width:
        raise InvalidInput(
            f"the target's tokens have width {oracle.width}, those of the witness {width}."
        )
    counted = Counted(oracle)
    with counted.phase("verify"):
        again = replay_witness(counted, witness)
    data = VerifyRecord(
        verdict=(Verdict.CLASS_REFUTED if again.holds else Verdict.UNVERIFIED).name,
        sentence=_describe_replay(witness, again),
        witness=ReplayRecord(
            rule=witness.rule,
            gap=again.gap,
            allowed=again.allowed,
            before=witness.gap,
            holds=again.holds,
        ),
        queries=record_queries(counted.ledger, count_asked_again(oracle)),
        seconds=Seconds(total=time.perf_counter() - start, oracle=timed.ledger.total().seconds),
        seed=job.seed,
        target=job.target,
        model=None,
    )
    rows = (("verdict", data.verdict), *list_replay_rows(data.witness))
    return Record(data, 0 if again.holds else REFUSED, rows)


def _describe_replay(witness: Witness, again: Replayed) -> str:
    if again.holds:
        return f"The witness holds. {describe_witness(witness)} Asked again: {again.gap:.2g}."
    return (
        f"The witness does not hold: asked again, the rule {witness.rule} fails by {again.gap:.2g},"
        f" of which rounding explains {again.allowed:.2g}. The target has changed, or another"
        " imperfection is declared than was then."
    )
