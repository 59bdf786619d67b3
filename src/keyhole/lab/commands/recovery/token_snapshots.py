"""A language model under audit: every answer kept, no budget exceeded, no prompt asked twice."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from keyhole import __version__
from keyhole.errors import InvalidInput
from keyhole.lab.commands.recovery.audit_attempts import list_declarations
from keyhole.lab.commands.shared import check_budget_left, seed_generator
from keyhole.lab.jobs import AuditJob
from keyhole.lab.jobs.job_parts import WIRING
from keyhole.lab.runs.record_parts import Given
from keyhole.lab.targets.opening import declare_target, hash_file, open_token_target
from keyhole.lab.targets.token_policies import TokenPolicy
from keyhole.learners.logits.number_formats import measure_format_error
from keyhole.learners.logits.spaces import Prompts
from keyhole.learners.tolerance.guarantees import check_positive
from keyhole.oracles import (
    Budgeted,
    Chunked,
    Counted,
    Oracle,
    Recorded,
    read_imperfection,
)
from keyhole.oracles.own_time import Paced, Stopwatch
from keyhole.oracles.tokens.remembered import Remembered

_LENGTH = 8  # tokens of a prompt, where no shorter ones are asked for
_CALL = 1 << 22  # numbers that one call may answer
# Options of other audits, which mean nothing for ids.
_IDLE = ("width", "outputs", "ball", "layer", "rate", "labels", "token_bound", "fail_above")


@dataclass(slots=True)
class Snapshot:
    """A model under audit.

    Args:
        recorded: the model itself, every answer of which is kept.
        passed: what it was asked, replayed or not.
        guarded: the same within the budget.
        paced: the same by the clock, which does not count what the model takes.
        oracle: the same, asked every prompt once.
        length: of a prompt.
        lost: prompts that were paid for before this run, and whose answers never arrived.
    """

    recorded: Recorded
    passed: Counted
    guarded: Budgeted | None
    paced: Paced
    oracle: Remembered
    length: int
    lost: int

    @classmethod
    def record(cls, name: str, model: Oracle, job: AuditJob, transcript: Path) -> Snapshot:
        """The model that a job names so, with a transcript, which is gone on with if it is held."""
        lengths = read_imperfection(model).lengths
        length = _LENGTH if lengths is None else min(max(_LENGTH, lengths[0]), lengths[1])
        recorded = Recorded(model, transcript, _identify(name, model, job))
        # Models may work out a row of logits for every position of a prompt.
        at_once = max(1, _CALL // ((model.outputs or 1) * length))
        passed = Counted(Chunked(recorded, at_once * length))
        guarded = None if job.budget is None else Budgeted(passed, job.budget)
        paced = Paced(guarded or passed)
        return cls(recorded, passed, guarded, paced, Remembered(paced), length, recorded.lost)

    @property
    def vocabulary(self) -> int:
        """V."""
        return self.recorded.outputs or 0

    @property
    def asked(self) -> int:
        """Prompts that the model itself was asked, those of a run that is gone on with too."""
        return self.recorded.charged

    @property
    def spent(self) -> int:
        """Prompts that this run has come to, those it lost included."""
        return self.passed.ledger.total().sequences + self.lost

    def bound(self, watch: Stopwatch, spent: int) -> None:
        """Go by a clock from now on, with so much of the budget spent on another snapshot."""
        # Once the time of one policy is over nothing new is asked: what comes next would depend on
        # when that was, and a run that is resumed asks the same questions.
        if not self.paced.watch.over:
            self.paced.watch = watch
        if self.guarded is not None:
            self.guarded.spent = self.spent + spent

    def prompt(self, policy: TokenPolicy, seed: int) -> Prompts:
        """Prompts under a policy: the same ones under each, so that they are asked once."""
        oracle = Counted(policy.wrap(self.oracle, seed))
        own = self.oracle.sample_answers()
        own = None if own is None else measure_format_error(own)
        return Prompts(oracle, policy.reading, seed_generator(seed), self.length, own)


def _identify(name: str, model: Oracle, job: AuditJob) -> dict[str, Given | None]:
    """What tells the transcript of one run from that of another; a budget may be raised."""
    told = ("seed", "prompts", "against", *list_declarations())
    return {
        "target": name,
        "digest": hash_file(name),
        "vocabulary": model.outputs,
        **{field: getattr(job, field) for field in told},
        "version": __version__,
    }


@contextmanager
def record_snapshots(
    job: AuditJob, models: Sequence[Oracle], directory: Path
) -> Generator[tuple[Snapshot, Snapshot | None]]:
    """The models of a job, kept in a directory while inside.

    Raises:
        InvalidInput: the run that is gone on with has asked more than the budget allows.
    """
    names = [name for name in (job.target, job.against) if name is not None]
    files = (directory / "transcript.sqlite", directory / "against.sqlite")
    with ExitStack() as stack:
        snapshots = list[Snapshot]()
        for name, model, file in zip(names, models, files, strict=False):
            snapshots.append(Snapshot.record(name, model, job, file))
            stack.callback(snapshots[-1].recorded.close)
        check_budget_left(job.budget, sum(one.asked for one in snapshots), directory)
        yield snapshots[0], snapshots[1] if len(snapshots) > 1 else None


def open_models(job: AuditJob) -> list[Oracle]:
    """The model that is audited and the one it is compared with, if there is one.

    Raises:
        InvalidInput: one cannot be opened, or they are of two vocabularies.
    """
    names = [name for name in (job.target, job.against) if name is not None]
    # A space is seen in prompts of any one length.
    models = [
        declare_target(open_token_target(name, job.vocabulary), job, learned=False)
        for name in names
    ]
    if models[0].outputs != models[-1].outputs:
        raise InvalidInput(
            f"{job.target} has {models[0].outputs} ids, {job.against} {models[-1].outputs}; only"
            " models of one vocabulary have a signature in common."
        )
    return models


def check_token_job(job: AuditJob) -> None:
    """Refuse what an audit of ids cannot do.

    Raises:
        InvalidInput: the job asks for it.
    """
    if job.prompts < 2:
        raise InvalidInput(f"--prompts is a whole number from 2 on; got {job.prompts}.")
    if job.budget is not None:
        check_positive("--budget", job.budget)
    Stopwatch(job.max_seconds)
    usual = AuditJob(job.target)
    idle = [name for name in (*_IDLE, *WIRING) if getattr(job, name) != getattr(usual, name)]
    if idle:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        raise InvalidInput(
            f"{named} means nothing for a target on token ids: leave it away. An audit of ids takes"
            " --vocabulary, --against, --prompts, --budget, --max-seconds, --lengths, what is"
            " declared of answers, --seed, --out, --resume and --force."
        )
