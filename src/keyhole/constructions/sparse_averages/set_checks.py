r"""Weights for sparse averaging against the truth, for all vectors at once.

The answer of a token that names y is $\sum_j a_j z_j$ with a the weights of attention. Over all
vectors of the unit ball it is wrong by at most $\sum_j |a_j - 1\{j \in y\} / |y||$, and $z_j = \pm
e_1$ with the signs of these differences reach that: the l1 distance of a from uniform on y is the
largest error, for one set and every z. Rounding adds what the values and the answer lose. A pass
over every set is therefore a proof for every input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np

from keyhole._arrays import EPS, Array, Sequences, Stack, Vector, softmax
from keyhole.claims import Basis
from keyhole.constructions.shared.base import Checked
from keyhole.constructions.shared.rounding import choose_evaluation, is_fixed, is_rounding
from keyhole.constructions.sparse_averages.all_at_once import SetsProof
from keyhole.constructions.sparse_averages.choosing_sets import (
    Groups,
    describe_rate,
)
from keyhole.constructions.sparse_averages.closed_gaps import (
    has_closed_gaps,
    is_blind,
    weigh_exactly,
)
from keyhole.constructions.sparse_averages.directions import Sets, mark_members
from keyhole.constructions.sparse_averages.rounded_sets import (
    bound_rounding_loss,
    bound_set_errors,
    find_largest_number,
)
from keyhole.constructions.sparse_averages.set_queries import Queries, SetQueries
from keyhole.errors import InvalidInput
from keyhole.models.attention import SelfAttention
from keyhole.models.numbers import NumberFormat, Unrounded, number_format
from keyhole.models.stack import Transformer
from keyhole.tasks import SparseAverage

# Scores held at a time: four megabytes.
ROOM = 2**19
# Sets that whole sequences name.
NAMED = 512
# Sets by which fewer bits are looked for before all are asked.
FEW = 4_096


@dataclass(frozen=True, eq=False, slots=True)
class AskedSets:
    """Sets with their queries, solved once.

    Args:
        groups: the sets, by size.
        queries: of each group.
        whole: whether these are all sets there are.
    """

    groups: Groups
    queries: tuple[Queries, ...]
    whole: bool

    @property
    def count(self) -> int:
        """How many."""
        return sum(map(len, self.groups))

    @property
    def unexposed(self) -> int:
        """How many the keys do not single out."""
        return sum(int((~found.exposed).sum()) for found in self.queries)

    @property
    def margin(self) -> float:
        """The least of a set that is singled out."""
        least = [found.margin[found.exposed].min(initial=math.inf) for found in self.queries]
        return float(min(least, default=0.0))

    def list_failing(self) -> list[Sets]:
        """Sets that are not singled out, by size."""
        failing = [
            sets[~found.exposed] for sets, found in zip(self.groups, self.queries, strict=True)
        ]
        return [sets for sets in failing if len(sets)]

    def blocks(self, length: int, *, most: int | None = None) -> Iterator[tuple[Sets, Queries]]:
        """Sets that are singled out with their queries, some at a time; at most `most` a size."""
        step = max(1, ROOM // length)
        for sets, found in zip(self.groups, self.queries, strict=True):
            chosen = np.flatnonzero(found.exposed)
            if most is not None and len(chosen) > most:
                # Small margins have large queries, which are the first to be lost.
                chosen = chosen[np.argsort(found.margin[chosen], kind="stable")[:most]]
            for start in range(0, len(chosen), step):
                rows = chosen[start : start + step]
                yield sets[rows], Queries(*(part[rows] for part in found))


def solve_groups(phi: SetQueries, groups: Groups, *, whole: bool) -> AskedSets:
    """Queries for all sets of some groups."""
    return AskedSets(groups, tuple(phi.solve_sets(sets) for sets in groups), whole)


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
        basis: what a claim for every set rests on.
        proof: the argument that covers every set at once, where there is one.
    """

    checked: Checked
    unexposed: int
    margin: float
    bound: float
    sequences: float
    sampled: str
    basis: Basis
    proof: str = ""


# Two sets y != y' must be told apart: with z = +e_1 on one member of y that is not in y' and -e_1
# elsewhere, their answers are 2/q apart. All that the others learn of y is the token's query, key
# and value, (2m + v)p bits a head: for an accuracy below 1/q fewer bits than log2 of the number of
# sets that spare the token itself are too few.
def count_sent_bits(task: SparseAverage, accuracy: float) -> float | None:
    """Bits that a token must send of its set; None where sets need not be told apart."""
    if accuracy >= 1 / task.q or task.q >= task.length:
        return None
    return math.log2(comb(task.length - 1, task.q))


def examine_sets(
    task: SparseAverage,
    model: Transformer,
    asked: AskedSets,
    *,
    accuracy: float,
    form: NumberFormat,
    proof: SetsProof | None = None,
    rng: np.random.Generator | None = None,
) -> Findings:
    """Ask a model about sets, in a number format.

    Args:
        task: the task.
        model: a unit behind a map of set queries.
        asked: those that tokens are to name.
        accuracy: larger errors are counted.
        form: the number format.
        proof: what is known of every set, where something is.
        rng: draws the vectors of whole sequences; these are left out when absent.
    """
    phi, layer = split_unit(model)
    wrong, worst, bound = _measure_blocks(task, phi, layer, asked, form, accuracy)
    missed = asked.unexposed
    worst = math.inf if missed else worst
    sequences = 0.0
    if rng is not None and asked.count > missed:
        sequences = _measure_sequence_error(task, model, asked, form, rng)
    basis = Basis.SAMPLED
    if proof is not None:
        basis = Basis.PROVED
        bound = proof.bound
    elif asked.whole and is_blind(phi, layer):
        # What was measured of every set is as good as a bound, the rounding of its sums included.
        basis = Basis.EXHAUSTIVE
        bound = min(bound, worst + _bound_evaluation(phi, asked))
    checked = Checked(asked.count, wrong + missed, worst, asked.whole)
    sampled = describe_rate(task, asked.count) if basis is Basis.SAMPLED else ""
    named = "" if proof is None else proof.name
    return Findings(checked, missed, asked.margin, bound, sequences, sampled, basis, named)


def _measure_blocks(
    task: SparseAverage,
    phi: SetQueries,
    layer: SelfAttention,
    asked: AskedSets,
    form: NumberFormat,
    accuracy: float,
    most: int | None = None,
) -> tuple[int, float, float]:
    """How many sets come out wrong, the largest error, and the largest that is proven."""
    lost = bound_rounding_loss(task, form)
    wrong = 0
    worst = 0.0
    bound = 0.0
    for sets, found in asked.blocks(phi.length, most=most):
        errors = _measure_set_errors(phi, layer, sets, found, form) + lost
        wrong += int((errors > accuracy).sum())
        worst = max(worst, float(errors.max()))
        bound = max(bound, float(bound_set_errors(phi, sets, found, form).max()) + lost)
    return wrong, worst, bound


def _bound_evaluation(phi: SetQueries, asked: AskedSets) -> float:
    """How far sums of float64 in another order may move an error that was measured."""
    moved = (phi.keys.shape[1] + 2) * EPS * find_largest_score(phi, asked)
    return math.expm1(min(4.0 * moved, 700.0)) + phi.length * EPS


def find_largest_score(phi: SetQueries, asked: AskedSets) -> float:
    """No score is larger, nor are its partial sums."""
    return find_largest_number(asked.queries) * float(np.abs(phi.keys).sum(axis=1).max())


def split_unit(model: Transformer) -> tuple[SetQueries, SelfAttention]:
    """The map and the layer of a unit that averages sets.

    Raises:
        InvalidInput: the model is none.
    """
    block = model.blocks[0]
    phi = block.map
    layer = block.layer
    if isinstance(phi, SetQueries) and isinstance(layer, SelfAttention) and len(model.blocks) == 1:
        return phi, layer
    raise InvalidInput("sets are asked of one self-attention unit behind a map of set queries.")


def build_set_sequences(task: SparseAverage, z: Stack, sets: Any) -> Sequences:
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
    phi: SetQueries, layer: SelfAttention, sets: Sets, found: Queries, form: NumberFormat
) -> Vector:
    """The largest error over all vectors, per set; infinite where a number overflows the format."""
    share = mark_members(sets, phi.length) / sets.shape[1]
    try:
        weights = _attend(phi, layer, sets, found, form)
    except InvalidInput:
        return np.full(len(sets), math.inf)
    return np.abs(weights - share).sum(axis=1)


def _attend(
    phi: SetQueries, layer: SelfAttention, sets: Sets, found: Queries, form: NumberFormat
) -> Array:
    """What every position weighs, one row a set, all heads together."""
    if form.name == "exact" and has_closed_gaps(phi, layer):
        return weigh_exactly(phi, sets)
    # Float64 evaluates anyway.
    form = form if is_rounding(form) else Unrounded()
    inside = Unrounded() if is_fixed(form) else form
    tokens = np.zeros((phi.length, phi.layout.width))
    tokens[:, phi.layout["key"]] = phi.keys
    asking = np.zeros((len(sets), phi.layout.width))
    asking[:, phi.layout["key"]] = phi.keys[0]
    asking[:, phi.layout["query"]] = found.scaled
    total = np.zeros((len(sets), phi.length))
    for Q, K in zip(layer.Q, layer.K, strict=True):
        queries = form.round(inside.round(asking) @ inside.round(Q))
        against = form.round(inside.round(tokens) @ inside.round(K))
        total = total + inside.round(softmax(inside.round(queries @ against.T)))
    return total


def _measure_sequence_error(
    task: SparseAverage,
    model: Transformer,
    asked: AskedSets,
    form: NumberFormat,
    rng: np.random.Generator,
) -> float:
    """Largest error on random vectors, and on those that tell the first set from the others."""
    phi, layer = split_unit(model)
    sets = [row for some, _ in asked.blocks(phi.length, most=NAMED) for row in some]
    count = -(-len(sets) // task.length)
    z = task.sample(count, rng=rng)[..., : task.dimension]
    apart = np.zeros((1, task.length, task.dimension))
    apart[0, :, 0] = -1.0
    apart[0, list(sets[0]), 0] = 1.0
    X = np.concatenate([build_set_sequences(task, z, sets), build_set_sequences(task, apart, sets)])
    if form.name == "exact" and has_closed_gaps(phi, layer):
        return float(task.error(_answer_exactly(task, phi, X), X).max())
    try:
        return float(task.error(model(X, choose_evaluation(form)), X).max())
    except InvalidInput:
        # A number overflows the format.
        return math.inf


def _answer_exactly(task: SparseAverage, phi: SetQueries, X: Sequences) -> Stack:
    """Answers from gaps of scores that no cancellation has touched."""
    named = task.members(X) > 0
    weights = np.empty(named.shape)
    for place in np.ndindex(named.shape[:2]):
        weights[place] = weigh_exactly(phi, np.flatnonzero(named[place])[None])[0]
    return weights @ X[..., : task.dimension]


# Queries and keys need integer bits for their largest entry; fraction bits are found by halving the
# interval between too few to write the answers and all that float64 carries. The sets with the
# largest queries are asked first; all are when these hold.
def find_fewest_bits(
    task: SparseAverage, model: Transformer, asked: AskedSets, *, accuracy: float
) -> int | None:
    """Bits of the smallest fixed point in which the model was seen to hold; None for none."""
    phi, layer = split_unit(model)

    def holds(fraction: int, most: int | None) -> bool:
        form = number_format(f"fixed:{integer}.{fraction}")
        return _measure_blocks(task, phi, layer, asked, form, accuracy, most)[0] == 0

    integer = count_integer_bits(phi, asked)
    low = max(0, math.floor(-math.log2(accuracy)) - 1)
    high = 52 - integer
    if low > high or not holds(high, FEW):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle, FEW) else (middle + 1, high)
    fits = next((f for f in range(high, 53 - integer) if holds(f, None)), None)
    return None if fits is None else integer + fits + 1


def count_integer_bits(phi: SetQueries, asked: AskedSets) -> int:
    """Bits before the point that hold every query, key and value of a model."""
    largest = max(1.0, float(np.abs(phi.keys).max()), find_largest_number(asked.queries))
    return math.floor(math.log2(largest)) + 1
