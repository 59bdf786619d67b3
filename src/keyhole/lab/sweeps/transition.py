"""The transition job: how many measurements the least nuclear norm needs."""

from __future__ import annotations

import math

import numpy as np

from keyhole.errors import InvalidInput
from keyhole.lab.commands.shared import seed_generator
from keyhole.lab.jobs import TransitionJob
from keyhole.lab.runs.other_records import TransitionRecord
from keyhole.lab.runs.records import Record
from keyhole.learners.one_head.nuclear_program import minimise_nuclear_norm

_FOUND = 1e-6  # relative error of a success


def run_transition(job: TransitionJob) -> Record[TransitionRecord]:
    """Draw matrices and Gaussian rank-one measurements of them, and count those that come back."""
    d, r = job.width, job.rank
    if not (1 <= r <= d and job.ratio > 0 and job.seeds >= 1):
        raise InvalidInput(
            "a transition has 1 <= rank <= width, a positive ratio and at least one seed; "
            f"got rank {r}, width {d}, ratio {job.ratio} and {job.seeds} seeds."
        )
    freedom = r * (2 * d - r)
    count = math.ceil(job.ratio * freedom)
    errors = [
        _measure_recovery_error(d, r, count, rng)
        for rng in seed_generator(job.seed).spawn(job.seeds)
    ]
    success = sum(error <= _FOUND for error in errors) / job.seeds
    sentence = (
        f"{count} measurements of matrices {d} x {d} of rank {r}: {100 * success:.0f} % of"
        f" {job.seeds} come back."
    )
    data = TransitionRecord(
        sentence=sentence,
        seed=job.seed,
        measurements=count,
        degrees_of_freedom=freedom,
        success=success,
        errors=list(errors),
    )
    return Record(data)


def _measure_recovery_error(width: int, rank: int, count: int, rng: np.random.Generator) -> float:
    """Relative distance of the matrix of least nuclear norm from the one that was measured."""
    W = rng.normal(size=(width, rank)) @ rng.normal(size=(rank, width))
    # Each measurement is a^T W b of Gaussian a and b.
    A, B = rng.normal(size=(2, count, width))
    found = minimise_nuclear_norm(A, B, np.einsum("ki,ij,kj->k", A, W, B)).W
    return float(np.linalg.norm(found - W) / np.linalg.norm(W))
