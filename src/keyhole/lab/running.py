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
from keyhole.lab.runs.records import Record

# The module and function of each kind of job; a module is imported when a job of its kind comes.
# The explorer stands above the lab, which knows it by this name alone.
_RUNNERS: dict[type[Job], tuple[str, str]] = {
    AttackJob: ("keyhole.lab.commands.computing.attack", "run_attack"),
    AuditJob: ("keyhole.lab.commands.recovery.audit", "run_audit"),
    BoundJob: ("keyhole.lab.commands.computing.bound", "run_bound"),
    BuildJob: ("keyhole.lab.commands.computing.build", "run_build"),
    CompareJob: ("keyhole.lab.commands.recovery.compare", "run_compare"),
    DemoJob: ("keyhole.lab.demo.tour", "run_demo"),
    LearnJob: ("keyhole.lab.commands.recovery.learn", "run_learn"),
    PlanJob: ("keyhole.lab.commands.recovery.plan", "run_plan"),
    ReportJob: ("keyhole.lab.commands.showing.report", "run_report"),
    SampleJob: ("keyhole.lab.commands.showing.sample", "run_sample"),
    ServeJob: ("keyhole.lab.commands.showing.serve", "run_serve"),
    SweepJob: ("keyhole.lab.sweeps.sweep", "run_sweep"),
    TrainJob: ("keyhole.lab.commands.computing.train", "run_train"),
    TransitionJob: ("keyhole.lab.sweeps.transition", "run_transition"),
    TrialJob: ("keyhole.lab.sweeps.trial", "run_trial"),
    TwinsJob: ("keyhole.lab.commands.recovery.twins", "run_twins"),
    UiJob: ("keyhole.web.explorer", "run_ui"),
    VerifyJob: ("keyhole.lab.commands.recovery.verify", "run_verify"),
}


def find_runner(kind: type[Job]) -> Callable[..., Record[Any]]:
    """The function that does jobs of one kind; its module is imported now.

    Raises:
        InvalidInput: what such jobs need is not installed; the message says how to install it.
    """
    module, name = _RUNNERS[kind]
    try:
        return getattr(import_module(module), name)
    # The module says which extra is missing; a user should read that, not a traceback.
    except ImportError as error:
        raise InvalidInput(str(error)) from error


def run_job(job: Job) -> Record[Any]:
    """Do what a job asks and return its record."""
    if isinstance(job, SweepJob):
        # A sweep runs other jobs; it is handed how, since its engines stand below this table.
        return find_runner(SweepJob)(job, work=(find_runner, run_job))
    return find_runner(type(job))(job)
