"""An examination says nothing where what explains its gaps would explain any answer."""

import numpy as np
import pytest

from keyhole.learners.verifying.vacuity import HeldAnswer, is_vacuous


def hold(gap, answer, *, explained=1e-6, parts=1.0, count=16):
    """As many answers, of one size and both signs, that are all off by the gap."""
    answers = answer * np.resize([1.0, -1.0], count)
    return [HeldAnswer(gap, explained, "gauss", np.array([each]), parts) for each in answers]


@pytest.mark.parametrize(
    ("gap", "vacuous"),
    # Sums of parts of size 1 are rounded by about 1e-15; more is no rounding of a sum.
    [(1e-16, False), (5e-15, False), (1e-13, True)],
)
def test_gaps_that_round_a_plain_sum_are_right_where_they_are_small_beside_answers(gap, vacuous):
    assert is_vacuous(hold(gap, 1e-9)) == vacuous


def test_rounding_of_a_sum_is_no_excuse_where_it_is_as_large_as_answers():
    assert is_vacuous(hold(5e-15, 1e-14))


def test_answers_that_nothing_else_could_explain_are_not_vacuous():
    assert not is_vacuous(hold(1e-9, 1.0))
