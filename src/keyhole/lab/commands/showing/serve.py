"""The serve job: a target opened, wrapped and listened for until somebody stops it."""

from __future__ import annotations

import ipaddress
import os
import secrets
import sys
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from keyhole.lab.jobs import ServeJob
from keyhole.lab.runs.other_records import ServeReady, ServeRecord
from keyhole.lab.runs.record_parts import Seconds
from keyhole.lab.runs.records import Record
from keyhole.lab.serving.accounts import Accounts
from keyhole.lab.serving.server import Black, Limits, Server
from keyhole.lab.targets.opening import TOKEN, label_target, open_target, simulate_policies


def run_serve(
    job: ServeJob, tell: Callable[[Record[ServeReady]], None] | None = None
) -> Record[ServeRecord]:
    """Serve a model until stopped; `tell` gets a record as soon as it is ready."""
    start = time.perf_counter()
    oracle = open_target(job.model, width=job.width, outputs=job.outputs)
    # Noise that could be foretold from a default seed would hide nothing.
    seed = secrets.randbits(63) if job.seed is None else job.seed
    accounts = Accounts(job.budget, job.rate)
    limits = Limits(request_bytes=job.request_bytes)
    # An empty variable means no token, not a token that is empty.
    token = os.environ.get(TOKEN) or None
    black = Black(
        simulate_policies(oracle, job.policy, seed),
        job.name or label_target(job.model),
        accounts,
        limits,
        token,
    )

    def ready(address: str) -> None:
        _announce_address(address, job, token)
        if tell is not None:
            data = ServeReady(
                sentence=f"Serving {job.model} at {address}.",
                ready=True,
                address=address,
                name=black.name,
                width=oracle.width,
                outputs=oracle.outputs,
                pid=os.getpid(),
            )
            tell(Record(data))

    server = Server(black, job.host, job.port, ready, known_as=job.known_as)
    server.serve_until_stopped()
    sentence = (
        f"Served {black.queries:,} queries in {black.requests:,} requests; {black.refused:,} were"
        " refused."
    )
    data = ServeRecord(
        sentence=sentence,
        address=server.address,
        name=black.name,
        policy=list(job.policy),
        requests=black.requests,
        queries=black.queries,
        refused=black.refused,
        seconds=Seconds(total=time.perf_counter() - start),
    )
    return Record(data)


def _announce_address(address: str, job: ServeJob, token: str | None) -> None:
    """Say on standard error where the model is, and to whom."""
    host = urlsplit(address).hostname or ""
    caution = ""
    # Beyond this machine nothing but a token keeps strangers from spending the model's answers.
    if not (ipaddress.ip_address(host).is_loopback or token):
        caution = f"; {TOKEN} is not set: anyone may ask"
    sys.stderr.write(f"serving {job.model} at {address} (Ctrl-C stops it{caution})\n")
    sys.stderr.flush()
