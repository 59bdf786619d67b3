"""The command line: arguments become a Job, `lab.run` does it, the Record is printed. Nothing is computed here."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

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
    SampleJob,
    ServeJob,
    SweepJob,
    TwinsJob,
    VerifyJob,
)

app = App(
    name="keyhole",
    help="What an attention layer can compute, and what its answers give away.",
    version=__version__,
    suppress_keyboard_interrupt=False,
    default_parameter=Parameter(negative_iterable=()),
)

Flat = Parameter(name="*")
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object.")]


@app.command
def demo(job: Annotated[DemoJob, Flat] = DemoJob(), *, json: Json = False) -> int:  # noqa: B008
    """The tour: every capability on embedded defaults, one page of results."""
    return _show(job, json)


@app.command
def learn(job: Annotated[LearnJob, Flat], *, json: Json = False) -> int:
    """Recover what is behind TARGET from queries, and verify it on fresh ones."""
    return _show(job, json)


@app.command
def plan(job: Annotated[PlanJob, Flat] = PlanJob(), *, json: Json = False) -> int:  # noqa: B008
    """What a recovery would cost, before a single query."""
    return _show(job, json)


@app.command
def verify(job: Annotated[VerifyJob, Flat], *, json: Json = False) -> int:
    """Ask TARGET fresh queries and compare the answers with a saved MODEL."""
    return _show(job, json)


@app.command
def audit(job: Annotated[AuditJob, Flat], *, json: Json = False) -> int:
    """Which output policy of TARGET keeps how much back: rounding, casts, noise, labels, budgets, bounded tokens."""
    return _show(job, json)


@app.command
def compare(job: Annotated[CompareJob, Flat], *, json: Json = False) -> int:
    """Distance of two saved models modulo what answers do not determine."""
    return _show(job, json)


@app.command
def twins(job: Annotated[TwinsJob, Flat], *, json: Json = False) -> int:
    """Other parameters that answer like MODEL, a saved head or multihead, shown in pictures with the proof."""
    return _show(job, json)


@app.command
def build(job: Annotated[BuildJob, Flat], *, json: Json = False) -> int:
    """Explicit attention weights for TASK with a certificate: the smallest known that hold in the format asked for."""
    return _show(job, json)


@app.command
def sweep(job: Annotated[SweepJob, Flat], *, json: Json = False) -> int:
    """Run every job of FILE (grids and lists in TOML or JSON) that has not been run yet, and draw what came."""
    return _show(job, json)


@app.command
def sample(job: Annotated[SampleJob, Flat], *, json: Json = False) -> int:
    """Write a random model file to play with: KIND is head, multihead, relu, onelayer, mlp, gru or lstm."""
    return _show(job, json)


@app.command
def bound(job: Annotated[BoundJob, Flat], *, json: Json = False) -> int:
    """Whether a model of given sizes can do TASK: provably too small, enough by a construction, or open."""
    return _show(job, json)


@app.command
def attack(job: Annotated[AttackJob, Flat], *, json: Json = False) -> int:
    """An input on which MODEL, too small for TASK, fails; or the reason why none follows."""
    return _show(job, json)


@app.command
def serve(job: Annotated[ServeJob, Flat], *, json: Json = False) -> int:
    """Serve MODEL as a black box over HTTP (Open Inference Protocol V2), to this machine; --host opens it."""
    return _show(job, json, _line if json else None)


def _line(said: dict[str, Any]) -> None:
    """One line of JSON on standard output, at once."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(said).decode() + "\n")
    sys.stdout.flush()


def _show(job: Job, json: bool, tell: Callable[[dict[str, Any]], None] | None = None) -> int:
    from keyhole.lab.running import run

    record = run(job, tell)
    sys.stdout.write(record.json().decode() if json else record.text())
    sys.stdout.write("\n")
    sys.stdout.flush()
    return record.code


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    try:
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except (CycloptsError, InvalidInput) as error:
        return _complain(arguments, "INVALID_INPUT", str(error).strip(), 2)
    except KeyholeError as error:
        return _complain(arguments, "ORACLE_FAILED", str(error), 3)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        said = "stopped by Ctrl-C. What was done is kept: run it again with the same --out (and --resume) to go on."
        return _complain(arguments, "INTERRUPTED", said, 130)
    except Exception as error:
        traceback.print_exc()
        return _complain(arguments, "UNEXPECTED_ERROR", f"{type(error).__name__}: {error}. Please report this.", 1)
    return code if isinstance(code, int) else 0


def _complain(arguments: list[str], status: str, sentence: str, code: int) -> int:
    import msgspec

    sys.stderr.write(f"keyhole: {sentence}\n")
    if "--json" in arguments:
        sys.stdout.write(msgspec.json.encode({"status": status, "verdict": None, "sentence": sentence}).decode() + "\n")
    return code
