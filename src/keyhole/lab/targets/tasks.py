"""From the words of a job to a task."""

from __future__ import annotations

from typing import Any

from keyhole.lab.jobs.job_parts import TaskSizing
from keyhole.tasks import Task, task_named


def pose_task(name: str, job: TaskSizing, **known: Any) -> Task:
    """The task a job names; sizes in `known` are used where the job does not give them."""
    given = {
        "length": job.length,
        "q": job.q,
        "dimension": job.width,
        "at_most": job.at_most or None,
        "modulus": job.modulus,
        "radius": job.radius,
        "nodes": job.nodes,
    }
    # Jobs call the size of a vector width, as models do; tasks call it dimension.
    own = {"dimension" if key == "width" else key: value for key, value in known.items()}
    return task_named(
        name, **{key: own.get(key) if value is None else value for key, value in given.items()}
    )
