"""Jobs: plain frozen data, all that command line, sweeps and page hand to `lab.running`.

Enters: words and numbers a person gave. Leaves: a value with a key that names it.
Nothing is opened, asked or computed here.
"""

from __future__ import annotations

from keyhole.lab.jobs.model_jobs import DemoJob, SampleJob, ServeJob, SweepJob
from keyhole.lab.jobs.recovery_jobs import (
    AuditJob,
    CompareJob,
    LearnJob,
    PlanJob,
    TransitionJob,
    TrialJob,
    TwinsJob,
    VerifyJob,
)
from keyhole.lab.jobs.report_jobs import ReportJob, UiJob
from keyhole.lab.jobs.task_jobs import AttackJob, BoundJob, BuildJob, TrainJob

__all__ = [
    "KINDS",
    "AttackJob",
    "AuditJob",
    "BoundJob",
    "BuildJob",
    "CompareJob",
    "DemoJob",
    "Job",
    "LearnJob",
    "PlanJob",
    "ReportJob",
    "SampleJob",
    "ServeJob",
    "SweepJob",
    "TrainJob",
    "TransitionJob",
    "TrialJob",
    "TwinsJob",
    "UiJob",
    "VerifyJob",
]

Job = (
    LearnJob
    | PlanJob
    | VerifyJob
    | AuditJob
    | CompareJob
    | TwinsJob
    | BuildJob
    | SampleJob
    | BoundJob
    | AttackJob
    | TrainJob
    | TransitionJob
    | TrialJob
    | SweepJob
    | DemoJob
    | ServeJob
    | ReportJob
    | UiJob
)

# The jobs a sweep can be made of, by name.
KINDS: dict[str, type[Job]] = {
    "trial": TrialJob,
    "learn": LearnJob,
    "plan": PlanJob,
    "audit": AuditJob,
    "train": TrainJob,
    "transition": TransitionJob,
}
