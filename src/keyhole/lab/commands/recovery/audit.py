"""The audit job: how much each output policy keeps back, measured by an extractor."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

import msgspec
import numpy as np
from msgspec import structs

from keyhole._arrays import Matrix, Stack, rms
from keyhole._files import read_file, write_atomically
from keyhole.errors import DifferentRun, InvalidInput, OracleError
from keyhole.identify import distance
from keyhole.lab.commands.recovery.audit_outcome import (
    describe_outcome,
    hold_gate,
    is_attempt_verified,
    recommend_policy,
)
from keyhole.lab.commands.recovery.learn import record_target_failure, run_learn
from keyhole.lab.commands.shared import REFUSED, seed_generator
from keyhole.lab.jobs import AuditJob, LearnJob
from keyhole.lab.jobs.job_parts import WIRING, Declaring
from keyhole.lab.pages import audit_page
from keyhole.lab.runs.command_lines import format_job_command
from keyhole.lab.runs.directories import open_run_directory
from keyhole.lab.runs.reading import read_run
from keyhole.lab.runs.record_parts import Seconds
from keyhole.lab.runs.records import Record, take_fields
from keyhole.lab.runs.recovery_records import (
    AttemptRecord,
    AuditRecord,
    LearnRecord,
    PolicyRecord,
    StoppedAudit,
    TotalQueries,
)
from keyhole.lab.runs.rows import list_audit_rows
from keyhole.lab.targets.opening import declare_target, hash_file, label_target, open_target
from keyhole.lab.targets.policies import Policy, describe_policy, judge_policy, list_policies
from keyhole.lab.targets.wirings import read_wiring_options
from keyhole.learners.tolerance.guarantees import check_positive
from keyhole.learners.verifying.questions import shorten_to_bound
from keyhole.models import Head, Model, SelfAttention, load
from keyhole.oracles import Oracle, Recorded, read_imperfection

_HELD_OUT = range(2, 18)  # lengths of sequences that no attempt sees
_EACH = 4
# An attempt on anything but one head may ask so many times what exact answers take: behind coarse
# answers learners of larger classes search for long, and a copy that dear is no copy.
_TIMES = 16


def run_audit(job: AuditJob) -> Record[AuditRecord | StoppedAudit]:
    """Try every policy, write the page, return the record; nothing is asked twice."""
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
        try:
            X, truth = _ask_held_out_sequences(
                job, target, min(bound, job.token_bound or bound), directory, rng
            )
            tried = _Tried(job, directory, X, truth)
            rows = tried.try_everything(bound)
        except OracleError as error:
            failed = record_target_failure(error, 0, StoppedAudit)
            failed = structs.replace(failed, target=job.target, seed=job.seed, run=str(directory))
            return Record(failed, REFUSED)
        # A policy cannot be judged by a target that fails by itself.
        except _Stopped as stopped:
            failed = take_fields(stopped.record, StoppedAudit)
            return Record(structs.replace(failed, run=str(directory)), REFUSED)
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


def _choose_audit_code(data: AuditRecord) -> int:
    """A gate decides where there is one; else an audit that could judge nothing is refused."""
    if data.gate is not None:
        return 0 if data.gate.passes else REFUSED
    return 0 if is_attempt_verified(data.policies[0].attempts[0]) else REFUSED


class _Spent(Exception):
    """The budget of the audit ended an attempt, which therefore says nothing of its policy."""


class _Stopped(Exception):
    """The target failed in the middle of an attempt, whose record says how."""

    def __init__(self, record: LearnRecord) -> None:
        super().__init__(record.sentence)
        self.record = record


def _claim_directory(job: AuditJob, width: int, directory: Path) -> None:
    """Write down what the directory is for, or check it.

    Raises:
        DifferentRun: the directory holds something else.
        InvalidInput: it holds an audit that is neither to go on nor to be replaced.
    """
    mine = {name: getattr(job, name) for name in ("target", "seed", "ball", *_list_declarations())}
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


def _list_declarations() -> tuple[str, ...]:
    return tuple(item.name for item in fields(Declaring))


def _ask_held_out_sequences(
    job: AuditJob, target: Oracle, bound: float, directory: Path, rng: np.random.Generator
) -> tuple[list[Stack], list[Matrix]]:
    """Sequences that no attempt sees, with the target's own answers; asked once."""
    lengths = read_imperfection(target).lengths
    allowed = [n for n in _HELD_OUT if lengths is None or n <= lengths[1]]
    drawn = (rng.normal(size=(_EACH, length, target.width)) for length in allowed)
    X = list(shorten_to_bound(drawn, bound))
    recorded = Recorded(
        target, directory / "held-out.sqlite", {"target": job.target, "seed": job.seed}
    )
    try:
        return X, [recorded.ask(batch.copy()) for batch in X]
    finally:
        recorded.close()


class _Tried:
    """Attempts made against the policies, each a learn job in a directory of its own."""

    def __init__(self, job: AuditJob, directory: Path, X: list[Stack], truth: list[Matrix]) -> None:
        self.job = job
        self.directory = directory
        self.X = X
        self.truth = truth
        # Errors of W need a W: of other classes only answers are compared.
        self.reference: Head | None = None
        self.made: dict[Path, LearnRecord] = {}
        self.done = 0
        self.cap: int | None = None
        self.untried: list[str] = []

    def try_everything(self, bound: float) -> list[PolicyRecord]:
        """Every policy in turn, the first one giving what the others are compared with."""
        # What it costs without any policy is the yardstick of budgets.
        first = self.attempt("full precision", (), {})
        verified = is_attempt_verified(first)
        model = _load_attempt_model(first.model) if verified else None
        self.reference = model if isinstance(model, Head) else None
        # One head is learned at a cost that is known beforehand; of other classes it is not.
        self.cap = None if self.reference is not None else _TIMES * first.queries
        listed = list_policies(
            first.queries - first.verification,
            rms(np.concatenate([t.ravel() for t in self.truth])),
            bound,
        )
        # Where even exact answers give no model away, policies have nothing to keep back.
        listed = listed if verified else listed[:1]
        rows: list[PolicyRecord] = []
        for policy in listed:
            try:
                rows.append(self.try_policy(policy, len(listed)))
            except _Spent:
                self.untried = [one.name for one in listed[len(rows) :]]
                break
        return rows

    def try_policy(self, policy: Policy, count: int) -> PolicyRecord:
        """All attempts against one policy, and what they come to."""
        made = [self.attempt(policy.name, policy.simulate, options) for options in policy.attempts]
        self.done += 1
        of = "answers" if self.reference is None else "W"
        judged = is_attempt_verified(self._summarise_first())
        said = describe_policy(policy, made, of, judged=judged)
        sys.stderr.write(f"{self.done}/{count} {said}\n")
        return PolicyRecord(
            policy=policy.name,
            simulate=list(policy.simulate),
            protects=judge_policy(policy, made[-1], of) if judged else None,
            verdict=said,
            attempts=made,
        )

    def _summarise_first(self) -> AttemptRecord:
        return self._summary(next(iter(self.made.values())), {})

    def attempt(
        self, name: str, simulate: tuple[str, ...], options: Mapping[str, int]
    ) -> AttemptRecord:
        """One learn job, taken from its record where it was finished before."""
        about = "-".join([name, *(f"{key}-{value}" for key, value in options.items())])
        place = self.directory / "".join(c if c.isalnum() else "-" for c in about).strip("-")
        # The first attempt is also that of the first policy, and is not made twice.
        if place not in self.made:
            left = self.count_left()
            self.made[place] = (
                _read_finished_attempt(place, self.job.max_seconds) if self.job.resume else None
            ) or self._learn(place, simulate, options)
            # Cut short by the whole audit, an attempt shows nothing of its policy.
            if self.made[place].queries.total == left and len(self.made) > 1:
                raise _Spent
        return self._summary(self.made[place], options)

    def _learn(
        self, place: Path, simulate: tuple[str, ...], options: Mapping[str, int]
    ) -> LearnRecord:
        """A learn job in a directory of its own.

        Raises:
            _Stopped: the target itself failed.
        """
        shared = {
            key: getattr(self.job, key)
            for key in (
                *_list_declarations(),
                *WIRING,
                "width",
                "outputs",
                "seed",
                "resume",
                "rate",
                "timeout",
                "in_flight",
                "layer",
                "max_seconds",
            )
        }
        job = LearnJob(
            self.job.target,
            simulate=simulate,
            out=str(place),
            force=not self.job.resume,
            **shared,
        )
        job = replace(job, **options)
        record = run_learn(replace(job, budget=self._limit_attempt(job.budget))).data
        if _has_target_failed(record):
            # All further attempts would fail alike.
            raise _Stopped(record)
        return record

    def _limit_attempt(self, asked: int | None) -> int | None:
        """The budget of an attempt: what its policy, the cap and the whole audit leave."""
        limits = [one for one in (asked, self.cap, self.count_left()) if one is not None]
        return min(limits, default=None)

    def count_left(self) -> int | None:
        """Queries that are left of the budget of the audit.

        Raises:
            _Spent: none are.
        """
        if self.job.budget is None:
            return None
        left = self.job.budget - self.count_asked()
        if left < 1:
            raise _Spent
        return left

    def count_asked(self) -> int:
        """Queries that attempts and held-out sequences cost."""
        attempts = sum(record.queries.total for record in self.made.values())
        return attempts + sum(map(len, self.truth))

    def _summary(self, record: LearnRecord, options: Mapping[str, int]) -> AttemptRecord:
        model = _load_attempt_model(record.model)
        function = None if model is None else self._function_error(model)
        error = function if self.reference is None else self._weight_error(model)
        if model is not None and error == 0.0:
            error = record.error_bar  # the reference itself, known to its own error bar
        return AttemptRecord(
            options=dict(options),
            queries=record.queries.total,
            verification=record.queries.by_phase.get("verify", 0),
            error=error,
            function_error=function,
            verdict=record.verdict,
            status=record.status,
            sentence=record.sentence,
            model=record.model,
            run=record.run,
            seconds=record.seconds,
        )

    def _weight_error(self, model: Model | None) -> float | None:
        """Relative error of W against what full precision gives away."""
        if not isinstance(model, Head) or self.reference is None:
            return None
        return distance(self.reference, model).W

    def _function_error(self, model: Model) -> float:
        """Relative error on held-out sequences, up to a positive factor per output."""
        truth = np.concatenate(self.truth)
        said = np.concatenate([model(X) for X in self.X])
        squares = np.maximum((said * said).sum(axis=0), 1e-300)
        # Labels do not show the scale of V: it is fitted before answers are compared.
        scale = np.maximum((truth * said).sum(axis=0) / squares, 0.0)
        return rms(truth - scale * said) / max(rms(truth), 1e-300)


def _read_finished_attempt(place: Path, seconds: float) -> LearnRecord | None:
    """The record of an attempt that came to its end, if only to that of as much own time."""
    path = place / "record.json"
    record = read_run(str(place)).data if path.exists() else None
    if not isinstance(record, LearnRecord) or _has_target_failed(record):
        return None
    early = record.status == "OUT_OF_TIME" and (record.max_seconds or 0.0) < seconds
    return None if early else record


def _has_target_failed(record: LearnRecord) -> bool:
    """Whether the target raised, or answered nonsense of its own accord."""
    # A policy can push answers out of a format's range; then it is to blame, not the target.
    return record.status == "TARGET_FAILED" or (
        record.status == "BAD_ANSWER" and not record.options.get("simulate")
    )


def _load_attempt_model(path: str | None) -> Model | None:
    model = load(path) if path else None
    # A whole layer answers every row; held-out answers are of the last one.
    return model.read_last() if isinstance(model, SelfAttention) else model


def _record_audit(
    job: AuditJob, target: Oracle, rows: list[PolicyRecord], tried: _Tried, bound: float
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
