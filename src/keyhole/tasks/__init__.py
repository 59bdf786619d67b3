"""Tasks: what attention is asked to compute.

Enters: sizes. Leaves: samplers, brute-force truth, and how wrong an answer is.
A task knows its answer and nothing of the models that give it; `registry` lists all of them.
"""

from keyhole.tasks.averaging import SparseAverage
from keyhole.tasks.base import Task, sizes_of
from keyhole.tasks.graphs import ClosedWalks, EdgeWalks, FourCycles, Triangles
from keyhole.tasks.matching import (
    Match2,
    Match3,
    Match3Bigram,
    Match3Local,
    Match4,
    PlantedTriples,
    draw_planted_triples,
)
from keyhole.tasks.pointing import Composition, IndexLookup, InductionHeads, KHop
from keyhole.tasks.registry import (
    TASKS,
    TaskKind,
    find_kind,
    list_tasks_with,
    load_part,
    task_named,
)

__all__ = [
    "TASKS",
    "ClosedWalks",
    "Composition",
    "EdgeWalks",
    "FourCycles",
    "IndexLookup",
    "InductionHeads",
    "KHop",
    "Match2",
    "Match3",
    "Match3Bigram",
    "Match3Local",
    "Match4",
    "PlantedTriples",
    "SparseAverage",
    "Task",
    "TaskKind",
    "Triangles",
    "draw_planted_triples",
    "find_kind",
    "list_tasks_with",
    "load_part",
    "sizes_of",
    "task_named",
]
