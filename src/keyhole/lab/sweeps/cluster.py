"""A Dask cluster as an engine: other machines run the jobs, and a dead scheduler is a sentence."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Generator, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from keyhole.errors import ClusterLost, InvalidInput
from keyhole.lab.jobs import Job
from keyhole.lab.sweeps.engines import MOMENT, Outcome, Work, perform_job

SILENCE = 30.0  # seconds without a scheduler before it is given up


@dataclass(slots=True)
class Cluster:
    """A Dask cluster that is already running; it runs again what a dead worker held.

    Args:
        work: how a job is done.
        address: of its scheduler, such as tcp://HOST:8786.
    """

    work: Work
    address: str
    _client: Any = field(init=False)
    _held: dict[Any, str] = field(default_factory=dict[Any, str])
    _silent: float | None = None

    def __post_init__(self) -> None:
        try:
            # Dask is an extra: whoever stays on one machine need not have it.
            distributed: Any = importlib.import_module("distributed")
        except ImportError as error:
            raise InvalidInput("--cluster needs Dask: pip install 'keyhole[cluster]'.") from error
        # It logs whole tracebacks of what becomes a sentence here; parts have levels of their own.
        for name in [
            one for one in logging.root.manager.loggerDict if one.startswith("distributed")
        ]:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        try:
            # Before there is a client, whose half-built remains would complain at the end.
            distributed.comm.get_address_host_port(self.address)
            self._client = distributed.Client(self.address, timeout=10, set_as_default=False)
        except ValueError as error:
            raise InvalidInput(
                f"--cluster {self.address} is no address of a Dask scheduler ({error}); one is"
                " tcp://HOST:8786."
            ) from error
        except (OSError, TimeoutError) as error:
            raise ClusterLost(
                f"no Dask scheduler answers at {self.address} ({error}). Start one first."
            ) from error

    @property
    def room(self) -> int:
        """A window of jobs, twice what its workers run at a time."""
        with self._reaching():
            return max(4, 2 * sum(self._client.nthreads().values()))

    @contextmanager
    def _reaching(self) -> Generator[None]:
        """While inside, a scheduler that is gone ends in a sentence.

        Raises:
            ClusterLost: it is.
        """
        try:
            yield
        # Dask raises what its connection, its loop or its client does when it dies under them.
        except (OSError, TimeoutError, RuntimeError, ValueError, CancelledError) as error:
            raise self._explain_loss(f"{type(error).__name__}: {error}") from error

    def _explain_loss(self, told: str) -> ClusterLost:
        return ClusterLost(
            f"the Dask scheduler at {self.address} is gone ({told:.200}). What was done is kept:"
            " start it again, and run the same command."
        )

    def submit(self, key: str, job: Job) -> None:
        """Take a job."""
        with self._reaching():
            future = self._client.submit(
                # A key of its own each time: Dask would hand out the result of an equal one.
                perform_job,
                self.work,
                job,
                key=f"keyhole-{key}-{time.time_ns()}",
                pure=False,
            )
        self._held[future] = key

    def completed(self) -> Iterator[tuple[str, Outcome]]:
        """Jobs that have ended."""
        deadline = time.monotonic() + MOMENT
        while (
            not (done := [future for future in self._held if future.done()])
            and time.monotonic() < deadline
        ):
            time.sleep(0.002)
        for future in done:
            key = self._held.pop(future)
            yield key, self._collect(future)
            future.release()
        self._check_scheduler()

    def _collect(self, future: Any) -> Outcome:
        """What became of a job; a future that was cancelled is one whose scheduler died."""
        if future.cancelled():
            raise self._explain_loss("it forgot a job that it was given")
        with self._reaching():
            error = future.exception()
            return future.result() if error is None else Outcome(reason=f"{error!r}")

    def _check_scheduler(self) -> None:
        """Raise where the connection to the scheduler is closed, and stays so."""
        # The client tries to connect again by itself; a job would wait for ever if it cannot.
        if self._client.status != "running":
            self._silent = self._silent or time.monotonic()
        else:
            self._silent = None
        if self._silent is not None and time.monotonic() - self._silent > SILENCE:
            raise self._explain_loss(f"no word of it for {SILENCE:g} s")

    def close(self) -> None:
        """Cancel what is unfinished and leave the cluster."""
        # Of a scheduler that is gone there is nothing left to cancel.
        with suppress(Exception):
            self._client.cancel(list(self._held))
        with suppress(Exception):
            self._client.close(timeout=5)
