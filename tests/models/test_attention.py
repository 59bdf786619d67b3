"""Heads, sums of heads and self-attention against hand computation and loops over single
numbers.
"""

import math

import numpy as np
import pytest

from keyhole.errors import InvalidInput
from keyhole.models import Factored, Head, Model, MultiHead, SelfAttention


def one_answer(x, W, V, h=None, c=None, U=None):
    """The formula for one sequence, one number at a time."""
    length, (d, o) = len(x), np.shape(V)
    query = [
        sum(W[i][j] * x[-1][j] for j in range(d)) + (0 if h is None else h[i]) for i in range(d)
    ]
    scores = [sum(x[n][i] * query[i] for i in range(d)) for n in range(length)]
    weights = [math.exp(score - max(scores)) for score in scores]
    answer = []
    for k in range(o):
        values = [sum(x[n][i] * V[i][k] for i in range(d)) for n in range(length)]
        mean = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
        residual = 0 if U is None else sum(x[-1][i] * U[i][k] for i in range(d))
        answer.append(mean + residual + (0 if c is None else c[k]))
    return answer


def loop(X, W, V, **more):
    return np.array([one_answer(x, W, V, **more) for x in X])


# --- one head -------------------------------------------------------------------------------------


def test_two_tokens_by_hand():
    # x_N = (0, 1): scores are x_1^T W x_N = log 3 and x_N^T W x_N = 0, so the weights are 3/4 and
    # 1/4.
    head = Head(np.array([[0.0, math.log(3.0)], [0.0, 0.0]]), np.array([[8.0], [4.0]]))
    X = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    np.testing.assert_allclose(head(X), [[0.75 * 8 + 0.25 * 4]], rtol=1e-15)


def test_the_last_token_is_the_query_and_not_the_first():
    # Only x_N = (1, 0) scores: W is e_1 e_1^T log 3, so (1, 0) gets weight 3/4 when it is last, 1/2
    # when first.
    head = Head(np.array([[math.log(3.0), 0.0], [0.0, 0.0]]), np.array([[1.0], [0.0]]))
    last, first = np.array([[[0.0, 1.0], [1.0, 0.0]]]), np.array([[[1.0, 0.0], [0.0, 1.0]]])
    np.testing.assert_allclose(head(last), [[0.75]], rtol=1e-15)
    np.testing.assert_allclose(head(first), [[0.5]], rtol=1e-15)


def test_a_score_bias_a_constant_and_a_residual_by_hand():
    # W = 0 and x.h = log 3 for the first token: weights 3/4, 1/4. Then c = 10 and x_N U = 100 are
    # added.
    parts = {
        "h": np.array([math.log(3.0), 0.0]),
        "c": np.array([10.0]),
        "U": np.array([[0.0], [100.0]]),
    }
    head = Head(np.zeros((2, 2)), np.array([[8.0], [4.0]]), **parts)
    np.testing.assert_allclose(
        head(np.array([[[1.0, 0.0], [0.0, 1.0]]])), [[7.0 + 10.0 + 100.0]], rtol=1e-15
    )


def test_a_single_token_is_answered_by_its_value():
    head = Head(np.full((2, 2), 7.0), np.array([[3.0, 1.0], [5.0, -1.0]]))
    np.testing.assert_array_equal(head(np.array([[[2.0, 1.0]]])), [[11.0, 1.0]])


@pytest.mark.parametrize("extras", [(), ("h",), ("c",), ("U",), ("h", "c", "U")])
@pytest.mark.parametrize(
    ("width", "outputs", "length"), [(1, 1, 1), (3, 1, 5), (4, 2, 2), (2, 6, 9)]
)
def test_a_head_answers_as_the_loop_does(width, outputs, length, extras, rng):
    W, V = rng.normal(size=(width, width)), rng.normal(size=(width, outputs))
    shapes = {"h": width, "c": outputs, "U": (width, outputs)}
    more = {name: rng.normal(size=shapes[name]) for name in extras}
    X = rng.normal(size=(4, length, width))
    np.testing.assert_allclose(Head(W, V, **more)(X), loop(X, W, V, **more), rtol=1e-12, atol=1e-12)


def test_a_factored_head_answers_as_its_dense_twin(rng):
    A, B, V = rng.normal(size=(5, 2)), rng.normal(size=(5, 2)), rng.normal(size=(5, 3))
    W = [[sum(A[i, k] * B[j, k] for k in range(2)) for j in range(5)] for i in range(5)]
    X, h = rng.normal(size=(4, 6, 5)), rng.normal(size=5)
    np.testing.assert_allclose(
        Head(Factored(A, B), V, h)(X), loop(X, W, V, h=h), rtol=1e-12, atol=1e-12
    )
    np.testing.assert_allclose(np.asarray(Factored(A, B)), W, rtol=1e-14)


def test_scores_logits_and_magnitude_by_hand():
    head = Head(
        np.array([[1.0, 2.0], [3.0, 4.0]]),
        np.array([[1.0, -5.0], [2.0, 0.0]]),
        np.array([10.0, 20.0]),
    )
    X = np.array([[[1.0, 1.0], [1.0, 0.0]]])  # W x_N + h = (11, 23)
    np.testing.assert_array_equal(head.scores(X), [[34.0, 11.0]])
    np.testing.assert_array_equal(head.logits(X), [[[34.0, 11.0]]])
    np.testing.assert_array_equal(head.magnitude(X), [5.0])


def test_a_head_knows_its_sizes_and_is_a_model():
    head = Head(np.zeros((4, 4)), np.zeros((4, 3)))
    assert (head.width, head.outputs) == (4, 3)
    assert isinstance(head, Model)


def test_a_head_keeps_its_own_weights_and_nobody_can_write_them():
    W = np.eye(2)
    head = Head(W, np.ones((2, 1)), np.zeros(2), np.zeros(1), np.zeros((2, 1)))
    W[0, 0] = 9.0
    assert np.asarray(head.W)[0, 0] == 1.0
    for weights in (head.W, head.V, head.h, head.c, head.U):
        assert not weights.flags.writeable


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("name", "shape"),
    [("W", (3, 2)), ("W", (2, 2)), ("h", (2,)), ("c", (2,)), ("U", (3, 2)), ("V", (3,))],
)
def test_a_head_of_parts_that_do_not_fit_names_the_part(name, shape):
    parts = {"W": np.zeros((3, 3)), "V": np.zeros((3, 1))}
    with pytest.raises(InvalidInput, match=f"{name} must have shape"):
        Head(**(parts | {name: np.zeros(shape)}))


@pytest.mark.parametrize("name", ["W", "V", "h", "c", "U"])
def test_a_head_with_a_weight_that_is_no_number_names_the_part(name):
    shapes = {"W": (2, 2), "V": (2, 1), "h": (2,), "c": (1,), "U": (2, 1)}
    parts = {part: np.zeros(shape) for part, shape in shapes.items()}
    parts[name][0] = np.nan
    with pytest.raises(InvalidInput, match=f"{name} must be finite"):
        Head(**parts)


@pytest.mark.usefixtures("untyped")
def test_factors_that_do_not_fit_each_other_or_the_head_are_refused():
    with pytest.raises(InvalidInput, match=r"B must have shape \(3, 2\); got \(3, 1\)"):
        Factored(np.zeros((3, 2)), np.zeros((3, 1)))
    with pytest.raises(InvalidInput, match=r"W must have shape \(4, 4\); got \(3, 3\)"):
        Head(Factored(np.zeros((3, 2)), np.zeros((3, 2))), np.zeros((4, 1)))


def test_factors_that_are_no_numbers_are_refused():
    with pytest.raises(InvalidInput, match="A must be finite"):
        Factored(np.array([[np.inf]]), np.array([[1.0]]))


def test_random_heads_have_the_spread_they_promise(rng):
    W = np.asarray(Head.random(100, scale=3.0, rng=rng).W)
    assert W.std() == pytest.approx(3.0 / math.sqrt(100), rel=0.05)
    low = np.asarray(Head.random(100, rank=4, scale=3.0, rng=rng).W)
    assert np.linalg.matrix_rank(low) == 4
    assert low.std() == pytest.approx(3.0 / math.sqrt(100), rel=0.4)


def test_a_random_head_has_biases_only_when_asked(rng):
    bare, full = Head.random(3, rng=rng), Head.random(3, outputs=2, biases=True, rng=rng)
    assert bare.h is None
    assert bare.c is None
    assert full.h.shape == (3,)
    assert full.c.shape == (2,)


# --- several heads --------------------------------------------------------------------------------


@pytest.mark.parametrize("biased", [False, True])
def test_heads_are_summed_and_constant_and_residual_are_added_once(biased, rng):
    W, V = rng.normal(size=(3, 4, 4)), rng.normal(size=(3, 4, 2))
    h, c, U = (rng.normal(size=size) if biased else None for size in ((3, 4), 2, (4, 2)))
    X = rng.normal(size=(5, 6, 4))
    each = [loop(X, W[k], V[k], h=None if h is None else h[k]) for k in range(3)]
    expected = sum(each) + (0 if c is None else c + X[:, -1] @ U)
    model = MultiHead(W, V, h, c, U)
    np.testing.assert_allclose(model(X), expected, rtol=1e-12, atol=1e-12)
    parts = sum(head(X) for head in model.heads)
    np.testing.assert_allclose(parts, expected, rtol=1e-12, atol=1e-12)


def test_a_sum_of_heads_shows_one_row_of_logits_per_head(rng):
    model = MultiHead.random(3, heads=2, rng=rng)
    X = rng.normal(size=(1, 4, 3))
    expected = [[sum(X[0, n] * (W @ X[0, -1])) for n in range(4)] for W in model.W]
    np.testing.assert_allclose(model.logits(X)[0], expected, rtol=1e-12)


def test_the_magnitude_of_several_heads_is_that_of_the_largest():
    model = MultiHead(np.zeros((2, 1, 1)), np.array([[[1.0]], [[-4.0]]]))
    np.testing.assert_array_equal(model.magnitude(np.array([[[1.0], [-2.0]]])), [8.0])


def test_several_heads_know_their_sizes_and_parts(rng):
    model = MultiHead.random(4, heads=3, outputs=2, rng=rng)
    assert (model.width, model.outputs, len(model.heads)) == (4, 2, 3)
    assert isinstance(model, Model)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("name", "shape"),
    [("W", (2, 3, 2)), ("W", (1, 3, 3)), ("h", (3,)), ("c", (2,)), ("V", (3, 1)), ("U", (3, 2))],
)
def test_several_heads_of_parts_that_do_not_fit_name_the_part(name, shape):
    parts = {"W": np.zeros((2, 3, 3)), "V": np.zeros((2, 3, 1))}
    with pytest.raises(InvalidInput, match=f"{name} must have shape"):
        MultiHead(**(parts | {name: np.zeros(shape)}))


# --- self-attention -------------------------------------------------------------------------------


def layer_rows(X, Q, K, V):
    """Every row of the layer for one head, position by position."""
    rows = []
    for query in X:
        scores = [float((query @ Q) @ (key @ K)) for key in X]
        weights = np.exp(np.array(scores) - max(scores))
        rows.append(
            sum(w * (token @ V) for w, token in zip(weights, X, strict=True)) / weights.sum()
        )
    return np.array(rows)


@pytest.mark.parametrize("heads", [1, 3])
def test_a_layer_answers_as_the_loop_over_positions_does(heads, rng):
    Q, K = rng.normal(size=(2, heads, 4, 2))
    V = rng.normal(size=(heads, 4, 3))
    X = rng.normal(size=(2, 5, 4))
    expected = [sum(layer_rows(x, Q[k], K[k], V[k]) for k in range(heads)) for x in X]
    np.testing.assert_allclose(SelfAttention(Q, K, V)(X), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("untyped")
def test_matrices_without_a_head_axis_are_one_head(rng):
    Q, K, V = rng.normal(size=(4, 2)), rng.normal(size=(4, 2)), rng.normal(size=(4, 3))
    layer = SelfAttention(Q, K, V)
    assert layer.Q.shape == (1, 4, 2)
    x = rng.normal(size=(5, 4))
    np.testing.assert_allclose(layer(x[None])[0], layer_rows(x, Q, K, V), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("heads", [1, 3])
def test_the_last_row_read_along_a_vector_is_a_head(heads, rng):
    layer = SelfAttention(*rng.normal(size=(2, heads, 4, 2)), rng.normal(size=(heads, 4, 3)))
    X, c = rng.normal(size=(6, 5, 4)), rng.normal(size=3)
    along = layer.read_last(c)
    assert isinstance(along, Head if heads == 1 else MultiHead)
    assert along.outputs == 1
    np.testing.assert_allclose(along(X)[:, 0], layer(X)[:, -1] @ c, rtol=1e-12, atol=1e-12)


def test_without_a_vector_every_output_of_the_last_row_is_read(rng):
    layer = SelfAttention(*rng.normal(size=(2, 1, 4, 2)), rng.normal(size=(1, 4, 3)))
    X, C = rng.normal(size=(6, 5, 4)), rng.normal(size=(3, 2))
    np.testing.assert_allclose(layer.read_last()(X), layer(X)[:, -1], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(layer.read_last(C)(X), layer(X)[:, -1] @ C, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("untyped")
def test_the_head_behind_a_layer_has_w_k_q_transposed(rng):
    Q, K, V = rng.normal(size=(4, 2)), rng.normal(size=(4, 2)), rng.normal(size=(4, 1))
    np.testing.assert_allclose(
        np.asarray(SelfAttention(Q, K, V).read_last().W), K @ Q.T, rtol=1e-14
    )


def test_reading_along_a_vector_of_another_size_is_refused(rng):
    layer = SelfAttention(*rng.normal(size=(2, 1, 4, 2)), rng.normal(size=(1, 4, 3)))
    with pytest.raises(InvalidInput, match="c must have 3 rows"):
        layer.read_last(np.ones(2))


@pytest.mark.usefixtures("untyped")
def test_a_layer_of_parts_that_do_not_fit_names_the_part():
    with pytest.raises(InvalidInput, match="K must have shape"):
        SelfAttention(np.zeros((4, 2)), np.zeros((4, 3)), np.zeros((4, 1)))
    with pytest.raises(InvalidInput, match="V must have shape"):
        SelfAttention(np.zeros((4, 2)), np.zeros((4, 2)), np.zeros((3, 1)))
