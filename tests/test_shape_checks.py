"""The checks of shapes that run beside every test: spared in functions called often, never left
out.
"""

import pytest
from jaxtyping import TypeCheckError

from keyhole._arrays import softmax
from keyhole.learners.base import Plan


def refused(call):
    try:
        call()
    except TypeCheckError:
        return True
    except Exception:
        return False
    return False


def test_the_first_three_calls_in_a_test_are_checked_and_every_thousandth_after():
    refusals = [n for n in range(1, 2100) if refused(lambda: softmax("words"))]
    assert refusals == [1, 2, 3, 1000, 2000]


def test_every_test_counts_anew():
    assert refused(lambda: softmax("words"))


def test_what_a_dataclass_is_made_of_is_checked_too():
    with pytest.raises(TypeCheckError, match="by_phase"):
        Plan(by_phase="words", at_most=1, degrees_of_freedom=1)
