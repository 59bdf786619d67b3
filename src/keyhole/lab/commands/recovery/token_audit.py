"""The audit of a language model: what each policy of answers gives away of its last layer."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec import structs
from safetensors.numpy import save

from keyhole._arrays import pin_one_thread
from keyhole._files import write_atomically
from keyhole.claims import Verdict
from keyhole.errors import InvalidInput, OracleError
from keyhole.lab.commands.recovery.learn import record_target_failure
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
from keyhole.lab.targets.opening import declare_target, label_target, open_token_target
from keyhole.lab.targets.token_policies import TokenPolicy, list_token_policies
from keyhole.learners.logits.projection import Ellipsoid, count_unknowns
from keyhole.learners.logits.signature import compare_spaces
from keyhole.learners.logits.spaces import (
    Prompts,
    count_least_questions,
    find_projection,
    find_space,
    refuse_projection,
)
from keyhole.learners.logits.spectra import Spectrum, name_sizes
from keyhole.oracles import Chunked, Counted, Oracle, read_imperfection
from keyhole.oracles.tokens.remembered import Remembered

_LENGTH = 8  # tokens of a prompt, where no shorter ones are asked for
_SHOWN = 48  # singular values behind the rank that a record keeps
_MOST_SHOWN = 400
_CALL = 1 << 22  # numbers that one call may answer
_FOUND = Verdict.WITHIN_TOLERANCE.name
_UNKNOWN = Verdict.UNVERIFIED.name
SIZE, SPACE, ROTATION, SNAPSHOTS = (
    "hidden size",
    "space of the projection",
    "projection up to rotation",
    "signature of snapshots",
)


def audit_tokens(job: AuditJob) -> Record[AuditRecord | StoppedAudit]:
    """Try every policy of answers, write the page, return the record."""
    start = time.perf_counter()
    seed_generator(job.seed)
    if job.resume:
        raise InvalidInput(
            "an audit of token ids is not resumed, since its target is in this process. Use"
            " --force to replace it."
        )
    if job.prompts < 2:
        raise InvalidInput(f"--prompts is a whole number from 2 on; got {job.prompts}.")
    target = _Snapshot.open(job.target, job)
    other = None if job.against is None else _Snapshot.open(job.against, job)
    if other is not None and other.vocabulary != target.vocabulary:
        raise InvalidInput(
            f"{job.target} has {target.vocabulary} ids, {job.against} {other.vocabulary}; only"
            " models of one vocabulary have a signature in common."
        )
    name = f"audit-{label_target(job.target)}"
    with open_run_directory(name, out=job.out, resume=False, force=job.force) as directory:
        try:
            with pin_one_thread():
                tried = [
                    _try_policy(job, policy, target, other)
                    for policy in list_token_policies(target.vocabulary)
                ]
        except OracleError as error:
            failed = record_target_failure(error, target.asked, StoppedAudit)
            failed = structs.replace(failed, target=job.target, seed=job.seed, run=str(directory))
            return Record(failed, REFUSED)
        data = _record_audit(job, target, tried, directory)
        data = structs.replace(data, seconds=Seconds(total=time.perf_counter() - start))
        rows = (*list_audit_rows(data), ("page", f"{directory}/report.html"))
        record = Record(data, 0, rows)
        write_atomically(directory / "record.json", record.json() + b"\n")
        write_atomically(directory / "report.html", draw_token_audit_page(data).encode())
        return record


@dataclass(slots=True)
class _Snapshot:
    """A model under audit, asked every prompt once."""

    counted: Counted
    oracle: Oracle
    length: int

    @classmethod
    def open(cls, name: str, job: AuditJob) -> _Snapshot:
        opened = open_token_target(name, job.vocabulary)
        declared = declare_target(opened, job)
        lengths = read_imperfection(declared).lengths
        length = _LENGTH if lengths is None else min(_LENGTH, lengths[1])
        counted = Counted(declared)
        # Models may work out a row of logits for every position of a prompt.
        at_once = max(1, _CALL // ((declared.outputs or 1) * length))
        return cls(counted, Remembered(Chunked(counted, at_once * length)), length)

    @property
    def vocabulary(self) -> int:
        return self.counted.outputs or 0

    @property
    def asked(self) -> int:
        return self.counted.ledger.total().sequences

    def prompt(self, policy: TokenPolicy, seed: int) -> Prompts:
        """Prompts under a policy: the same ones under each, so that they are asked once."""
        oracle = Counted(policy.wrap(self.oracle, seed))
        return Prompts(oracle, policy.reading, seed_generator(seed), self.length)


@dataclass(frozen=True, slots=True)
class _Tried:
    """A policy with what it gave away."""

    record: TokenPolicyRecord
    spectrum: Spectrum
    ellipsoid: Ellipsoid | None


def _try_policy(
    job: AuditJob, policy: TokenPolicy, target: _Snapshot, other: _Snapshot | None
) -> _Tried:
    prompts = target.prompt(policy, job.seed)
    spectrum = find_space(prompts, job.prompts)
    questions, asked = prompts.asked, len(prompts.answered)
    signature = None
    if other is not None:
        # Other prompts than the first snapshot's: equal answers to equal prompts show nothing.
        second = find_space(other.prompt(policy, job.seed + 1), job.prompts)
        signature = _record_signature(spectrum, second)
    wider, ellipsoid, rotation = _try_rotation(prompts, spectrum)
    rank = spectrum.rank
    record = TokenPolicyRecord(
        policy=policy.name,
        verdict=_UNKNOWN if rank is None else _FOUND,
        rank=rank,
        sizes={} if rank is None else name_sizes(rank),
        gap=spectrum.gap,
        reason=_explain_rank(policy, spectrum),
        spectrum=_choose_shown_values(spectrum),
        angle=None if rank is None else spectrum.error,
        prompts=asked,
        questions=questions,
        limit=None if rank is None else count_least_questions(rank, policy.reading),
        rotation=rotation,
        signature=signature,
    )
    sys.stderr.write(f"{policy.name}: {describe_rank(record)}\n")
    return _Tried(record, wider, ellipsoid)


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
    wider, ellipsoid = find_projection(prompts, rank)
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
    if record.signature is not None and record.signature.finding != _UNKNOWN:
        given.add(SNAPSHOTS)
    return given


def _find_stopping_policies(policies: list[TokenPolicyRecord]) -> dict[str, str | None]:
    """The first policy behind which each thing is kept back that full logits give away."""
    given = [_list_given_away(record) for record in policies]
    return {
        what: next(
            (
                record.policy
                for record, leaks in zip(policies, given, strict=True)
                if what in given[0] and what not in leaks
            ),
            None,
        )
        for what in (SIZE, SPACE, ROTATION, SNAPSHOTS)
    }


def _record_audit(
    job: AuditJob, target: _Snapshot, tried: list[_Tried], directory: Path
) -> AuditRecord:
    policies = [one.record for one in tried]
    found = TokenAudit(
        vocabulary=target.vocabulary,
        prompt_length=target.length,
        most_prompts=job.prompts,
        against=job.against,
        policies=policies,
        stopped_by=_find_stopping_policies(policies),
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
        queries=TotalQueries(total=target.asked),
        seed=job.seed,
        command=format_job_command("audit", job),
        run=str(directory),
    )


def _summarise_audit(found: TokenAudit) -> str:
    first = found.policies[0]
    if first.rank is None:
        return f"No hidden size is seen even in full logits (UNVERIFIED): {first.reason}"
    stopping = found.stopped_by[SIZE]
    ending = "no policy that was tried keeps it back"
    if stopping is not None:
        ending = f"the first policy that keeps it back is: {stopping}"
    return (
        f"Full logits have rank {first.rank}: a hidden size of {first.sizes['rms']} behind no norm"
        f" or an RMSNorm, of {first.sizes['layer']} behind a LayerNorm; {ending}."
    )


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
