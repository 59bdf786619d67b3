"""The audit of a language model: what each policy of answers gives away of its last layer."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from msgspec import structs
from safetensors.numpy import save

from keyhole._arrays import pin_one_thread
from keyhole._files import write_atomically
from keyhole.claims import Verdict
from keyhole.errors import BudgetSpent, OracleError, OutOfTime
from keyhole.lab.commands.recovery.learn import record_target_failure
from keyhole.lab.commands.recovery.token_functions import try_function
from keyhole.lab.commands.recovery.token_snapshots import (
    Snapshot,
    check_token_job,
    open_models,
    record_snapshots,
)
from keyhole.lab.commands.shared import REFUSED, seed_generator
from keyhole.lab.jobs import AuditJob
from keyhole.lab.pages.token_audit_page import draw_token_audit_page
from keyhole.lab.runs.command_lines import format_job_command
from keyhole.lab.runs.directories import open_run_directory
from keyhole.lab.runs.record_parts import (
    RotationRecord,
    Seconds,
    SignatureRecord,
    TokenAudit,
    TokenPolicyRecord,
)
from keyhole.lab.runs.records import Record
from keyhole.lab.runs.recovery_records import AuditRecord, StoppedAudit, TotalQueries
from keyhole.lab.runs.rows import list_audit_rows
from keyhole.lab.targets.opening import label_target
from keyhole.lab.targets.token_policies import TokenPolicy, list_token_policies
from keyhole.learners.logits.projection import Ellipsoid, count_unknowns
from keyhole.learners.logits.signature import compare_spaces
from keyhole.learners.logits.spaces import (
    Prompts,
    count_least_questions,
    find_projection,
    find_space,
    leave_open,
    refuse_projection,
)
from keyhole.learners.logits.spectra import (
    Spectrum,
    holds_common_shift,
    name_sizes,
    withdraw_rank,
)
from keyhole.oracles.own_time import Stopwatch, bound_own_work

_SHOWN = 48  # singular values behind the rank that a record keeps
_MOST_SHOWN = 400
_FOUND = Verdict.WITHIN_TOLERANCE.name
_UNKNOWN = Verdict.UNVERIFIED.name
SIZE, SPACE, ROTATION, FUNCTION, SNAPSHOTS = (
    "hidden size",
    "space of the projection",
    "projection up to rotation",
    "the function itself",
    "signature of snapshots",
)


def audit_tokens(job: AuditJob) -> Record[AuditRecord | StoppedAudit]:
    """Try every policy of answers, write the page, return the record."""
    start = time.perf_counter()
    seed_generator(job.seed)
    check_token_job(job)
    models = open_models(job)
    name = f"audit-{label_target(job.target)}"
    with open_run_directory(name, out=job.out, resume=job.resume, force=job.force) as directory:
        with record_snapshots(job, models, directory) as snapshots:
            tried = list[_Tried]()
            try:
                with pin_one_thread():
                    for policy in list_token_policies(snapshots[0].vocabulary):
                        first = tried[0].record if tried else None
                        tried.append(_try_policy(job, policy, snapshots, first))
            except OracleError as error:
                asked = _count_asked(snapshots)
                return Record(_record_failure(job, error, asked, directory), REFUSED)
            data = _record_audit(job, snapshots, tried, directory)
        data = structs.replace(data, seconds=Seconds(total=time.perf_counter() - start))
        rows = (*list_audit_rows(data), ("page", f"{directory}/report.html"))
        cut = tried[0].cut
        record = Record(data, REFUSED if cut else 0, rows)
        write_atomically(directory / "record.json", record.json() + b"\n")
        write_atomically(directory / "report.html", draw_token_audit_page(data).encode())
        return record


def _record_failure(job: AuditJob, error: OracleError, asked: int, directory: Path) -> StoppedAudit:
    failed = record_target_failure(error, asked, StoppedAudit)
    return structs.replace(failed, target=job.target, seed=job.seed, run=str(directory))


def _count_asked(snapshots: tuple[Snapshot, Snapshot | None]) -> int:
    return sum(one.asked for one in snapshots if one is not None)


@dataclass(frozen=True, slots=True)
class _Tried:
    """A policy with what it gave away; `cut` where the budget or the clock ended the attempt."""

    policy: TokenPolicy
    record: TokenPolicyRecord
    spectrum: Spectrum
    ellipsoid: Ellipsoid | None
    cut: bool


def _try_policy(
    job: AuditJob,
    policy: TokenPolicy,
    snapshots: tuple[Snapshot, Snapshot | None],
    first: TokenPolicyRecord | None,
) -> _Tried:
    """One policy against every attempt; `first` is what full logits give away."""
    target, other = snapshots
    watch = Stopwatch(job.max_seconds)
    target.bound(watch, 0 if other is None else other.spent)
    prompts = target.prompt(policy, job.seed)
    # A cap that full logits do not show is seen behind no policy.
    prompts.may_be_capped = first is None or first.softcap is not None
    with bound_own_work(watch):
        spectrum, cut = _look_for_space(prompts, job.prompts)
        spectrum = _hold_against_full(spectrum, policy, first)
        questions, asked = prompts.asked, len(prompts.answered)
        wider, ellipsoid, rotation = _try_rotation(prompts, spectrum)
        function = try_function(policy, target, job.seed, first and first.function)
        signature = None
        if other is not None:
            other.bound(watch, target.spent)
            # Other prompts than the first snapshot's: equal answers to equal prompts show nothing.
            again = other.prompt(policy, job.seed + 1)
            again.may_be_capped = prompts.may_be_capped
            second, _ = _look_for_space(again, job.prompts)
            signature = _record_signature(spectrum, second)
    rank = spectrum.rank
    shift = _find_shift(policy, spectrum, first)
    record = TokenPolicyRecord(
        policy=policy.name,
        verdict=_UNKNOWN if rank is None else _FOUND,
        rank=rank,
        shift=shift,
        sizes={} if rank is None else name_sizes(rank - shift),
        softcap=prompts.reading.cap or None,
        gap=spectrum.gap,
        reason=spectrum.reason if cut else _explain_rank(policy, spectrum),
        spectrum=_choose_shown_values(spectrum),
        angle=None if rank is None else spectrum.error,
        prompts=asked,
        questions=questions,
        limit=None if rank is None else count_least_questions(rank, policy.reading),
        rotation=rotation,
        function=function,
        signature=signature,
    )
    sys.stderr.write(f"{policy.name}: {describe_rank(record)}\n")
    return _Tried(policy, record, wider, ellipsoid, cut)


def _hold_against_full(
    spectrum: Spectrum, policy: TokenPolicy, first: TokenPolicyRecord | None
) -> Spectrum:
    """No rank where that of full logits is another: errors hide directions, and make some."""
    if first is None or spectrum.rank is None:
        return spectrum
    wanted = first.rank
    if wanted is not None and policy.reading.kind != "logits":
        wanted -= first.shift
    if spectrum.rank == wanted:
        return spectrum
    full = "show no size" if wanted is None else f"have {wanted}"
    reason = (
        f"{spectrum.rank} directions stand out, where full logits {full}: the errors of these"
        " answers hide some, or make some."
    )
    return withdraw_rank(spectrum, reason)


def _find_shift(policy: TokenPolicy, spectrum: Spectrum, first: TokenPolicyRecord | None) -> bool:
    """Whether ids share a number that every prompt adds to all of them, as full answers show it."""
    if spectrum.rank is None or policy.reading.kind != "logits":
        return False
    return holds_common_shift(spectrum) if first is None else first.shift


def _look_for_space(prompts: Prompts, most: int) -> tuple[Spectrum, bool]:
    """The space of the answers, and whether the budget or the clock ended the search."""
    try:
        return find_space(prompts, most), False
    except (BudgetSpent, OutOfTime) as cut:
        count = len(prompts.answered)
        return leave_open(prompts, f"stopped after {count:,} prompts: {cut}"), True


def describe_rank(record: TokenPolicyRecord) -> str:
    """The rank in a few words."""
    if record.rank is None:
        return f"no size ({record.verdict}): {record.reason}"
    return f"rank {record.rank} with {record.questions:,} questions, of {record.limit:,} at least"


def _explain_rank(policy: TokenPolicy, spectrum: Spectrum) -> str:
    if policy.reading.kind != "likeliest" or spectrum.rank is not None:
        return spectrum.reason
    # A prompt is left out where it does not answer the ids that the others have.
    return (
        f"an answer holds {policy.reading.count} numbers, of ids that differ from prompt to"
        " prompt: too few ids have enough prompts in common for a rank to be seen."
    )


def _choose_shown_values(spectrum: Spectrum) -> list[float | None]:
    count = _MOST_SHOWN if spectrum.rank is None else spectrum.rank + _SHOWN
    return [float(value) for value in spectrum.values[: min(count, _MOST_SHOWN)]]


def _try_rotation(
    prompts: Prompts, spectrum: Spectrum
) -> tuple[Spectrum, Ellipsoid | None, RotationRecord]:
    """The ellipsoid that a last norm puts answers on, where it can be afforded."""
    rank = spectrum.rank
    refusal = "no rank is known." if rank is None else refuse_projection(prompts.reading, rank)
    if rank is None or refusal:
        return spectrum, None, RotationRecord(verdict=_UNKNOWN, reason=refusal)
    try:
        wider, ellipsoid = find_projection(prompts, rank)
    except (BudgetSpent, OutOfTime) as cut:
        return spectrum, None, RotationRecord(verdict=_UNKNOWN, reason=f"stopped: {cut}")
    cost = {"questions": prompts.asked, "limit": count_unknowns(rank)}
    if ellipsoid is None:
        reason = "the answers lie on no ellipsoid: no norm stands last, or errors hide it."
        return wider, None, RotationRecord(verdict=_UNKNOWN, reason=reason, **cost)
    reason = "the answers lie on an ellipsoid, as a last norm puts them."
    found = RotationRecord(verdict=_FOUND, reason=reason, residual=ellipsoid.residual, **cost)
    return wider, ellipsoid, found


def _record_signature(first: Spectrum, second: Spectrum) -> SignatureRecord:
    seen = compare_spaces(first, second)
    if seen is None:
        return SignatureRecord(finding=_UNKNOWN)
    return SignatureRecord(
        finding=seen.finding,
        angle=seen.angle,
        allowed=seen.allowed,
        overlap=seen.overlap,
        chance=seen.chance,
    )


def _list_given_away(record: TokenPolicyRecord) -> set[str]:
    """What a policy does not keep back."""
    given = set[str]()
    if record.rank is not None:
        given |= {SIZE, SPACE}
    if record.rotation.verdict == _FOUND:
        given.add(ROTATION)
    if record.function is not None and record.function.follows:
        given.add(FUNCTION)
    if record.signature is not None and record.signature.finding != _UNKNOWN:
        given.add(SNAPSHOTS)
    return given


def _list_coarser(tried: list[_Tried], place: int) -> list[TokenPolicyRecord]:
    """What the answers of a policy show when whoever has them rounds them further."""
    kind = tried[place].policy.reading.kind
    later = tried[place + 1 :]
    return [one.record for one in later if one.policy.rounds and one.policy.reading.kind == kind]


def _tell_of_coarser(tried: list[_Tried]) -> list[_Tried]:
    """A policy that shows no size names the coarser one that does: its answers can be rounded."""
    told: list[_Tried] = []
    for place, one in enumerate(tried):
        showing = [other for other in _list_coarser(tried, place) if other.rank is not None]
        if one.record.rank is None and showing:
            more = f" Rounded, they show what {showing[0].policy} do: rank {showing[0].rank}."
            record = structs.replace(one.record, reason=f"{one.record.reason}{more}")
            one = replace(one, record=record)
        told.append(one)
    return told


def _find_stopping_policies(tried: list[_Tried]) -> dict[str, str | None]:
    """The first policy behind which each thing is kept back that full logits give away."""
    given = [
        set[str]().union(*map(_list_given_away, (one.record, *_list_coarser(tried, place))))
        for place, one in enumerate(tried)
    ]
    return {
        what: next(
            (
                one.record.policy
                for one, leaks in zip(tried, given, strict=True)
                if what not in leaks
            ),
            None,
        )
        for what in (SIZE, SPACE, ROTATION, FUNCTION, SNAPSHOTS)
        if what in given[0]
    }


def _record_audit(
    job: AuditJob,
    snapshots: tuple[Snapshot, Snapshot | None],
    tried: list[_Tried],
    directory: Path,
) -> AuditRecord:
    target = snapshots[0]
    tried = _tell_of_coarser(tried)
    policies = [one.record for one in tried]
    found = TokenAudit(
        vocabulary=target.vocabulary,
        prompt_length=target.length,
        most_prompts=job.prompts,
        against=job.against,
        policies=policies,
        stopped_by=_find_stopping_policies(tried),
        projection=_write_projection(tried[0], directory),
    )
    return AuditRecord(
        sentence=_summarise_audit(found),
        target=job.target,
        width=1,
        outputs=target.vocabulary,
        token_bound=None,
        error_of="answers",
        policies=[],
        tokens=found,
        queries=TotalQueries(total=_count_asked(snapshots)),
        seed=job.seed,
        command=format_job_command("audit", job),
        run=str(directory),
    )


def _summarise_audit(found: TokenAudit) -> str:
    first = found.policies[0]
    whole = ""
    if FUNCTION in found.stopped_by:
        whole = " The function itself follows: it is a layer of attention alone."
    if first.rank is None:
        said = f"No hidden size is seen even in full logits (UNVERIFIED): {first.reason}"
        return said + whole
    stopping = found.stopped_by[SIZE]
    ending = "no policy that was tried keeps it back"
    if stopping is not None:
        ending = f"the first policy that keeps it back is '{stopping}'"
    shift = ""
    if first.shift:
        shift = ", one direction of which all ids share, as in log-probabilities"
    return (
        f"Full logits{_name_cap(first)} have rank {first.rank}{shift}: a hidden size of"
        f" {first.sizes['rms']} behind no norm or an RMSNorm, of {first.sizes['layer']} behind a"
        f" LayerNorm; {ending}.{whole}"
    )


def _name_cap(record: TokenPolicyRecord) -> str:
    return "" if record.softcap is None else f", once a soft cap of {record.softcap:.6g} is undone,"


def _write_projection(first: _Tried, directory: Path) -> str | None:
    """The space as an orthonormal basis, and the factor of the ellipsoid, where they are known."""
    if first.spectrum.rank is None:
        return None
    tensors = {"basis": np.ascontiguousarray(first.spectrum.basis.T)}
    if first.ellipsoid is not None:
        tensors["factor"] = np.ascontiguousarray(first.ellipsoid.factor)
        tensors["centre"] = first.ellipsoid.centre
    path = directory / "projection.safetensors"
    write_atomically(path, save(tensors))
    return str(path)
