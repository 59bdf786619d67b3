"""Attention stated as mathematics: what must hold for every head and every sequence."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from keyhole.models import Factored, Head, MultiHead, SelfAttention

MODERATE = st.floats(-4.0, 4.0, width=32)


def tensors(*shape, numbers=MODERATE):
    return arrays(np.float64, shape, elements=numbers)


@st.composite
def cases(draw, outputs=None, biases=True):
    """The parts of a head, with everything a head may have, and one sequence for it."""
    d, o, length = (
        draw(st.integers(1, 4)),
        outputs or draw(st.integers(1, 3)),
        draw(st.integers(1, 6)),
    )
    h = draw(st.none() | tensors(d)) if biases else None
    c, U = (
        (draw(st.none() | tensors(o)), draw(st.none() | tensors(d, o))) if biases else (None, None)
    )
    return (draw(tensors(d, d)), draw(tensors(d, o)), h, c, U), draw(tensors(1, length, d))


def built(case):
    parts, X = case
    return Head(*parts), X


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@given(cases(outputs=1, biases=False))
def test_the_answer_lies_between_the_least_and_greatest_token_value(case):
    head, X = built(case)
    values = X[0] @ head.V[:, 0]
    assert values.min() - 1e-9 <= head(X)[0, 0] <= values.max() + 1e-9


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_all_tokens_but_the_last_does_not_count(case, random):
    head, X = built(case)
    order = list(range(X.shape[1] - 1))
    random.shuffle(order)
    close(head(X[:, [*order, X.shape[1] - 1]]), head(X))


@given(cases(), st.integers(2, 4))
def test_repeating_every_token_equally_often_does_not_count(case, times):
    head, X = built(case)
    close(head(np.tile(X, (1, times, 1))), head(X))


@given(cases())
def test_a_token_among_copies_of_itself_is_answered_alone(case):
    head, X = built(case)
    close(head(np.repeat(X[:, -1:], 5, axis=1)), head(X[:, -1:]))


@given(cases(), st.integers(1, 3))
def test_a_sequence_of_one_token_ignores_the_scores(case, factor):
    head, X = built(case)
    other = Head(np.asarray(head.W) * factor + 1.0, head.V, None, head.c, head.U)
    np.testing.assert_array_equal(head(X[:, -1:]), other(X[:, -1:]))


@given(cases(), st.data())
def test_what_all_tokens_share_cannot_be_scored(case, data):
    # Tokens that agree in a coordinate get the same score from it: any row of W, and any entry of
    # h, at that coordinate adds one constant to all scores. This is why a key bias acts on no
    # answer.
    head, X = built(case)
    at, shared = data.draw(st.integers(0, head.width - 1)), data.draw(MODERATE)
    X = X.copy()
    X[:, :, at] = shared
    W = np.array(head.W)
    W[at] += data.draw(tensors(head.width))
    close(Head(W, head.V, head.h, head.c, head.U)(X), head(X))


@given(cases())
def test_without_scores_the_answer_is_the_mean(case):
    head, X = built(case)
    blind = Head(np.zeros((head.width, head.width)), head.V, None, head.c, head.U)
    mean = X.mean(axis=1) @ head.V + (0 if head.c is None else head.c)
    close(blind(X), mean + (0 if head.U is None else X[:, -1] @ head.U))


@given(cases(biases=False), st.sampled_from([0.25, 0.5, 2.0, 8.0]))
def test_scaling_tokens_is_scaling_weights(case, factor):
    head, X = built(case)
    close(head(factor * X), factor * Head(np.asarray(head.W) * factor**2, head.V)(X))


@given(cases(biases=False), st.data())
def test_a_change_of_basis_moves_from_tokens_to_weights(case, data):
    head, X = built(case)
    seed = data.draw(st.integers(0, 2**32 - 1))
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(head.width, head.width)))[0]
    turned = Head(turn.T @ np.asarray(head.W) @ turn, turn.T @ head.V)
    close(turned(X @ turn), head(X))


@given(cases(), st.data())
def test_answers_are_linear_in_the_readout(case, data):
    head, X = built(case)
    more = data.draw(tensors(*head.V.shape))
    added = Head(head.W, head.V + more, head.h, head.c, head.U)
    close(added(X), head(X) + Head(head.W, more, head.h)(X))


@given(cases(), st.data())
def test_a_residual_is_the_readout_of_a_head_that_sees_only_the_last_token(case, data):
    head, X = built(case)
    U = data.draw(tensors(*head.V.shape))
    more = U if head.U is None else head.U + U
    close(Head(head.W, head.V, head.h, head.c, more)(X), head(X) + Head(head.W, U)(X[:, -1:]))


@given(st.data())
def test_how_w_splits_into_factors_does_not_count(data):
    d, r = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    A, B, V = data.draw(tensors(d, r)), data.draw(tensors(d, r)), data.draw(tensors(d, 1))
    scale = data.draw(st.sampled_from([0.125, 2.0, -4.0]))
    X = data.draw(tensors(1, data.draw(st.integers(1, 5)), d))
    close(Head(Factored(A * scale, B / scale), V)(X), Head(A @ B.T, V)(X))


@given(cases(), st.data())
def test_a_sum_of_heads_is_the_sum_of_their_answers(case, data):
    head, X = built(case)
    d, o = head.V.shape
    W, V, h = data.draw(tensors(2, d, d)), data.draw(tensors(2, d, o)), data.draw(tensors(2, d))
    close(
        MultiHead(W, V, h, head.c)(X), Head(W[0], V[0], h[0], head.c)(X) + Head(W[1], V[1], h[1])(X)
    )


@given(st.data())
def test_a_layer_commutes_with_every_permutation(data):
    d, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
    layer = SelfAttention(*(data.draw(tensors(2, d, 2)) for _ in range(3)))
    X, order = data.draw(tensors(1, length, d)), data.draw(st.permutations(range(length)))
    close(layer(X[:, order]), layer(X)[:, order])


@given(st.data())
def test_every_row_of_a_layer_is_a_head_read_at_that_token(data):
    d, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
    layer = SelfAttention(*(data.draw(tensors(2, d, 2)) for _ in range(3)))
    X = data.draw(tensors(1, length, d))
    last = layer.read_last()
    for i in range(length):
        order = [*(j for j in range(length) if j != i), i]
        close(last(X[:, order]), layer(X)[:, i])


@given(cases(), st.integers(-300, 300), st.integers(-100, 100))
def test_answers_are_finite_however_large_or_small_weights_and_tokens_are(case, weights, tokens):
    head, X = built(case)
    size, length = 2.0**weights, 2.0**tokens
    scaled = Head(
        np.asarray(head.W) * size, head.V, None if head.h is None else head.h * size, head.c, head.U
    )
    answers = scaled(X * length)
    assert np.isfinite(answers).all()


@given(cases(outputs=1, biases=False), st.integers(0, 300))
def test_the_answer_stays_between_the_token_values_when_scores_are_huge(case, power):
    head, X = built(case)
    values = X[0] @ head.V[:, 0]
    answer = Head(np.asarray(head.W) * 2.0**power, head.V)(X)[0, 0]
    assert values.min() - 1e-9 <= answer <= values.max() + 1e-9
