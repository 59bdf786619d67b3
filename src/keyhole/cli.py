"""The command line: arguments become a Job, `lab.running` does it, its Record is printed."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from cyclopts import App, CycloptsError, Parameter

from keyhole import __version__
from keyhole.errors import InvalidInput, KeyholeError
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
    TwinsJob,
    UiJob,
    VerifyJob,
)

if TYPE_CHECKING:
    from keyhole.lab.runs.records import Record

app = App(
    name="keyhole",
    help="What an attention layer can compute, and what its answers give away.",
    version=__version__,
    # Ctrl-C must reach us: what was done is kept, and the message says how to go on.
    suppress_keyboard_interrupt=False,
    # Without this every list would get an option --empty-NAME that means nothing here.
    default_parameter=Parameter(negative_iterable=()),
)

# The fields of a job are the options of its command: nothing is spelt twice.
Flat = Parameter(name="*")
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object.")]


@app.command
def demo(job: Annotated[DemoJob, Flat] = DemoJob(), *, json: Json = False) -> int:  # noqa: B008
    """The tour: every capability on embedded defaults, one page of results."""
    return _run_and_print(job, json)


@app.command
def learn(job: Annotated[LearnJob, Flat], *, json: Json = False) -> int:
    """Recover what is behind TARGET from queries, and verify it on fresh ones."""
    return _run_and_print(job, json)


@app.command
def plan(job: Annotated[PlanJob, Flat] = PlanJob(), *, json: Json = False) -> int:  # noqa: B008
    """What a recovery would cost, before a single query."""
    return _run_and_print(job, json)


@app.command
def verify(job: Annotated[VerifyJob, Flat], *, json: Json = False) -> int:
    """Ask TARGET fresh queries and compare the answers with a saved MODEL."""
    return _run_and_print(job, json)


@app.command
def audit(job: Annotated[AuditJob, Flat], *, json: Json = False) -> int:
    """Which output policy of TARGET keeps how much back: rounding, casts, noise, labels, budgets,
    bounded tokens.
    """
    return _run_and_print(job, json)


@app.command
def compare(job: Annotated[CompareJob, Flat], *, json: Json = False) -> int:
    """Distance of two saved models modulo what answers do not determine."""
    return _run_and_print(job, json)


@app.command
def twins(job: Annotated[TwinsJob, Flat], *, json: Json = False) -> int:
    """Other parameters that answer like MODEL, a saved head or multihead, shown in pictures with
    the proof.
    """
    return _run_and_print(job, json)


@app.command
def build(job: Annotated[BuildJob, Flat], *, json: Json = False) -> int:
    """Explicit attention weights for TASK with a certificate: the smallest known that hold in the
    format asked for.
    """
    return _run_and_print(job, json)


@app.command
def train(job: Annotated[TrainJob, Flat], *, json: Json = False) -> int:
    """Train models of TASK by gradient descent, several seeds side by side, and measure them on
    fresh inputs.
    """
    return _run_and_print(job, json)


@app.command
def sweep(job: Annotated[SweepJob, Flat], *, json: Json = False) -> int:
    """Run every job of FILE (grids and lists in TOML or JSON) that has not been run yet, and draw
    what came.
    """
    return _run_and_print(job, json)


@app.command
def sample(job: Annotated[SampleJob, Flat], *, json: Json = False) -> int:
    """Write a random model file to play with: KIND is head, multihead, relu, onelayer, mlp, gru or
    lstm.
    """
    return _run_and_print(job, json)


@app.command
def bound(job: Annotated[BoundJob, Flat], *, json: Json = False) -> int:
    """Whether a model of given sizes can do TASK: provably too small, enough by a construction, or
    open.
    """
    return _run_and_print(job, json)


@app.command
def attack(job: Annotated[AttackJob, Flat], *, json: Json = False) -> int:
    """An input on which MODEL, too small for TASK, fails; or the reason why none follows."""
    return _run_and_print(job, json)


@app.command
def report(job: Annotated[ReportJob, Flat], *, json: Json = False) -> int:
    """Write the report of RUN, a run directory, again; of several, one page that compares them."""
    return _run_and_print(job, json)


@app.command
def serve(job: Annotated[ServeJob, Flat], *, json: Json = False) -> int:
    """Serve MODEL as a black box over HTTP (Open Inference Protocol V2), to this machine; --host
    opens it.
    """
    from keyhole.lab.running import find_runner

    def ready(record: Record[Any]) -> None:
        # Standard output is for the one object at the end.
        if json:
            sys.stderr.write(record.json().decode() + "\n")
            sys.stderr.flush()

    record = find_runner(type(job))(job, ready)
    _print_record(record, json)
    return record.code


@app.command
def ui(job: Annotated[UiJob, Flat] = UiJob(), *, json: Json = False) -> int:  # noqa: B008
    """The explorer page, to this machine only: recover, compute, limits, runs. It says where it is,
    then serves.
    """
    from keyhole.lab.running import find_runner

    def ready(record: Record[Any]) -> None:
        _print_record(record, json)

    return find_runner(type(job))(job, ready).code


def _run_and_print(job: Job, json: bool) -> int:
    # Imported late: `keyhole --help` should not wait for numpy.
    from keyhole.lab.running import run_job

    record = run_job(job)
    _print_record(record, json)
    return record.code


def _print_record(record: Record[Any], json: bool) -> None:
    sys.stdout.write(record.json().decode() if json else record.text())
    sys.stdout.write("\n")
    sys.stdout.flush()


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    sys.exit(_run_command_line(sys.argv[1:]))


def _run_command_line(arguments: list[str]) -> int:
    try:
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    # Exit codes are a contract: 2 what was asked, 3 the target or the verdict, 1 a bug of ours.
    except (CycloptsError, InvalidInput) as error:
        return _print_complaint(arguments, "INVALID_INPUT", str(error).strip(), 2)
    except KeyholeError as error:
        return _print_complaint(arguments, "ORACLE_FAILED", str(error), 3)
    except MemoryError:
        said = (
            "there is not enough memory for these sizes. Choose smaller ones, or a machine with"
            " more."
        )
        return _print_complaint(arguments, "INVALID_INPUT", said, 2)
    # The reader, such as `head`, has all it wanted; closing stderr keeps Python from complaining.
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        said = (
            "stopped by Ctrl-C. What was done is kept: run it again with the same --out (and"
            " --resume) to go on."
        )
        return _print_complaint(arguments, "INTERRUPTED", said, 130)
    except Exception as error:
        traceback.print_exc()
        return _print_complaint(
            arguments,
            "UNEXPECTED_ERROR",
            f"{type(error).__name__}: {error}. Please report this.",
            1,
        )
    return code if isinstance(code, int) else 0


def _print_complaint(arguments: list[str], status: str, sentence: str, code: int) -> int:
    import msgspec

    sys.stderr.write(f"keyhole: {sentence}\n")
    # A program that reads JSON gets JSON for failures too, and still finds words on stderr.
    if "--json" in arguments:
        sys.stdout.write(
            msgspec.json.encode({"status": status, "verdict": None, "sentence": sentence}).decode()
            + "\n"
        )
    return code
