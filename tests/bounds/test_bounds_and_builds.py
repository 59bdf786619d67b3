"""Bounds against constructions: what was built is never called too small, and every TOO_SMALL has
its reasons.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.bounds.verdicts import BoundVerdict, bound
from keyhole.constructions import survey_proofs, survey_recipes
from keyhole.models.tensor import TensorAttention
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

FEW = [
    (SparseAverage(3, 1), None),
    (SparseAverage(6, 2), 12),
    (Match2(4, 5), None),
    (Match3(3, 4), None),
]
MANY = [
    *[
        (SparseAverage(n, q), form)
        for n, q in ((4, 1), (6, 2), (9, 3), (12, 2))
        for form in (None, 14, "f16")
    ],
    (SparseAverage(7, 6, 2), 14),
    (SparseAverage(8, 2, 1, at_most=True), None),
    (SparseAverage(5, 5), None),
    (Match3Bigram(5, 5), None),
    (Match3Local(6, 5, 1), None),
    (Match4(4, 4), None),
    (Triangles(4, 5), None),
    (FourCycles(5), None),
]
GRID = [*FEW, *[pytest.param(*case, marks=pytest.mark.slow) for case in MANY]]


@pytest.mark.parametrize(("task", "form"), GRID, ids=str)
def test_what_was_built_is_never_too_small(task, form, rng):
    found = survey_recipes(task, accuracy=0.01, number_format=form, rng=rng)
    for built in found.built:
        size = built.size
        order = max(
            len(b.layer.K) + 1 if isinstance(b.layer, TensorAttention) else 2
            for b in built.model.blocks
        )
        told = bound(
            task,
            embed=size.embed,
            bits=float(size.bits),
            heads=size.heads,
            value_width=size.value_width,
            layers=size.layers,
            order=order,
            accuracy=0.01,
            residual=any(block.residual for block in built.model.blocks),
        )
        assert told.verdict is not BoundVerdict.TOO_SMALL, built.construction


@pytest.mark.parametrize(
    ("length", "q", "embed"), [(6, 2, 6), pytest.param(24, 2, 30, marks=pytest.mark.slow)]
)
def test_enough_is_backed_by_a_model_that_was_checked(length, q, embed):
    told = bound(SparseAverage(length, q), embed=embed, bits=16.0, rng=np.random.default_rng(0))
    assert told.verdict is BoundVerdict.ENOUGH
    assert told.construction == told.built.construction
    assert told.built.checked.errors == 0
    assert told.built.size.embed <= embed
    assert told.built.size.bits <= 16
    task = SparseAverage(length, q)
    X = task.sample(20, rng=np.random.default_rng(1))
    assert task.error(told.built.model(X), X).max() <= 1 / (4 * q)


def test_sizes_of_which_every_set_is_asked_are_decided():
    """Narrow keys of 12 bits were called enough by 82 of 4,960 sets; now all are asked."""
    few = bound(SparseAverage(32, 3), embed=11, bits=12.0, rng=np.random.default_rng(0))
    assert (few.verdict, few.built, few.sampled) == (BoundVerdict.OPEN, None, None)
    assert "do not single out all sets" in few.reason
    assert few.gap.enough == 32
    wide = bound(SparseAverage(32, 3), embed=32, bits=12.0)
    assert (wide.verdict, wide.construction) == (BoundVerdict.ENOUGH, "one-hot keys")
    assert "a proof covers every input (exchange of positions" in wide.sentence


def test_labels_that_only_a_sample_speaks_for_leave_the_size_open():
    told = bound(Match2(10, 40), embed=3, number_format="bf16", rng=np.random.default_rng(0))
    assert (told.verdict, told.gap.enough) == (BoundVerdict.OPEN, 5)
    assert f"({told.sampled.checked.inputs:,} inputs, not every one)" in told.sentence
    wide = bound(Match2(10, 40), embed=5, number_format="bf16", rng=np.random.default_rng(0))
    assert (wide.verdict, wide.construction) == (BoundVerdict.ENOUGH, "match2-waves")


@pytest.mark.parametrize(
    ("task", "sizes", "verdict"),
    [
        (Match2(64, 2**31), {"embed": 25, "number_format": "bf16"}, BoundVerdict.ENOUGH),
        (Match2(64, 10**6), {"embed": 12, "bits": 12.0}, BoundVerdict.OPEN),
        (Match3(1001, 2**40), {"embed": 5, "bits": 30.0}, BoundVerdict.TOO_SMALL),
        (SparseAverage(4_000, 1_500), {"embed": 9, "bits": 30.0}, BoundVerdict.TOO_SMALL),
    ],
    ids=str,
)
def test_formulas_answer_at_sizes_that_could_not_be_scanned_or_counted(task, sizes, verdict):
    assert bound(task, **sizes).verdict is verdict


@pytest.mark.slow
def test_open_says_how_wide_would_be_enough():
    told = bound(SparseAverage(24, 2), embed=3, bits=16.0, rng=np.random.default_rng(0))
    assert told.verdict is BoundVerdict.OPEN
    assert told.gap.too_small < 3 < told.gap.enough
    assert told.reason
    again = bound(SparseAverage(24, 2), embed=told.gap.enough, bits=16.0)
    assert again.verdict is BoundVerdict.ENOUGH


tasks = st.one_of(
    st.builds(lambda q, more: SparseAverage(q + more, q), st.integers(1, 40), st.integers(0, 200)),
    st.builds(Match3, st.integers(1, 300), st.integers(2, 900)),
    st.builds(Match3Bigram, st.integers(1, 300), st.integers(2, 900)),
    st.builds(Triangles, st.integers(1, 99), st.integers(1, 99)),
    st.builds(FourCycles, st.integers(1, 300)),
    st.builds(Match2, st.integers(1, 300), st.integers(2, 900)),
)


@settings(max_examples=30)
@given(
    tasks,
    st.integers(1, 9),
    st.one_of(st.just(float("inf")), st.integers(1, 40).map(float)),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
def test_every_too_small_names_an_inequality_whose_assumptions_hold(
    task, embed, bits, heads, value_width, layers, residual, positional
):
    told = bound(
        task,
        embed=embed,
        bits=bits,
        heads=heads,
        value_width=value_width,
        layers=layers,
        residual=residual,
        positional=positional,
    )
    if told.verdict is not BoundVerdict.TOO_SMALL:
        assert not any(one.violated for one in told.inequalities)
        assert told.proven is not None or told.gap.too_small < told.gap.asked
        return
    one = told.inequality
    assert one.available < one.needed
    assert all(check.measured <= check.limit for check in one.checks)
    assert one.assumptions
    assert not isinstance(task, Match2)
    assert one.name not in ("counting", "answers") or not residual
    assert one.name != "radon" or (
        positional and heads == layers == 1 and task.length >= 3 * task.q
    )
    assert not one.name.startswith("partition-message") or layers == 1
    assert one.excludes
    assert bits < float("inf") or one.name == "radon"


@settings(max_examples=20)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 20), st.integers(1, 3))
def test_more_of_anything_is_never_worse(q, more, embed, heads):
    """Inequalities are monotone, which the search for the gap relies on."""
    task = SparseAverage(q + more, q)

    def small(**sizes):
        return bound(task, **sizes).verdict is BoundVerdict.TOO_SMALL

    if not small(embed=embed, bits=4.0, heads=heads):
        assert not small(embed=embed + 1, bits=4.0, heads=heads)
        assert not small(embed=embed, bits=5.0, heads=heads)
        assert not small(embed=embed, bits=4.0, heads=heads + 1)


@settings(max_examples=15, deadline=None)
@given(tasks, st.one_of(st.just(float("inf")), st.integers(4, 40).map(float)), st.booleans())
def test_what_a_formula_proves_is_never_too_small(task, bits, positional):
    """Bounds at the very sizes of every construction that a formula proves."""
    form = None if bits == float("inf") else int(bits)
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
            positional=positional and isinstance(task, SparseAverage),
        )
        assert told.verdict is not BoundVerdict.TOO_SMALL, proven


def draw_cell(rng):
    """A task of random sizes, and a number format."""
    n = int(rng.integers(3, 100))
    modulus = int(rng.integers(2, 900))
    drawn = [
        SparseAverage(n, int(rng.integers(1, min(n, 40)))),
        SparseAverage(n, int(rng.integers(1, min(n, 12))), at_most=True),
        Match2(n, modulus),
        Match3(n, modulus),
        Match4(min(n, 20), modulus),
        Match3Local(min(n, 16), modulus, 1),
        Triangles(int(rng.integers(1, 60)), int(rng.integers(1, 60))),
        FourCycles(int(rng.integers(1, 12))),
    ]
    task = drawn[int(rng.choice(8, p=[0.5, 0.1, 0.12, 0.12, 0.05, 0.02, 0.07, 0.02]))]
    return task, [None, int(rng.integers(4, 54)), "f32", "bf16"][int(rng.integers(4))]


def find_order(built):
    layers = [block.layer for block in built.model.blocks]
    return max(len(one.K) + 1 if isinstance(one, TensorAttention) else 2 for one in layers)


@pytest.mark.parametrize(
    ("cells", "builds"), [(20, 0), pytest.param(5_000, 100, marks=pytest.mark.slow)]
)
def test_no_size_at_which_a_model_is_proved_or_built_is_too_small(cells, builds):
    """Random cells: formulas prove models for most of them, and the first few are built."""
    rng = np.random.default_rng(26)
    known = 0
    for cell in range(cells):
        task, form = draw_cell(rng)
        sized = [(one.size, one.order) for one in survey_proofs(task, number_format=form)]
        accuracy = 1e-3
        if cell < builds:
            task = SparseAverage(int(rng.integers(3, 9)), int(rng.integers(1, 4)))
            found = survey_recipes(task, accuracy=accuracy, number_format=24, rng=rng)
            sized = [(one.size, find_order(one)) for one in found.built]
        for size, order in sized:
            told = bound(
                task,
                embed=size.embed,
                bits=float(size.bits),
                heads=size.heads,
                value_width=size.value_width,
                layers=size.layers,
                order=order,
                accuracy=accuracy,
                positional=isinstance(task, SparseAverage),
            )
            assert told.verdict is not BoundVerdict.TOO_SMALL, (task, size)
            known += 1
    assert known > cells / 2
