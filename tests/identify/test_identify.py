"""What answers determine: counting, merging, and distance modulo symmetry."""

import numpy as np
import pytest

from keyhole.errors import InvalidInput
from keyhole.identify import canonical, distance, freedom, head_freedom, matrix_rank
from keyhole.models import Factored, Head, MultiHead

# --- degrees of freedom ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "width", "options"),
    [
        (2, 1, {}),  # one number of W, one of v
        (12, 3, {}),  # 9 + 3
        (3 * 3 + 3 * 2, 3, {"outputs": 2}),  # a full V has d o numbers
        (2 * 2 + 2 * 5, 2, {"outputs": 5}),  # also when there are more outputs than coordinates
        (4, 4, {"rank": 0}),  # W = 0: only v
        (7 + 4, 4, {"rank": 1}),  # u v^T: 4 + 4 numbers less one scale
        (12 + 4, 4, {"rank": 2}),  # 2 (8 - 2)
        (16 + (4 + 3 - 1), 4, {"outputs": 3, "value_rank": 1}),
        (9 + 3 + 3, 3, {"score_bias": 3}),  # any h, where W has full rank
        # h along the one column of A
        (7 + 4 + 1 + 1, 4, {"rank": 1, "score_bias": 1, "constant": True}),
        (7 + 4 + 4, 4, {"rank": 1, "score_bias": 4}),  # h anywhere
        (9 + 3 + 1, 3, {"constant": True}),
        (9 + 6 + 2 + 6, 3, {"outputs": 2, "constant": True, "residual": True}),
    ],
)
def test_degrees_of_freedom_by_hand(count, width, options):
    assert head_freedom(width, **options) == count


@pytest.mark.parametrize("rank", range(6))
def test_rank_one_less_than_full_has_the_dimension_of_the_determinant_surface(rank):
    # Matrices of rank r are a manifold of codimension (d - r)^2.
    assert head_freedom(5, rank=rank) - 5 == 25 - (5 - rank) ** 2


@pytest.mark.parametrize("rank", [0, 1, 3, 6])
def test_the_rank_is_the_same_dense_and_factored(rank, rng):
    A, B = rng.normal(size=(2, 6, rank))
    assert matrix_rank(A @ B.T) == rank
    assert matrix_rank(Factored(A, B)) == rank


def test_a_factor_with_a_repeated_column_has_the_rank_of_its_product(rng):
    a, b = rng.normal(size=(2, 5, 1))
    assert matrix_rank(Factored(np.hstack([a, a]), np.hstack([b, b]))) == 1


def tangent_dimension(build, parameters, rng, width):
    """The number of directions in which the function moves: rank of its derivative in the
    parameters.
    """
    X = [rng.normal(size=(40, n, width)) for n in (1, 2, 3, 4, 5)]

    def answers(p):
        return np.concatenate([build(p)(x).ravel() for x in X])

    steps = 1e-5 * np.eye(len(parameters))
    J = np.array([(answers(parameters + e) - answers(parameters - e)) / 2e-5 for e in steps])
    values = np.linalg.svd(J, compute_uv=False)
    return int((values > 1e-6 * values[0]).sum())


SHAPES = [
    {"heads": 1}, {"heads": 2}, {"heads": 3}, {"heads": 2, "rank": 1},
    {"heads": 2, "rank": 2, "outputs": 2},
    {"heads": 2, "outputs": 4, "value_rank": 2}, {"heads": 2, "rank": 2, "bias": "inside"},
    {"heads": 2, "rank": 2, "bias": "free"},
    {"heads": 2, "bias": "free", "constant": True, "outputs": 2},
    {"heads": 2, "outputs": 2, "residual": True},
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_degrees_of_freedom_are_the_dimension_of_the_derivative(shape, rng):
    """Parameters are factors, which say nothing of the count; their derivative has its rank."""
    d, H, o = 3, shape["heads"], shape.get("outputs", 1)
    r, v = shape.get("rank", d), shape.get("value_rank", min(d, o))
    bias, constant = shape.get("bias"), shape.get("constant", False)
    sizes = [H * d * r, H * d * r, H * d * v, H * v * o, H * (r if bias == "inside" else d), o]
    sizes.append(d * o)

    def build(p):
        A, B, R, S, b, c, U = np.split(p, np.cumsum(sizes)[:-1])
        A, B = A.reshape(H, d, r), B.reshape(H, r, d)
        b = b.reshape(H, -1)
        h = {
            None: None,
            "free": b,
            "inside": None if bias != "inside" else np.einsum("hdr,hr->hd", A, b),
        }[bias]
        V = R.reshape(H, d, v) @ S.reshape(H, v, o)
        residual = U.reshape(d, o) if shape.get("residual") else None
        return MultiHead(A @ B, V, h, c if constant else None, residual)

    p = rng.normal(size=sum(sizes))
    assert freedom(build(p)) == tangent_dimension(build, p, rng, d)


def test_merged_and_idle_heads_count_once_or_not_at_all(rng):
    W, V = rng.normal(size=(3, 3)), rng.normal(size=(3, 1))
    assert freedom(MultiHead(np.stack([W, W]), np.stack([V, V]))) == 12
    assert freedom(MultiHead(np.stack([W, 2 * W]), np.stack([V, 0 * V]))) == 12
    assert freedom(Head(W, V, U=V)) == 15
    assert freedom(Head(0 * W, V, h=V[:, 0])) == 6


# --- canonical ------------------------------------------------------------------------------------


def test_heads_of_equal_scores_are_merged_and_their_readouts_added(rng):
    W, other = rng.normal(size=(2, 3, 3))
    V = rng.normal(size=(3, 3, 1))
    found = canonical(MultiHead(np.stack([W, other, W]), V))
    assert len(found.W) == 2
    kept = int(np.argmin([np.abs(M - W).max() for M in found.W]))
    np.testing.assert_allclose(found.V[kept], V[0] + V[2], rtol=1e-15)


def test_heads_that_differ_in_their_score_bias_are_kept_apart(rng):
    W, V, h = (
        np.stack([rng.normal(size=(3, 3))] * 2),
        rng.normal(size=(2, 3, 1)),
        rng.normal(size=(2, 3)),
    )
    assert len(canonical(MultiHead(W, V, h)).W) == 2


def test_a_head_without_readout_is_dropped(rng):
    W, V = rng.normal(size=(2, 3, 3)), rng.normal(size=(2, 3, 1))
    V[0] = 0.0
    found = canonical(MultiHead(W, V))
    np.testing.assert_array_equal(found.W, W[1:])


def test_heads_whose_readouts_cancel_are_dropped(rng):
    W, V = rng.normal(size=(3, 3)), rng.normal(size=(3, 1))
    assert len(canonical(MultiHead(np.stack([W, W]), np.stack([V, -V]))).W) == 0


def test_a_blind_head_becomes_its_constant(rng):
    head = Head(rng.normal(size=(3, 3)), np.zeros((3, 2)), c=np.array([1.0, 2.0]))
    found = canonical(head)
    assert found.W.shape == (0, 3, 3)
    np.testing.assert_array_equal(found.c, [1.0, 2.0])


def test_the_canonical_form_is_sorted_by_the_size_of_w(rng):
    W = rng.normal(size=(4, 3, 3)) * np.array([2.0, 8.0, 1.0, 4.0])[:, None, None]
    sizes = [np.linalg.norm(M) for M in canonical(MultiHead(W, rng.normal(size=(4, 3, 1)))).W]
    assert sizes == sorted(sizes, reverse=True)


def test_heads_of_one_size_are_put_in_one_order(rng):
    W, V = rng.normal(size=(3, 3)), rng.normal(size=(4, 3, 1))
    stack = np.stack([W, -W, W[::-1], -W[::-1]])
    first = canonical(MultiHead(stack, V))
    for _ in range(5):
        order = rng.permutation(4)
        np.testing.assert_array_equal(canonical(MultiHead(stack[order], V[order])).W, first.W)


def test_heads_that_take_plain_means_are_one(rng):
    W, V = rng.normal(size=(3, 3, 3)), rng.normal(size=(3, 3, 1))
    W[[0, 2]] = 0.0
    found = canonical(MultiHead(W, V))
    np.testing.assert_array_equal(found.W[-1], np.zeros((3, 3)))
    np.testing.assert_allclose(found.V[-1], V[0] + V[2], rtol=1e-15)
    kept = canonical(MultiHead(W, V, rng.normal(size=(3, 3))))
    assert len(kept.W) == 3  # scores that a bias alone gives are scores


def test_a_sum_of_no_heads_is_its_constant(rng):
    empty = canonical(Head(np.eye(2), np.zeros((2, 1)), c=np.array([3.0])))
    np.testing.assert_array_equal(empty(rng.normal(size=(4, 3, 2))), np.full((4, 1), 3.0))
    assert freedom(empty) == 1


def test_the_canonical_form_answers_as_the_model_does(rng):
    W, V, h = rng.normal(size=(4, 3, 3)), rng.normal(size=(4, 3, 2)), rng.normal(size=(4, 3))
    W[2], h[2], V[3] = W[0], h[0], 0.0
    model, X = MultiHead(W, V, h, rng.normal(size=2)), rng.normal(size=(9, 5, 3))
    assert len(canonical(model).W) == 2
    np.testing.assert_allclose(canonical(model)(X), model(X), rtol=1e-12, atol=1e-12)


def test_the_canonical_form_of_one_head_answers_as_the_head_does(rng):
    head, X = Head.random(3, outputs=2, biases=True, rng=rng), rng.normal(size=(9, 5, 3))
    np.testing.assert_allclose(canonical(head)(X), head(X), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_a_tiny_head_beside_a_large_one_is_not_forgotten(seed):
    rng = np.random.default_rng(seed)
    W, V = (
        rng.normal(size=(2, 3, 3)),
        rng.normal(size=(2, 3, 1)) * np.array([1.0, 1e-9])[:, None, None],
    )
    assert len(canonical(MultiHead(W, V)).W) == 2


# --- distance -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_heads_does_not_count(seed):
    rng = np.random.default_rng(seed)
    W, V, h = rng.normal(size=(4, 3, 3)), rng.normal(size=(4, 3, 2)), rng.normal(size=(4, 3))
    order, c = rng.permutation(4), rng.normal(size=2)
    gap = distance(MultiHead(W, V, h, c), MultiHead(W[order], V[order], h[order], c))
    assert gap.largest == 0.0
    assert gap.heads == (4, 4)


def test_heads_of_one_size_in_another_order_are_matched(rng):
    turns = [np.linalg.qr(rng.normal(size=(3, 3)))[0] for _ in range(4)]
    V = rng.normal(size=(4, 3, 1))
    gap = distance(MultiHead(np.stack(turns), V), MultiHead(np.stack(turns[::-1]), V[::-1]))
    assert gap.largest == 0.0


def test_a_split_of_one_head_in_two_does_not_count(rng):
    W, V, share = rng.normal(size=(3, 3)), rng.normal(size=(3, 1)), rng.normal(size=(3, 1))
    gap = distance(Head(W, V), MultiHead(np.stack([W, W]), np.stack([V - share, share])))
    assert gap.heads == (1, 1)
    assert gap.largest < 1e-15


def test_a_factored_head_is_no_distance_from_its_dense_twin(rng):
    A, B, V = rng.normal(size=(4, 2)), rng.normal(size=(4, 2)), rng.normal(size=(4, 1))
    assert distance(Head(Factored(A, B), V), Head(A @ B.T, V)).largest < 1e-15


def test_a_known_change_of_one_part_is_measured_in_that_part():
    W, V, h = np.array([[3.0, 0.0], [0.0, 4.0]]), np.array([[3.0], [4.0]]), np.array([1.0, 0.0])
    c, U = np.array([2.0]), np.array([[1.0], [0.0]])
    whole = Head(W, V, h, c, U)
    cases = [
        ("W", 1e-3 / 5, Head(np.array([[3.0, 0.0], [0.0, 4.0 - 1e-3]]), V, h, c, U)),  # |W| = 5
        ("V", 0.01 / 1.01, Head(W, V * 1.01, h, c, U)),
        ("h", 2.0, Head(W, V, -h, c, U)),
        ("h", 1.0, Head(W, V, None, c, U)),
        ("c", 0.75, Head(W, V, h, 4 * c, U)),
        ("U", 1.0, Head(W, V, h, c)),
    ]
    for part, size, other in cases:
        gap = distance(whole, other)
        assert getattr(gap, part) == pytest.approx(size, rel=1e-9)
        assert gap.largest == getattr(gap, part)


def test_residuals_of_sums_of_heads_are_compared(rng):
    model = MultiHead.random(3, heads=2, outputs=2, rng=rng)
    U = rng.normal(size=(3, 2))
    one, two = (MultiHead(model.W, model.V, U=part) for part in (U, 1.25 * U))
    assert distance(one, one).largest == 0.0
    assert pytest.approx(0.2) == distance(one, two).U
    assert distance(one, model).largest == 1.0


def test_distance_has_no_preferred_side(rng):
    a, b = MultiHead.random(3, heads=3, rng=rng), MultiHead.random(3, heads=3, rng=rng)
    one, two = distance(a, b), distance(b, a)
    assert one.largest == pytest.approx(two.largest, rel=1e-12)
    assert one.largest > 0.1


def test_different_numbers_of_heads_are_infinitely_far(rng):
    gap = distance(MultiHead.random(3, heads=2, rng=rng), Head.random(3, rng=rng))
    assert gap.heads == (2, 1)
    assert gap.largest == float("inf")


def test_two_functions_without_attention_are_compared_by_their_constants(rng):
    a = Head(rng.normal(size=(2, 2)), np.zeros((2, 1)), c=np.array([3.0]))
    b = Head(rng.normal(size=(2, 2)), np.zeros((2, 1)), c=np.array([3.0]))
    assert distance(a, b).largest == 0.0


def test_models_of_other_sizes_are_refused(rng):
    with pytest.raises(InvalidInput, match=r"\(3, 1\) and \(4, 1\)"):
        distance(Head.random(3, rng=rng), Head.random(4, rng=rng))
