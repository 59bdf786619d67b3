"""The command line: arguments become a Job, `lab.running` does it, its Record is printed."""

from __future__ import annotations

import atexit
import errno
import os
import sys
import traceback
from dataclasses import MISSING, fields
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from cyclopts import App, CycloptsError, MissingArgumentError
from cyclopts import Parameter as Option

from keyhole import __version__
from keyhole.errors import (
    ClusterLost,
    InvalidInput,
    KeyholeError,
    StorageFailed,
    shorten_text,
    spell_controls,
)
from keyhole.lab.jobs import COMMANDS, Command, Job

if TYPE_CHECKING:
    from keyhole.lab.runs.records import Record

app = App(
    name="keyhole",
    help="What an attention layer can compute, and what its answers give away.",
    version=__version__,
    # Ctrl-C must reach us: what was done is kept, and the message says how to go on.
    suppress_keyboard_interrupt=False,
    # Without this every list would get an option --empty-NAME that means nothing here.
    default_parameter=Option(negative_iterable=()),
)

Flat = Option(name="*")
_STOPPED = 130  # the exit code of Ctrl-C
Json = Annotated[bool, Option(name="--json", negative="", help="Print one JSON object.")]


def _add_command(command: Command) -> None:
    """Give a command of the registry its place on the command line."""

    def run(job: Job | None = None, *, json: bool = False) -> int:
        # Where nothing at all is given the parser leaves the job out.
        return _run_and_print(command, command.job() if job is None else job, json)

    signature = _make_signature(command)
    told = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    for name, value in {
        "__name__": command.name,
        "__signature__": signature,
        "__annotations__": told,
    }.items():
        setattr(run, name, value)
    app.command(run, name=command.name, help=f"{command.help}\n\nExample: {command.example}")


# The fields of a job are the options of its command: nothing is spelt twice.
def _make_signature(command: Command) -> Signature:
    """`(job, *, json=False)`; a job that needs nothing may be left out."""
    whole = all(item.default is not MISSING for item in fields(command.job))
    job = Parameter(
        "job",
        Parameter.POSITIONAL_OR_KEYWORD,
        default=command.job() if whole else Parameter.empty,
        annotation=Annotated[command.job, Flat],
    )
    json = Parameter("json", Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    return Signature([job, json])


for _command in COMMANDS.values():
    if _command.help is not None:
        _add_command(_command)


def _run_and_print(command: Command, job: Job, json: bool) -> int:
    # Imported late: `keyhole --help` should not wait for numpy.
    from keyhole.lab.running import run_job

    def tell(record: Record[Any]) -> None:
        if command.ready == "stdout":
            _print_record(record, json)
        # What serves says so on standard error by itself; a program wants an object.
        elif json:
            sys.stderr.write(record.json().decode() + "\n")
            sys.stderr.flush()

    record = run_job(job, tell)
    # One object on standard output: that it is ready, or what came in the end.
    if command.ready != "stdout":
        _print_record(record, json)
    return record.code


def _print_record(record: Record[Any], json: bool) -> None:
    sys.stdout.write(record.json().decode() if json else record.text())
    sys.stdout.write("\n")
    sys.stdout.flush()


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    codes: list[int] = []
    # Registered before all others, it is called after them.
    atexit.register(_keep_exit_code, codes)
    codes.append(_run_command_line(sys.argv[1:]))
    sys.exit(codes[0])


def _keep_exit_code(codes: list[int]) -> None:
    """Where Ctrl-C fell into code that is made from text, as dataclasses are, Python ends by the
    signal, whoever caught it.
    """
    if codes == [_STOPPED]:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_STOPPED)


def _run_command_line(arguments: list[str]) -> int:
    try:
        _check_encoding(arguments)
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    # Exit codes are a contract: 2 what was asked, 3 the target or the verdict, 1 a bug of ours.
    except MissingArgumentError as error:
        return _print_complaint(arguments, "INVALID_INPUT", _explain_missing(error), 2)
    except (CycloptsError, InvalidInput) as error:
        return _print_complaint(arguments, "INVALID_INPUT", str(error).strip(), 2)
    except (StorageFailed, ClusterLost) as error:
        return _print_complaint(arguments, "INTERRUPTED", str(error), 3)
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
        return _print_complaint(arguments, "INTERRUPTED", said, _STOPPED)
    except OSError as error:
        if error.errno not in _PATHS or error.filename is None:
            return _print_unexpected(arguments, error)
        said = f"{error.filename!r:.200}: {error.strerror}. Check the path."
        return _print_complaint(arguments, "INVALID_INPUT", said, 2)
    except Exception as error:
        return _print_unexpected(arguments, error)
    return code if isinstance(code, int) else 0


# What is wrong with a path that was given, wherever it is first used.
_PATHS = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM)


def _print_unexpected(arguments: list[str], error: Exception) -> int:
    """A bug of ours, with all that helps to find it."""
    traceback.print_exception(error)
    said = f"{type(error).__name__}: {error}. Please report this."
    return _print_complaint(arguments, "UNEXPECTED_ERROR", said, 1)


def _explain_missing(error: MissingArgumentError) -> str:
    """What was not given, by the name that `--help` has for it, and a line that would do."""
    named = next((COMMANDS[word] for word in error.command_chain or () if word in COMMANDS), None)
    if named is None or error.argument is None:
        return str(error).strip()
    option = error.argument.name
    required = error.argument.required
    said = (
        f"{option.removeprefix('--').upper()} is missing" if required else f"{option} needs a value"
    )
    return f"{said}. Example: {named.example}. `keyhole {named.name} --help` lists the choices."


def _check_encoding(arguments: list[str]) -> None:
    """Raise unless every argument is text; a path of other bytes fits into no record."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise InvalidInput(
                f"arguments are text in UTF-8; got {argument!r:.80}. Rename the file, or link to it"
                " by another name."
            ) from None


def _print_complaint(arguments: list[str], status: str, sentence: str, code: int) -> int:
    import msgspec

    # Libraries quote what they were given; a terminal would obey it.
    sentence = shorten_text(spell_controls(sentence))
    sys.stderr.write(f"keyhole: {sentence}\n")
    # A program that reads JSON gets JSON for failures too, and still finds words on stderr.
    if "--json" in arguments:
        sys.stdout.write(
            msgspec.json.encode({"status": status, "verdict": None, "sentence": sentence}).decode()
            + "\n"
        )
    return code
