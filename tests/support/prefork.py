"""Commands as processes of their own, forked from one that has done the imports: a start costs
milliseconds.

Run as a script, with what else to import as its arguments, it reads one request a line (arguments,
directory, files for both streams) and answers the exit code.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest


def serve():
    """Fork a command for every line of standard input."""
    _preload()
    for line in sys.stdin:
        child = os.fork() or _command(json.loads(line))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _preload():
    """Import what most commands need; web servers and sweeps are left to those that do."""
    import keyhole.__main__  # noqa: F401
    from keyhole.lab import jobs
    from keyhole.lab.running import find_runner

    recovering = (jobs.AuditJob, jobs.CompareJob, jobs.LearnJob, jobs.PlanJob, jobs.VerifyJob)
    others = (jobs.AttackJob, jobs.BoundJob, jobs.BuildJob, jobs.SampleJob, jobs.TwinsJob)
    for kind in (*recovering, *others, jobs.DemoJob):
        find_runner(kind)
    for name in sys.argv[1:]:
        importlib.import_module(name)


def _command(request):
    """Become the command; never returns."""
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for stream, name in enumerate(("/dev/null", request["out"], request["err"])):
        mode = os.O_RDONLY if stream == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(name, mode), stream)
    sys.stdin, sys.stdout, sys.stderr = (open(n, "rw"[n > 0], closefd=False) for n in range(3))  # noqa: SIM115
    # Nobody handles this signal: it ends the process as abruptly as a kill.
    signal.setitimer(signal.ITIMER_REAL, request["timeout"])
    sys.argv = ["keyhole", *request["arguments"]]
    code = 1
    try:
        from keyhole.cli import main

        main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:
                stream.flush()
        os._exit(code)


@dataclass(frozen=True)
class Ran:
    """One finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        """The one object on standard output; non-finite numbers are not JSON and are refused."""
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


class Preforked:
    """The parent of the commands, which has imported these modules too."""

    def __init__(self, *imported):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, __file__, *imported], **pipes)

    def __call__(self, directory, *arguments, timeout=120):
        """The exit code and both streams of a command; one that takes too long is killed by its
        alarm.
        """
        out, err = (Path(directory) / f".{name}" for name in ("stdout", "stderr"))
        request = {
            "arguments": [*map(str, arguments)],
            "directory": str(directory),
            "out": str(out),
            "err": str(err),
        }
        request |= {"timeout": timeout, "environment": dict(os.environ)}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        streams = out.read_text(), err.read_text()
        out.unlink(), err.unlink()
        if code == -signal.SIGALRM:
            raise TimeoutError(f"{arguments} took more than {timeout} s: {streams}")
        return Ran(code, *streams)

    def close(self):
        """Let the parent end."""
        self.process.stdin.close()
        self.process.wait(timeout=10)
        self.process.stdout.close()


if __name__ == "__main__":
    serve()
