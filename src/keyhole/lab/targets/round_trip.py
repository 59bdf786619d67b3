"""The round trip: a layer is hidden, recovered from answers, compared, and scored on its task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import structs

from keyhole._arrays import Sequences, Stack
from keyhole.constructions.shared.coded_tokens import Perceptron
from keyhole.identify import compare
from keyhole.lab.runs.record_parts import RoundTrip
from keyhole.learners.choosing import learn
from keyhole.models import Head, MultiHead, SelfAttention, TensorAttention
from keyhole.models.layers.tensor_row import TensorRow, read_last_row
from keyhole.models.relu import AbsAffine
from keyhole.models.stack import Transformer
from keyhole.models.transformer import OneLayer
from keyhole.oracles import Local
from keyhole.tasks import Task, find_kind

_EACH = 4  # sequences of each kind that both models answer
READABLE = (
    "one layer of self-attention heads, one unit of third order, or one head with a residual and a"
    " network of ReLU units behind it can be read at its last row"
)
_CALLED = {
    Head: "the unit",
    MultiHead: "the heads",
    TensorRow: "the unit",
    OneLayer: "the one-layer Transformer",
}


# Any row of a layer is its last row, asked about its own token: in a mean over all tokens the order
# of the others does not matter.
def answer_every_row(model: Any, X: Sequences) -> Stack:
    """What a model of the last token answers about every token of a sequence."""
    order = list(range(X.shape[1]))
    rows = [model(X[:, [*order[:i], *order[i + 1 :], i]]) for i in order]
    return np.stack(rows, axis=1)


def answer_recovered(model: Transformer, found: Any, X: Sequences) -> Stack:
    """The answers of a Transformer with what was recovered in the place of its layer."""
    block = model.blocks[0]
    if isinstance(found, TensorRow):
        # A unit of higher order answers all rows at once much faster than one by one.
        return replace(model, blocks=(replace(block, layer=found.unit),))(X)
    tokens = block.tokens(X)
    rows = answer_every_row(found, tokens)
    # What was hidden whole has its residual and its network inside.
    if isinstance(found, OneLayer):
        return rows
    rows = rows + tokens if block.residual else rows
    rows = rows if block.blank is None else rows[:, 1:]
    return rows if model.out is None else model.out(rows)


def sample_task_inputs(model: Transformer, task: Task, rng: np.random.Generator) -> Sequences:
    """Inputs of every kind the task has; those answered quickly where built weights keep such."""
    draw = find_kind(task).load("known_inputs")
    known = None if draw is None else draw(task, model.blocks[0].map, _EACH, rng=rng)
    if known is not None:
        return known
    return np.concatenate([task.sample(_EACH, rng=rng, kind=kind) for kind in task.kinds])


def hide_layer(model: Any) -> Any:
    """What stands behind the token map, read at its last token; None where no class is known.

    One layer of heads, one unit of third order, or one head with a residual and a network of ReLU
    units behind it.
    """
    if not isinstance(model, Transformer) or len(model.blocks) != 1:
        return None
    (block,) = model.blocks
    layer: Any = block.layer
    if isinstance(layer, TensorAttention):
        return read_last_row(layer) if layer.order == 3 else None
    if not isinstance(layer, SelfAttention):
        return None
    head = read_last_row(layer)
    if not isinstance(model.out, Perceptron) or model.out.squash != "none":
        return head
    return OneLayer(head, join_read_out(model.out), True) if isinstance(head, Head) else None


# relu(a) = (|a| + a)/2: what is linear in the network joins the read-out of the token beside it.
def join_read_out(net: Perceptron) -> AbsAffine:
    """A network beside its token, and the read-out behind both, as absolute values and a map."""
    Wo = np.eye(len(net.W1)) if net.Wo is None else net.Wo
    bo = np.zeros(Wo.shape[1]) if net.bo is None else net.bo
    D = net.W2 @ Wo
    P = Wo.T + 0.5 * D.T @ net.W1.T
    return AbsAffine(net.W1.T, -net.b1, D, P, net.b2 @ Wo + bo + 0.5 * net.b1 @ D)


def make_round_trip(model: Any, task: Task, *, rng: np.random.Generator) -> RoundTrip:
    """Hide, recover, compare, score; what cannot be read at its last row is said to be so."""
    hidden = hide_layer(model)
    if hidden is None:
        return RoundTrip(verdict=None, sentence=f"No round trip: {READABLE}.")
    found = learn(Local(hidden), rng=rng)
    # Drawn after the recovery, from the same generator: the learner has not seen them.
    X = sample_task_inputs(model, task, rng)
    before = float(task.error(model(X), X).max())
    made = RoundTrip(
        verdict=found.verdict.name,
        sentence=f"Round trip: {found.sentence}",
        queries=found.ledger.total().sequences,
        error_before=before,
        hidden_class=type(hidden).__name__,
    )
    if type(found.model) is not type(hidden):
        return made
    after = float(task.error(answer_recovered(model, found.model, X), X).max())
    gap = compare(hidden, found.model).largest
    sentence = (
        f"Round trip: {made.queries:,} queries recover {_CALLED[type(hidden)]}"
        f" ({found.verdict.name}, weights"
        f" to {gap:.0e}); the error on the task is {before:.1e} before and {after:.1e} after, on"
        f" {len(X)} sequences."
    )
    return structs.replace(made, error_after=after, distance=gap, sentence=sentence)
