"""The round trip: a unit is hidden, recovered from answers, and scored on its task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import structs

from keyhole._arrays import Sequences
from keyhole.identify import compare
from keyhole.lab.runs.record_parts import RoundTrip
from keyhole.learners.choosing import learn
from keyhole.models import Head, SelfAttention, TensorAttention
from keyhole.models.layers.tensor_row import TensorRow, read_last_row
from keyhole.models.stack import Block, Transformer
from keyhole.oracles import Local
from keyhole.tasks import Task, find_kind

_EACH = 4  # sequences of each kind that both models answer


# Of a unit of higher order every row is that unit, asked about its own token.
def put_back_unit(model: Transformer, unit: TensorAttention) -> Transformer:
    """The same Transformer with a recovered unit in the place of its own."""
    return replace(model, blocks=(replace(model.blocks[0], layer=unit),))


# The last row of a unit is the head W = K Q^T, and any row is the same head asked about its own
# token: a recovered W put back as Q = W^T, K = I scores x_i W^T x_j for every i.
def put_back_head(model: Transformer, head: Head) -> Transformer:
    """The same Transformer with a recovered head in the place of its unit."""
    block = model.blocks[0]
    W = np.asarray(head.W, dtype=np.float64)
    layer = SelfAttention(W.T[None], np.eye(head.width)[None], head.V[None])
    return Transformer((Block(block.map, layer, block.blank, block.residual),), model.out)


def sample_task_inputs(model: Transformer, task: Task, rng: np.random.Generator) -> Sequences:
    """Inputs of every kind the task has; those answered quickly where built weights keep such."""
    draw = find_kind(task).load("known_inputs")
    known = None if draw is None else draw(task, model.blocks[0].map, _EACH, rng=rng)
    if known is not None:
        return known
    return np.concatenate([task.sample(_EACH, rng=rng, kind=kind) for kind in task.kinds])


def _can_be_read(layer: Any) -> bool:
    if isinstance(layer, TensorAttention):
        return layer.order == 3
    return isinstance(layer, SelfAttention) and len(layer.Q) == 1


def _put_back(model: Transformer, found: Head | TensorRow) -> Transformer:
    if isinstance(found, TensorRow):
        return put_back_unit(model, found.unit)
    return put_back_head(model, found)


def make_round_trip(model: Any, task: Task, *, rng: np.random.Generator) -> RoundTrip:
    """Hide, recover, put back, score; what cannot be read at its last row is said to be so."""
    layer: Any = (
        model.blocks[0].layer if isinstance(model, Transformer) and len(model.blocks) == 1 else None
    )
    # The last row of several heads is not one head.
    if not _can_be_read(layer):
        said = (
            "No round trip: only one self-attention head, or one unit of third order, can be read"
            " at its last row."
        )
        return RoundTrip(verdict=None, sentence=said)
    hidden: Any = read_last_row(layer)
    found = learn(Local(hidden), rng=rng)
    # Drawn after the recovery, from the same generator: the learner has not seen them.
    X = sample_task_inputs(model, task, rng)
    before = float(task.error(model(X), X).max())
    made = RoundTrip(
        verdict=found.verdict.name,
        sentence=f"Round trip: {found.sentence}",
        queries=found.ledger.total().sequences,
        error_before=before,
    )
    if type(found.model) is not type(hidden):
        return made
    recovered: Any = found.model
    after = float(task.error(_put_back(model, recovered)(X), X).max())
    gap = compare(hidden, found.model).largest
    sentence = (
        f"Round trip: {made.queries:,} queries recover the unit ({found.verdict.name}, weights"
        f" to {gap:.0e}); the error on the task is {before:.1e} before and {after:.1e} after, on"
        f" {len(X)} sequences."
    )
    return structs.replace(made, error_after=after, distance=gap, sentence=sentence)
