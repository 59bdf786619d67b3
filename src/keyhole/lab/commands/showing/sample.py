"""The sample job: a random model file to play with, or to attack."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from keyhole.errors import InvalidInput
from keyhole.lab.commands.shared import seed_generator
from keyhole.lab.jobs import SampleJob
from keyhole.lab.runs.other_records import SampleRecord
from keyhole.lab.runs.records import Record
from keyhole.lab.targets.random_models import draw_random_model
from keyhole.models import Head, save


def run_sample(job: SampleJob) -> Record[SampleRecord]:
    """Draw a model and write it."""
    model = draw_random_model(job, rng=seed_generator(job.seed))
    path = Path(job.out or f"{job.kind}.safetensors")
    # A model somebody trained or recovered must not be lost to an example.
    if path.exists() and not job.force:
        raise InvalidInput(f"{path} exists. Use --force to overwrite it, or another --out.")
    save(model, path)
    sentence = (
        f"A random {job.kind} of width {job.width} was written to {path}.{_describe_sizes(model)}"
    )
    data = SampleRecord(
        sentence=sentence,
        model_kind=job.kind,
        model=str(path),
        width=job.width,
        outputs=model.outputs,
        seed=job.seed,
    )
    return Record(data)


def _describe_sizes(model: object) -> str:
    """What learners under a tolerance or from labels are told of a head: --norm-bound, --margin."""
    if not isinstance(model, Head):
        return ""
    size = float(np.linalg.norm(np.asarray(model.W)))
    return f" |W|_F is {size:.4g}, and the smallest entry of V {np.abs(model.V).min():.4g}."
