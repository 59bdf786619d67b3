"""Which construction: all recipes for a task are tried, and the smallest that holds is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keyhole._arrays import Rng, as_generator
from keyhole.constructions.shared.base import (
    Built,
    Construction,
    Proven,
    list_recipes,
    say_nothing,
)
from keyhole.constructions.sparse_averages.sparse_average import SetKeys
from keyhole.constructions.sparse_averages.splitting import BITS
from keyhole.errors import DoesNotFit, InvalidInput
from keyhole.models.numbers import number_format as format_named
from keyhole.tasks import TASKS, Task, find_kind, task_named

# Tokens up to which keys that prove every set are tried beside smaller ones that do not.
PROVED = 1024

CONSTRUCTIONS: tuple[Construction, ...] = tuple(
    one for kind in TASKS.values() for one in kind.load("recipes") or ()
)


@dataclass(frozen=True, slots=True)
class Room:
    """What a model may be at most; None is no limit.

    Args:
        embed: key width.
        value_width: width of values.
        heads: heads of a layer.
        layers: attention layers.
    """

    embed: int | None = None
    value_width: int | None = None
    heads: int | None = None
    layers: int | None = None

    def __post_init__(self) -> None:
        for name in ("embed", "value_width", "heads", "layers"):
            most = getattr(self, name)
            # True is an int to Python, and no size.
            whole = isinstance(most, int) and not isinstance(most, bool)
            if most is not None and (not whole or most < 1):
                raise InvalidInput(
                    f"--{name.replace('_', '-')} is a whole number >= 1; got {most!r}."
                )

    def too_small(self, built: Built | Proven) -> str | None:
        """Why a model does not fit, where it does not."""
        for name in ("embed", "value_width", "heads", "layers"):
            most = getattr(self, name)
            has = getattr(built.size, name)
            if most is not None and has > most:
                return f"it needs {name.replace('_', ' ')} {has}; {most} was allowed"
        return None


@dataclass(frozen=True, slots=True)
class Survey:
    """Every recipe for a task, tried.

    Args:
        built: what fitted: proved ones first, then by size.
        refused: the others, with the reason.
        limit: bits that some query, key and value must be able to carry, where a lower bound is
            known.
    """

    built: tuple[Built, ...]
    refused: tuple[tuple[str, str], ...]
    limit: float | None

    @property
    def frontier(self) -> tuple[Built, ...]:
        """What no other is better than in width, in bits and in being proved, all three."""
        return tuple(
            one for one in self.built if not any(_is_beaten(one, other) for other in self.built)
        )

    @property
    def best(self) -> Built:
        """The smallest that is proved, else the smallest: heads times width times bits, then width.

        Raises:
            DoesNotFit: with the reason of every recipe.
        """
        if self.built:
            return self.built[0]
        reasons = " ".join(_tell_refusal(name, reason) for name, reason in self.refused)
        if not reasons:
            raise DoesNotFit("No construction is known for this task.")
        raise DoesNotFit(f"No construction fits. {reasons}")


def _tell_refusal(name: str, reason: str) -> str:
    """Why a recipe does not fit, as a sentence that names it once."""
    said = reason if reason.startswith(name) else f"{name}: {reason}"
    return f"{said[0].upper()}{said[1:].removesuffix('.')}."


def _is_beaten(one: Built, other: Built) -> bool:
    """Whether another is as good in all respects, and better in some."""
    ours = _rate(one)
    theirs = _rate(other)
    return ours != theirs and all(b <= a for a, b in zip(ours, theirs, strict=True))


def _rate(built: Built) -> tuple[int, int, int, bool]:
    size = built.size
    return size.embed, size.heads * size.value_width, size.bits, not built.proved


def bound_bits_sent(task: Task, accuracy: float) -> float | None:
    """Bits that H (2m + v) p must reach, where a bound is known."""
    count_bits = find_kind(task).load("sent_bits")
    return None if count_bits is None else count_bits(task, accuracy)


def survey_recipes(
    task: Task,
    *,
    accuracy: float = 1e-3,
    number_format: str | int | None = None,
    room: Room | None = None,
    provable: bool = False,
    tell: Callable[[str], None] = say_nothing,
    rng: np.random.Generator,
) -> Survey:
    """Try every recipe for a task.

    Args:
        task: what is to be computed.
        accuracy: largest error of an answer that is a vector; labels are right or wrong.
        number_format: a format by name, a number of bits in fixed point, or None for f64.
        room: what the model may be at most.
        provable: whether recipes of which only a sample could be asked are left out.
        tell: is told what is being tried, in words.
        rng: draws keys, frequencies and inputs.

    Raises:
        InvalidInput: there is no such format, or the accuracy is not a positive number.
    """
    if not 0 < accuracy < math.inf:
        raise InvalidInput(f"--accuracy is a positive number; got {accuracy!r}.")
    _check_format(number_format)
    room = Room() if room is None else room
    built: list[Built] = []
    refused: list[tuple[str, str]] = []
    suiting = [one for one in _list_allowed_recipes(task, room) if one.suits(task)]
    # Narrow recipes first: what they give lets wide ones be refused without building them.
    for one in sorted(suiting, key=lambda one: one.embed(task, accuracy)):
        if provable and not _is_provable(one, task):
            refused.append((one.name, "only a sample of its inputs could be asked."))
            continue
        if _is_larger(one, task, accuracy, built):
            refused.append((one.name, "it would be larger than what was found."))
            continue
        tell(one.name)
        telling = replace(one, tell=tell) if isinstance(one, SetKeys) else one
        found = _try_recipe(telling, task, accuracy, number_format, room, rng)
        if isinstance(found, str):
            refused.append((one.name, found))
        else:
            built.append(found)
    order = sorted(built, key=lambda b: (not b.proved, *_measure_cost(b, number_format)))
    return Survey(tuple(order), tuple(refused), bound_bits_sent(task, accuracy))


def _list_allowed_recipes(task: Task, room: Room) -> tuple[Construction, ...]:
    """Every recipe, with those that share the work among heads where several are asked for."""
    list_split = find_kind(task).load("split_recipes")
    if list_split is None or room.heads is None:
        return list_recipes(task)
    return (*list_recipes(task), *list_split(task, room.heads))


def survey_proofs(
    task: Task,
    *,
    accuracy: float = 1e-3,
    number_format: str | int | None = None,
    room: Room | None = None,
    order: int | None = None,
) -> tuple[Proven, ...]:
    """Constructions proved by a formula, smallest first; nothing is built, and little is computed.

    Args:
        task: what is to be computed.
        accuracy: largest error of an answer that is a vector.
        number_format: a format by name, a number of bits in fixed point, or None for real numbers.
        room: what the model may be at most.
        order: largest order of attention.
    """
    prove_sizes = find_kind(task).load("proofs")
    found: list[Proven] = []
    if prove_sizes is not None:
        found = list(prove_sizes(task, accuracy=accuracy, form=number_format))
    room = Room() if room is None else room
    fitting = [
        one
        for one in found
        if room.too_small(one) is None and (order is None or one.order <= order)
    ]
    return tuple(sorted(fitting, key=lambda one: (_measure_area(one), one.size.embed)))


def _check_format(form: str | int | None) -> None:
    if isinstance(form, bool) or (isinstance(form, int) and not 2 <= form <= 53):
        raise InvalidInput(f"--bits lies between 2 and 53, which float64 carries; got {form}.")
    if isinstance(form, str):
        format_named(form)


def _measure_area(built: Built | Proven) -> int:
    """Heads times the wider of keys and values times bits."""
    return _measure_width(built) * built.size.bits


def _measure_width(built: Built | Proven) -> int:
    return built.size.heads * max(built.size.embed, built.size.value_width)


def _measure_cost(built: Built, form: str | int | None) -> tuple[int, int, int]:
    """Size times bits, then size; where a format is given its bits are the same for all."""
    bits = built.size.bits if form is None else 1
    return _measure_width(built) * bits, built.size.embed, built.size.bits


def _is_hopeless(one: Construction, task: Task, accuracy: float, area: int) -> bool:
    """Whether a sparse average is larger than what is known even with the fewest bits."""
    bits = math.floor(-math.log2(accuracy))
    return isinstance(one, SetKeys) and one.embed(task, accuracy) * bits > area


def _is_larger(one: Construction, task: Task, accuracy: float, built: list[Built]) -> bool:
    """Whether a recipe would be larger than what was found, and prove no more."""
    if not built or not _is_hopeless(one, task, accuracy, min(map(_measure_area, built))):
        return False
    surer = _is_provable(one, task) and task.length <= PROVED
    return not surer or any(found.proved for found in built)


def _is_provable(one: Construction, task: Task) -> bool:
    """Whether what a recipe gives can be proved for every input."""
    return not isinstance(one, SetKeys) or one.provable(task)


def _list_formats(one: Construction, form: str | int | None) -> Iterator[str]:
    """The formats to try: a number of bits splits in all ways, unless the recipe splits it."""
    if not isinstance(form, int):
        yield "f64" if form is None else form
    elif isinstance(one, SetKeys):
        yield f"{BITS}{form}"
    else:
        yield from (f"fixed:{integer}.{form - 1 - integer}" for integer in range(1, form))


def _try_recipe(
    one: Construction,
    task: Task,
    accuracy: float,
    form: str | int | None,
    room: Room,
    rng: np.random.Generator,
) -> Built | str:
    """What a recipe gives, in the first format in which it is proved, or why it gives nothing."""
    reason = ""
    sampled = None
    for name in _list_formats(one, form):
        try:
            found = one.build(
                task, accuracy=accuracy, number_format=name, embed=room.embed, rng=rng
            )
        except DoesNotFit as refusal:
            reason = str(refusal)
            continue
        refusal = room.too_small(found)
        if refusal is None and found.proved:
            return found
        # Kept in case no format gives a proof.
        sampled = sampled or (found if refusal is None else None)
        reason = f"{refusal}."
    return sampled or reason


def build(
    task: Task | str,
    *,
    accuracy: float = 1e-3,
    number_format: str | int | None = None,
    embed: int | None = None,
    rng: Rng,
    **sizes: Any,
) -> Built:
    """Explicit weights for a task, the smallest known: m p first, then m, where m counts all heads.

    Args:
        task: a task, or its name on the command line with its sizes as further arguments.
        accuracy: largest error of an answer that is a vector; labels are right or wrong.
        number_format: a format by name, a number of bits in fixed point, or None for f64.
        embed: largest key width.
        rng: draws keys, frequencies and inputs.
        sizes: of a task given by name.

    Returns:
        The weights with a certificate, checked against brute force.

    Raises:
        DoesNotFit: nothing fits; the message gives every recipe's reason.
        InvalidInput: there is no such task or format.
    """
    rng = as_generator(rng)
    wanted = task_named(task, **sizes) if isinstance(task, str) else task
    room = Room(embed=embed)
    return survey_recipes(
        wanted, accuracy=accuracy, number_format=number_format, room=room, rng=rng
    ).best
