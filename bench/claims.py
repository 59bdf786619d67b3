"""Claims about what attention can compute, put to the test.

    python bench/claims.py widths [--large]    key width over q ln N, 16 bits, eps = 1/(2q)
    python bench/claims.py sampled             the same, of 100,000 fresh sets, q >= 4
    python bench/claims.py cells               200 cells, every ENOUGH put to sets again
    python bench/claims.py property            5,000 cells: TOO_SMALL where a formula proves a model
    python bench/claims.py exact               Theorem 3 in exact arithmetic to N = 512, q = 12
    python bench/claims.py bf16                Match2 to M = 1e6 in bf16
    python bench/claims.py times               processor time of bound, nothing built

Seeds are fixed and printed figures are ratios or counts.
"""

import sys
import time
from math import comb, log

import numpy as np

from keyhole.bounds.verdicts import BoundVerdict, bound
from keyhole.claims import Outcome
from keyhole.constructions import survey_proofs
from keyhole.constructions.matching.wave_units import Waves
from keyhole.constructions.sparse_averages.choosing_sets import (
    ONE_BY_ONE,
    draw_sets,
    list_every_set,
)
from keyhole.constructions.sparse_averages.set_checks import examine_sets, solve_groups, split_unit
from keyhole.constructions.sparse_averages.sparse_average import (
    MAX_MARGIN,
    SPARSE_AVERAGES,
    TRIGONOMETRIC,
)
from keyhole.errors import DoesNotFit
from keyhole.models.numbers import number_format
from keyhole.tasks import (
    FourCycles,
    Match2,
    Match3,
    Match3Bigram,
    Match3Local,
    Match4,
    SparseAverage,
    Triangles,
)

SMALL = [(16, 2), (32, 2), (64, 2), (16, 3), (24, 3), (32, 3), (16, 4), (20, 4), (24, 4), (16, 6)]
LARGE = [(128, 2), (64, 3), (32, 4), (24, 6), (20, 8)]
SAMPLED = [(128, 4), (64, 6), (64, 8), (128, 6)]
TIMED = [
    SparseAverage(32, 3),
    SparseAverage(1024, 16),
    SparseAverage(10**5, 50),
    SparseAverage(512, 100, at_most=True),
    Match2(64, 10**6),
    Match2(2000, 10**9),
    Match2(64, 2**31),
    Match3(1001, 5000),
    Match3(1001, 10**6),
    Match3(5000, 10**6),
    Match4(64, 10**5),
    Match3Bigram(60, 200),
    Match3Bigram(1000, 5000),
    Match3Local(200, 50, 3),
    Match3Local(1000, 500, 8),
    Match3Local(1000, 500, 2),
    Triangles(60, 60),
    Triangles(1000, 1000),
    FourCycles(32),
    FourCycles(200),
]
ASKED_SIZES = [
    {},
    {"bits": 12.0},
    {"bits": 30.0},
    {"number_format": "bf16"},
    {"number_format": "f16"},
    {"layers": 2},
    {"heads": 2, "value_width": 2000, "bits": 40.0},
]


def measure_widths(sizes, asked):
    """Widths over q ln N of the least keys that hold on every set, or on fresh random ones."""
    ratios = []
    for length, q in sizes:
        start = time.perf_counter()
        task = SparseAverage(length, q)
        rng = np.random.default_rng(0)
        built = MAX_MARGIN.build(
            task, accuracy=1 / (2 * q), number_format="bits:16", embed=None, rng=rng
        )
        failing = 0
        if not built.checked.exhaustive:
            fresh = solve_groups(
                built.model.blocks[0].map, draw_sets(task, asked, rng=rng), whole=False
            )
            form = number_format(built.format)
            seen = examine_sets(task, built.model, fresh, accuracy=1 / (2 * q), form=form)
            failing = seen.checked.errors
        ratios.append(built.size.embed / (q * log(length)))
        print(
            f"N = {length}, q = {q}: m = {built.size.embed}, {ratios[-1]:.2f} q ln N,"
            f" {built.format}, {built.certificate.basis.name}, {failing} of fresh sets fail,"
            f" {time.perf_counter() - start:.0f} s",
            flush=True,
        )
    print(f"median {np.median(ratios):.2f}, worst {max(ratios):.2f}")


def check_cells(count):
    """ENOUGH by building or by a formula, each put to every set or 100,000 fresh ones."""
    rng = np.random.default_rng(1)
    enough = failed = 0
    for cell in range(count):
        found = build_enough(rng, large=cell % 5 == 4)
        if found is None:
            continue
        enough += 1
        built, accuracy = found
        phi, _ = split_unit(built.model)
        few = comb(built.task.length, built.task.q) <= ONE_BY_ONE
        groups = list_every_set(built.task) if few else draw_sets(built.task, 100_000, rng=rng)
        asked = solve_groups(phi, groups, whole=few)
        form = number_format(built.format)
        seen = examine_sets(built.task, built.model, asked, accuracy=accuracy, form=form, rng=rng)
        failed += seen.checked.errors > 0
    print(f"{count} cells, {enough} ENOUGH, {failed} of them fail on some set")


def build_enough(rng, large):
    """The weights of a random cell that is ENOUGH: of large ones a formula says so."""
    length = int(rng.integers(25, 129) if large else rng.integers(4, 25))
    q = int(rng.integers(1, min(5, length)))
    task = SparseAverage(length, q)
    embed = int(rng.integers(2, length + 2))
    bits = int(rng.integers(6, 41 if large else 25))
    told = bound(task, embed=embed, bits=float(bits), rng=None if large else rng)
    if told.verdict is not BoundVerdict.ENOUGH:
        return None
    if told.built is not None:
        return told.built, told.sizes.accuracy
    recipe = next(one for one in SPARSE_AVERAGES if one.name == told.construction)
    built = recipe.build(
        task,
        accuracy=told.sizes.accuracy,
        number_format=f"bits:{bits}",
        embed=embed,
        rng=rng,
    )
    return built, told.sizes.accuracy


def draw_task(rng):
    """A task of random sizes."""
    n = int(rng.integers(3, 300))
    q = int(rng.integers(1, n))
    return [
        SparseAverage(n, min(q, 40)),
        Match2(n, int(rng.integers(2, 900))),
        Match3(n, int(rng.integers(2, 900))),
        Match3Bigram(min(n, 60), int(rng.integers(2, 200))),
        Triangles(int(rng.integers(1, 60)), int(rng.integers(1, 60))),
        FourCycles(int(rng.integers(1, 12))),
    ][int(rng.choice(6, p=[0.6, 0.15, 0.15, 0.04, 0.05, 0.01]))]


def check_property(count):
    """Bounds at the sizes of what formulas prove, on random tasks and formats."""
    rng = np.random.default_rng(2)
    proofs = wrong = 0
    for _ in range(count):
        task = draw_task(rng)
        form = [None, int(rng.integers(4, 54)), "f32", "bf16"][int(rng.integers(4))]
        for proven in survey_proofs(task, accuracy=task.accuracy, number_format=form):
            size = proven.size
            told = bound(
                task,
                embed=size.embed,
                bits=float(size.bits),
                heads=size.heads,
                value_width=size.value_width,
                layers=size.layers,
                order=proven.order,
                positional=isinstance(task, SparseAverage),
            )
            proofs += 1
            wrong += told.verdict is BoundVerdict.TOO_SMALL
    print(f"{count} cells, {proofs} models proved, {wrong} of them called TOO_SMALL")


def certify_exactly():
    """Theorem 3, every set by one product."""
    for length, q in ((64, 8), (256, 8), (512, 4), (512, 12)):
        built = TRIGONOMETRIC.build(
            SparseAverage(length, q),
            accuracy=1e-2,
            number_format="exact",
            embed=None,
            rng=np.random.default_rng(0),
        )
        held = built.certificate
        print(
            f"N = {length}, q = {q}: {held.outcome.name}, {held.proof}, error at most"
            f" {built.error_bound:.1e}, {built.size.bits} bits"
        )


def prove_in_bf16():
    """Match2 with several frequencies, proved for every input."""
    for modulus in (10**3, 10**4, 10**5, 10**6):
        draft = Waves(2, several=True).draft(
            Match2(64, modulus),
            form=number_format("bf16"),
            embed=None,
            rng=np.random.default_rng(0),
        )
        held = Outcome.HOLDS if draft.proven else Outcome.SILENT
        print(f"M = {modulus:,}: m = {draft.embed}, {held.name}, gap {draft.margin:.3f}")


def time_bounds():
    """Processor time of verdicts by inequalities and formulas, over sizes that are large."""
    bound(Match3Local(9, 5, 1), embed=2, number_format="bf16")  # loads what formulas import
    spent = []
    for task in TIMED:
        for sizes in ASKED_SIZES:
            for order in (2, 3):
                start = time.process_time()
                bound(task, embed=5, order=order, **sizes)
                spent.append((time.process_time() - start, str(task), sizes))
    spent.sort(key=lambda one: -one[0])
    print(f"{len(spent)} questions, median {1e3 * spent[len(spent) // 2][0]:.1f} ms, slowest:")
    for seconds, task, sizes in spent[:5]:
        print(f"  {seconds:.2f} s  {task} {sizes}")


if __name__ == "__main__":
    try:
        what = sys.argv[1] if len(sys.argv) > 1 else "widths"
        if what == "widths":
            large = "--large" in sys.argv
            measure_widths(SMALL + LARGE * large, 0)
        elif what == "sampled":
            measure_widths(SAMPLED, 100_000)
        elif what == "cells":
            check_cells(200)
        elif what == "property":
            check_property(5_000)
        elif what == "exact":
            certify_exactly()
        elif what == "times":
            time_bounds()
        else:
            prove_in_bf16()
    except DoesNotFit as refusal:
        sys.exit(str(refusal))
