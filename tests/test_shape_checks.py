"""The checks of shapes that run beside every test: spared in functions called often, never left
out.
"""

import beartype
import jaxtyping
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from keyhole._arrays import Vector, softmax
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


def make_measure():
    @jaxtyping.jaxtyped(typechecker=beartype.beartype)
    def measure(x: Vector) -> float:
        return float(len(x))

    return measure


def test_functions_made_anew_each_time_are_counted_together():
    refusals = [n for n in range(1, 1100) if refused(lambda: make_measure()("words"))]
    assert refusals == [1, 2, 3, 1000]


def test_what_passed_three_times_is_spared_in_later_tests_and_other_shapes_are_not():
    conftest = jaxtyping.jaxtyped.__globals__
    checked = []

    def measure(x):
        return x

    def check(function):
        return lambda x: checked.append(x.shape) or function(x)

    sparing = conftest["spare_calls"](measure, check)
    for size in (2, 2, 3, 2, 2, 3):
        conftest["count_calls_anew"]()
        sparing(np.zeros(size))
    assert checked == [(2,), (2,), (3,), (2,), (3,)]


def test_what_failed_is_never_spared():
    for _ in range(5):
        jaxtyping.jaxtyped.__globals__["count_calls_anew"]()
        assert refused(lambda: softmax("words"))
