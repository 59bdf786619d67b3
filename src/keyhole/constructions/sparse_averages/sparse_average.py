r"""Sparse averaging by one self-attention unit whose keys single out sets of positions.

$$\phi(x_i) = (z_i ; u_i ; \alpha w_{y_i}),
\qquad Q = [0; 0; I], \quad K = [0; I; 0], \quad V = [I; 0; 0]$$

so that token i scores token j by $\alpha \langle u_j, w_{y_i} \rangle$. Which keys, and how queries
are found for them, is what the constructions differ in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keyhole._arrays import Matrix
from keyhole.claims import Certificate, Check
from keyhole.constructions.shared.base import Built, Size, is_declared_for, say_nothing
from keyhole.constructions.shared.layout import Layout, Weights
from keyhole.constructions.shared.rounding import is_fixed
from keyhole.constructions.sparse_averages.choosing_sets import (
    ASKED,
    count_sets,
    set_sizes,
)
from keyhole.constructions.sparse_averages.closed_gaps import (
    CYCLIC,
    count_cyclic_bits,
    describe_cyclic,
)
from keyhole.constructions.sparse_averages.confronting import (
    ask_hard_sets,
    ask_sets,
    choose_sets,
    confront_sets,
    count_askable,
)
from keyhole.constructions.sparse_averages.exposing import LEAST
from keyhole.constructions.sparse_averages.key_families import (
    Keys,
    build_circle_keys,
    build_moment_keys,
    build_one_hot_keys,
    build_zero_keys,
    count_incoherent_width,
    draw_incoherent_keys,
    draw_sign_keys,
    draw_spread_keys,
)
from keyhole.constructions.sparse_averages.mending import mend_keys
from keyhole.constructions.sparse_averages.proved_sizes import SHARE
from keyhole.constructions.sparse_averages.set_checks import (
    AskedSets,
    Findings,
    count_integer_bits,
    find_fewest_bits,
    split_unit,
)
from keyhole.constructions.sparse_averages.set_queries import STAGED, SetQueries
from keyhole.constructions.sparse_averages.splitting import (
    check_answers_written,
    choose_enough,
    choose_split,
)
from keyhole.errors import DoesNotFit, InvalidInput
from keyhole.models.attention import SelfAttention
from keyhole.models.numbers import number_format as format_named
from keyhole.models.stack import Block, Transformer
from keyhole.tasks import SparseAverage

# Draws of random keys tried at one width; keys that are mended need no other.
REDRAWS = 3


def build_set_unit(phi: SetQueries) -> Transformer:
    """The unit behind a map, its weights written by blocks."""
    tokens = phi.layout
    embed = Layout.of(embed=phi.keys.shape[1])
    value = Layout.of(value=phi.dimension)
    Q = Weights.zeros(tokens, embed).place("query", "embed", 1.0).array
    K = Weights.zeros(tokens, embed).place("key", "embed", 1.0).array
    V = Weights.zeros(tokens, value).place("value", "value", 1.0).array
    return Transformer((Block(phi, SelfAttention(Q[None], K[None], V[None])),))


def width_of(phi: SetQueries) -> int:
    """The key width."""
    return phi.keys.shape[1]


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
        tell: is told each width that is tried.
    """

    name: str
    theorem: str
    solver: str
    keys: Keys
    factors: tuple[float, ...] = ()
    half: bool = False
    tell: Callable[[str], None] = say_nothing

    def provable(self, task: Any) -> bool:
        """Whether every set can be proved: all are asked, or an argument covers all at once."""
        argued = (build_one_hot_keys, build_circle_keys, draw_incoherent_keys)
        return self.keys in argued or count_sets(task) <= count_askable(self.solver)

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
        elif self.keys is draw_incoherent_keys:
            fixed = count_incoherent_width(task)
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
        check_answers_written(task, accuracy, number_format)
        reason = (
            f"{self.name} need a key width of {self.embed(task, accuracy)} at least; {embed} was"
            " allowed."
        )
        for width in self._list_widths(task, embed):
            for _ in range(REDRAWS if self.factors and self.solver != STAGED else 1):
                self.tell(f"{self.name} of width {width}, {self._describe_asking(task)}")
                try:
                    return self._build_at(task, width, accuracy, number_format, rng)
                except DoesNotFit as refusal:
                    reason = str(refusal)
        raise DoesNotFit(reason)

    def _tell_of(self, width: int) -> Callable[[str], None]:
        return lambda said: self.tell(f"{self.name} of width {width}: {said}")

    def _describe_asking(self, task: SparseAverage) -> str:
        count = count_sets(task)
        whole = count <= count_askable(self.solver)
        return f"all {count:,} sets" if whole else f"{ASKED:,} random sets and hard ones"

    def _build_at(
        self, task: SparseAverage, width: int, accuracy: float, form: str, rng: np.random.Generator
    ) -> Built:
        """Weights of one width and one draw of keys."""
        phi = self.map_tokens(task, self.keys(task, width, rng), accuracy, form)
        if self.solver == STAGED:
            phi = self._mend(task, phi, accuracy, form, rng)
        else:
            self._check_exposed(phi, ask_hard_sets(task, phi, rng=rng))
        # Fresh ones where not all are asked: those that keys were mended on would flatter them.
        asked = ask_sets(task, phi, rng=rng)
        self._check_exposed(phi, asked)
        model = build_set_unit(phi)
        split = choose_split(form, phi, asked)
        found = self._examine(task, model, asked, accuracy, split, rng)
        bits = self._count_bits(task, model, asked, split)
        size = Size(width_of(phi), task.dimension, 1, 1, bits)
        # Nothing is proven of sets that were not asked.
        bound = math.inf if found.sampled else found.bound
        certificate = self._certificate(phi, found, accuracy)
        return Built(
            task, self.name, model, size, split, found.margin, bound, certificate, found.checked
        )

    def map_tokens(
        self, task: SparseAverage, keys: Matrix, accuracy: float, form: str
    ) -> SetQueries:
        """The token map with these keys, for an accuracy and a number format."""
        share = SHARE * accuracy
        phi = SetQueries(keys, "least-squares", share, task.q, task.dimension)
        if self.solver != STAGED:
            return replace(phi, solver=self.solver)
        wanted = phi.count_wanted_gap(1 if task.at_most else task.q)
        enough, _ = choose_enough(form, keys.shape[1], accuracy, wanted)
        return replace(phi, solver=STAGED, enough=max(enough, LEAST))

    def _mend(
        self,
        task: SparseAverage,
        phi: SetQueries,
        accuracy: float,
        form: str,
        rng: np.random.Generator,
    ) -> SetQueries:
        """Keys mended until every set is singled out as the format needs it, or those asked are.

        Raises:
            DoesNotFit: too many sets fail, or some still do in the end.
        """
        least = phi.enough if choose_enough(form, 1, accuracy, 1.0)[1] else 0.0
        sets = choose_sets(task, phi, rng=rng)
        mended = mend_keys(phi, sets, least=least, rng=rng, tell=self._tell_of(width_of(phi)))
        if mended is None:
            raise DoesNotFit(
                f"{self.name} of width {width_of(phi)} do not single out all sets of {task.q}"
                f" positions by the margin of {least:.2g} that is needed: allow wider ones."
            )
        return mended

    def _check_exposed(self, phi: SetQueries, asked: AskedSets) -> None:
        """Refuse keys that do not single out every set, or not by half where that is asked for."""
        failing = asked.list_failing()
        if failing:
            raise DoesNotFit(
                f"{self.name} of width {width_of(phi)} do not single out the positions"
                f" {', '.join(map(str, failing[0][0]))} ({asked.unexposed:,} of {asked.count:,}"
                " sets that were asked): draw other keys, or wider ones."
            )
        if self.half and asked.margin < 0.5:
            raise DoesNotFit(
                f"{self.name} of width {width_of(phi)} leave a score of {1 - asked.margin:.2f} off"
                " a set."
            )

    def _count_bits(
        self, task: SparseAverage, model: Transformer, asked: AskedSets, split: str
    ) -> int:
        """Bits of the smallest format in which the weights hold, as far as is known."""
        phi, _ = split_unit(model)
        form = format_named(split)
        seen = find_fewest_bits(task, model, asked, accuracy=phi.accuracy / SHARE)
        if is_fixed(form):
            return int(form.bits) if seen is None else min(seen, int(form.bits))
        if seen is None and form.name == "exact" and phi.solver in CYCLIC:
            spare = (1 / SHARE - 1) * phi.accuracy
            cyclic = [describe_cyclic(phi, size) for size in set_sizes(task)]
            return max(count_cyclic_bits(c, dimension=task.dimension, spare=spare) for c in cyclic)
        return 64 if seen is None else seen

    def _examine(
        self,
        task: SparseAverage,
        model: Transformer,
        asked: AskedSets,
        accuracy: float,
        form: str,
        rng: np.random.Generator,
    ) -> Findings:
        """What asking shows.

        Raises:
            DoesNotFit: an answer is wrong by more than is allowed.
        """
        found = confront_sets(task, model, asked, accuracy=accuracy, form=form, rng=rng)
        worst = max(found.checked.worst, found.sequences)
        if worst > accuracy:
            phi, _ = split_unit(model)
            queries = 2 ** count_integer_bits(phi, asked)
            raise DoesNotFit(
                f"{self.name} of width {width_of(phi)}, with queries up to {queries:,} in size, are"
                f" wrong by {worst:.1e} in {form}, more than {accuracy:g}."
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
        asked = ask_sets(task, phi, rng=rng)
        found = confront_sets(task, model, asked, accuracy=accuracy, form=number_format, rng=rng)
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
            self.theorem,
            tuple(assumptions),
            conclusion,
            found.sampled,
            found.basis,
            proof=found.proof,
        )


_WIDE = (3.0, 4.0, 5.0, 6.0, 7.0, 8.5, 10.0, 11.5, 13.0, 16.0, 21.0, 28.0)

EVERYBODY = SetKeys("uniform", "keyhole/one-hot-keys", "least-squares", build_zero_keys)
MAX_MARGIN = SetKeys(
    "max-margin keys",
    "keyhole/max-margin-keys",
    STAGED,
    draw_spread_keys,
    tuple(1 + k / 10 for k in range(11)),
)
INCOHERENT = SetKeys("incoherent keys", "keyhole/coherence", "series", draw_incoherent_keys)
TRIGONOMETRIC = SetKeys("trigonometric keys", "SHT23/3", "trigonometric", build_circle_keys)
MONOMIAL = SetKeys("monomial keys", "SHT23/3", "monomial", build_moment_keys)
ONE_HOT = SetKeys("one-hot keys", "keyhole/one-hot-keys", "indicator", build_one_hot_keys)
ITERATED = SetKeys("iterated keys", "SHT23/2", "iterated", draw_sign_keys, _WIDE, True)
LEAST_SQUARES = SetKeys(
    "least-squares keys", "SHT23/2", "least-squares", draw_sign_keys, _WIDE, True
)

SPARSE_AVERAGES = (
    EVERYBODY,
    TRIGONOMETRIC,
    MONOMIAL,
    MAX_MARGIN,
    INCOHERENT,
    ONE_HOT,
    ITERATED,
    LEAST_SQUARES,
)
