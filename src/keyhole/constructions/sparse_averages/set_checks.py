r"""Weights for sparse averaging against the truth, for all vectors at once.

The answer of a token that names y is $\sum_j a_j z_j$ with a the weights of attention. Over all
vectors of the unit ball it is wrong by at most $\sum_j |a_j - 1\{j \in y\} / |y||$, and $z_j = \pm
e_1$ with the signs of these differences reach that: the l1 distance of a from uniform on y is the
largest error, for one set and every z. Rounding adds what the values and the answer lose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any

import numpy as np

from keyhole._arrays import EPS, Array, Sequences, Stack, Vector, softmax
from keyhole.constructions.shared.base import Checked
from keyhole.constructions.shared.rounding import choose_evaluation, is_fixed
from keyhole.constructions.sparse_averages.set_queries import Members, SetQueries
from keyhole.errors import DoesNotFit, InvalidInput
from keyhole.models.attention import SelfAttention
from keyhole.models.numbers import NumberFormat, Unrounded, number_format
from keyhole.models.stack import Transformer
from keyhole.tasks import SparseAverage

# Sets: every one is asked where there are no more.
ALL = 2_000
# Sets otherwise, at least.
ASKED = 72
# Of each kind.
EACH = 18


@dataclass(frozen=True, eq=False, slots=True)
class Findings:
    """What asking sets showed.

    Args:
        checked: the model against the truth, one input per set, with the vectors that are worst for
            it.
        unexposed: sets that the keys do not single out.
        margin: the least margin of a query before scaling.
        bound: proven in the number format, for every set that was asked.
        sequences: largest error of whole sequences.
        sampled: how many sets of how many were asked, where the others are neither asked nor
            proved.
    """

    checked: Checked
    unexposed: int
    margin: float
    bound: float
    sequences: float
    sampled: str


def count_sets(task: SparseAverage) -> int:
    """How many sets a token may name."""
    return sum(comb(task.length, size) for size in set_sizes(task))


# Two sets y != y' must be told apart: with z = +e_1 on one member of y that is not in y' and -e_1
# elsewhere, their answers are 2/q apart. All that the others learn of y is the token's query, key
# and value, (2m + v)p bits a head: for an accuracy below 1/q fewer bits than log2 of the number of
# sets that spare the token itself are too few.
def count_sent_bits(task: SparseAverage, accuracy: float) -> float | None:
    """Bits that a token must send of its set; None where sets need not be told apart."""
    if accuracy >= 1 / task.q or task.q >= task.length:
        return None
    return math.log2(comb(task.length - 1, task.q))


def set_sizes(task: SparseAverage) -> range:
    """How many positions a set may hold."""
    return range(1 if task.at_most else task.q, task.q + 1)


def choose_sets(task: SparseAverage, keys: Array, *, rng: np.random.Generator) -> list[Members]:
    """Every set where they are few; else crowds around a key, regular sets, and random ones.

    The hardest come first, so that keys that do not single out every set are found out soon.
    """
    hard = [
        *_list_crowds(task, keys, rng),
        *_draw_named_sets(task, "contiguous", rng),
        *_draw_named_sets(task, "alternating", rng),
    ]
    if count_sets(task) <= ALL:
        every = (y for n in set_sizes(task) for y in combinations(range(task.length), n))
        return list(dict.fromkeys([*hard, *every]))
    asked = dict.fromkeys([*hard, *(tuple(range(n)) for n in set_sizes(task))])
    # Ends: there are more than `ALL` sets to draw from.
    while len(asked) < ASKED:
        asked |= dict.fromkeys(_draw_named_sets(task, "random", rng))
    return list(asked)


def _draw_named_sets(task: SparseAverage, kind: str, rng: np.random.Generator) -> list[Members]:
    """Sets as the task draws them."""
    X = task.sample(-(-EACH // task.length), rng=rng, kind=kind)
    rows = X[..., task.dimension : task.dimension + task.q].reshape(-1, task.q)[:EACH]
    return [tuple(sorted(int(j) for j in row if j >= 0)) for row in rows]


def _list_crowds(task: SparseAverage, keys: Array, rng: np.random.Generator) -> Iterator[Members]:
    """The keys nearest to one that is left out: sets whose hull comes closest to another key."""
    # A set that holds everybody leaves no key out.
    count = min(EACH, task.length) if task.q < task.length else 0
    for j in rng.choice(task.length, count, replace=False):
        order = np.argsort(-(keys @ keys[j]), kind="stable")
        yield tuple(sorted(int(k) for k in order[order != j][: task.q]))


def examine_sets(
    task: SparseAverage,
    model: Transformer,
    sets: Sequence[Members],
    *,
    accuracy: float,
    form: NumberFormat,
    rng: np.random.Generator | None = None,
) -> Findings:
    """Ask a model about sets, in a number format.

    Args:
        task: the task.
        model: a unit behind a map of set queries.
        sets: those that tokens are to name.
        accuracy: larger errors are counted.
        form: the number format.
        rng: draws the vectors of whole sequences; these are left out when absent.
    """
    phi, layer = _split_unit(model)
    # Float64 evaluates anyway.
    form = Unrounded() if form.name == "f64" else form
    exposed = [y for y in sets if _is_exposed(phi, y)]
    missed = len(sets) - len(exposed)
    margin = min((phi.query(y).margin for y in exposed), default=0.0)
    whole = count_sets(task) == len(set(sets))
    sampled = "" if whole or _alike(task, phi, layer, exposed) else _share(task, sets)
    if not exposed:
        none = Checked(len(sets), missed, math.inf, whole)
        return Findings(none, missed, 0.0, math.inf, math.inf, sampled)
    try:
        errors = _measure_set_errors(phi, layer, exposed, form) + bound_rounding_loss(task, form)
        sequences = 0.0 if rng is None else _measure_sequence_error(task, model, exposed, form, rng)
    except InvalidInput:
        # A number overflows the format.
        errors = np.full(len(exposed), math.inf)
        sequences = math.inf
    worst = max(float(errors.max()), math.inf if missed else 0.0)
    bound = max(_bound_set_error(phi, y, form) for y in exposed) + bound_rounding_loss(task, form)
    checked = Checked(len(sets), int((errors > accuracy).sum()) + missed, worst, whole)
    return Findings(checked, missed, margin, bound, sequences, sampled)


# With one coordinate for every position, exchanging positions exchanges coordinates: sets of one
# size have the same scores in another order, in every number format, so that one of each size
# stands for all.
def _alike(
    task: SparseAverage, phi: SetQueries, layer: SelfAttention, asked: Sequence[Members]
) -> bool:
    """Whether sets that were asked stand for all others of their size."""
    square = phi.solver == "indicator" and np.array_equal(
        phi.keys, phi.keys[0, 0] * np.eye(phi.length)
    )
    places = np.eye(phi.layout.width)
    value, key, query = (places[:, phi.layout[name]] for name in ("value", "key", "query"))
    plain = all(
        map(np.array_equal, (layer.Q, layer.K, layer.V), (query[None], key[None], value[None]))
    )
    return square and plain and {len(members) for members in asked} >= set(set_sizes(task))


def _share(task: SparseAverage, sets: Sequence[Members]) -> str:
    count = count_sets(task)
    there = f"{count:,}" if count < 10**9 else f"about 10^{math.log10(count):.0f}"
    return f"{len(set(sets)):,} of {there} sets"


def _split_unit(model: Transformer) -> tuple[SetQueries, SelfAttention]:
    block = model.blocks[0]
    phi = block.map
    layer = block.layer
    if isinstance(phi, SetQueries) and isinstance(layer, SelfAttention) and len(model.blocks) == 1:
        return phi, layer
    raise InvalidInput("sets are asked of one self-attention unit behind a map of set queries.")


def _is_exposed(phi: SetQueries, members: Members) -> bool:
    try:
        phi.query(members)
    except DoesNotFit:
        return False
    return True


def build_set_sequences(task: SparseAverage, z: Stack, sets: Sequence[Members]) -> Sequences:
    """Sequences whose tokens name the sets in order, from the first again when they run out."""
    named = np.full((len(z) * task.length, task.q), -1)
    for row in range(len(named)):
        members = sets[row % len(sets)]
        named[row, : len(members)] = members
    return task.tokens(z, named.reshape(len(z), task.length, task.q))


def draw_known_inputs(
    task: SparseAverage, phi: Any, count: int, *, rng: np.random.Generator
) -> Sequences | None:
    """Inputs that name sets whose queries are at hand; None where a map keeps none."""
    # Queries of unknown sets would each cost a linear program.
    if not isinstance(phi, SetQueries) or not phi.known:
        return None
    z = np.concatenate([task.sample(1, rng=rng)[..., : task.dimension] for _ in range(count)])
    return build_set_sequences(task, z, phi.known)


def _measure_set_errors(
    phi: SetQueries, layer: SelfAttention, sets: Sequence[Members], form: NumberFormat
) -> Vector:
    """The largest error over all vectors, per set."""
    inside = Unrounded() if is_fixed(form) else form
    values = np.zeros((phi.length, phi.dimension))
    keys = phi.keys
    tokens = np.column_stack([values, keys, np.zeros_like(keys)])
    asking = np.stack([np.concatenate([values[0], keys[0], phi.query(y).scaled]) for y in sets])
    share = np.zeros((len(sets), phi.length))
    for row, members in zip(share, sets, strict=True):
        row[list(members)] = 1.0 / len(members)
    total = -share
    for Q, K in zip(layer.Q, layer.K, strict=True):
        queries = form.round(inside.round(asking) @ inside.round(Q))
        against = form.round(inside.round(tokens) @ inside.round(K))
        total = total + inside.round(softmax(inside.round(queries @ against.T)))
    return np.abs(total).sum(axis=1)


# A value is rounded once and the answer once more. Evenly spaced numbers lose half a spacing a
# coordinate each time; floating ones half a spacing of a number of size at most 1, the norm of a
# vector.
def bound_rounding_loss(task: SparseAverage, form: NumberFormat) -> float:
    """What the rounding of values and of the answer adds to its error."""
    return form.spacing * (math.sqrt(task.dimension) if is_fixed(form) else 1.01)


def _measure_sequence_error(
    task: SparseAverage,
    model: Transformer,
    sets: Sequence[Members],
    form: NumberFormat,
    rng: np.random.Generator,
) -> float:
    """Largest error on random vectors, and on those that tell the first set from the others."""
    count = -(-len(sets) // task.length)
    z = task.sample(count, rng=rng)[..., : task.dimension]
    apart = np.zeros((1, task.length, task.dimension))
    apart[0, :, 0] = -1.0
    apart[0, list(sets[0]), 0] = 1.0
    X = np.concatenate([build_set_sequences(task, z, sets), build_set_sequences(task, apart, sets)])
    Y = model(X, choose_evaluation(form))
    return float(task.error(Y, X).max())


# Scores s_j = <u_j, query> move by at most eta when query, key and score are rounded; a softmax
# whose scores move by eta changes each weight by a factor within e^{2 eta}, so the l1 distance
# grows by at most e^{2 eta} - 1.
def _bound_set_error(phi: SetQueries, members: Members, form: NumberFormat) -> float:
    """The proven largest error of one set, before values are rounded."""
    query = phi.query(members)
    rest = phi.length - len(members)
    if rest == 0:
        return 0.0
    # The share of attention off the set, relative to that on it.
    delta = rest / len(members) * math.exp(-query.sharpness * query.margin)
    w = np.abs(query.scaled)
    keys = np.abs(phi.keys)
    if w.max() > form.range[1] or keys.max() > form.range[1]:
        return math.inf
    largest = float((keys @ w).max())
    off_query = _bound_number_loss(form, w) * (not _is_representable(form, query.scaled))
    off_keys = _bound_number_loss(form, keys) * (not _is_representable(form, phi.keys))
    eta = float((keys @ off_query + off_keys @ (w + off_query)).max())
    # Float64 rounds every product and every sum of a score, whatever the format.
    eta += (keys.shape[1] + 2) * EPS * largest
    eta += 0.0 if is_fixed(form) else 0.5 * form.spacing * (largest + eta)
    inner = 0.0 if is_fixed(form) else 0.5 * form.spacing
    return 2.0 * delta / (1.0 + delta) + math.expm1(min(2.0 * eta, 700.0)) + inner


def _bound_number_loss(form: NumberFormat, sizes: Array) -> Array:
    """The most a number of a given size loses when rounded."""
    if is_fixed(form):
        return 0.5 * form.spacing * np.ones_like(sizes)
    # Below the least normal number of f16 the spacing no longer shrinks.
    return 0.5 * form.spacing * np.maximum(sizes, 2.0**-14)


def _is_representable(form: NumberFormat, numbers: Array) -> bool:
    return isinstance(form, Unrounded) or bool((form.round(numbers) == numbers).all())


# Queries and keys need integer bits for their largest entry; fraction bits are found by halving the
# interval between too few to write the answers and all that float64 carries.
def find_fewest_bits(
    task: SparseAverage, model: Transformer, sets: Sequence[Members], *, accuracy: float
) -> int:
    """Bits of the smallest format in which the model was seen to hold: fixed point, or f64."""

    def holds(fraction: int) -> bool:
        form = number_format(f"fixed:{integer}.{fraction}")
        return examine_sets(task, model, sets, accuracy=accuracy, form=form).checked.errors == 0

    integer = count_integer_bits(model, sets)
    low = max(0, math.floor(-math.log2(accuracy)) - 1)
    high = 52 - integer
    if low > high or not holds(high):
        return 64
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return integer + high + 1


def count_integer_bits(model: Transformer, sets: Sequence[Members]) -> int:
    """Bits before the point that hold every query, key and value of a model."""
    phi, _ = _split_unit(model)
    largest = max(
        1.0,
        float(np.abs(phi.keys).max()),
        *(float(np.abs(phi.query(y).scaled).max()) for y in sets),
    )
    return math.floor(math.log2(largest)) + 1
