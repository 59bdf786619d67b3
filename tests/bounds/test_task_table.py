"""The table of tasks: both sides of each, or why not."""

from math import comb, log2

import pytest

from keyhole.bounds.task_table import count_excluded_keys, pose_at_length, weigh_task
from keyhole.bounds.verdicts import BoundVerdict, bound
from keyhole.errors import InvalidInput
from keyhole.tasks import TASKS, Composition, IndexLookup, Match2, Match3, SparseAverage


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_both_sides_or_says_why_not(name):
    found = weigh_task(pose_at_length(name, 48))
    assert abs(found.task.length - 48) <= 1
    assert (found.smallest is not None and found.excluded > 0) != bool(found.missing)


@pytest.mark.parametrize("task", [Match3(129, 600), Composition(32)], ids=str)
def test_what_is_excluded_is_too_small_and_the_next_is_not(task):
    found = weigh_task(task, bits=8)
    told = [
        bound(task, embed=1, value_width=found.excluded + more, bits=8.0).verdict for more in (0, 1)
    ]
    assert told[0] is BoundVerdict.TOO_SMALL
    assert told[1] is not BoundVerdict.TOO_SMALL


def test_what_is_known_is_enough():
    task = Composition(32)
    found = weigh_task(task)
    size = found.smallest.size
    told = bound(task, embed=size.embed, value_width=size.value_width, layers=size.layers)
    assert (told.verdict, told.construction) == (BoundVerdict.ENOUGH, "two-look-ups")
    assert found.one_layer.construction == "gather-whole"


def test_a_missing_side_says_why():
    assert "No lower bound is known" in weigh_task(Match2(16, 31)).missing
    assert "excludes no width here" in weigh_task(IndexLookup(16, 4)).missing


def test_keys_are_excluded_by_counting_and_of_one_head_by_positions():
    task = SparseAverage(64, 8)
    widest = count_excluded_keys(task, 1, 8, accuracy=0.01)
    assert (2 * widest + 1) * 8 < log2(comb(63, 8)) <= (2 * widest + 3) * 8
    assert count_excluded_keys(task, 4, 8, accuracy=0.01) == 0
    assert count_excluded_keys(task, 1, 8, accuracy=0.01, positional=True) == 2 * 8 - 1


def test_a_task_that_is_not_there_is_named():
    with pytest.raises(InvalidInput, match="TASK is one of"):
        pose_at_length("match5", 16)
