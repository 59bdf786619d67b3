"""`run(job)`: the one way a job becomes a record."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import (
    AttackJob,
    AuditJob,
    BoundJob,
    BuildJob,
    CompareJob,
    DemoJob,
    Job,
    LearnJob,
    PlanJob,
    SampleJob,
    ServeJob,
    SweepJob,
    TrialJob,
    TwinsJob,
    VerifyJob,
)
from keyhole.lab.records import Record

# The module and function of each kind of job; a module is imported when a job of its kind comes.
_RUNNERS: dict[type[Job], tuple[str, str]] = {
    AttackJob: ("attacking", "run_attack"),
    AuditJob: ("audit", "run_audit"),
    BoundJob: ("bounding", "run_bound"),
    BuildJob: ("building", "run_build"),
    CompareJob: ("comparing", "run_compare"),
    DemoJob: ("tour", "run_demo"),
    LearnJob: ("learning", "run_learn"),
    PlanJob: ("planning", "run_plan"),
    SampleJob: ("sampling", "run_sample"),
    ServeJob: ("serving", "run_serve"),
    SweepJob: ("sweeping", "run_sweep"),
    TrialJob: ("trials", "run_trial"),
    TwinsJob: ("twinning", "run_twins"),
    VerifyJob: ("verifying", "run_verify"),
}


def run(job: Job, tell: Callable[[dict[str, Any]], None] | None = None) -> Record:
    """Do what a job asks and return its record.

    Args:
        job: what to do.
        tell: hears, as plain data, that a server is ready; for a ServeJob alone.

    Raises:
        InvalidInput: what the job needs is not installed; the message says how to install it.
    """
    module, name = _RUNNERS[type(job)]
    try:
        runner = getattr(import_module(f"keyhole.lab.{module}"), name)
    except ImportError as error:
        raise InvalidInput(str(error)) from error
    return runner(job) if tell is None else runner(job, tell)
