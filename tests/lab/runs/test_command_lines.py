"""Command lines that do it again: a shell, and then the command line, take them back."""

import shlex
import subprocess
from dataclasses import fields, replace
from typing import get_args, get_type_hints

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keyhole.cli import app
from keyhole.lab.commands.recovery.learn import _list_given_options
from keyhole.lab.jobs import (
    AttackJob,
    AuditJob,
    BoundJob,
    BuildJob,
    CompareJob,
    DemoJob,
    LearnJob,
    LimitsJob,
    PlanJob,
    ReportJob,
    SampleJob,
    TalkJob,
    TrainJob,
    TwinsJob,
    VerifyJob,
)
from keyhole.lab.runs.command_lines import format_command_line, format_job_command
from keyhole.lab.runs.other_records import JobCounts, SweepRecord
from keyhole.lab.runs.record_parts import Queries
from keyhole.lab.runs.recovery_records import DemoRecord, LearnRecord, TwinsRecord
from keyhole.lab.runs.summaries import restore_command

ODD = (
    "a b",
    "it's",
    'say "so"',
    "two\nlines",
    "-dash",
    "--",
    "--help",
    "--json",
    "--seed=3",
    "$HOME",
    "`id`",
    "a;b|c&d>e",
    "*",
    "~",
    "#1",
    "\\",
    "",
    " ",
    "=",
    "none",
    "[1, 2]",
    '{"a": 1}',
    "Kopf-größe",
    "注意",
    "👁",
)
# A word of a command line holds no NUL, and a file name that is no text has no place in JSON.
words = st.sampled_from(ODD) | st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12
)
PLACES = ("out", "force", "resume")
JOBS = {
    "learn": LearnJob,
    "plan": PlanJob,
    "verify": VerifyJob,
    "audit": AuditJob,
    "compare": CompareJob,
    "twins": TwinsJob,
    "build": BuildJob,
    "bound": BoundJob,
    "attack": AttackJob,
    "limits": LimitsJob,
    "talk": TalkJob,
    "train": TrainJob,
    "sample": SampleJob,
    "report": ReportJob,
    "demo": DemoJob,
}


def values(kind):
    """Values a field of this type can have on a command line."""
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.integers(-(10**6), 10**12)
    if kind is float:
        return st.floats(allow_nan=False)
    if kind is str:
        return words
    options = get_args(kind)
    if options[-1] is Ellipsis:
        return st.lists(values(options[0]), min_size=1, max_size=3).map(tuple)
    return values(next(one for one in options if one is not type(None)))


def given_fields(kind):
    """Fields of a job, some options among them; where it is written is left alone."""
    types = get_type_hints(kind)
    drawn = {
        item.name: values(types[item.name]) for item in fields(kind) if item.name not in PLACES
    }
    named = {item.name: drawn.pop(item.name) for item in fields(kind) if not item.kw_only}
    return st.fixed_dictionaries(named, optional=drawn)


def parse(line):
    """The job that the command line makes of a line a shell was given."""
    name, *rest = shlex.split(line)
    assert name == "keyhole"
    command, bound, _ = app.parse_args(rest, exit_on_error=False, print_error=False)
    assert command.__name__ == rest[0]
    return bound.arguments.get("job", DemoJob() if rest[0] == "demo" else None)


@given(named=st.lists(words, max_size=3), told=st.dictionaries(st.sampled_from("abc"), words))
def test_a_shell_gives_back_every_word(named, told):
    split = shlex.split(format_command_line("learn", named, told))
    assert split[:2] == ["keyhole", "learn"]
    if any(word.startswith("-") for word in named):
        assert split[len(split) - len(named) - 1 :] == ["--", *named]
        options = split[2 : len(split) - len(named) - 1]
    else:
        assert split[2 : 2 + len(named)] == named
        options = split[2 + len(named) :]
    expected = []
    for name, value in told.items():
        dashed = value.startswith("-")
        expected += [f"--{name}={value}"] if dashed else [f"--{name}", value]
    assert options == expected


def test_a_real_shell_gives_back_the_same_words():
    line = format_command_line("learn", ODD, {"tokens": "a 'b'\n$c"})
    asked = line.replace("keyhole learn", "printf '%s\\0'", 1)
    said = subprocess.run(["sh", "-c", asked], capture_output=True, text=True, check=True).stdout
    assert said.split("\0")[:-1] == shlex.split(line)[2:]


@pytest.mark.parametrize("command", JOBS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_line_of_a_job_is_parsed_to_an_equal_job(command, data):
    job = JOBS[command](**data.draw(given_fields(JOBS[command])))
    assert parse(format_job_command(command, job)) == job


@settings(max_examples=25, deadline=None)
@given(told=given_fields(LearnJob))
@example(told={"target": "-a b.safetensors", "simulate": ("noise=1e-4", "-x"), "labels": True})
def test_the_line_of_a_recovery_is_parsed_to_its_options(told):
    # How a service was reached, how long a run may take, and whether a transcript was kept, is no
    # part of the line.
    reached = {"rate": None, "timeout": 30.0, "in_flight": 4, "max_seconds": 3600.0}
    job = replace(LearnJob(**told), **reached, record=True)
    # A model file says its own width.
    if job.target.endswith(".safetensors"):
        job = replace(job, width=None)
    kept = {name: getattr(job, name) for name in ("target", "width", "learner", "seed", "budget")}
    record = LearnRecord(
        verdict="EXACT", queries=Queries(total=1), options=_list_given_options(job), **kept
    )
    assert parse(restore_command(record)) == job


@settings(max_examples=25, deadline=None)
@given(path=words, seed=st.integers(0, 10**9))
def test_lines_of_other_records_name_their_files(path, seed):
    twins = TwinsRecord(model=path, twins=[], seed=seed)
    assert parse(restore_command(twins)) == TwinsJob(path, seed=seed)
    swept = SweepRecord(
        name="a",
        about="",
        jobs=JobCounts(total=0, done=0, failed=0),
        failures=[],
        expectations=[],
        store="",
        file=path,
        run=path,
    )
    sweep = parse(restore_command(swept))
    assert (sweep.file, sweep.out) == (path, path)
    tour = DemoRecord(verdict="EXACT", queries=Queries(total=1), seed=seed)
    assert parse(restore_command(tour)) == DemoJob(seed=seed)


def test_options_at_their_defaults_are_left_out_unless_they_are_to_be_spelt():
    job = BuildJob("match2", length=4, at_most=True, out="there", force=True)
    assert format_job_command("build", job) == "keyhole build match2 --length 4 --at-most"
    spelt = format_job_command("build", job, "accuracy", "seed")
    assert spelt == "keyhole build match2 --length 4 --at-most --accuracy 0.001 --seed 0"
