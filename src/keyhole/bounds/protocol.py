r"""A model run by people who each own some of its tokens, every bit they send counted.

For a token i of Alice's and a head, Alice writes the query, m numbers. Bob answers with the
log-partition of the scores of his tokens and with his average of values,

$$L_B = \log \sum_{j \in B} e^{s_{ij}}, \qquad \bar v_B = \sum_{j \in B} e^{s_{ij} - L_B} v_j,$$

1 + v numbers, and Alice merges: her head output is the mean of the averages with weights
softmax(L_A, L_B). Residuals and token maps need nobody else, and a blank token is public. Behind a
causal mask, which is public too, Bob leaves out what row i does not see. Two
people send $N H D (m + v + 1) b$ bits where every number is rounded to b bits; with k people
everybody hears the query and k - 1 answer, $N H D (m + (k - 1)(v + 1)) b$. That is
keyhole/conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any

import numpy as np

from keyhole._arrays import Array, Float, Int, Rng, Sequences, Stack, as_generator
from keyhole.bounds.formulas import count_disjointness_bits
from keyhole.errors import InvalidInput
from keyhole.models.attention import Head, MultiHead, SelfAttention
from keyhole.models.layers.causal_attention import CausalAttention, mark_visible
from keyhole.models.stack import Block, Transformer
from keyhole.tasks import Task

RANGE_BITS = 64  # one end of a range, where ranges are not public
MOST_BITS = 48  # of a number in a message: float64 holds no finer grid of a range
Standard = SelfAttention | CausalAttention
Owners = Int[np.ndarray, "length"]
Heads4 = Float[Array, "heads batch _ _"]

_NAMES = ("Alice", "Bob", "Carol")


@dataclass(frozen=True, slots=True)
class Message:
    """What one person says in one layer.

    Args:
        layer: from 1.
        sender: who speaks.
        receiver: who listens.
        content: what the numbers are.
        numbers: how many.
        bits: what they cost.
    """

    layer: int
    sender: str
    receiver: str
    content: str
    numbers: int
    bits: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """A model run by several people.

    Args:
        answers: what they find, one row per token.
        direct: what the model gives when nobody has to talk.
        messages: what was said, in order.
        bits: the sum over messages, per input.
        range_bits: what it would cost to agree on the ranges of rounding, where these are not
            public.
        each: b, bits of a number.
        promised: a bound on how far answers lie apart, for one layer with nothing behind it;
            infinite otherwise.
        score_range: the spread of scores that enters the bound.
    """

    answers: Stack
    direct: Stack
    messages: tuple[Message, ...]
    bits: int
    range_bits: int
    each: int
    promised: float
    score_range: float

    @property
    def deviation(self) -> float:
        """How far answers lie from the model's own, at most."""
        return float(np.abs(self.answers - self.direct).max(initial=0.0))

    def against(self, task: Task) -> float:
        """Bits sent over bits that disjointness takes; infinite where the task decides none."""
        needed = count_disjointness_bits(task)
        return self.bits / needed if needed else float("inf")


def converse(
    model: Transformer | SelfAttention | Head | MultiHead,
    X: Sequences,
    *,
    bits: int,
    parties: Sequence[Sequence[int]] | None = None,
) -> Conversation:
    """Run a model as a conversation.

    Args:
        model: a Transformer of standard attention layers, a self-attention layer, or heads (without
            biases).
        X: inputs; bits are counted per input.
        bits: b, bits of a number that is sent; at most 48.
        parties: the positions each person owns, two or three lists; halves when absent.

    Raises:
        InvalidInput: a layer is of higher order, or the positions are not split.
    """
    if not 1 <= bits <= MOST_BITS:
        raise InvalidInput(f"a number is sent in 1 to {MOST_BITS} bits; got {bits}.")
    blocks, out = _list_blocks(model)
    owner = _assign_owners(X.shape[1], parties)
    tokens = direct = X
    messages: list[Message] = []
    rounds: list[_Round] = []
    for number, block in enumerate(blocks, start=1):
        done = _run_layer(block, tokens, owner, bits)
        rounds.append(done)
        messages += _list_messages(number, done.layer, owner, bits)
        tokens = done.rows
        direct = block(direct) if isinstance(block, Block) else done.layer(direct)
    final: Callable[[Stack], Stack] = (lambda rows: rows) if out is None else out
    alone = len(blocks) == 1 and out is None
    heads = sum(len(done.layer.Q) for done in rounds)
    return Conversation(
        final(tokens),
        final(direct),
        tuple(messages),
        sum(message.bits for message in messages),
        6 * RANGE_BITS * heads,
        bits,
        rounds[0].promised if alone else float("inf"),
        rounds[0].score_range,
    )


def _list_blocks(model: Any) -> tuple[tuple[Block | SelfAttention, ...], Any]:
    """Blocks and the last map of a model."""
    if isinstance(model, Transformer):
        return model.blocks, model.out
    return (_layer_of(model),), None


def _layer_of(model: Any) -> SelfAttention:
    """Heads as a layer, whose last row is what they answer."""
    if isinstance(model, SelfAttention):
        return model
    heads = (
        model.heads if isinstance(model, MultiHead) else (model,) if isinstance(model, Head) else ()
    )
    if not heads or any(part is not None for head in heads for part in (head.h, head.c, head.U)):
        raise InvalidInput(
            "people can run a Transformer of attention layers, a self-attention layer, or heads"
            f" without score bias, constant and residual; got {type(model).__name__}."
        )
    W = np.stack([np.asarray(head.W) for head in heads])
    V = np.stack([head.V for head in heads])
    return SelfAttention(np.broadcast_to(np.eye(W.shape[1]), W.shape), W, V)


def _assign_owners(length: int, parties: Sequence[Sequence[int]] | None) -> Owners:
    """Who owns each position."""
    half = length // 2
    split = [range(half), range(half, length)] if parties is None else [list(p) for p in parties]
    if (
        sorted(j for part in split for j in part) != list(range(length))
        or not 2 <= len(split) <= 3
        or not all(split)
    ):
        raise InvalidInput(
            f"two or three people own the positions 0 .. {length - 1}, each at least one and each"
            f" position once; got {[list(part) for part in split]}."
        )
    owner = np.zeros(length, dtype=np.int64)
    for k, part in enumerate(split):
        owner[list(part)] = k
    return owner


@dataclass(frozen=True, slots=True)
class _Round:
    """One layer of a conversation."""

    layer: Standard
    rows: Stack
    promised: float
    score_range: float


def _run_layer(block: Block | SelfAttention, X: Stack, owner: Owners, bits: int) -> _Round:
    """One attention layer: queries out, partitions and averages back, merged by row."""
    layer, tokens, blank = _open_block(block, X)
    # The blank is public: it is nobody's, written -1.
    mine = np.concatenate([np.full(len(tokens[0]) - len(owner), -1), owner])
    queries, keys, values = (
        np.einsum("bnd,hdm->hbnm", tokens, P) for P in (layer.Q, layer.K, layer.V)
    )
    sent, query_error = _round_sent_numbers(queries, bits)
    rows = np.zeros((*queries.shape[:3], values.shape[-1]))
    errors = _Errors(query_error, 0.0, 0.0)
    visible = np.ones((len(mine), len(mine)), dtype=bool)
    if isinstance(layer, CausalAttention):
        visible = mark_visible(len(mine))
    for k in range(int(owner.max()) + 1):
        at = np.flatnonzero(mine == k)
        rows[:, :, at], told = _merge_outputs(
            queries[:, :, at], sent[:, :, at], keys, values, mine, k, bits, visible[at]
        )
        errors = errors.worse(told)
    given = rows.sum(axis=0) + (tokens if isinstance(block, Block) and block.residual else 0.0)
    promised, spread = _bound_deviation(keys, values, queries, errors)
    return _Round(layer, given[:, 1:] if blank else given, promised, spread)


def _open_block(block: Block | SelfAttention, X: Stack) -> tuple[Standard, Stack, bool]:
    """The layer, what it is given, and whether a blank stands in front."""
    if isinstance(block, SelfAttention):
        return block, X, False
    if not isinstance(block.layer, Standard):
        raise InvalidInput(
            f"people can run standard attention (order 2) only; got a {type(block.layer).__name__}."
        )
    return block.layer, block.tokens(X), block.blank is not None


@dataclass(frozen=True, slots=True)
class _Errors:
    """Largest rounding errors of a number in a query, a log-partition and an average."""

    query: float
    partition: float
    average: float

    def worse(self, other: _Errors) -> _Errors:
        return _Errors(
            max(self.query, other.query),
            max(self.partition, other.partition),
            max(self.average, other.average),
        )


def _merge_outputs(
    queries: Array,
    sent: Array,
    keys: Array,
    values: Array,
    mine: Any,
    k: int,
    bits: int,
    visible: Any,
) -> tuple[Heads4, _Errors]:
    """Head outputs of one person's rows: own tokens exactly, the others' as sent."""
    partitions: list[Array] = []
    averages: list[Array] = []
    errors = _Errors(0.0, 0.0, 0.0)
    for other in range(int(mine.max()) + 1):
        near = other == k
        held = np.flatnonzero((mine == other) | (near & (mine == -1)))
        scores = (queries if near else sent) @ keys[:, :, held].swapaxes(-1, -2)
        seen = visible[:, held]
        # Rows that see nothing of a person's tokens are as if these were not there.
        some = seen.any(axis=1)[:, None]
        top = np.where(seen, scores, -np.inf).max(axis=-1, keepdims=True, initial=-1e300)
        weights = np.where(seen, np.exp(np.minimum(scores - top, 0.0)), 0.0)
        total = np.where(some, weights.sum(axis=-1, keepdims=True), 1.0)
        partition = np.where(some, top, 0.0) + np.log(total)
        average = weights / total @ values[:, :, held]
        if not near:
            partition, off_partition = _round_sent_numbers(partition, bits)
            average, off_average = _round_sent_numbers(average, bits)
            errors = errors.worse(_Errors(0.0, off_partition, off_average))
        partitions.append(np.where(some, partition, -np.inf))
        averages.append(average)
    L = np.stack(partitions)
    shares = np.exp(L - L.max(axis=0))
    shares /= shares.sum(axis=0)
    return (shares * np.stack(averages)).sum(axis=0), errors


def _round_sent_numbers(numbers: Array, bits: int) -> tuple[Array, float]:
    """Numbers on a grid of 2^b points over each head's range, and the largest error of it."""
    axes = tuple(range(1, numbers.ndim))
    low = numbers.min(axis=axes, keepdims=True)
    high = numbers.max(axis=axes, keepdims=True)
    step = (high - low) / (2.0**bits - 1.0)
    grid = np.rint((numbers - low) / np.where(step > 0, step, 1.0))
    return low + grid * step, float(step.max()) / 2.0


# A rounded query moves the score of token j by at most |k_j|_1 times the error of its numbers, and
# a rounded partition moves the scores of all its tokens alike: together by x at most. Weights
# proportional to e^s then move by a factor between e^-2x and e^2x, so that their total variation is
# at most e^2x - 1, and an average of numbers between two ends moves by half of that times their
# distance. Rounded averages add their own error. Heads are summed. To first order, with S = max_j
# |k_j|_1 (range of a query number), b bits and values within V of each other, this is 2^-b V (S +
# (ln N)/2 + 1/2) for every head: C 2^-b S with C = V (1 + (1 + ln N)/(2 S)).
def _bound_deviation(
    keys: Heads4, values: Heads4, queries: Heads4, errors: _Errors
) -> tuple[float, float]:
    """A bound on the deviation of a layer's rows, and the spread of scores S in it."""
    size = float(np.abs(keys).sum(axis=-1).max())
    moved = size * errors.query + errors.partition
    spread = values.max(axis=(1, 2)) - values.min(axis=(1, 2))
    each = spread.max(axis=-1) * min(1.0, np.expm1(2.0 * min(moved, 1.0)) / 2.0) + errors.average
    rounding = 1e-13 * (1.0 + float(np.abs(values).max(initial=0.0))) * len(keys)
    return float(each.sum()) + rounding, size * float(np.ptp(queries, axis=(1, 2, 3)).max())


def evaluate_deviation_constant(
    length: int, score_range: float, value_range: float, heads: int = 1
) -> float:
    r"""C of the bound $C\, 2^{-b} S$, $H V (1 + (1 + \ln N) / (2 S))$ to first order."""
    return heads * value_range * (1.0 + (1.0 + log(length)) / (2.0 * score_range))


def _list_messages(number: int, layer: Standard, owner: Owners, bits: int) -> list[Message]:
    """The messages of a layer: everybody's queries, then what the others answer."""
    heads, _, m = layer.Q.shape
    people = range(int(owner.max()) + 1)
    said: list[Message] = []
    for k in people:
        rows = int((owner == k).sum()) * heads
        others = [_NAMES[other] for other in people if other != k]
        query = Message(number, _NAMES[k], " and ".join(others), "queries", rows * m, 0)
        said.append(query)
        for other in others:
            content = "log-partitions and averages"
            said.append(Message(number, other, _NAMES[k], content, rows * (layer.outputs + 1), 0))
    return [replace(message, bits=message.numbers * bits) for message in said]


@dataclass(frozen=True, slots=True)
class EffectiveBits:
    """How coarse messages may be before a model fails its task.

    Args:
        bits: fewest bits of a number with which, and with every more, the task is done as well;
            None where the task is not done with the most bits.
        total: bits sent per input with them.
        needed: bits that deciding disjointness takes; 0 where the task decides none.
        errors: largest task error by bits of a number.
    """

    bits: int | None
    total: int | None
    needed: int
    errors: dict[int, float]


def effective_bits(
    model: Transformer | SelfAttention,
    task: Task,
    *,
    allowed: float,
    rng: Rng,
    sampled: int = 32,
    most: int = 40,
    parties: Sequence[Sequence[int]] | None = None,
) -> EffectiveBits:
    """Round messages ever more coarsely until the task fails.

    Args:
        model: a model of the task, built, trained or recovered.
        task: the task.
        allowed: largest error of a sequence that counts as right.
        rng: draws the inputs.
        sampled: inputs of each kind the task has.
        most: bits to begin with.
        parties: who owns which positions; halves when absent.
    """
    rng = as_generator(rng)
    X = np.concatenate([task.sample(sampled, rng=rng, kind=kind) for kind in task.kinds])
    errors: dict[int, float] = {}
    found: Conversation | None = None
    for bits in range(most, 0, -1):
        talk = converse(model, X, bits=bits, parties=parties)
        errors[bits] = float(task.error(talk.answers, X).max())
        if not errors[bits] <= allowed:
            break
        found = talk
    needed = count_disjointness_bits(task)
    return EffectiveBits(
        *((None, None) if found is None else (found.each, found.bits)), needed, errors
    )
