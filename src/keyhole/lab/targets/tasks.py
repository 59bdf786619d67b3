"""From the words of a job to a task."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from keyhole.lab.jobs.job_parts import TaskSizing
from keyhole.tasks import Task, task_named


def pose_task(name: str, job: TaskSizing, **known: Any) -> Task:
    """The task a job names; sizes in `known` are used where the job does not give them."""
    given = {item.name: getattr(job, item.name) for item in fields(TaskSizing)}
    # A switch that is off says nothing of a task that has no such switch.
    sizes = {
        size: known.get(size) if value is None or value is False else value
        for size, value in given.items()
    }
    # Jobs call the size of a vector width, as models do; tasks call it dimension.
    sizes["dimension"] = sizes.pop("width")
    return task_named(name, **sizes)
