"""What attention of higher order keeps: permutations of tokens, shifts of scores, bounds, and never
a NaN.
"""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole import TensorAttention, evaluate, number_format, pairwise_sum, shift_invariant

SCALES = [1e-300, 1e-8, 1.0, 1e3, 1e6]


CASES = st.tuples(
    st.integers(0, 2**32),
    st.integers(2, 4),
    st.integers(1, 6),
    st.integers(1, 4),
    st.sampled_from(SCALES),
)


def made(case):
    """A unit, tokens and a generator."""
    seed, order, length, embed, scale = case
    rng = np.random.default_rng(seed)
    drawn = TensorAttention.random(3, order=order, embed=embed, outputs=2, rng=rng)
    return TensorAttention(drawn.Q * scale, drawn.K, drawn.V), rng.normal(size=(2, length, 3)), rng


@settings(max_examples=40, deadline=None)
@given(CASES)
def test_permuting_tokens_permutes_answers(case):
    unit, X, rng = made(case)
    order = rng.permutation(X.shape[1])
    np.testing.assert_allclose(unit(X[:, order]), unit(X)[:, order], rtol=0, atol=1e-8)


@settings(max_examples=40, deadline=None)
@given(CASES)
def test_answers_are_finite_and_between_the_least_and_greatest_value(case):
    unit, X, _ = made(case)
    answers, values = unit(X), unit.values(X)
    assert (answers <= values.max(axis=1)[:, None] + 1e-9).all()
    assert (answers >= values.min(axis=1)[:, None] - 1e-9).all()


@settings(max_examples=40, deadline=None)
@given(CASES, st.sampled_from(["f32", "fixed:3.5", "fixed:8.30", "bf16"]))
def test_rounded_evaluation_gives_numbers_of_the_format(case, name):
    unit, X, _ = made(case)
    answers, form = evaluate(unit, X, name), number_format(name)
    np.testing.assert_array_equal(form.round(answers), answers)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(SCALES),
    st.integers(1, 40),
    st.integers(1, 7),
    st.floats(-1e6, 1e6),
)
def test_a_common_shift_of_a_kernel_cancels(seed, scale, modulus, length, shift):
    rng = np.random.default_rng(seed)
    kernel, x = (
        np.rint(64 * scale * rng.normal(size=modulus)) / 64,
        rng.integers(modulus, size=(1, length)),
    )
    values = (rng.normal(size=(1, length, 2)), rng.normal(size=(1, length, 2)))
    answers = shift_invariant(kernel, x, values)
    assert np.isfinite(answers).all()
    np.testing.assert_allclose(
        shift_invariant(kernel + round(shift), x, values), answers, rtol=0, atol=1e-9
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 500), st.integers(1, 7), st.integers(0, 500))
def test_turning_the_circle_turns_the_kernel(seed, modulus, length, turn):
    rng = np.random.default_rng(seed)
    kernel, x = 10 * rng.normal(size=modulus), rng.integers(modulus, size=(1, length))
    values = (rng.normal(size=(1, length, 1)), rng.normal(size=(1, length, 1)))
    turned = shift_invariant(np.roll(kernel, 3 * turn), x + turn, values)
    np.testing.assert_allclose(turned, shift_invariant(kernel, x, values), rtol=0, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(SCALES), st.integers(1, 8))
def test_what_moves_between_the_sides_of_a_triangle_cancels(seed, scale, length):
    rng = np.random.default_rng(seed)
    a, b, c = np.rint(64 * scale * rng.normal(size=(3, 1, length, length))) / 64
    moved = np.rint(scale * rng.normal(size=(1, length)))
    values = (rng.normal(size=(1, length, 2)), rng.normal(size=(1, length, 2)))
    answers = pairwise_sum(a, b, c, values)
    assert np.isfinite(answers).all()
    np.testing.assert_allclose(
        pairwise_sum(a + moved[:, None], b - moved[..., None], c, values),
        answers,
        rtol=0,
        atol=1e-9,
    )
