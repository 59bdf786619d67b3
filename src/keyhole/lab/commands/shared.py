"""What commands have in common: a seeded generator, versions, exit codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from keyhole.claims import Verdict
from keyhole.errors import InvalidInput
from keyhole.lab.jobs import AuditJob, LearnJob, PlanJob, VerifyJob

# The command did its work, and the answer is no: a script can tell this from a failure.
REFUSED = 3


def seed_generator(seed: int) -> np.random.Generator:
    """A generator; seeds exist only in the lab and on the command line."""
    if seed < 0:
        raise InvalidInput(f"a seed is a whole number >= 0; got {seed}.")
    return np.random.default_rng(seed)


def choose_exit_code(verdict: str) -> int:
    """Exit code of a verdict, given by its name."""
    return 0 if Verdict[verdict].verified else REFUSED


def check_budget_left(budget: int | None, charged: int, directory: Path) -> None:
    """Refuse a budget that the run in a directory, which is gone on with, has overspent already."""
    if budget is not None and budget < charged:
        raise InvalidInput(
            f"the run in {directory} has already asked {charged} queries; --budget {budget} is"
            " below that. Give at least as many."
        )


def check_vocabulary_option(job: LearnJob | PlanJob | VerifyJob | AuditJob) -> None:
    """Refuse a vocabulary for a target that takes no token ids."""
    if job.vocabulary is not None and not job.tokens_in:
        raise InvalidInput(
            f"--vocabulary {job.vocabulary} is for a target that takes token ids: add --tokens-in,"
            " or leave it away."
        )
