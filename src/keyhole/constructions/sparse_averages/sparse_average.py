r"""Sparse averaging by one self-attention unit whose keys single out sets of positions.

$$\phi(x_i) = (z_i ; u_i ; \alpha w_{y_i}),
\qquad Q = [0; 0; I], \quad K = [0; I; 0], \quad V = [I; 0; 0]$$

so that token i scores token j by $\alpha \langle u_j, w_{y_i} \rangle$. Which keys, and how queries
are found for them, is what the constructions differ in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Matrix
from keyhole.claims import Basis, Certificate, Check
from keyhole.constructions.shared.base import Built, Size, is_declared_for
from keyhole.constructions.shared.layout import Layout, Weights
from keyhole.constructions.shared.rounding import is_fixed
from keyhole.constructions.sparse_averages.set_checks import (
    ALL,
    Findings,
    bound_rounding_loss,
    choose_sets,
    count_integer_bits,
    count_sets,
    examine_sets,
    find_fewest_bits,
)
from keyhole.constructions.sparse_averages.set_queries import Members, SetQueries
from keyhole.errors import DoesNotFit, InvalidInput
from keyhole.models.attention import SelfAttention
from keyhole.models.numbers import number_format as format_named
from keyhole.models.stack import Block, Transformer
from keyhole.tasks import SparseAverage

# Sets that are asked before the others: keys that fail do so here, in a fraction of the time.
HARDEST = 12
# Sets of random keys tried at one width.
REDRAWS = 3
# A format of so many bits, split before and behind the point as queries need it.
BITS = "bits:"
# Of the accuracy that exact arithmetic may use; rounding has the rest.
SHARE = 0.5

# Of a width, one row per position.
Keys = Callable[[SparseAverage, int, np.random.Generator], Matrix]


def draw_sign_keys(task: SparseAverage, width: int, rng: np.random.Generator) -> Matrix:
    """Random distinct rows of +1 and -1; equal ones are drawn again.

    Raises:
        DoesNotFit: so many distinct rows of that width do not exist.
    """
    if width < 63 and 2**width < task.length:
        raise DoesNotFit(
            f"{task.length} distinct rows of signs need a width of"
            f" {(task.length - 1).bit_length()}."
        )
    keys = _draw_signs(task.length, width, rng)
    for _ in range(64):
        again = np.setdiff1d(np.arange(task.length), np.unique(keys, axis=0, return_index=True)[1])
        if not len(again):
            return keys
        keys[again] = _draw_signs(len(again), width, rng)
    # Nearly all rows are taken: deal them out.
    order = rng.permutation(2**width)[: task.length]
    return np.where((order[:, None] >> np.arange(width)) & 1, 1.0, -1.0)


def _draw_signs(count: int, width: int, rng: np.random.Generator) -> Matrix:
    return np.where(rng.integers(2, size=(count, width)), 1.0, -1.0)


def build_circle_keys(task: SparseAverage, width: int, rng: np.random.Generator) -> Matrix:
    """Cosines and sines of the multiples of evenly spaced angles: vertices of a cyclic polytope."""
    multiples = np.outer(np.arange(task.length), np.arange(1, width // 2 + 1))
    angles = 2.0 * np.pi * multiples / task.length
    return np.column_stack([np.cos(angles), np.sin(angles)])


def build_moment_keys(task: SparseAverage, width: int, rng: np.random.Generator) -> Matrix:
    """Powers of evenly spaced points of [-1, 1]: vertices of a cyclic polytope."""
    return np.linspace(-1.0, 1.0, task.length)[:, None] ** np.arange(1, width + 1)


def build_one_hot_keys(task: SparseAverage, width: int, rng: np.random.Generator) -> Matrix:
    """A coordinate for every position; their size shares the sharpness with the queries."""
    return 3.0 * np.eye(task.length)


def build_zero_keys(task: SparseAverage, width: int, rng: np.random.Generator) -> Matrix:
    """Keys that tell nobody apart, for sets that hold everybody."""
    return np.zeros((task.length, 1))


def build_set_unit(phi: SetQueries) -> Transformer:
    """The unit behind a map, its weights written by blocks."""
    tokens = phi.layout
    embed = Layout.of(embed=phi.keys.shape[1])
    value = Layout.of(value=phi.dimension)
    Q = Weights.zeros(tokens, embed).place("query", "embed", 1.0).array
    K = Weights.zeros(tokens, embed).place("key", "embed", 1.0).array
    V = Weights.zeros(tokens, value).place("value", "value", 1.0).array
    return Transformer((Block(phi, SelfAttention(Q[None], K[None], V[None])),))


def _check_answers_written(task: SparseAverage, accuracy: float, form: str) -> None:
    """Refuse a format in which the answers themselves cannot be written."""
    spacing = 2.0 ** (1 - int(form.removeprefix(BITS))) if form.startswith(BITS) else 0.0
    rounding = spacing / 2 if spacing else bound_rounding_loss(task, format_named(form))
    if rounding > accuracy:
        said = f"{form.removeprefix(BITS)} bits" if spacing else form
        raise DoesNotFit(
            f"rounding to {said} alone moves answers by {rounding:.1e}, more than {accuracy:g}."
        )


def _choose_split(form: str, model: Transformer, sets: list[Members]) -> str:
    """A format by name; a mere number of bits splits so that the largest query is held.

    Raises:
        DoesNotFit: the bits do not even hold the integer part.
    """
    if not form.startswith(BITS):
        return form
    bits = int(form.removeprefix(BITS))
    integer = count_integer_bits(model, sets)
    if bits <= integer:
        raise DoesNotFit(
            f"queries up to {2**integer:,} need more than {integer + 1} bits; {bits} were allowed."
        )
    return f"fixed:{integer}.{bits - 1 - integer}"


@dataclass(frozen=True, slots=True)
class SetKeys:
    """Sparse averaging with one family of keys.

    Args:
        name: what people call it.
        theorem: the id of the theorem behind it.
        solver: how queries are computed from keys.
        keys: the family.
        factors: widths to try, in units of q ln N; none where the width is given by the sizes.
        half: whether scores off a set must stay below half of those on it, as published.
    """

    name: str
    theorem: str
    solver: str
    keys: Keys
    factors: tuple[float, ...] = ()
    half: bool = False

    def provable(self, task: Any) -> bool:
        """Whether asking proves every set: all are asked, or one of a size stands for all."""
        return self.keys is build_one_hot_keys or count_sets(task) <= ALL

    def suits(self, task: Any) -> bool:
        """Whether the recipe is for this task at all; sets that hold everybody have their own."""
        everybody = self.keys is build_zero_keys
        return is_declared_for(self, task) and everybody == (
            task.q == task.length and not task.at_most
        )

    def embed(self, task: Any, accuracy: float) -> int:
        """The key width; the least that is tried where it is found by trying."""
        return next(self._list_widths(task, None))

    def _list_widths(self, task: SparseAverage, most: int | None) -> Iterator[int]:
        """Widths to try, rising, none above `most`."""
        if self.keys is build_zero_keys:
            fixed = 1
        elif self.keys is build_one_hot_keys:
            fixed = task.length
        else:
            fixed = 2 * task.q
        least = max(1, (task.length - 1).bit_length())
        unit = task.q * math.log(max(2, task.length))
        widths = [max(least, math.ceil(factor * unit)) for factor in self.factors] or [fixed]
        # The width that was allowed is tried too, where it lies between those of the family.
        if self.factors and most is not None and least <= most < widths[-1]:
            widths.append(most)
        yield from sorted({width for width in widths if most is None or width <= most})

    def build(
        self,
        task: Any,
        *,
        accuracy: float,
        number_format: str,
        embed: int | None,
        rng: np.random.Generator,
    ) -> Built:
        """The weights of the least width that was seen to hold in the number format.

        Raises:
            DoesNotFit: with the reason.
        """
        if not self.suits(task):
            raise DoesNotFit(f"{self.name} is not for this {task.name}.")
        _check_answers_written(task, accuracy, number_format)
        reason = (
            f"{self.name} needs a key width of {self.embed(task, accuracy)} at least; {embed} was"
            " allowed."
        )
        for width in self._list_widths(task, embed):
            for _ in range(REDRAWS if self.factors else 1):
                try:
                    return self._build_at(task, width, accuracy, number_format, rng)
                except DoesNotFit as refusal:
                    reason = str(refusal)
        raise DoesNotFit(reason)

    def _build_at(
        self, task: SparseAverage, width: int, accuracy: float, form: str, rng: np.random.Generator
    ) -> Built:
        """Weights of one width and one draw of keys."""
        phi = SetQueries(
            self.keys(task, width, rng), self.solver, SHARE * accuracy, task.q, task.dimension
        )
        sets = choose_sets(task, phi.keys, rng=rng)
        model = build_set_unit(phi)
        for asked in (sets[:HARDEST], sets):
            self._check_exposed(phi, asked)
            split = _choose_split(form, model, asked)
            found = self._examine(task, model, asked, accuracy, split, rng)
        bits = find_fewest_bits(task, model, sets, accuracy=accuracy)
        bits = min(bits, int(format_named(split).bits)) if is_fixed(format_named(split)) else bits
        size = Size(phi.keys.shape[1], task.dimension, 1, 1, bits)
        bound = min(found.bound, found.checked.worst) if found.checked.exhaustive else found.bound
        # Nothing is proven of sets that were not asked.
        bound = math.inf if found.sampled else bound
        certificate = self._certificate(phi, found, accuracy)
        return Built(
            task, self.name, model, size, split, found.margin, bound, certificate, found.checked
        )

    def _check_exposed(self, phi: SetQueries, sets: list[Members]) -> None:
        """Refuse keys that do not single out every set, or not by half where that is asked for."""
        for members in sets:
            margin = phi.query(members).margin
            if self.half and margin < 0.5:
                raise DoesNotFit(
                    f"{self.name} of width {phi.keys.shape[1]} leave a score of {1 - margin:.2f}"
                    " off a set."
                )

    def _examine(
        self,
        task: SparseAverage,
        model: Transformer,
        sets: list[Members],
        accuracy: float,
        form: str,
        rng: np.random.Generator,
    ) -> Findings:
        """What asking shows.

        Raises:
            DoesNotFit: an answer is wrong by more than is allowed.
        """
        found = examine_sets(task, model, sets, accuracy=accuracy, form=format_named(form), rng=rng)
        worst = max(found.checked.worst, found.sequences)
        if worst > accuracy:
            queries = 2 ** count_integer_bits(model, sets)
            raise DoesNotFit(
                f"{self.name} of width {model.blocks[0].map.tensors['keys'].shape[1]}, with queries"
                f" up to {queries:,} in size, are wrong by {worst:.1e} in {form}, more than"
                f" {accuracy:g}."
            )
        return found

    def certify(
        self,
        task: Any,
        model: Transformer,
        *,
        accuracy: float,
        number_format: str,
        rng: np.random.Generator,
    ) -> Certificate:
        """The theorem confronted with a model, built by this recipe or said to be.

        Raises:
            InvalidInput: the model is not a unit behind a map of set queries.
        """
        phi = model.blocks[0].map
        if not is_declared_for(self, task) or not isinstance(phi, SetQueries):
            raise InvalidInput(f"{self.name} is for a unit that averages sets; got {task.name}.")
        sets = choose_sets(task, phi.keys, rng=rng)
        found = examine_sets(
            task, model, sets, accuracy=accuracy, form=format_named(number_format), rng=rng
        )
        return self._certificate(phi, found, accuracy)

    def _certificate(self, phi: SetQueries, found: Findings, accuracy: float) -> Certificate:
        worst = found.checked.worst
        bound = found.bound
        assumptions = [Check("proven error in this number format", bound, accuracy)]
        if self.factors:  # random keys promise nothing for a set they do not single out
            equal = len(phi.keys) - len(np.unique(phi.keys, axis=0))
            assumptions += [Check("equal keys", float(equal), 0.0)]
            assumptions += [Check("sets not singled out", float(found.unexposed), 0.0)]
        if self.half:
            assumptions += [Check("largest score off a set, 1 on it", 1.0 - found.margin, 0.5)]
        conclusion = (
            Check("largest error over all vectors, of sets asked", worst, accuracy),
            Check("largest error of whole sequences", found.sequences, accuracy),
        )
        return Certificate(
            self.theorem, tuple(assumptions), conclusion, found.sampled, Basis.EXHAUSTIVE
        )


_WIDE = (3.0, 4.0, 5.0, 6.0, 7.0, 8.5, 10.0, 11.5, 13.0, 16.0, 21.0, 28.0)

EVERYBODY = SetKeys("uniform", "keyhole/one-hot-keys", "least-squares", build_zero_keys)
MAX_MARGIN = SetKeys(
    "max-margin keys",
    "keyhole/max-margin-keys",
    "max-margin",
    draw_sign_keys,
    tuple(1 + k / 10 for k in range(11)),
)
TRIGONOMETRIC = SetKeys("trigonometric keys", "SHT23/3", "trigonometric", build_circle_keys)
MONOMIAL = SetKeys("monomial keys", "SHT23/3", "monomial", build_moment_keys)
ONE_HOT = SetKeys("one-hot keys", "keyhole/one-hot-keys", "indicator", build_one_hot_keys)
ITERATED = SetKeys("iterated keys", "SHT23/2", "iterated", draw_sign_keys, _WIDE, True)
LEAST_SQUARES = SetKeys(
    "least-squares keys", "SHT23/2", "least-squares", draw_sign_keys, _WIDE, True
)

SPARSE_AVERAGES = (EVERYBODY, TRIGONOMETRIC, MONOMIAL, MAX_MARGIN, ONE_HOT, ITERATED, LEAST_SQUARES)
