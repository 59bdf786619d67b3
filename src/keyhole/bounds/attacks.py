r"""Inputs on which a model of sparse averaging fails, found because it is too small.

Each attack makes two inputs that a model cannot tell apart and whose right answers are far apart,
and puts both to the model. Whatever it answers, on one of them it is wrong by half that distance at
least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import comb, isfinite
from typing import Any, cast

import numpy as np

from keyhole._arrays import Array, Rng, Stack, as_generator
from keyhole.bounds.collisions import SEARCHED, find_two_prefixes
from keyhole.bounds.formulas import (
    Inequality,
    Sizes,
    bound_by_counting,
    bound_by_kernel,
    bound_by_prefixes,
)
from keyhole.bounds.messages import (
    SETS,
    build_telling_inputs,
    find_two_sets,
    name_last_set,
    read_messages,
)
from keyhole.errors import InvalidInput
from keyhole.models.attention import SelfAttention
from keyhole.models.baselines import Mlp, Recurrent, encode_tokens
from keyhole.models.numbers import NumberFormat, evaluate
from keyhole.models.numbers import number_format as format_named
from keyhole.models.stack import Transformer
from keyhole.tasks import SparseAverage, Task, find_kind, list_tasks_with

# Of the largest singular value: a direction the first layer does not see.
_FLAT = 1e-13


class Attacked(StrEnum):
    """How an attack ended; the value says what it means."""

    FOUND = (
        "Two inputs that the model cannot tell apart have different right answers: it is wrong on"
        " one of them."
    )
    PIGEONHOLE = "Such inputs exist, by counting, but searching for them would take too long."
    NONE_FOLLOWS = "Nothing follows from the size of this model."


@dataclass(frozen=True, slots=True)
class Attack:
    """What an attack found.

    Args:
        status: how it ended.
        sentence: what was found, or why nothing follows, with numbers.
        inequality: what the model falls short of, or not.
        inputs: two inputs, or None.
        answers: the model's answers to both, in the row that fails.
        targets: the right ones.
        row: the row that fails.
        hidden_gap: how far apart the model sees the two inputs: first-layer sums, states, or
            messages.
    """

    status: Attacked
    sentence: str
    inequality: Inequality
    inputs: Stack | None = None
    answers: Array | None = None
    targets: Array | None = None
    row: int = 0
    hidden_gap: float = 0.0

    @property
    def target_gap(self) -> float:
        """Distance of the right answers."""
        if self.targets is None:
            return 0.0
        return float(np.linalg.norm(self.targets[0] - self.targets[1]))

    @property
    def errors(self) -> tuple[float, ...]:
        """How wrong the model is on either input."""
        if self.answers is None or self.targets is None:
            return ()
        return tuple(float(error) for error in np.linalg.norm(self.answers - self.targets, axis=-1))

    @property
    def worst(self) -> int:
        """Which of the inputs the model fails on."""
        return int(np.argmax(self.errors)) if self.errors else 0


def attack(
    model: Mlp | Recurrent | Transformer | SelfAttention,
    task: Task,
    *,
    rng: Rng,
    number_format: str | None = None,
    accuracy: float | None = None,
) -> Attack:
    """Two inputs a model of sparse averaging cannot tell apart, or the reason why none follow.

    Args:
        model: a fully connected, recurrent or attention model.
        task: sparse averaging, of the sizes the model is for.
        rng: draws what is searched.
        number_format: the format in which an attention model holds XQ, XK, XV and head outputs:
            f64, f32, f16, bf16, fixed:I.F, or float64 as it is when absent.
        accuracy: largest error allowed; a quarter of what one member of a set counts when absent.

    Raises:
        InvalidInput: the model is not for this task.
    """
    rng = as_generator(rng)
    attack_task = find_kind(task).load("attack")
    if attack_task is None:
        raise InvalidInput(
            f"attacks are known for models of {list_tasks_with('attack')}; got {task.name}."
        )
    allowed = task.accuracy if accuracy is None else accuracy
    return attack_task(model, task, allowed, rng, number_format)


def attack_average(
    model: Mlp | Recurrent | Transformer | SelfAttention,
    task: SparseAverage,
    allowed: float,
    rng: np.random.Generator,
    number_format: str | None,
) -> Attack:
    """Two inputs a model of sparse averaging cannot tell apart, or the reason why none follow."""
    if isinstance(model, Mlp):
        return _attack_mlp(model, task, allowed)
    if isinstance(model, Recurrent):
        return _attack_recurrent(model, task, allowed, rng)
    held = format_named("exact" if number_format is None else number_format)
    return _attack_attention(model, task, allowed, rng, held)


def read_average_sizes(model: Any) -> dict[str, int]:
    """Sizes of sparse averaging that a network without attention tells by its own."""
    # Attention reads any length and says nothing of the task it was made for.
    if not isinstance(model, Mlp | Recurrent):
        return {}
    dimension = len(model.z)
    sizes = {"width": dimension, "q": model.width - dimension - 1}
    return sizes | ({"length": model.length} if isinstance(model, Mlp) else {})


def _check_width(model: Any, task: SparseAverage) -> None:
    has = (model.width, model.outputs, len(model.z))
    if has != (task.width, task.dimension, task.dimension):
        raise InvalidInput(
            f"the model reads tokens of {model.width} numbers, {len(model.z)} of them z, and"
            f" answers {model.outputs}; this task has {task.width}, {task.dimension} and"
            f" {task.dimension}. Check --q and --width."
        )


def _replay_inputs(
    task: SparseAverage, inputs: Stack, row: int, run: Callable[[Stack], Stack], **told: Any
) -> Attack:
    """Put both inputs to the model."""
    answers = run(inputs)[:, row]
    targets = task.target(inputs)[:, row]
    gap = float(np.abs(answers[0] - answers[1]).max())
    apart = float(np.linalg.norm(targets[0] - targets[1]))
    sentence = (
        f"At token {row + 1} the model gives two inputs answers {gap:.1g} apart; the right ones are"
        f" {apart:.4g} apart, so that it is wrong by {apart / 2:.4g} on one of them."
        f" {told.pop('why')}"
    )
    return Attack(
        Attacked.FOUND, sentence, inputs=inputs, answers=answers, targets=targets, row=row, **told
    )


# The first layer sees z only through its columns for z. Those of the first N - q + 1 tokens have a
# kernel as soon as there are more of them than units; the token of the kernel vector with the
# largest norm is scaled to norm 1.
def _attack_mlp(model: Mlp, task: SparseAverage, accuracy: float) -> Attack:
    _check_width(model, task)
    if model.length != task.length:
        raise InvalidInput(
            f"the model reads {model.length} tokens; this task has {task.length}. Check --length."
        )
    told = bound_by_kernel(task, model.hidden, accuracy)
    free = task.length - task.q + 1
    delta = _find_unseen_vectors(model, free)
    if delta is None:
        sentence = (
            f"The first layer has {model.hidden} units and sees every direction of the"
            f" {told.needed:.0f} z-coordinates of {free} tokens: nothing follows. One unit less"
            f" than {told.needed:.0f} would be too few."
        )
        return Attack(Attacked.NONE_FOLLOWS, sentence, told)
    z = np.zeros((2, task.length, task.dimension))
    z[0, :free], z[1, :free] = delta, -delta
    best = int(np.argmax(np.linalg.norm(delta, axis=1)))
    y = np.broadcast_to(np.array([best, *range(free, task.length)]), (2, task.length, task.q))
    inputs = task.tokens(z, y)
    seen = model.first_layer(inputs)
    why = (
        f"Its {model.hidden} first-layer units do not see the difference; {told.needed:.0f} would"
        " be needed."
    )
    return _replay_inputs(
        task,
        inputs,
        0,
        model,
        inequality=told,
        hidden_gap=float(np.abs(seen[0] - seen[1]).max()),
        why=why,
    )


def _find_unseen_vectors(model: Mlp, free: int) -> Array | None:
    """Vectors of the first tokens that the first layer does not see, or None; the longest is 1."""
    columns = model.W[0].reshape(model.hidden, model.length, model.inputs)[:, :free, list(model.z)]
    columns = columns.reshape(model.hidden, -1)
    _, sizes, directions = np.linalg.svd(columns, full_matrices=True)
    # Fewer singular values than columns: some direction is in the kernel whatever the weights are.
    least = sizes[-1] / sizes[0] if len(sizes) == columns.shape[1] and sizes[0] > 0 else 0.0
    if least > _FLAT:
        return None
    delta = directions[-1].reshape(free, -1)
    return delta / np.linalg.norm(delta, axis=1).max()


def _attack_recurrent(
    model: Recurrent, task: SparseAverage, accuracy: float, rng: np.random.Generator
) -> Attack:
    _check_width(model, task)
    told = bound_by_prefixes(task, model.bits, accuracy)
    if model.passes > 1:
        sentence = (
            f"The model reads its input {model.passes} times, and knows what is asked when it reads"
            " it again: "
        )
        return Attack(Attacked.NONE_FOLLOWS, f"{sentence}nothing follows.", told)
    if task.q > task.length - 2:
        sentence = (
            f"With q = {task.q} of {task.length} positions every prefix may be asked the same:"
            " nothing follows."
        )
        return Attack(Attacked.NONE_FOLLOWS, sentence, told)
    pair = find_two_prefixes(model, task, rng=rng)
    if pair is None:
        return _report_pigeonhole(model, task, told)
    z = np.concatenate([pair, np.zeros((2, 1, task.dimension))], axis=1)
    asked = np.sort(_find_separating_positions(pair, task.q))
    inputs = task.tokens(z, name_last_set(task, np.stack([asked, asked])))
    states = _run_states(model, inputs[:, :-1])
    lack = "its bits would do, but it uses them badly."
    if told.violated:
        lack = f"{told.needed:.0f} bits would be needed."
    why = f"Its state of {model.bits} bits is the same behind both prefixes; {lack}"
    gap = float(np.abs(states[0] - states[1]).max())
    return _replay_inputs(
        task, inputs, task.length - 1, model, inequality=told, hidden_gap=gap, why=why
    )


def _report_pigeonhole(model: Recurrent, task: SparseAverage, told: Inequality) -> Attack:
    if told.violated:
        sentence = (
            f"{task.length - 1} bits of prefix meet {model.bits} bits of state: two prefixes share"
            f" a state by the pigeonhole principle, but a search among {SEARCHED:,} states at a"
            " time did not meet them; it can be relied on up to about 40 bits."
        )
        return Attack(Attacked.PIGEONHOLE, sentence, told)
    sentence = (
        f"{model.bits} bits of state could hold the {task.length - 1} bits of every prefix, and no"
        " two prefixes that share a state were met: nothing follows."
    )
    return Attack(Attacked.NONE_FOLLOWS, sentence, told)


def _run_states(model: Recurrent, X: Stack) -> Array:
    tokens = encode_tokens(X, model.z, model.codes)
    state = model.start(len(X))
    for t in range(X.shape[1]):
        state = model.step(state, tokens[:, t])
    return state


def _find_separating_positions(z: Stack, q: int) -> Any:
    """Positions over which two prefixes have different sums: most, or least, different ones."""
    order = np.argsort(z[0, :, 0] - z[1, :, 0], kind="stable")
    least = order[:q]
    most = order[-q:]
    sums = [abs(float((z[0, y, 0] - z[1, y, 0]).sum())) for y in (least, most)]
    return most if sums[1] >= sums[0] else least


# Two sets whose query, key and value are the same numbers once rounded get the same answers,
# whatever the vectors are.
def _attack_attention(
    model: Transformer | SelfAttention,
    task: SparseAverage,
    accuracy: float,
    rng: np.random.Generator,
    held: NumberFormat,
) -> Attack:
    if not isinstance(model, Transformer) or not isinstance(model.blocks[0].layer, SelfAttention):
        raise InvalidInput(
            "attacks on attention need a Transformer with a token map in front of standard"
            " attention."
        )
    block = model.blocks[0]
    layer = model.blocks[0].layer
    heads, _, m = layer.Q.shape
    sizes = Sizes(
        embed=m,
        bits=held.bits,
        heads=heads,
        value_width=layer.outputs,
        accuracy=accuracy,
        residual=block.residual,
    )
    told = bound_by_counting(task, sizes)
    # A residual carries the set past the messages, so that equal ones prove nothing.
    pair = None if block.residual else find_two_sets(model, task, held, rng)
    if pair is None:
        tried = min(SETS, comb(task.length - 1, task.q))
        sentence = (
            f"The messages of {tried:,} sets, {_describe_message_size(told.available)}, are all"
            f" different; {told.needed:,.1f} bits are needed"
            + (": two sets share one, but were not met." if told.violated else ".")
        )
        return Attack(
            Attacked.PIGEONHOLE if told.violated else Attacked.NONE_FOLLOWS, sentence, told
        )
    inputs = build_telling_inputs(task, *pair)
    first, second = (read_messages(model, task, np.array([y]), held)[0] for y in pair)
    why = "Query, key and value of its last token are the same numbers for two sets."
    gap = float(np.abs(first - second).max())
    return _replay_inputs(
        task,
        inputs,
        task.length - 1,
        lambda X: _evaluate_rounded(model, X, held),
        inequality=told,
        hidden_gap=gap,
        why=why,
    )


def _describe_message_size(bits: float) -> str:
    return f"{bits:,.0f} bits each" if isfinite(bits) else "not rounded"


def _evaluate_rounded(model: Transformer, X: Stack, held: NumberFormat) -> Stack:
    """The model with XQ, XK, XV and head outputs rounded."""
    return model(X, lambda layer, tokens: evaluate(cast(Any, layer), tokens, held, inner=False))
