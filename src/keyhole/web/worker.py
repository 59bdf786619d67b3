"""The process behind a job of the page: a line of JSON in, lines of JSON out.

It runs beside the server so that a job can be ended at any moment by ending its process. Standard
input closes when the server is gone, and then this process ends too.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import msgspec

from keyhole._arrays import pin_one_thread
from keyhole.errors import InvalidInput, KeyholeError
from keyhole.lab.commands.computing.bound import measure_job_plane
from keyhole.lab.running import run_job
from keyhole.lab.runs.records import encode_json
from keyhole.web.messages import BoundResult, Event, Order, RecoveryResult, Said
from keyhole.web.recovery import Tell, recover_hidden_model, recover_target
from keyhole.web.requests import read_bound_wish, read_recover_wish, read_watch_wish

Work = Callable[[Order, Path | None, Tell], msgspec.Struct]


def _perform_recovery(order: Order, place: Path | None, tell: Tell) -> RecoveryResult:
    if place is None:
        raise InvalidInput("a recovery needs a directory to write to.")
    return recover_hidden_model(read_recover_wish(order.fields), place, tell)


def _perform_watch(order: Order, place: Path | None, tell: Tell) -> RecoveryResult:
    if place is None or order.target is None:
        raise InvalidInput("a target is asked by an explorer that was started with it.")
    return recover_target(order.target, read_watch_wish(order.fields), place, tell)


def _perform_bound(order: Order, place: Path | None, tell: Tell) -> BoundResult:
    job = read_bound_wish(order.fields)
    tell(Event(doing="building and checking weights" if job.build else "comparing sizes"))
    return BoundResult(record=run_job(job).data, plane=measure_job_plane(job))


WORK: dict[str, Work] = {
    "recover": _perform_recovery,
    "watch": _perform_watch,
    "bound": _perform_bound,
}


def perform_job(order: Order, tell: Tell) -> Said:
    """What becomes of one job: its result, or the sentence why there is none."""
    place = None if order.place is None else Path(order.place)
    try:
        # As in sweeps: the same job gives the same digits everywhere.
        with pin_one_thread():
            result = WORK[order.kind](order, place, tell)
        return Said(result=msgspec.Raw(encode_json(result)))
    except KeyholeError as error:
        return Said(failed=str(error))
    except Exception as error:
        return Said(failed=f"{type(error).__name__}: {error}. Please report this.")


def main() -> None:
    """Do jobs until standard input ends."""
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_job_lines, args=(lines,), daemon=True).start()
    # A target may print: its words must not stand between ours.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(said: Said) -> None:
        out.write(msgspec.json.encode(said) + b"\n")
        out.flush()

    def tell(event: Event) -> None:
        say(Said(event=msgspec.Raw(msgspec.json.encode(event))))

    say(Said(ready=True))
    while True:
        say(perform_job(msgspec.json.decode(lines.get(), type=Order), tell))


def _read_job_lines(lines: SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        lines.put(line)
    # The main thread may be deep in a job that nobody waits for any more.
    os._exit(0)


if __name__ == "__main__":
    main()
