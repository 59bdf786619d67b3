"""Tasks: what attention is asked to compute.

Enters: sizes. Leaves: samplers, brute-force truth, and how wrong an answer is.
A task knows its answer and nothing of the models that give it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, fields
from typing import Any

from keyhole.errors import InvalidInput
from keyhole.tasks.averaging import SparseAverage
from keyhole.tasks.base import Task, sizes_of, spell_option
from keyhole.tasks.graphs import FourCycles, Triangles
from keyhole.tasks.matching import Match2, Match3, Match3Bigram, Match3Local, Match4

TASKS: dict[str, type[Any]] = {
    "sparse-average": SparseAverage,
    "match2": Match2,
    "match3": Match3,
    "match3-bigram": Match3Bigram,
    "match3-local": Match3Local,
    "match4": Match4,
    "triangles": Triangles,
    "four-cycles": FourCycles,
}


def task_named(name: str, **sizes: Any) -> Task:
    """The task the command line calls `name`, of those sizes; sizes that are None are left out.

    Raises:
        InvalidInput: no such task, a size it needs is missing, or one it does not have was given.
    """
    if name not in TASKS:
        raise InvalidInput(f"TASK is one of {', '.join(TASKS)}; got {name!r}.")
    given = {key: value for key, value in sizes.items() if value is not None}
    known = {item.name: item.default is MISSING for item in fields(TASKS[name])}
    if extra := sorted(set(given) - set(known)):
        raise InvalidInput(
            f"{name} has no {_spell_options(extra)}; its sizes are {_spell_options(known)}."
        )
    if missing := [key for key, needed in known.items() if needed and key not in given]:
        raise InvalidInput(f"{name} needs {_spell_options(missing)}.")
    return TASKS[name](**given)


def _spell_options(names: Iterable[str]) -> str:
    return ", ".join(spell_option(name) for name in names)


__all__ = [
    "TASKS",
    "FourCycles",
    "Match2",
    "Match3",
    "Match3Bigram",
    "Match3Local",
    "Match4",
    "SparseAverage",
    "Task",
    "Triangles",
    "sizes_of",
    "task_named",
]
