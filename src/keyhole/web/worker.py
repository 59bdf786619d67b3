"""The process behind a job of the page: a line of JSON in, lines of JSON out.

It runs beside the server so that a job can be ended at any moment by ending its process. Standard
input closes when the server is gone, and then this process ends too.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from keyhole._arrays import pin_one_thread
from keyhole.errors import InvalidInput, KeyholeError
from keyhole.lab.commands.computing.bound import measure_job_plane
from keyhole.lab.running import run_job
from keyhole.lab.runs.records import encode_json
from keyhole.web.recovery import recover_hidden_model
from keyhole.web.requests import read_bound_wish, read_recover_wish

Tell = Callable[[Mapping[str, Any]], None]


def _perform_recovery(data: Mapping[str, Any], place: Path | None, tell: Tell) -> Mapping[str, Any]:
    if place is None:
        raise InvalidInput("a recovery needs a directory to write to.")
    return recover_hidden_model(read_recover_wish(data), place, tell)


def _perform_bound(data: Mapping[str, Any], place: Path | None, tell: Tell) -> Mapping[str, Any]:
    job = read_bound_wish(data)
    tell({"doing": "building and checking weights" if job.build else "comparing sizes"})
    return {"record": run_job(job).data, "plane": measure_job_plane(job)}


WORK: dict[str, Callable[[Mapping[str, Any], Path | None, Tell], Mapping[str, Any]]] = {
    "recover": _perform_recovery,
    "bound": _perform_bound,
}


def perform_job(line: Mapping[str, Any], tell: Tell) -> Mapping[str, Any]:
    """What becomes of one job: its result, or the sentence why there is none."""
    place = None if line["place"] is None else Path(line["place"])
    try:
        # As in sweeps: the same job gives the same digits everywhere.
        with pin_one_thread():
            return {"result": WORK[line["kind"]](line["fields"], place, tell)}
    except KeyholeError as error:
        return {"failed": str(error)}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}. Please report this."}


def main() -> None:
    """Do jobs until standard input ends."""
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_job_lines, args=(lines,), daemon=True).start()
    out = sys.stdout.buffer

    def tell(said: Mapping[str, Any]) -> None:
        out.write(encode_json(said) + b"\n")
        out.flush()

    tell({"ready": True})
    while True:
        tell(perform_job(msgspec.json.decode(lines.get()), tell))


def _read_job_lines(lines: SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        lines.put(line)
    # The main thread may be deep in a job that nobody waits for any more.
    os._exit(0)


if __name__ == "__main__":
    main()
