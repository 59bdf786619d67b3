"""The verify job: fresh queries to a target against a saved model."""

from __future__ import annotations

import time

from msgspec import structs

from keyhole.claims import Verdict
from keyhole.drawing.html import format_number
from keyhole.errors import InvalidInput, OracleError
from keyhole.lab.commands.recovery.learn import record_target_failure
from keyhole.lab.commands.recovery.witness import read_witness, replay_run_witness
from keyhole.lab.commands.shared import (
    REFUSED,
    check_vocabulary_option,
    choose_exit_code,
    seed_generator,
)
from keyhole.lab.jobs import VerifyJob
from keyhole.lab.runs.record_parts import FreshError, Seconds
from keyhole.lab.runs.recording import (
    record_counterexample,
    record_examined,
    record_fresh_error,
    record_queries,
)
from keyhole.lab.runs.records import Record
from keyhole.lab.runs.recovery_records import StoppedVerify, VerifyRecord
from keyhole.lab.runs.rows import list_examined_rows, list_fresh_error_rows
from keyhole.lab.targets.answer_gaps import (
    Side,
    allow_declared_errors,
    is_own_file,
    is_target_name,
    measure_answer_gap,
    open_side,
)
from keyhole.lab.targets.opening import (
    declare_target,
    load_askable_model,
    open_target,
    open_token_target,
    simulate_policies,
)
from keyhole.learners.findings import Witness
from keyhole.learners.verifying.saved_model import verify
from keyhole.models import Model
from keyhole.models.files import load_bars
from keyhole.models.layers.token_heads import TokenHeads
from keyhole.oracles import Budgeted, Counted, Oracle, count_asked_again, read_imperfection


def run_verify(job: VerifyJob) -> Record[VerifyRecord | StoppedVerify]:
    """Ask a target fresh queries against a saved model, or the witness of a run again."""
    check_vocabulary_option(job)
    start = time.perf_counter()
    checked = _read_checked(job)
    width = _read_width(checked)
    if job.tokens_in:
        target = _open_token_target(job, checked)
    else:
        target = open_target(
            job.target,
            width=job.width if job.width is not None else width,
            reaching=job,
            layer=job.layer,
            last=isinstance(checked, Side),
        )
    timed = Counted(declare_target(simulate_policies(target, job.simulate, job.seed), job))
    # Verification costs queries like everything else.
    oracle = timed if job.budget is None else Budgeted(timed, job.budget)
    try:
        if isinstance(checked, Witness):
            return replay_run_witness(job, checked, oracle, timed, start)
        if isinstance(checked, Side):
            return _verify_copy(job, checked, oracle, timed, start)
        return _verify_model(job, checked, oracle, timed, start)
    except OracleError as error:
        asked = timed.ledger.total().sequences + count_asked_again(target)
        stopped = record_target_failure(error, asked, StoppedVerify)
        return Record(structs.replace(stopped, seed=job.seed), REFUSED)


def _read_checked(job: VerifyJob) -> Model | Side | Witness:
    """What TARGET is held against: a saved model, a copy that answers, or the witness of a run."""
    if job.model is not None and job.witness is None:
        if is_own_file(job.model) or not is_target_name(job.model):
            return load_askable_model(job.model)
        return open_side(job.model, layer=job.layer, width=job.width)
    if job.witness is not None and job.model is None:
        return read_witness(job.witness)
    given = "neither" if job.model is None else "both"
    raise InvalidInput(
        f"verify takes a MODEL or --witness RUN, one of the two; got {given}. MODEL is a saved"
        " model, or a copy that answers: an .onnx file, package.module:callable, a weight file"
        " with --layer."
    )


def _open_token_target(job: VerifyJob, checked: Model | Side | Witness) -> Oracle:
    """A target on token ids, which is held against a model on ids alone."""
    if not isinstance(checked, TokenHeads):
        raise InvalidInput(
            "--tokens-in holds TARGET against a saved model of kind tokens, as `keyhole learn"
            f" --tokens-in` writes it; got {job.model or job.witness}."
        )
    return open_token_target(
        job.target, checked.outputs if job.vocabulary is None else job.vocabulary
    )


def _read_width(checked: Model | Side | Witness) -> int:
    if isinstance(checked, Witness):
        return checked.questions[0].shape[1]
    return checked.oracle.width if isinstance(checked, Side) else checked.width


def _verify_copy(
    job: VerifyJob, copy: Side, oracle: Oracle, timed: Counted, start: float
) -> Record[VerifyRecord]:
    """A copy that only answers: the same questions to both, judged by what rounding explains."""
    original = Side(job.target, oracle)
    gap = measure_answer_gap(original, copy, rng=seed_generator(job.seed))
    stated = read_imperfection(oracle)
    allowed, typical = allow_declared_errors(gap, stated)
    same = gap.worst <= allowed and gap.relative <= typical
    verdict = Verdict.WITHIN_TOLERANCE if same else Verdict.CLASS_REFUTED
    said = "answers as the target does" if same else "is not the target"
    read = [side.name for side in (original, copy) if side.reads_last]
    last = f" {', '.join(read)}: sequence answers are read at their last position." if read else ""
    if gap.singly:
        last += f" {', '.join(gap.singly)}: asked one by one, for a batch changes the answers."
    sentence = (
        f"{copy.name} {said}: answers are {format_number(gap.relative)} apart, relatively, and"
        f" {format_number(gap.worst)} at worst; with what is declared they are equal up to"
        f" {format_number(typical)} and {format_number(allowed)}.{last}"
    )
    data = VerifyRecord(
        verdict=verdict.name,
        sentence=sentence,
        fresh_error=FreshError(
            max=gap.worst * gap.size, relative=gap.relative, sequences=gap.sequences
        ),
        queries=record_queries(timed.ledger, count_asked_again(oracle)),
        seconds=Seconds(total=time.perf_counter() - start, oracle=timed.ledger.total().seconds),
        seed=job.seed,
        target=job.target,
        model=job.model,
    )
    rows = (("verdict", data.verdict), *list_fresh_error_rows(data.fresh_error, data.verdict))
    return Record(data, choose_exit_code(data.verdict), rows)


def _verify_model(
    job: VerifyJob, model: Model, oracle: Oracle, timed: Counted, start: float
) -> Record[VerifyRecord]:
    bars = {} if job.model is None else load_bars(job.model)
    seen = verify(oracle, model, rng=seed_generator(job.seed), bars=bars)
    sentence = " ".join(part for part in (seen.detail, seen.verdict.value) if part)
    data = VerifyRecord(
        verdict=seen.verdict.name,
        sentence=sentence,
        fresh_error=record_fresh_error(seen.fresh),
        examined=record_examined(seen.examined),
        counterexample=record_counterexample(seen.counterexample),
        queries=record_queries(seen.ledger, count_asked_again(oracle)),
        seconds=Seconds(total=time.perf_counter() - start, oracle=timed.ledger.total().seconds),
        seed=job.seed,
        target=job.target,
        model=job.model,
    )
    rows = (
        ("verdict", data.verdict),
        *list_fresh_error_rows(data.fresh_error, data.verdict),
        *list_examined_rows(data.examined),
    )
    return Record(data, choose_exit_code(data.verdict), rows)
