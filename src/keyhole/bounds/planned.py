"""Weights within sizes, by the constructions of this package."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isfinite, log10

import numpy as np

from keyhole.bounds.formulas import Sizes, log_sets
from keyhole.constructions import Built, Proven, Room, survey_proofs, survey_recipes
from keyhole.constructions.shared.base import say_nothing
from keyhole.constructions.sparse_averages.choosing_sets import ALL, ASKED, count_sets
from keyhole.errors import DoesNotFit
from keyhole.models.attention import SelfAttention
from keyhole.models.layers.causal_attention import CausalAttention
from keyhole.models.tensor import TensorAttention, TensorHeads
from keyhole.tasks import SparseAverage, Task

# Bits of fixed point that can be built.
FEWEST = 2
MOST = 53
# Longer inputs are not built: their keys are searched for minutes.
_TOKENS = 4096
# Digits of a number of sets from which on it is rounded.
NAMED = 9
# For labels, where nothing is asked.
_ACCURATE = 1e-3


def build_within_sizes(
    task: Task,
    sizes: Sizes,
    *,
    order: int,
    rng: np.random.Generator,
    tell: Callable[[str], None] = say_nothing,
) -> Built:
    """The smallest construction proved within sizes; the smallest of all where none is.

    Args:
        task: the task.
        sizes: what a model may cost.
        order: largest order of attention.
        rng: draws keys, frequencies and inputs.
        tell: is told what is being tried, in words.

    Raises:
        DoesNotFit: none is known that fits.
    """
    if task.length > _TOKENS:
        raise DoesNotFit(
            f"Inputs of more than {_TOKENS:,} tokens are not built here; use `keyhole build`."
        )
    room = Room(sizes.embed, sizes.value_width, sizes.heads, sizes.layers)
    accuracy = sizes.accuracy or _ACCURATE
    found = survey_recipes(
        task,
        accuracy=accuracy,
        number_format=_name_format(sizes),
        room=room,
        tell=tell,
        rng=rng,
    )
    fitting = [built for built in found.built if _find_largest_order(built) <= order]
    if found.built and not fitting:
        raise DoesNotFit(
            f"The construction {found.best.construction} is of order"
            f" {_find_largest_order(found.best)}."
        )
    return next((built for built in fitting if built.proved), fitting[0] if fitting else found.best)


def list_proofs(task: Task, sizes: Sizes, *, order: int) -> tuple[Proven, ...]:
    """What formulas prove with these heads, layers and numbers, of any width, smallest first.

    Args:
        task: the task.
        sizes: what a model may cost.
        order: largest order of attention.
    """
    form = sizes.format
    if form is None and isfinite(sizes.bits):
        form = int(sizes.bits)
    room = Room(heads=sizes.heads, layers=sizes.layers)
    accuracy = sizes.accuracy or _ACCURATE
    return survey_proofs(task, accuracy=accuracy, number_format=form, room=room, order=order)


def choose_proof(proofs: Iterable[Proven], sizes: Sizes) -> Proven | None:
    """The first that fits into widths; None where none does."""
    room = Room(sizes.embed, sizes.value_width)
    return next((one for one in proofs if room.too_small(one) is None), None)


def describe_building(task: Task) -> str:
    """What `--build` would do, where formulas leave a size open."""
    if not isinstance(task, SparseAverage):
        return "No formula decides; --build would build weights and ask them."
    digits = log_sets(task.length, task.q, at_most=task.at_most) * log10(2)
    there = f"about 10^{digits:.0f}" if digits >= NAMED else f"{count_sets(task):,}"
    if digits < NAMED and count_sets(task) <= ALL:
        return f"No formula decides; --build would check all {there} sets of positions."
    return (
        f"No formula decides; --build would check {ASKED:,} of {there} sets of positions, and could"
        " not call that enough."
    )


def _name_format(sizes: Sizes) -> str | int | None:
    """The number format as constructions name it: a word, bits of fixed point, or f64."""
    if sizes.format is not None:
        return sizes.format
    if not isfinite(sizes.bits) or sizes.bits >= 64:
        return None
    if sizes.bits < FEWEST:
        raise DoesNotFit(f"Nothing is built with fewer than {FEWEST} bits.")
    return min(int(sizes.bits), MOST)


def _find_largest_order(built: Built) -> int:
    """The largest order of attention in a model."""
    layers = [block.layer for block in built.model.blocks]
    return max(one.order if isinstance(one, TensorAttention | TensorHeads) else 2 for one in layers)


def is_standard(built: Built) -> bool:
    """Whether a model is made of standard attention alone."""
    layers = SelfAttention | CausalAttention
    return all(isinstance(block.layer, layers) for block in built.model.blocks)
