"""Sets split over heads: the gap over all sets, certificates in number formats, refusals."""

from itertools import combinations

import numpy as np
import pytest

from keyhole.bounds.verdicts import BoundVerdict, bound
from keyhole.claims import Basis, Outcome
from keyhole.constructions import Room, load, save, survey_recipes
from keyhole.constructions.shared.rounding import choose_evaluation
from keyhole.constructions.split_sets.split_heads import (
    SplitHeads,
    ask_every_part,
    bound_every_part,
    list_split_recipes,
)
from keyhole.constructions.split_sets.split_queries import (
    choose_sharpness,
    find_least_gap,
    list_spread_parts,
    split_by_stride,
)
from keyhole.errors import DoesNotFit
from keyhole.models.numbers import number_format
from keyhole.tasks import SparseAverage
from support.seeds import some

pytestmark = pytest.mark.theorem("keyhole/split-heads")


def least_product(length, q, heads):
    """The least product over every set, part and position off the part, by loops."""
    least = np.inf
    for y in combinations(range(length), q):
        for part in (y[h::heads] for h in range(heads)):
            for j in set(range(length)) - set(part):
                factors = [1 - np.cos(2 * np.pi * (j - i) / length) for i in part]
                least = min(least, np.prod(factors))
    return least


@pytest.mark.parametrize(
    ("length", "q", "heads"), [(8, 2, 1), (8, 4, 2), (9, 4, 4), (9, 3, 3), (10, 6, 2), (7, 6, 3)]
)
def test_the_least_gap_over_all_sets_is_one_product(length, q, heads):
    told = find_least_gap(length, q // heads, heads)
    assert told == pytest.approx(least_product(length, q, heads), rel=1e-9)


def test_parts_are_every_hth_member_and_all_that_are_listed_occur():
    sets = np.array(list(combinations(range(8), 4)))
    parts = {tuple(part) for part in split_by_stride(sets, 2).reshape(-1, 2)}
    assert {tuple(sorted(y[0::2])) for y in sets.tolist()} <= parts
    assert parts == set(list_spread_parts(8, 2, 2))


@pytest.mark.parametrize(
    ("heads", "gap", "sharpness"),
    [(1, 9.2e-14, 7.9e13), (2, 4.30e-8, 1.86e8), (4, 2.07e-4, 4.21e4), (8, 4.8e-3, 1.96e3)],
)
def test_more_heads_have_wider_gaps(heads, gap, sharpness):
    found = find_least_gap(64, 8 // heads, heads)
    assert found == pytest.approx(gap, rel=6e-3)
    assert choose_sharpness(64, 8 // heads, found, 1e-2) == pytest.approx(sharpness, rel=6e-3)


@pytest.mark.parametrize("form", ["f64", "f32"])
def test_four_heads_of_key_width_four_average_every_set_of_eight(form, rng):
    task = SparseAverage(64, 8)
    built = SplitHeads(4).build(task, accuracy=1e-2, number_format=form, embed=4, rng=rng)
    assert (built.size.embed, built.size.heads, built.size.bits) == (4, 4, 32)
    assert built.certificate.outcome is Outcome.HOLDS
    assert built.certificate.basis is Basis.EXHAUSTIVE
    assert built.proved
    # Vectors that point along the error of a contiguous set, the hardest, and of random ones.
    for kind in ("contiguous", "separating"):
        X = task.sample(4, rng=rng, kind=kind)
        told = built.model(X, choose_evaluation(number_format(form)))
        wrong = np.abs(told - task.target(X)).max()
        assert wrong <= built.error_bound


def test_every_part_is_asked_and_float64_keeps_its_formula():
    gap = find_least_gap(64, 2, 4)
    sharpness = choose_sharpness(64, 2, gap, 1e-2)
    asked = ask_every_part(64, 2, 4, sharpness, "f64")
    assert asked.parts == 1824
    assert asked.worst <= bound_every_part(64, 2, gap, sharpness) <= 1.0001e-2
    assert ask_every_part(64, 2, 4, sharpness, "f32").worst <= 1e-2


def test_two_heads_are_proved_by_the_product_where_parts_are_too_many(rng):
    task = SparseAverage(64, 8)
    built = SplitHeads(2).build(task, accuracy=1e-2, number_format="f64", embed=None, rng=rng)
    assert built.certificate.basis is Basis.PROVED
    assert (built.size.embed, built.size.bits) == (8, 64)
    with pytest.raises(DoesNotFit, match="Allow more heads, or take f64"):
        SplitHeads(2).build(task, accuracy=1e-2, number_format="f32", embed=None, rng=rng)


def test_formats_and_widths_that_do_not_hold_are_refused_in_a_sentence(rng):
    task = SparseAverage(64, 8)
    with pytest.raises(DoesNotFit, match="key width 4; asked for 3"):
        SplitHeads(4).build(task, accuracy=1e-2, number_format="f64", embed=3, rng=rng)
    with pytest.raises(DoesNotFit, match="f16 holds numbers up to 65504"):
        SplitHeads(4).build(task, accuracy=1e-2, number_format="f16", embed=None, rng=rng)
    with pytest.raises(DoesNotFit, match=r"comes within .* in bf16"):
        SplitHeads(4).build(task, accuracy=1e-2, number_format="bf16", embed=None, rng=rng)


def test_only_numbers_of_heads_that_split_evenly_are_tried():
    assert [one.heads for one in list_split_recipes(SparseAverage(64, 8), 8)] == [2, 4, 8]
    assert list_split_recipes(SparseAverage(64, 7), 6) == ()
    assert list_split_recipes(SparseAverage(64, 8, at_most=True), 8) == ()


@pytest.mark.parametrize("length", some((8, 12)))
def test_heads_are_split_where_several_are_allowed_and_files_keep_them(length, rng, tmp_path):
    task = SparseAverage(length, 4, 2)
    room = Room(embed=2, heads=4)
    survey = survey_recipes(task, accuracy=1e-2, number_format="f32", room=room, rng=rng)
    assert survey.best.construction == "split-heads-4"
    save(survey.best.model, tmp_path / "split.safetensors")
    X = task.sample(3, rng=rng)
    again = load(tmp_path / "split.safetensors")
    np.testing.assert_array_equal(again(X), survey.best.model(X))
    told = bound(task, embed=2, heads=4, number_format="f32", value_width=2, accuracy=1e-2, rng=rng)
    assert (told.verdict, told.construction) == (BoundVerdict.ENOUGH, "split-heads-4")
