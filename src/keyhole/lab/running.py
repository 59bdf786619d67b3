"""`run(job)`: the one way a job becomes a record."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

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
    ReportJob,
    SampleJob,
    ServeJob,
    SweepJob,
    TrainJob,
    TransitionJob,
    TrialJob,
    TwinsJob,
    UiJob,
    VerifyJob,
)
from keyhole.lab.records import Record

# The module and function of each kind of job; a module is imported when a job of its kind comes. One with a dot in
# front stands beside the lab, which does not know it.
_RUNNERS: dict[type[Job], tuple[str, str]] = {
    AttackJob: ("attacking", "run_attack"),
    AuditJob: ("audit", "run_audit"),
    BoundJob: ("bounding", "run_bound"),
    BuildJob: ("building", "run_build"),
    CompareJob: ("comparing", "run_compare"),
    DemoJob: ("tour", "run_demo"),
    LearnJob: ("learning", "run_learn"),
    PlanJob: ("planning", "run_plan"),
    ReportJob: ("reporting", "run_report"),
    SampleJob: ("sampling", "run_sample"),
    ServeJob: ("serving", "run_serve"),
    SweepJob: ("sweeping", "run_sweep"),
    TrainJob: ("training.conducting", "run_train"),
    TransitionJob: ("transitions", "run_transition"),
    TrialJob: ("trials", "run_trial"),
    TwinsJob: ("twinning", "run_twins"),
    UiJob: (".web.explorer", "run_ui"),
    VerifyJob: ("verifying", "run_verify"),
}


def runner(kind: type[Job]) -> Callable[..., Record]:
    """The function that does jobs of one kind; its module is imported now.

    Raises:
        InvalidInput: what such jobs need is not installed; the message says how to install it.
    """
    module, name = _RUNNERS[kind]
    try:
        return getattr(import_module(f".{module}", "keyhole.lab"), name)
    except ImportError as error:
        raise InvalidInput(str(error)) from error


def run(job: Job) -> Record:
    """Do what a job asks and return its record."""
    return runner(type(job))(job)
