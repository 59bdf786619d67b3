"""Every task: its class, and where higher rooms keep what they know of it.

A place is written `package.module:name`, and is imported by the room it belongs to when that room
needs it. A new task is one entry here. What an entry leaves out is not known of the task, and who
asks for it is told so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from keyhole._places import import_place
from keyhole.errors import InvalidInput
from keyhole.tasks.averaging import SparseAverage
from keyhole.tasks.base import Task, name_in_jobs, spell_option
from keyhole.tasks.graphs import ClosedWalks, FourCycles, Triangles
from keyhole.tasks.matching import Match2, Match3, Match3Bigram, Match3Local, Match4
from keyhole.tasks.pointing import Composition, IndexLookup, InductionHeads, KHop

_RECIPES = "keyhole.constructions.matching.recipes"
_SETS = "keyhole.constructions.sparse_averages"
_REDUCTIONS = "keyhole.bounds.disjointness"
_TELLING = "keyhole.bounds.telling"
_POINTERS = "keyhole.constructions.pointers.pointer_recipes"
_BOUNDS = "keyhole.bounds.known_bounds"
_ATTACKS = "keyhole.bounds.attacks"
_LESSONS = "keyhole.lab.training.inputs"
_PICTURES = "keyhole.lab.pages.parts.shown_attention"
_ONE_ROW = f"{_BOUNDS}:list_one_row_bounds"
_DRAFTS = "keyhole.constructions.shared.proving:prove_label_sizes"
_LABELS = f"{_LESSONS}.labelling:Labelling"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKind:
    """What is known of a task; its sizes are the fields of its class.

    Args:
        task: its class.
        title: what pages call it.
        usual: sizes at which a page opens, where they are not those of all tasks.
        recipes: place of its constructions, in the order in which they are tried.
        split_recipes: place of (task, heads) -> constructions that share the work among heads.
        proofs: place of (task, accuracy, form) -> constructions proved by a formula.
        sent_bits: place of (task, accuracy) -> bits that any weights must send of a token.
        known_inputs: place of (task, token map, rng) -> inputs that built weights answer quickly.
        reduction: place of (task) -> how it decides disjointness.
        telling: place of (task) -> how one row of it tells any of somebody's symbols.
        inequalities: place of (task, sizes) -> lower bounds on attention.
        network_bound: place of (task, hidden, state_bits, accuracy) -> a bound on other networks.
        attack: place of (model, task, allowed, rng, number_format) -> inputs where a model fails.
        told_sizes: place of (model) -> sizes of the task that a model tells by its own.
        lesson: place of the class by which it is taught.
        picture: place of (shown) -> a picture of attention on one input.
    """

    task: type[Any]
    title: str
    usual: Mapping[str, int] = field(default_factory=dict[str, int])
    recipes: str | None = None
    split_recipes: str | None = None
    proofs: str | None = None
    sent_bits: str | None = None
    known_inputs: str | None = None
    reduction: str | None = None
    telling: str | None = None
    inequalities: str | None = None
    network_bound: str | None = None
    attack: str | None = None
    told_sizes: str | None = None
    lesson: str | None = None
    picture: str | None = None

    def load(self, part: str) -> Any:
        """What stands at the place of a part; None where the task has none."""
        place = getattr(self, part)
        return None if place is None else import_place(place)

    def list_sizes(self) -> dict[str, bool]:
        """The names of its sizes, and whether each must be given."""
        return {item.name: item.default is MISSING for item in fields(self.task)}

    def list_counts(self) -> list[str]:
        """The sizes that are numbers, as jobs call them; the others are switches."""
        return [name_in_jobs(item.name) for item in fields(self.task) if item.default is not False]


_KINDS = (
    TaskKind(
        task=SparseAverage,
        title="q-sparse averages",
        usual={"length": 16, "q": 2},
        recipes=f"{_SETS}.sparse_average:SPARSE_AVERAGES",
        split_recipes="keyhole.constructions.split_sets.split_heads:list_split_recipes",
        proofs=f"{_SETS}.proved_sizes:prove_average_sizes",
        sent_bits=f"{_SETS}.set_checks:count_sent_bits",
        known_inputs=f"{_SETS}.set_checks:draw_known_inputs",
        reduction=f"{_REDUCTIONS}:reduce_averages",
        inequalities=f"{_BOUNDS}:list_average_bounds",
        network_bound=f"{_BOUNDS}:bound_average_network",
        attack=f"{_ATTACKS}:attack_average",
        told_sizes=f"{_ATTACKS}:read_average_sizes",
        lesson=f"{_LESSONS}.lessons:Averaging",
        picture=f"{_PICTURES}:draw_average_picture",
    ),
    TaskKind(
        task=Match2,
        title="Match2",
        usual={"length": 16},
        recipes=f"{_RECIPES}:PAIRS",
        proofs=_DRAFTS,
        lesson=f"{_LESSONS}.strict_inputs:Pairs",
        picture=f"{_PICTURES}:draw_match_picture",
    ),
    TaskKind(
        task=Match3,
        title="Match3",
        usual={"length": 64},
        recipes=f"{_RECIPES}:TRIPLES",
        proofs=_DRAFTS,
        reduction=f"{_REDUCTIONS}:reduce_triples",
        inequalities=f"{_BOUNDS}:list_triple_bounds",
        lesson=f"{_LESSONS}.strict_inputs:Triples",
        picture=f"{_PICTURES}:draw_match_picture",
    ),
    TaskKind(
        task=Match3Bigram,
        title="Match3Bigram",
        usual={"length": 12, "modulus": 11},
        recipes=f"{_RECIPES}:BIGRAMS",
        proofs=_DRAFTS,
        reduction=f"{_REDUCTIONS}:reduce_bigrams",
        inequalities=_ONE_ROW,
        lesson=_LABELS,
    ),
    TaskKind(
        task=Match3Local,
        title="Match3Local",
        usual={"length": 12, "modulus": 11},
        recipes=f"{_RECIPES}:WINDOWS",
        proofs=_DRAFTS,
        reduction=f"{_REDUCTIONS}:reduce_windows",
        inequalities=_ONE_ROW,
        lesson=_LABELS,
    ),
    TaskKind(
        task=Match4,
        title="Match4",
        usual={"length": 6, "modulus": 11},
        recipes=f"{_RECIPES}:QUADRUPLES",
        proofs=_DRAFTS,
        reduction=f"{_REDUCTIONS}:reduce_quadruples",
        inequalities=_ONE_ROW,
        lesson=_LABELS,
        picture=f"{_PICTURES}:draw_match_picture",
    ),
    TaskKind(
        task=Triangles,
        title="triangles",
        usual={"length": 12, "nodes": 6},
        recipes=f"{_RECIPES}:TRIANGLES",
        proofs=_DRAFTS,
        reduction=f"{_REDUCTIONS}:reduce_walks",
        inequalities=_ONE_ROW,
        lesson=_LABELS,
    ),
    TaskKind(
        task=ClosedWalks,
        title="closed walks",
        usual={"length": 12, "nodes": 6, "hops": 4},
        recipes=f"{_RECIPES}:WALKS",
        proofs=_DRAFTS,
        reduction=f"{_REDUCTIONS}:reduce_walks",
        inequalities=_ONE_ROW,
        lesson=_LABELS,
    ),
    TaskKind(
        task=FourCycles,
        title="4-cycles",
        recipes=f"{_RECIPES}:FOUR_CYCLES",
        proofs=_DRAFTS,
        reduction=f"{_REDUCTIONS}:reduce_four_cycles",
        inequalities=f"{_BOUNDS}:list_cycle_bounds",
        lesson=_LABELS,
    ),
    TaskKind(
        task=IndexLookup,
        title="index look-up",
        usual={"length": 16, "symbols": 4},
        recipes=f"{_POINTERS}:LOOK_UPS",
        proofs=_DRAFTS,
        inequalities=f"{_TELLING}:list_look_up_bounds",
        network_bound=f"{_TELLING}:bound_look_up_network",
        lesson=_LABELS,
    ),
    TaskKind(
        task=Composition,
        title="composition",
        usual={"symbols": 8},
        recipes=f"{_POINTERS}:COMPOSITIONS",
        proofs=_DRAFTS,
        telling=f"{_TELLING}:tell_functions",
        inequalities=f"{_TELLING}:list_telling_bounds",
        lesson=_LABELS,
    ),
    TaskKind(
        task=InductionHeads,
        title="induction heads",
        usual={"length": 16, "symbols": 4},
        recipes=f"{_POINTERS}:HOPS",
        proofs=_DRAFTS,
        telling=f"{_TELLING}:tell_payloads",
        inequalities=f"{_TELLING}:list_telling_bounds",
        lesson=_LABELS,
    ),
    TaskKind(
        task=KHop,
        title="k-hop",
        usual={"length": 16, "symbols": 6, "hops": 2},
        recipes=f"{_POINTERS}:HOPS",
        proofs=_DRAFTS,
        telling=f"{_TELLING}:tell_payloads",
        inequalities=f"{_TELLING}:list_telling_bounds",
        lesson=_LABELS,
    ),
)
TASKS: dict[str, TaskKind] = {kind.task.name: kind for kind in _KINDS}


def find_kind(task: Task) -> TaskKind:
    """What is known of a task; nothing but its class where it is none of these."""
    kind = TASKS.get(task.name)
    # A class of somebody else may have taken the name.
    if kind is None or not isinstance(task, kind.task):
        return TaskKind(task=type(task), title=task.name)
    return kind


def load_part(name: str, part: str) -> Any:
    """A part of the task of that name; None where there is no such task, or it has none."""
    kind = TASKS.get(name)
    return None if kind is None else kind.load(part)


def list_tasks_with(part: str) -> str:
    """The names of all tasks that have a part, as a list in words."""
    return ", ".join(name for name, kind in TASKS.items() if getattr(kind, part) is not None)


def task_named(name: str, **sizes: Any) -> Task:
    """The task the command line calls `name`, of those sizes; sizes that are None are left out.

    Raises:
        InvalidInput: no such task, a size it needs is missing, or one it does not have was given.
    """
    if name not in TASKS:
        raise InvalidInput(f"TASK is one of {', '.join(TASKS)}; got {name!r}.")
    given = {key: value for key, value in sizes.items() if value is not None}
    known = TASKS[name].list_sizes()
    if extra := sorted(set(given) - set(known)):
        raise InvalidInput(
            f"{name} has no {_spell_options(extra)}; its sizes are {_spell_options(known)}."
        )
    if missing := [key for key, needed in known.items() if needed and key not in given]:
        raise InvalidInput(f"{name} needs {_spell_options(missing)}.")
    return TASKS[name].task(**given)


def _spell_options(names: Iterable[str]) -> str:
    return ", ".join(spell_option(name) for name in names)
