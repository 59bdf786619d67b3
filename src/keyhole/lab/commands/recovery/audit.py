"""The audit job: how much each output policy keeps back, measured by an extractor."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
from msgspec import structs

from keyhole._arrays import Stack
from keyhole._files import read_file, write_atomically
from keyhole.errors import DifferentRun, InvalidInput, OracleError
from keyhole.lab.commands.recovery.audit_attempts import (
    Attempts,
    TargetStopped,
    list_declarations,
)
from keyhole.lab.commands.recovery.audit_outcome import (
    describe_outcome,
    hold_gate,
    is_attempt_verified,
    recommend_policy,
)
from keyhole.lab.commands.recovery.learn import record_target_failure
from keyhole.lab.commands.shared import REFUSED, check_vocabulary_option, seed_generator
from keyhole.lab.jobs import AuditJob
from keyhole.lab.pages import audit_page
from keyhole.lab.runs.command_lines import format_job_command
from keyhole.lab.runs.directories import open_run_directory
from keyhole.lab.runs.record_parts import Seconds
from keyhole.lab.runs.records import Record, take_fields
from keyhole.lab.runs.recovery_records import (
    AuditRecord,
    PolicyRecord,
    StoppedAudit,
    TotalQueries,
)
from keyhole.lab.runs.rows import list_audit_rows
from keyhole.lab.targets.opening import declare_target, hash_file, label_target, open_target
from keyhole.lab.targets.wirings import read_wiring_options
from keyhole.learners.tolerance.guarantees import check_positive
from keyhole.learners.verifying.questions import shorten_to_bound
from keyhole.oracles import Oracle, Recorded, read_imperfection

_HELD_OUT = range(2, 18)  # lengths of sequences that no attempt sees
_EACH = 4


def run_audit(job: AuditJob) -> Record[AuditRecord | StoppedAudit]:
    """Try every policy, write the page, return the record; nothing is asked twice."""
    check_vocabulary_option(job)
    if job.tokens_in:
        # Imported late: most audits ask no language model.
        from keyhole.lab.commands.recovery.token_audit import audit_tokens

        return audit_tokens(job)
    start = time.perf_counter()
    # Attempts use the seed itself: held-out sequences must not be those an attempt asks.
    rng = seed_generator(job.seed).spawn(1)[0]
    opened = open_target(
        job.target, width=job.width, outputs=job.outputs, reaching=job, layer=job.layer
    )
    target = declare_target(opened, job)
    # A Gaussian token has about this norm.
    bound = job.ball if job.ball is not None else float(np.sqrt(target.width))
    check_positive("--ball, the bound on tokens,", bound)
    if job.budget is not None:
        check_positive("--budget", job.budget)
    if job.fail_above is not None:
        check_positive("--fail-above", job.fail_above)
    name = f"audit-{label_target(job.target)}"
    with open_run_directory(name, out=job.out, resume=job.resume, force=job.force) as directory:
        _claim_directory(job, target.width, directory)
        X = _draw_held_out_sequences(target, min(bound, job.token_bound or bound), rng)
        identity = {"target": job.target, "seed": job.seed}
        with closing(Recorded(target, directory / "held-out.sqlite", identity)) as recorded:
            try:
                truth = [recorded.ask(batch.copy()) for batch in X]
            except OracleError as error:
                asked = recorded.charged
                return _record_failure(job, error, asked, directory)
            asked = recorded.charged
        tried = Attempts(job, directory, X, truth, asked)
        try:
            rows = tried.try_everything(bound)
        except OracleError as error:
            return _record_failure(job, error, tried.count_asked(), directory)
        # A policy cannot be judged by a target that fails by itself.
        except TargetStopped as stopped:
            failed = take_fields(stopped.record, StoppedAudit)
            total = tried.count_asked() + stopped.record.queries.total
            queries = structs.replace(failed.queries, total=total)
            return Record(structs.replace(failed, queries=queries, run=str(directory)), REFUSED)
        data = structs.replace(
            _record_audit(job, target, rows, tried, bound),
            seconds=Seconds(total=time.perf_counter() - start),
        )
        page = ("page", f"{directory}/report.html")
        code = _choose_audit_code(data)
        record = Record(data, code, (*list_audit_rows(data), page))
        write_atomically(directory / "record.json", record.json() + b"\n")
        write_atomically(directory / "report.html", audit_page.draw_audit_page(data).encode())
        return record


def _record_failure(
    job: AuditJob, error: OracleError, asked: int, directory: Path
) -> Record[StoppedAudit]:
    failed = record_target_failure(error, asked, StoppedAudit)
    told = structs.replace(failed, target=job.target, seed=job.seed, run=str(directory))
    return Record(told, REFUSED)


def _choose_audit_code(data: AuditRecord) -> int:
    """A gate decides where there is one; else an audit that could judge nothing is refused."""
    if data.gate is not None:
        return 0 if data.gate.passes else REFUSED
    return 0 if is_attempt_verified(data.policies[0].attempts[0]) else REFUSED


def _claim_directory(job: AuditJob, width: int, directory: Path) -> None:
    """Write down what the directory is for, or check it.

    Raises:
        DifferentRun: the directory holds something else.
        InvalidInput: it holds an audit that is neither to go on nor to be replaced.
    """
    mine = {name: getattr(job, name) for name in ("target", "seed", "ball", *list_declarations())}
    # Told only where it is used: audits begun before go on.
    mine |= {} if job.layer is None else {"layer": job.layer}
    mine |= {} if job.budget is None else {"budget": job.budget}
    mine |= read_wiring_options(job).told
    # Resuming with other options would mix answers of two audits.
    text = msgspec.json.encode(mine | {"digest": hash_file(job.target), "width": width})
    path = directory / "audit.json"
    held = read_file(path, f"{path} is no file.") if path.exists() else None
    if held is not None and not (job.resume or job.force):
        raise InvalidInput(
            f"{directory} holds an audit. Use --resume to go on with it, or --force to replace it."
        )
    if job.resume and held != text and (held is not None or (directory / "record.json").exists()):
        raise DifferentRun(
            f"{directory} holds another audit or run: other target, seed or options. Give another"
            " --out."
        )
    if not job.resume:
        for file in directory.glob("held-out.sqlite*"):
            file.unlink()
    write_atomically(path, text)


def _draw_held_out_sequences(target: Oracle, bound: float, rng: np.random.Generator) -> list[Stack]:
    """Sequences that no attempt sees."""
    lengths = read_imperfection(target).lengths
    allowed = [n for n in _HELD_OUT if lengths is None or n <= lengths[1]]
    drawn = (rng.normal(size=(_EACH, length, target.width)) for length in allowed)
    return list(shorten_to_bound(drawn, bound))


def _record_audit(
    job: AuditJob, target: Oracle, rows: list[PolicyRecord], tried: Attempts, bound: float
) -> AuditRecord:
    error_of = "answers" if tried.reference is None else "W"
    return AuditRecord(
        sentence=describe_outcome(rows, error_of, tried.untried),
        target=job.target,
        width=target.width,
        outputs=tried.truth[0].shape[1],
        token_bound=bound,
        error_of=error_of,
        policies=rows,
        queries=TotalQueries(total=tried.count_asked()),
        recommendation=recommend_policy(rows),
        cap=tried.cap if len(rows) > 1 else None,
        gate=hold_gate(rows[0], job.fail_above),
        seed=job.seed,
        command=format_job_command("audit", job),
        run=str(tried.directory),
    )
