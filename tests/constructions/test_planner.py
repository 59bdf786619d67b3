"""Which construction is chosen, and what is said where none fits."""

import numpy as np
import pytest

import keyhole
from keyhole.constructions import CONSTRUCTIONS, Room, survey_recipes
from keyhole.constructions.matching.closed_walks import WalkUnit
from keyhole.constructions.planner import bound_bits_sent
from keyhole.models.numbers import number_format

TASK = keyhole.SparseAverage(7, 2)


def rng():
    return np.random.default_rng(0)


def test_the_smallest_is_first_and_is_what_build_gives():
    found = survey_recipes(TASK, rng=rng())
    areas = [b.size.embed * b.size.bits for b in found.built]
    assert areas == sorted(areas)
    assert len(areas) >= 2
    best = keyhole.build("sparse-average", length=7, q=2, rng=rng())
    assert (best.construction, best.size) == (found.best.construction, found.best.size)
    assert best.certificate.outcome is keyhole.Outcome.HOLDS


def test_every_point_lies_above_the_lower_bound():
    found = survey_recipes(TASK, rng=rng())
    for b in found.built:
        assert b.size.heads * (2 * b.size.embed + b.size.value_width) * b.size.bits >= found.limit
    assert found.limit == pytest.approx(np.log2(15))
    assert bound_bits_sent(keyhole.SparseAverage(1024, 16), 1e-3) == pytest.approx(115.6, abs=0.1)
    assert bound_bits_sent(TASK, 0.6) is None
    assert bound_bits_sent(keyhole.Match2(4, 5), 1e-3) is None


def test_one_hot_keys_win_where_bits_are_few():
    assert (
        keyhole.build(keyhole.SparseAverage(7, 3), number_format=14, rng=rng()).construction
        == "one-hot keys"
    )


def test_a_narrow_model_is_found_where_it_must_be_narrow():
    assert keyhole.build(TASK, embed=4, rng=rng()).size.embed <= 4


def test_nothing_fits_is_said_with_every_reason():
    with pytest.raises(keyhole.DoesNotFit, match="One-hot keys need a key width of 7") as refusal:
        keyhole.build(TASK, embed=2, rng=rng())
    assert "Trigonometric keys need" in str(refusal.value)
    with pytest.raises(keyhole.DoesNotFit, match="rounding to bf16 alone"):
        keyhole.build(TASK, number_format="bf16", rng=rng())
    with pytest.raises(keyhole.DoesNotFit, match="value width 3; 2 was allowed"):
        survey_recipes(keyhole.SparseAverage(6, 6, 3), room=Room(value_width=2), rng=rng()).best  # noqa: B018


def test_arguments_that_mean_nothing_are_misuse():
    for settings, words in (
        ({"accuracy": 0.0}, "--accuracy"),
        ({"number_format": 1}, "--bits"),
        ({"number_format": "f8"}, "number formats"),
        ({"embed": 0}, "--embed"),
    ):
        with pytest.raises(keyhole.InvalidInput, match=words):
            keyhole.build(TASK, rng=rng(), **settings)


def test_every_task_has_a_construction():
    tasks = (
        keyhole.Match2(6, 8),
        keyhole.Match3(5, 7),
        keyhole.Match3Bigram(5, 7),
        keyhole.Match3Local(5, 7, 1),
        keyhole.Match4(4, 5),
        keyhole.Triangles(4, 5),
        keyhole.FourCycles(4),
    )
    for task in tasks:
        assert any(construction.suits(task) for construction in CONSTRUCTIONS)


@pytest.mark.parametrize(
    "task", [keyhole.Triangles(3, 3), keyhole.FourCycles(4)], ids=lambda task: task.name
)
def test_units_of_other_tasks_are_built_and_come_back_from_their_files(task, tmp_path):
    built = keyhole.build(task, rng=rng())
    assert built.checked.errors == 0
    keyhole.save(built.model, tmp_path / "unit.safetensors")
    X = task.sample(3, rng=rng())
    np.testing.assert_array_equal(keyhole.load(tmp_path / "unit.safetensors")(X), built.model(X))


def test_a_wide_room_does_not_make_triangles_try_ever_more_frequencies():
    task, form = keyhole.Triangles(8, 10), number_format("fixed:2.1")
    widths = {
        WalkUnit("triangle-walks").draft(task, form=form, embed=room, rng=rng()).embed
        for room in (None, 2**20)
    }
    assert len(widths) == 1
