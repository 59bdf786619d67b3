"""Explicit weights for matching and graph tasks.

SHT23/match2, SHT23/third-order, SHT23/bigram, SHT23/local, keyhole/several-frequencies,
keyhole/closed-walks and keyhole/gather: inside, outside, and at the edge of what number formats
hold.
"""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from keyhole.claims import Outcome
from keyhole.constructions import check_model
from keyhole.constructions.matching.one_window import find_middles
from keyhole.constructions.matching.positions import bound_window_margin, find_window
from keyhole.constructions.matching.recipes import MATCHING, recertify_weights
from keyhole.constructions.matching.waves import (
    draw_frequencies,
    measure_frequencies,
    rotate_residues,
    use_digits,
)
from keyhole.errors import DoesNotFit, InvalidInput
from keyhole.models.attention import SelfAttention
from keyhole.models.numbers import number_format
from keyhole.models.stack import Transformer
from keyhole.tasks import (
    ClosedWalks,
    FourCycles,
    Match2,
    Match3,
    Match3Bigram,
    Match3Local,
    Match4,
    Triangles,
)

pytestmark = pytest.mark.theorem(
    "SHT23/match2",
    "SHT23/third-order",
    "SHT23/bigram",
    "SHT23/local",
    "keyhole/several-frequencies",
    "keyhole/closed-walks",
    "keyhole/gather",
)

RECIPES = {recipe.name: recipe for recipe in MATCHING}
SMALL = [
    (Match2(3, 5), "match2-circle"),
    (Match2(2, 7), "match2-waves"),
    (Match3(2, 5), "match3-circle"),
    pytest.param(Match3(2, 5), "match3-waves", marks=pytest.mark.slow),
    (Match4(2, 5), "match4-circle"),
    (Match3(3, 4), "match3-gather"),
    (Match3Bigram(3, 4), "bigram-successors"),
    (Match3Local(4, 3, 1), "local-windows"),
    (Match3Local(4, 3, 1), "local-window"),
    (Triangles(3, 2), "triangle-walks"),
    (ClosedWalks(3, 3, 4), "closed-walks"),
    (FourCycles(4), "four-cycles-gather"),
]


def build(task, name, form="f64", embed=None, seed=0):
    rng = np.random.default_rng(seed)
    return RECIPES[name].build(task, accuracy=0.0, number_format=form, embed=embed, rng=rng)


def flipped(model):
    """The model with the sign of one weight changed, for every weight that is not zero."""
    for b, block in enumerate(model.blocks):
        parts = {name: getattr(block.layer, name) for name in ("Q", "K", "V")}
        for name, weight in parts.items():
            arrays = weight if isinstance(weight, tuple) else (weight,)
            for t, array in enumerate(arrays):
                for place in zip(*np.nonzero(array), strict=True):
                    changed = array.copy()
                    changed[place] *= -1
                    new = (*arrays[:t], changed, *arrays[t + 1 :])
                    layer = type(block.layer)(
                        **parts | {name: new if isinstance(weight, tuple) else new[0]}
                    )
                    blocks = (
                        *model.blocks[:b],
                        replace(block, layer=layer),
                        *model.blocks[b + 1 :],
                    )
                    yield Transformer(blocks, model.out)


@pytest.mark.parametrize(("task", "name"), SMALL, ids=lambda case: str(case))
def test_small_sizes_are_right_on_every_input_and_refuted_once_a_sign_is_flipped(task, name):
    built = build(task, name)
    assert built.certificate.outcome is Outcome.HOLDS
    assert (built.checked.errors, built.checked.exhaustive) == (0, task.count <= 20_000)
    assert (
        recertify_weights(built, built.model, rng=np.random.default_rng(1)).outcome is Outcome.HOLDS
    )
    outcomes = [
        recertify_weights(built, model, rng=np.random.default_rng(1)).outcome
        for model in flipped(built.model)
    ]
    assert set(outcomes) == {Outcome.REFUTED}


@pytest.mark.parametrize(
    ("task", "name", "embed"),
    [
        (Match2(20, 10**8), "match2-circle", 3),
        (Match3(12, 10**7), "match3-circle", 5),
        pytest.param(Match4(5, 1000), "match4-circle", 9, marks=pytest.mark.slow),
        (Match3Bigram(10, 200), "bigram-successors", 3),
        (Match3Local(16, 50, 2), "local-windows", 6),
        (Match3Local(16, 50, 2), "local-window", 6),
        (Match3Local(7, 40, 3), "local-window", 8),
        (Triangles(40, 10), "triangle-walks", 7),
        pytest.param(Match3(8, 200), "match3-gather", 2, marks=pytest.mark.slow),
    ],
    ids=lambda case: str(case),
)
def test_float64_has_no_error_at_large_sizes(task, name, embed):
    built = build(task, name)
    assert built.certificate.outcome is Outcome.HOLDS
    assert built.size.embed == embed
    assert built.checked.errors == 0
    fresh = check_model(task, built.model, allowed=0.0, rng=np.random.default_rng(7), sampled=20)
    assert fresh.errors == 0


def test_bf16_is_error_free_at_a_million_with_key_width_13():
    built = build(Match2(12, 10**6), "match2-waves", "bf16", embed=13)
    assert built.size.embed <= 13
    assert built.certificate.outcome is Outcome.HOLDS
    assert (built.checked.errors, built.format) == (0, "bf16")


def test_the_gap_of_drawn_frequencies_is_the_least_over_all_residues():
    for modulus, count in ((997, 2), (1000, 3), (64, 4)):
        found = draw_frequencies(modulus, count, wanted=2.0, rng=np.random.default_rng(3))
        residues = np.arange(1, modulus)
        cosines = np.cos(2 * np.pi * found.values[:, None] * residues / modulus)
        short = 1 - cosines.mean(axis=0)
        assert found.gap == pytest.approx(short.min(), rel=1e-9)
        assert short[found.nearest[0] - 1] == pytest.approx(short.min(), rel=1e-9)
    assert (
        draw_frequencies(10**4, 3, wanted=2.0, rng=np.random.default_rng(0)).gap
        > measure_frequencies(10**4, np.arange(1.0, 4.0)).gap
    )


@pytest.mark.parametrize("count", [2, 3, 5])
def test_powers_of_a_base_keep_their_gap_over_every_residue(count):
    """The bound needs no scan; here every residue is looked at, by cosines."""
    for modulus in (*range(2, 60), 997, 5_000):
        found = use_digits(modulus, count)
        cosines = np.cos(2 * np.pi * found.values[:, None] * np.arange(1, modulus) / modulus)
        assert found.gap <= 1 - cosines.mean(axis=0).max() + 1e-12
    # Base 10 and residue 10^count / 11, rounded: one digit is as near to a whole number as can be.
    modulus = 11 * 10 ** (count - 1)
    bound = 2 / count * math.sin(math.pi / 11) ** 2
    assert use_digits(modulus, count).gap == pytest.approx(bound, rel=1e-9)
    assert measure_frequencies(modulus, use_digits(modulus, count).values).gap < 1.3 * bound


def test_bf16_matches_pairs_of_any_modulus_that_is_held_by_a_formula_alone():
    recipe = RECIPES["match2-waves"]
    for modulus, embed in ((10**6, 13), (2**31, 25)):
        draft = recipe.draft_by_formula(Match2(64, modulus), form=number_format("bf16"), embed=None)
        assert draft.proven
        assert draft.embed == embed
    with pytest.raises(DoesNotFit, match="2\\^31"):
        recipe.draft_by_formula(Match2(64, 2**31 + 1), form=number_format("bf16"), embed=None)


@pytest.mark.parametrize(("length", "radius"), [(9, 0), (9, 2), (30, 0), (30, 4), (31, 1)])
def test_no_window_is_sharper_than_its_bound(length, radius):
    for harmonics in range(radius + 1, length // 2 + 1, 2):
        window = find_window(length, radius, harmonics)
        assert 0 < window.margin <= bound_window_margin(length, radius, harmonics) + 1e-9


def test_one_head_tells_whose_window_it_is_unless_two_tokens_see_everybody():
    built = build(Match3Local(9, 6, 3), "local-window")
    assert (built.size.heads, built.size.value_width) == (1, 15)
    assert built.certificate.outcome is Outcome.HOLDS
    # Places of windows of radius 1 among four: 0 1, 0 1 2, 1 2 3, 2 3.
    np.testing.assert_array_equal(find_middles(4, 1), [0.5, 1.0, 2.0, 2.5])
    assert RECIPES["local-window"].suits(Match3Local(7, 5, 3))
    assert not RECIPES["local-window"].suits(Match3Local(6, 5, 3))
    assert RECIPES["local-windows"].suits(Match3Local(6, 5, 3))


def test_scores_are_those_of_the_paper_up_to_a_power_of_two():
    task = Match2(6, 11)
    layer = build(task, "match2-circle").model.blocks[0].layer
    gap = 2 * math.sin(math.pi / 11) ** 2
    c = layer.Q[0, 0, 0]
    assert 2 / gap * math.log(48) <= c < 4 / gap * math.log(48)
    assert math.log2(c).is_integer()
    np.testing.assert_allclose(
        layer.Q[0], [[c, 0, 0], [0, c, 0], [0, 0, c * (1 - gap / 2)], [0, 0, 0]], rtol=1e-12
    )
    np.testing.assert_array_equal(layer.K[0], [[1, 0, 0], [0, -1, 0], [0, 0, 0], [0, 0, 1]])


def test_third_order_columns_are_those_of_the_paper():
    layer = build(Match3(2, 7), "match3-circle").model.blocks[0].layer
    K1 = [[1, 0, 0, -1, 0], [0, -1, -1, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]]
    K2 = [[1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]]
    np.testing.assert_array_equal(layer.K[0], K1)
    np.testing.assert_array_equal(layer.K[1], K2)


def test_bounds_hold_on_every_input_of_a_small_task():
    task = Match2(4, 5)
    built = build(task, "match2-circle")
    limits = {item.name: item.limit for item in built.certificate.conclusion}
    for x in product(range(5), repeat=4):
        X = np.array(x, dtype=float)[None, :, None]
        answers = built.model(X)[0, :, 0]
        matched = np.array([any((a + b) % 5 == 0 for b in x) for a in x])
        assert (answers[matched] >= 1 - limits["farthest answer to a match"]).all()
        assert (answers[~matched] <= limits["farthest answer to no match"]).all()
        assert (answers[matched] >= 1 - 1 / 33).all()
        assert (answers[~matched] <= 1 / 9).all()


@pytest.mark.parametrize(
    ("form", "holds", "fails"),
    [
        pytest.param("f32", 3000, 40_000, marks=pytest.mark.slow),
        ("f16", 40, 600),
        ("bf16", 20, 300),
    ],
)
def test_formats_hold_small_moduli_and_refuse_large_ones(form, holds, fails):
    assert build(Match2(10, holds), "match2-circle", form).certificate.outcome is Outcome.HOLDS
    with pytest.raises(DoesNotFit, match="does not fit into"):
        build(Match2(10, fails), "match2-circle", form)


def test_float64_is_refused_beyond_what_it_holds():
    with pytest.raises(DoesNotFit, match="f64"):
        build(Match2(10, 10**9), "match2-circle")


def test_between_proof_and_failure_the_certificate_is_silent():
    built = build(Match2(10, 40), "match2-circle", "bf16")
    assert built.certificate.outcome is Outcome.SILENT
    assert built.error_bound == math.inf
    assert built.certificate.sampled == f"{built.checked.inputs:,} inputs, not every one"
    assert not built.proved


def test_a_proof_of_built_weights_is_none_of_others_of_the_same_shape():
    built = build(Match2(10, 40), "match2-circle")
    assert not built.checked.exhaustive
    assert built.proved
    block = built.model.blocks[0]
    heavier = SelfAttention(block.layer.Q * (1 + 1e-12), block.layer.K, block.layer.V)
    seen = recertify_weights(
        built, Transformer((replace(block, layer=heavier),)), rng=np.random.default_rng(1)
    )
    assert seen.outcome is Outcome.SILENT
    assert seen.sampled.endswith("inputs, not every one")
    assert (
        recertify_weights(built, built.model, rng=np.random.default_rng(1)).outcome is Outcome.HOLDS
    )


def test_key_widths_that_are_too_small_are_refused():
    for task, name in (
        (Match2(4, 7), "match2-circle"),
        (Match2(4, 7), "match2-waves"),
        (Triangles(4, 4), "triangle-walks"),
    ):
        with pytest.raises(DoesNotFit, match="key width"):
            build(task, name, embed=2)


def test_weights_of_another_recipe_are_not_certified():
    built = build(Match2(3, 5), "match2-circle")
    with pytest.raises(InvalidInput, match="match2-circle"):
        recertify_weights(
            replace(built, construction="other"), built.model, rng=np.random.default_rng(0)
        )


def test_opposite_numbers_have_opposite_angles_exactly():
    for modulus in (2, 8, 97, 10**6):
        residues = np.arange(1, min(modulus, 500))
        cos, sin = rotate_residues(residues, modulus)
        back_cos, back_sin = rotate_residues(modulus - residues, modulus)
        np.testing.assert_array_equal(cos, back_cos)
        np.testing.assert_array_equal(sin, -back_sin)
        np.testing.assert_allclose(cos, np.cos(2 * np.pi * residues / modulus), atol=1e-15)
        np.testing.assert_allclose(sin, np.sin(2 * np.pi * residues / modulus), atol=1e-15)
