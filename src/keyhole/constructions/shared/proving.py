"""Sizes that are enough for labels by a proof: weights are drafted, and no input is asked."""

from __future__ import annotations

from collections.abc import Iterator

from keyhole.constructions.shared.base import Proven, Size, list_recipes
from keyhole.constructions.shared.certifying import Draft, Recipe
from keyhole.errors import DoesNotFit
from keyhole.models.numbers import NumberFormat, number_format
from keyhole.models.tensor import TensorAttention
from keyhole.tasks import Task

# Inputs longer than this are drafted in formats by name only: windows cost a linear program each.
LONG = 256
# Integer bits tried where drafts cost more than a formula.
INTEGER = range(2, 10)
# Key width up to which windows are searched for.
WIDEST = 64
# Fixed point that float64 carries.
MOST = 53


def prove_label_sizes(task: Task, *, accuracy: float, form: str | int | None) -> Iterator[Proven]:
    """Constructions whose drafts are proved for every input in a number format.

    Args:
        task: the task; labels have no accuracy.
        accuracy: of answers that are vectors, which there are none of.
        form: a format by name, a number of bits of fixed point, or None for real numbers.
    """
    for recipe in list_recipes(task):
        if isinstance(recipe, Recipe) and task.length <= recipe.quick_length:
            drafts = (_prove_draft(recipe, task, one) for one in _list_formats(recipe, task, form))
            found = next((one for one in drafts if one is not None), None)
            if found is not None:
                yield found


def _list_formats(recipe: Recipe, task: Task, form: str | int | None) -> Iterator[NumberFormat]:
    if not isinstance(form, int):
        yield number_format("f64" if form is None else form)
        return
    bits = min(form, MOST)
    splits = range(1, bits)
    if not recipe.by_formula:
        splits = INTEGER if task.length <= LONG else range(0)
    for integer in splits:
        if integer <= bits - 1:
            yield number_format(f"fixed:{integer}.{bits - 1 - integer}")


def _prove_draft(recipe: Recipe, task: Task, form: NumberFormat) -> Proven | None:
    try:
        draft = recipe.draft_by_formula(task, form=form, embed=WIDEST)
    except DoesNotFit:
        return None
    if not draft.proven:
        return None
    layers = len(draft.model.blocks)
    size = Size(draft.embed, draft.value_width, draft.heads, layers, int(min(form.bits, 64)))
    argument = f"margins of scores in {form.name}"
    return Proven(recipe.name, recipe.theorem, size, argument, _find_order(draft))


def _find_order(draft: Draft) -> int:
    layers = [block.layer for block in draft.model.blocks]
    return max(one.order if isinstance(one, TensorAttention) else 2 for one in layers)
