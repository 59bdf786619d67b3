"""The wiring of a layer from the options of a job."""

from __future__ import annotations

from dataclasses import fields

from keyhole.lab.jobs.job_parts import Wired
from keyhole.models.layers.wiring import Wiring


def read_wiring_options(job: Wired) -> Wiring:
    """What a job tells of the wiring of a layer.

    Raises:
        InvalidInput: an option has a value that no wiring has.
    """
    return Wiring(**{item.name: getattr(job, item.name) for item in fields(Wiring)})
