"""Sets chosen, solved and put to a model, with an argument for all of them where there is one."""

from __future__ import annotations

import numpy as np

from keyhole.constructions.sparse_averages.all_at_once import prove_every_set
from keyhole.constructions.sparse_averages.choosing_sets import (
    ALL,
    ASKED,
    ONE_BY_ONE,
    Groups,
    choose_hard_sets,
    count_sets,
    draw_sets,
    list_every_set,
    merge_groups,
)
from keyhole.constructions.sparse_averages.set_checks import (
    AskedSets,
    Findings,
    examine_sets,
    solve_groups,
    split_unit,
)
from keyhole.constructions.sparse_averages.set_queries import STAGED, SetQueries
from keyhole.models.numbers import number_format as format_named
from keyhole.models.stack import Transformer
from keyhole.tasks import SparseAverage


def ask_hard_sets(task: SparseAverage, phi: SetQueries, *, rng: np.random.Generator) -> AskedSets:
    """The few sets on which keys that fail often do."""
    return solve_groups(phi, choose_hard_sets(task, phi.keys, rng=rng), whole=False)


def ask_sets(task: SparseAverage, phi: SetQueries, *, rng: np.random.Generator) -> AskedSets:
    """Queries of all sets that are to be asked."""
    whole = count_sets(task) <= count_askable(phi.solver)
    return solve_groups(phi, choose_sets(task, phi, rng=rng), whole=whole)


def choose_sets(task: SparseAverage, phi: SetQueries, *, rng: np.random.Generator) -> Groups:
    """Every set where they are few enough, else hard ones and random ones."""
    if count_sets(task) <= count_askable(phi.solver):
        return list_every_set(task)
    hard = choose_hard_sets(task, phi.keys, rng=rng)
    return merge_groups(hard, draw_sets(task, ASKED, rng=rng))


def count_askable(solver: str) -> int:
    """How many sets are all asked: queries that are solved one by one cost more."""
    return ALL if solver == STAGED else ONE_BY_ONE


def confront_sets(
    task: SparseAverage,
    model: Transformer,
    asked: AskedSets,
    *,
    accuracy: float,
    form: str,
    rng: np.random.Generator,
) -> Findings:
    """What asking shows, and an argument for every set where one is good enough."""
    held = format_named(form)
    phi, layer = split_unit(model)
    proof = prove_every_set(task, phi, layer, held)
    if proof is not None and proof.bound > accuracy:
        proof = None
    return examine_sets(task, model, asked, accuracy=accuracy, form=held, proof=proof, rng=rng)
