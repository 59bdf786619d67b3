"""A language model under audit: counted, never asked beyond a budget, and every prompt once."""

from __future__ import annotations

from dataclasses import dataclass

from keyhole.errors import InvalidInput
from keyhole.lab.commands.shared import seed_generator
from keyhole.lab.jobs import AuditJob
from keyhole.lab.jobs.job_parts import WIRING
from keyhole.lab.targets.opening import declare_target, open_token_target
from keyhole.lab.targets.token_policies import TokenPolicy
from keyhole.learners.logits.number_formats import measure_format_error
from keyhole.learners.logits.spaces import Prompts
from keyhole.learners.tolerance.guarantees import check_positive
from keyhole.oracles import Budgeted, Chunked, Counted, read_imperfection
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
        counted: what the model itself was asked.
        guarded: the same within the budget.
        paced: the same by the clock, which does not count what the model takes.
        oracle: the same, asked every prompt once.
        length: of a prompt.
    """

    counted: Counted
    guarded: Budgeted | None
    paced: Paced
    oracle: Remembered
    length: int

    @classmethod
    def open(cls, name: str, job: AuditJob) -> Snapshot:
        """The model that a job names."""
        declared = declare_target(open_token_target(name, job.vocabulary), job)
        lengths = read_imperfection(declared).lengths
        length = _LENGTH if lengths is None else min(_LENGTH, lengths[1])
        counted = Counted(declared)
        guarded = None if job.budget is None else Budgeted(counted, job.budget)
        # Models may work out a row of logits for every position of a prompt.
        at_once = max(1, _CALL // ((declared.outputs or 1) * length))
        paced = Paced(Chunked(guarded or counted, at_once * length))
        return cls(counted, guarded, paced, Remembered(paced), length)

    @property
    def vocabulary(self) -> int:
        """V."""
        return self.counted.outputs or 0

    @property
    def asked(self) -> int:
        """Prompts that the model itself was asked."""
        return self.counted.ledger.total().sequences

    def bound(self, watch: Stopwatch, spent: int) -> None:
        """Go by a clock from now on, with so much of the budget spent on another snapshot."""
        self.paced.watch = watch
        if self.guarded is not None:
            self.guarded.spent = self.asked + spent

    def prompt(self, policy: TokenPolicy, seed: int) -> Prompts:
        """Prompts under a policy: the same ones under each, so that they are asked once."""
        oracle = Counted(policy.wrap(self.oracle, seed))
        own = self.oracle.sample_answers()
        own = None if own is None else measure_format_error(own)
        return Prompts(oracle, policy.reading, seed_generator(seed), self.length, own)


def check_token_job(job: AuditJob) -> None:
    """Refuse what an audit of ids cannot do.

    Raises:
        InvalidInput: the job asks for it.
    """
    if job.resume:
        raise InvalidInput(
            "an audit of token ids is not resumed, since its target is in this process. Use"
            " --force to replace it."
        )
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
            " declared of answers, --seed, --out and --force."
        )
