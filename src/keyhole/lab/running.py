"""`run_job(job)`: the one way a job becomes a record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import COMMANDS_BY_JOB, Job, SweepJob
from keyhole.lab.runs.records import Record

Tell = Callable[[Record[Any]], None]


def find_runner(kind: type[Job]) -> Callable[..., Record[Any]]:
    """The function that does jobs of one kind; its module is imported now.

    Raises:
        InvalidInput: what such jobs need is not installed; the message says how to install it.
    """
    try:
        return COMMANDS_BY_JOB[kind].load("run")
    # The module says which extra is missing; a user should read that, not a traceback.
    except ImportError as error:
        raise InvalidInput(str(error)) from error


def run_job(job: Job, tell: Tell | None = None) -> Record[Any]:
    """Do what a job asks and return its record; `tell` hears when one that serves is ready."""
    if isinstance(job, SweepJob):
        # A sweep runs other jobs; it is handed how, since its engines stand below the commands.
        return find_runner(SweepJob)(job, work=(find_runner, run_job))
    if COMMANDS_BY_JOB[type(job)].ready is not None:
        return find_runner(type(job))(job, tell)
    return find_runner(type(job))(job)
