"""Jobs, and the registry of commands: all that command line, sweeps and page hand to `lab.running`.

Enters: words and numbers a person gave. Leaves: a value with a key that names it.
Nothing is opened, asked or computed here. A place is written `package.module:name`, and imported
when it is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from keyhole._places import import_place
from keyhole.lab.jobs.job_parts import Job
from keyhole.lab.jobs.model_jobs import DemoJob, SampleJob, ServeJob, SweepJob
from keyhole.lab.jobs.recovery_jobs import (
    AuditJob,
    CompareJob,
    InspectJob,
    LearnJob,
    PlanJob,
    TransitionJob,
    TrialJob,
    TwinsJob,
    VerifyJob,
)
from keyhole.lab.jobs.report_jobs import ReportJob, UiJob
from keyhole.lab.jobs.task_jobs import AttackJob, BoundJob, BuildJob, LimitsJob, TalkJob, TrainJob

_ASKING = "keyhole.lab.commands.recovery"
_COMPUTING = "keyhole.lab.commands.computing"
_SHOWING = "keyhole.lab.commands.showing"
_RECORDS = "keyhole.lab.runs"
_SUMMARIES = "keyhole.lab.runs.summaries"
_PAGES = "keyhole.lab.pages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Everything that is declared of a command.

    Args:
        name: what it is called, on the command line and in its record.
        job: its options.
        run: place of the function that does such a job.
        record: place of the class of its record.
        help: what it does, for the command line; nothing where it is made for sweeps alone.
        example: a line that `--help` shows and that can be pasted, but for names of files.
        page: place of (record, directory) -> the page of a run; its fields as a table when absent.
        question: place of record -> what was asked, in words; not told when absent.
        summary: place of record -> its rows in a report; its fields when absent.
        keeps_page: its page shows more than the record holds, and is not drawn again.
        swept: a sweep may be made of it.
        ready: where it says that it is ready, if it serves until it is stopped.
    """

    name: str
    job: type[Job]
    run: str
    record: str
    help: str | None
    example: str = ""
    page: str | None = None
    question: str | None = None
    summary: str | None = None
    keeps_page: bool = False
    swept: bool = False
    ready: Literal["stdout", "stderr"] | None = None

    def load(self, part: str) -> Any:
        """What stands at the place of a part; None where the command has none."""
        place = getattr(self, part)
        return None if place is None else import_place(place)


_COMMANDS = (
    Command(
        name="demo",
        example="keyhole demo --out tour",
        job=DemoJob,
        run="keyhole.lab.demo.tour:run_demo",
        record=f"{_RECORDS}.recovery_records:DemoRecord",
        page=f"{_PAGES}.recovery_page:draw_recovery_page",
        question=f"{_SUMMARIES}:describe_demo_question",
        summary=f"{_SUMMARIES}:summarise_demo",
        help="The tour: every capability on embedded defaults, one page of results.",
    ),
    Command(
        name="learn",
        example="keyhole learn hidden.safetensors --out first",
        job=LearnJob,
        run=f"{_ASKING}.learn:run_learn",
        record=f"{_RECORDS}.recovery_records:LearnRecord",
        page=f"{_PAGES}.recovery_page:draw_recovery_page",
        question=f"{_SUMMARIES}:describe_learn_question",
        summary=f"{_SUMMARIES}:summarise_recovery",
        help="Recover what is behind TARGET from queries, and verify it on fresh ones.",
        swept=True,
    ),
    Command(
        name="plan",
        example="keyhole plan --width 64 --rank 4",
        job=PlanJob,
        run=f"{_ASKING}.plan:run_plan",
        record=f"{_RECORDS}.recovery_records:PlanRecord",
        help="What a recovery would cost, before a single query.",
        swept=True,
    ),
    Command(
        name="verify",
        example="keyhole verify hidden.safetensors first/model.safetensors",
        job=VerifyJob,
        run=f"{_ASKING}.verify:run_verify",
        record=f"{_RECORDS}.recovery_records:VerifyRecord",
        help=(
            "Ask TARGET fresh queries and compare the answers with a saved MODEL, or ask the"
            " witness of a run again."
        ),
    ),
    Command(
        name="audit",
        example="keyhole audit hidden.safetensors --out audit",
        job=AuditJob,
        run=f"{_ASKING}.audit:run_audit",
        record=f"{_RECORDS}.recovery_records:AuditRecord",
        page=f"{_PAGES}.audit_page:draw_audit_run",
        question=f"{_SUMMARIES}:describe_audit_question",
        summary=f"{_SUMMARIES}:summarise_audit",
        help=(
            "Which output policy of TARGET keeps how much back: rounding, casts, noise, labels,"
            " budgets, bounded tokens."
        ),
        swept=True,
    ),
    Command(
        name="compare",
        example="keyhole compare hidden.safetensors first/model.safetensors",
        job=CompareJob,
        run=f"{_ASKING}.compare:run_compare",
        record=f"{_RECORDS}.recovery_records:CompareRecord",
        page=f"{_PAGES}.comparing.answers_page:draw_answers_page",
        question=f"{_SUMMARIES}:describe_compare_question",
        summary=f"{_RECORDS}.rows:list_compare_rows",
        help=(
            "Whether two models are one function: saved models, an export, a quantised or converted"
            " copy; and where they differ."
        ),
    ),
    Command(
        name="inspect",
        example="keyhole inspect my_model:model",
        job=InspectJob,
        run=f"{_ASKING}.inspect:run_inspect",
        record=f"{_RECORDS}.inspection_records:InspectRecord",
        help=(
            "What is inside MODEL (a torch module, an ONNX file, a weight file): attention"
            " layers, networks and norms, and the command that recovers each."
        ),
    ),
    Command(
        name="twins",
        example="keyhole twins multihead.safetensors",
        job=TwinsJob,
        run=f"{_ASKING}.twins:run_twins",
        record=f"{_RECORDS}.recovery_records:TwinsRecord",
        page=f"{_PAGES}.twins_page:draw_twins_page",
        question=f"{_SUMMARIES}:describe_twins_question",
        summary=f"{_RECORDS}.rows:list_twin_rows",
        help=(
            "Other parameters that answer like MODEL, a saved model of attention, shown in pictures"
            " with the proof."
        ),
    ),
    Command(
        name="build",
        example="keyhole build match2 --length 16 --modulus 64 --out match2",
        job=BuildJob,
        run=f"{_COMPUTING}.build:run_build",
        record=f"{_RECORDS}.task_records:BuildRecord",
        page=f"{_PAGES}.build_page:draw_build_page",
        question=f"{_SUMMARIES}:describe_build_question",
        summary=f"{_SUMMARIES}:summarise_build",
        help=(
            "Explicit attention weights for TASK with a certificate: the smallest known that hold"
            " in the format asked for."
        ),
    ),
    Command(
        name="train",
        example="keyhole train match2 --length 8 --modulus 16 --steps 500 --seeds 2",
        job=TrainJob,
        run=f"{_COMPUTING}.train:run_train",
        record=f"{_RECORDS}.task_records:TrainRecord",
        page=f"{_PAGES}.training_page:draw_training_run",
        question=f"{_SUMMARIES}:describe_train_question",
        summary=f"{_SUMMARIES}:summarise_training",
        keeps_page=True,
        help=(
            "Train models of TASK by gradient descent, several seeds side by side, and measure"
            " them on fresh inputs."
        ),
        swept=True,
    ),
    Command(
        name="sweep",
        example="keyhole sweep experiments/queries-per-parameter.toml",
        job=SweepJob,
        run="keyhole.lab.sweeps.sweep:run_sweep",
        record=f"{_RECORDS}.other_records:SweepRecord",
        page=f"{_PAGES}.sweep_page:draw_sweep_run",
        question=f"{_SUMMARIES}:describe_sweep_question",
        summary=f"{_SUMMARIES}:summarise_sweep",
        help=(
            "Run every job of FILE (grids and lists in TOML or JSON) that has not been run yet,"
            " and draw what came."
        ),
    ),
    Command(
        name="sample",
        example="keyhole sample head --width 32 --out hidden.safetensors",
        job=SampleJob,
        run=f"{_SHOWING}.sample:run_sample",
        record=f"{_RECORDS}.other_records:SampleRecord",
        help=(
            "Write a random model file to play with: KIND is head, multihead, relu, smooth,"
            " gated, onelayer, layer, block, tensor, mlp, gru or lstm."
        ),
    ),
    Command(
        name="bound",
        example="keyhole bound sparse-average --length 1024 --q 16 --embed 3 --bits 16",
        job=BoundJob,
        run=f"{_COMPUTING}.bound:run_bound",
        record=f"{_RECORDS}.task_records:BoundRecord",
        page=f"{_PAGES}.bound_page:draw_bound_run",
        question=f"{_SUMMARIES}:describe_bound_question",
        summary=f"{_SUMMARIES}:summarise_bound",
        help=(
            "Whether a model of given sizes can do TASK: provably too small, enough by a"
            " construction, or open."
        ),
    ),
    Command(
        name="limits",
        example="keyhole limits k-hop --out limits",
        job=LimitsJob,
        run=f"{_COMPUTING}.limits:run_limits",
        record=f"{_RECORDS}.task_records:LimitsRecord",
        page=f"{_PAGES}.limits_page:draw_limits_run",
        help=(
            "What is known of every task, or of TASK: the smallest weights that are proved, the"
            " largest size that is excluded, or why not."
        ),
    ),
    Command(
        name="attack",
        example="keyhole attack gru.safetensors sparse-average --length 40",
        job=AttackJob,
        run=f"{_COMPUTING}.attack:run_attack",
        record=f"{_RECORDS}.task_records:AttackRecord",
        help="An input on which MODEL, too small for TASK, fails; or the reason why none follows.",
    ),
    Command(
        name="talk",
        example="keyhole talk match2/model.safetensors match2 --length 16 --modulus 64 --bits 8",
        job=TalkJob,
        run=f"{_COMPUTING}.talk:run_talk",
        record=f"{_RECORDS}.task_records:TalkRecord",
        page=f"{_PAGES}.talk_page:draw_talk_run",
        help=(
            "Let two or three people who each own some tokens run MODEL of TASK: who sends what,"
            " bit by bit."
        ),
    ),
    Command(
        name="report",
        example="keyhole report first second --out compared",
        job=ReportJob,
        run=f"{_SHOWING}.report:run_report",
        record=f"{_RECORDS}.other_records:ReportRecord",
        help=(
            "Write the report of RUN, a run directory, again; of several, one page that compares"
            " them; --index DIR, one that links to all runs of a directory."
        ),
    ),
    Command(
        name="serve",
        example="keyhole serve hidden.safetensors --port 8000",
        job=ServeJob,
        run=f"{_SHOWING}.serve:run_serve",
        record=f"{_RECORDS}.other_records:ServeRecord",
        help=(
            "Serve MODEL as a black box over HTTP (Open Inference Protocol V2), to this machine;"
            " --host opens it."
        ),
        # Standard output is for the one object at the end.
        ready="stderr",
    ),
    Command(
        name="ui",
        example="keyhole ui --runs runs",
        job=UiJob,
        # The explorer stands above the lab, which knows it by this place alone.
        run="keyhole.web.explorer:run_ui",
        record=f"{_RECORDS}.other_records:UiRecord",
        help=(
            "The explorer page, to this machine only: recover, compute, limits, runs. It says"
            " where it is, then serves."
        ),
        ready="stdout",
    ),
    Command(
        name="trial",
        job=TrialJob,
        run="keyhole.lab.sweeps.trial:run_trial",
        record=f"{_RECORDS}.other_records:TrialRecord",
        help=None,
        swept=True,
    ),
    Command(
        name="transition",
        job=TransitionJob,
        run="keyhole.lab.sweeps.transition:run_transition",
        record=f"{_RECORDS}.other_records:TransitionRecord",
        help=None,
        swept=True,
    ),
)
COMMANDS: dict[str, Command] = {command.name: command for command in _COMMANDS}
COMMANDS_BY_JOB: dict[type[Job], Command] = {command.job: command for command in _COMMANDS}
