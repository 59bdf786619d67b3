"""What is known of every task at one length: the smallest weights, and the largest size excluded.

Both sides are by formulas alone: nothing is built. What is excluded is so with numbers of a few
bits; what is known comes with the bits that hold it. A side that is missing says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from keyhole.bounds.base import Inequality, Sizes
from keyhole.bounds.known_bounds import list_inequalities
from keyhole.bounds.verdicts import LARGEST, choose_axis, find_least_open
from keyhole.constructions import Proven, survey_proofs
from keyhole.errors import InvalidInput
from keyhole.tasks import TASKS, SparseAverage, Task, task_named

# Bits of a number on the excluded side where nobody says another.
BITS = 8
# Sizes beside the length: members of a set, and twice as many values as sums of tokens can tell.
_Q = 4
_GROWN: dict[str, Callable[[int], dict[str, int]]] = {
    "sparse-average": lambda n: {"length": n, "q": min(_Q, n)},
    "match2": lambda n: {"length": n, "modulus": 4 * n + 1},
    "match3": lambda n: {"length": n, "modulus": 4 * n + 1},
    "match3-bigram": lambda n: {"length": n, "modulus": 11},
    "match3-local": lambda n: {"length": n, "modulus": 11},
    "match4": lambda n: {"length": n, "modulus": 4 * n + 1},
    "triangles": lambda n: {"length": n, "nodes": max(2, n // 2)},
    "closed-walks": lambda n: {"length": n, "nodes": max(2, n // 2), "hops": 4},
    "four-cycles": lambda n: {"nodes": n},
    "index-lookup": lambda n: {"length": n, "symbols": 4},
    "composition": lambda n: {"symbols": max(2, (n - 1) // 2)},
    "induction-heads": lambda n: {"length": n, "symbols": 4},
    "k-hop": lambda n: {"length": n, "symbols": 6, "hops": 2},
}


def pose_at_length(name: str, length: int) -> Task:
    """A task of about so many tokens, its other sizes grown with it.

    Raises:
        InvalidInput: there is no such task.
    """
    if name not in TASKS:
        raise InvalidInput(f"TASK is one of {', '.join(TASKS)}; got {name!r}.")
    grow = _GROWN.get(name, lambda n: {"length": n})
    return task_named(name, **grow(length))


@dataclass(frozen=True, slots=True)
class TaskStanding:
    """Both sides of a task at one length.

    Args:
        task: the task.
        axis: the size in question: embed or value_width, times the heads.
        bits: of a number on the excluded side.
        smallest: the smallest weights that are proved; None where none are.
        one_layer: the smallest of one layer of standard attention.
        excluded: the largest size of one head in one layer that is excluded; 0 where none is.
        told: the inequality behind it, or the nearest to excluding something.
        missing: why a side is missing, in words; empty where both are there.
    """

    task: Task
    axis: str
    bits: int
    smallest: Proven | None
    one_layer: Proven | None
    excluded: int
    told: Inequality | None
    missing: str


def weigh_task(task: Task, *, bits: int = BITS) -> TaskStanding:
    """Both sides of a task, by formulas."""
    sizes = Sizes(
        embed=1,
        bits=float(bits),
        value_width=task.outputs,
        accuracy=task.accuracy,
        residual=False,
    )
    known = list_inequalities(task, sizes)
    told = next((one for one in known if one.applies), None)
    axis = choose_axis(told)
    least = find_least_open(task, replace(sizes, **{axis: 1}), axis)
    excluded = min(least, LARGEST) - 1
    proofs = survey_proofs(task, accuracy=task.accuracy or 1e-3)
    flat = [one for one in proofs if one.order == 2 and one.size.layers == 1]
    smallest = min(proofs, key=lambda one: measure_side(one, axis), default=None)
    return TaskStanding(
        task,
        axis,
        bits,
        smallest,
        min(flat, key=lambda one: measure_side(one, axis), default=None),
        excluded,
        told,
        " ".join(_list_reasons(smallest, excluded, told)),
    )


def measure_side(one: Proven, axis: str) -> int:
    """The size in question of weights, over all heads."""
    return one.size.heads * getattr(one.size, axis)


def _list_reasons(smallest: Proven | None, excluded: int, told: Inequality | None) -> Iterator[str]:
    if smallest is None:
        yield "No formula proves weights of this length."
    if told is None:
        yield "No lower bound is known for this task."
    elif not excluded:
        yield (
            f"The bound {told.name} excludes no width here: {told.needed:,.4g} {told.unit} are"
            f" needed, and one number a head has {told.available:,.4g}."
        )


def count_excluded_keys(
    task: SparseAverage, heads: int, few: int, *, accuracy: float, positional: bool = False
) -> int:
    """The largest key width of so many heads that is excluded with numbers of few bits.

    Args:
        task: the averages.
        heads: H.
        few: bits of a number.
        accuracy: largest error of an answer.
        positional: whether keys are positions alone, which excludes more at any precision.
    """
    sizes = Sizes(
        embed=1,
        bits=float(few),
        heads=heads,
        value_width=task.outputs,
        accuracy=accuracy,
        positional=positional,
    )
    return find_least_open(task, sizes, "embed") - 1
