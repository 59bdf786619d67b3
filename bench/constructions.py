"""Sizes of built weights: the linear program against the published recipe, and against a compiler's
figures.

    python bench/constructions.py [--large]

Widths are the least at which 72 or more adversarial sets all hold, in units of q ln N; accuracy
1e-3, float64. With --large, N = 1,024 and q up to 16 are checked at a width of 2 q ln N (some
minutes). Figures of tracr are those its compiled models have by construction, residual width M + 2N
+ 7 for Match2, 2M heads in M + 1 layers for Match3; it is not run here.
"""

import sys
import time
from math import log

import numpy as np

from keyhole.constructions import CONSTRUCTIONS, survey_recipes
from keyhole.constructions.sparse_averages.sparse_average import ITERATED, LEAST_SQUARES, MAX_MARGIN
from keyhole.errors import DoesNotFit
from keyhole.tasks import Match2, Match3, SparseAverage


def widths(sizes):
    """The least widths of the recipes with random keys."""
    print("sparse averages: least width in units of q ln N (seconds)")
    print(
        f"{'N':>6}{'q':>4}  "
        + "".join(f"{c.name:>22}" for c in (MAX_MARGIN, ITERATED, LEAST_SQUARES))
    )
    for length, q in sizes:
        cells = []
        for construction in (MAX_MARGIN, ITERATED, LEAST_SQUARES):
            start = time.perf_counter()
            try:
                rng = np.random.default_rng(0)
                built = construction.build(
                    SparseAverage(length, q),
                    accuracy=1e-3,
                    number_format="f64",
                    embed=None,
                    rng=rng,
                )
                cell = f"{built.size.embed / (q * log(length)):.2f}"
            except DoesNotFit:
                cell = "more"
            cells.append(f"{cell} ({time.perf_counter() - start:.1f} s)")
        print(f"{length:>6}{q:>4}  " + "".join(f"{cell:>22}" for cell in cells), flush=True)


def large():
    """The linear program at the sizes the claim names."""
    print("the linear program at width 2 q ln N")
    for length, q in ((1024, 2), (1024, 4), (1024, 8), (1024, 16)):
        start = time.perf_counter()
        embed = int(2 * q * log(length))
        map_rng = np.random.default_rng(0)
        built = MAX_MARGIN._at(SparseAverage(length, q), embed, 1e-3, "f64", map_rng)
        seen = built.checked
        print(
            f"  N = {length}, q = {q}, m = {embed}: {seen.errors} of {seen.inputs} sets wrong,"
            f" worst {seen.worst:.1e}, {built.size.bits} bits, {time.perf_counter() - start:.0f} s",
            flush=True,
        )


def beside_a_compiler():
    """Sizes of matching beside compiled programs."""
    print("beside tracr (its figures by construction, not run)")
    for task, theirs in (
        (Match2(20, 400), "residual width 447, 2 layers, 1.71 M parameters"),
        (Match3(10, 10), "11 layers, 20 heads, 11.2 M parameters"),
    ):
        if not any(construction.suits(task) for construction in CONSTRUCTIONS):
            continue
        start = time.perf_counter()
        size = survey_recipes(task, rng=np.random.default_rng(0)).best.size
        ours = (
            f"key width {size.embed}, {size.layers} layer(s), {size.heads} head(s), {size.bits}"
            " bits"
        )
        print(
            f"  {task.name} N = {task.length}, M = {task.modulus}: {ours}"
            f" ({time.perf_counter() - start:.1f} s)"
        )
        print(f"    tracr: {theirs}")


if __name__ == "__main__":
    widths([(16, 2), (32, 2), (64, 2), (64, 4), (256, 2), (256, 4)])
    if "--large" in sys.argv:
        large()
    beside_a_compiler()
