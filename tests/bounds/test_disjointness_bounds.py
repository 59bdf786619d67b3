"""SHT23/4, SHT23/7, keyhole/counting-sets, keyhole/radon, keyhole/answer-bits, keyhole/one-row,
keyhole/exchanged-rows.

Lower bounds on attention: reductions checked exhaustively, inequalities against numbers worked out
by hand, and models that meet them.
"""

from math import comb, log2

import numpy as np
import pytest

import keyhole
from keyhole.bounds.channel import answer_from_bits, encode_message, sign_channel
from keyhole.bounds.disjointness import (
    draw_random_pairs,
    list_every_pair,
    reduce_cycles_of_one_node,
    reduction,
)
from keyhole.bounds.faces import is_neighbourly
from keyhole.bounds.formulas import (
    Sizes,
    bound_by_answers,
    bound_by_counting,
    bound_by_disjointness,
    bound_by_exchanged_rows,
    bound_by_partition_message,
    bound_by_radon,
    bound_triples_by_message,
    count_partition_bits,
    log_sets,
)
from keyhole.errors import InvalidInput
from keyhole.models.attention import SelfAttention
from keyhole.tasks import (
    ClosedWalks,
    FourCycles,
    Match2,
    Match3,
    Match3Bigram,
    Match3Local,
    Match4,
    SparseAverage,
    Triangles,
)

pytestmark = pytest.mark.theorem(
    "SHT23/4",
    "SHT23/7",
    "keyhole/counting-sets",
    "keyhole/radon",
    "keyhole/answer-bits",
    "keyhole/one-row",
    "keyhole/exchanged-rows",
)

REDUCTIONS = [
    *[SparseAverage(2 * n + 1, n) for n in range(1, 7)],
    *[SparseAverage(2 * n + 3, n, 2) for n in range(1, 5)],
    *[Match3(2 * n + 1, 2 * n + 2) for n in range(1, 7)],
    *[Match3(2 * n + 2, M) for n in range(1, 5) for M in (2 * n + 3, 50)],
    *[Match3Bigram(2 * n + 1, 5) for n in range(1, 7)],
    *[Match3Bigram(2 * n + 2, M) for n in range(1, 5) for M in (6, 50)],
    *[Match4(2 * n + 1, 6 * n) for n in range(1, 7)],
    *[Match4(2 * n + 1, M) for n in range(1, 5) for M in (6 * n + 1, 101)],
    *[Match3Local(2 * n + 3, 2 * n + 2, n) for n in range(1, 7)],
    *[Triangles(n + 2, 2 * n + 1) for n in range(1, 7)],
    *[ClosedWalks(n + s - 1, 2 * n + s - 2, s) for s in (4, 5) for n in range(1, 7)],
    *[ClosedWalks(2 * n + 9, 2 * n + 7, 6) for n in range(1, 4)],
    *[FourCycles(nodes) for nodes in (4, 5, 8, 10)],
]


@pytest.mark.parametrize("task", REDUCTIONS, ids=str)
def test_the_answer_says_for_every_pair_of_sets_whether_they_meet(task):
    found = reduction(task)
    a, b = list_every_pair(found.size)
    said = found.meets(task.target(found.inputs(a, b)))
    np.testing.assert_array_equal(said, (a & b).any(axis=1))


@pytest.mark.parametrize("nodes", [4, 5, 6, 8, 10, 12, 14])
def test_one_row_of_a_matrix_decides_sets_by_a_cycle_through_its_node(nodes):
    found = reduce_cycles_of_one_node(FourCycles(nodes))
    assert found.size == (nodes - 2) // 2
    a, b = list_every_pair(found.size)
    said = found.meets(found.task.target(found.inputs(a, b)))
    np.testing.assert_array_equal(said, (a & b).any(axis=1))
    assert reduce_cycles_of_one_node(FourCycles(3)) is None


def test_both_bounds_of_closed_walks_are_of_edge_tokens():
    task = ClosedWalks(nodes=8, length=9, hops=4)
    # 3 of Alice's edges, 3 of Bob's, the row that is asked and a public one.
    assert reduction(task).size == 3
    large = ClosedWalks(nodes=1000, length=1000, hops=4)
    assert reduction(large).size == 499
    # 499 bits against 13 numbers of 32 bits and a partition of less than 64.
    found = bound_by_partition_message(
        large, Sizes(embed=1, bits=32.0, value_width=13, fixed=(16, 15))
    )
    assert found.violated
    assert not bound_by_partition_message(large, Sizes(embed=1, bits=32.0, value_width=16)).violated
    built = keyhole.build(ClosedWalks(nodes=6, length=5, hops=4), rng=0)
    assert (built.size.embed, built.size.layers, built.certificate.outcome.name) == (9, 1, "HOLDS")


@pytest.mark.parametrize(
    "task", [SparseAverage(9, 4), Match3(9, 20), Triangles(6, 9), FourCycles(8)], ids=str
)
def test_what_a_party_owns_depends_on_its_own_bits_alone(task, rng):
    found = reduction(task)
    a, b = draw_random_pairs(found.size, 2, rng=rng)
    X, other_b = found.inputs(a, b), found.inputs(a, 1 - b)
    outside = sorted(set(range(task.length)) - set(found.bob))
    np.testing.assert_array_equal(X[:, outside], other_b[:, outside])
    outside = sorted(set(range(task.length)) - set(found.alice))
    np.testing.assert_array_equal(X[:, outside], found.inputs(1 - a, b)[:, outside])


@pytest.mark.parametrize(
    ("task", "size"),
    [
        (Match3(1001, 5000), 500),
        (Match3(1001, 40), 19),
        (Match4(41, 60), 10),
        (FourCycles(11), 4),
        (FourCycles(12), 9),
    ],
)
def test_a_reduction_is_as_large_as_length_and_modulus_allow(task, size):
    assert reduction(task).size == size


@pytest.mark.parametrize(
    "task", [Match2(9, 9), SparseAverage(4, 2), Match3(2, 9), FourCycles(3), Match3Bigram(9, 4)]
)
def test_where_no_bit_fits_there_is_no_reduction(task):
    assert reduction(task) is None


def test_sets_of_another_size_are_refused():
    with pytest.raises(InvalidInput, match="rows of 4 bits"):
        reduction(Match3(9, 20)).inputs(np.ones((1, 3), dtype=int), np.ones((1, 3), dtype=int))


@pytest.mark.parametrize("q", [1, 2, 5, 64, 256])
def test_the_sign_channel_decides_with_exactly_q_bits(q, rng):
    found = reduction(SparseAverage(2 * q + 1, q))
    pairs = 800 if q < 100 else 200
    a, b = draw_random_pairs(q, pairs, rng=rng)
    few = max(2, 64 // q)
    bits = np.concatenate(
        [encode_message(found.inputs(a[k : k + 50], b[k : k + 50]), q) for k in range(0, pairs, 50)]
    )
    assert bits.shape == (pairs, q)
    assert set(np.unique(bits)) <= {0, 1}
    z = np.full((pairs, 2 * q), -1.0)
    z[:, 1::2] = 2.0 * b - 1.0
    said = answer_from_bits(bits, z, q)
    np.testing.assert_array_equal(said > -1 + 1 / q, (a & b).any(axis=1))
    X = found.inputs(a[:few], b[:few])
    np.testing.assert_allclose(said[:few], sign_channel(q)(X)[:, 2 * q, 0], atol=1e-12)


def test_the_sign_channel_is_no_model_of_sparse_averaging(rng):
    task = SparseAverage(9, 4)
    X = task.sample(50, rng=rng)
    assert task.error(sign_channel(4)(X), X).max() > 0.5


def sizes(**given):
    return Sizes(**({"embed": 4, "bits": 8.0, "accuracy": 0.01} | given))


def test_counting_compares_sets_with_messages():
    told = bound_by_counting(SparseAverage(1024, 16), sizes(embed=3, bits=16.0, value_width=1))
    assert told.needed == pytest.approx(115.557, abs=1e-3)
    assert told.available == 7 * 16
    assert told.violated
    assert not bound_by_counting(SparseAverage(1024, 16), sizes(embed=4, bits=16.0)).violated


def test_counting_sets_of_at_most_q_counts_them_all():
    told = bound_by_counting(SparseAverage(11, 3, at_most=True), sizes())
    assert told.needed == pytest.approx(log2(10 + comb(10, 2) + comb(10, 3)))


@pytest.mark.parametrize("change", [{"accuracy": 0.25}, {"residual": True}])
def test_counting_is_silent_outside_its_assumptions(change):
    told = bound_by_counting(SparseAverage(100, 4), sizes(embed=1, bits=1.0, **change))
    assert told.available < told.needed
    assert not told.applies
    assert not told.violated
    assert told.certificate.outcome.name == "SILENT"


def test_two_sets_with_one_message_make_any_unit_wrong_by_one_over_q(rng):
    """What counting rests on: rows that share query, key and value share their answers, whatever
    the vectors.
    """
    Q, K, V = rng.normal(size=(3, 5, 2))
    X = rng.normal(size=(2, 7, 5))
    X[1, :-1] = X[0, :-1]
    kernel = np.linalg.svd(np.vstack([Q.T, K.T]))[2][-1]
    kernel = kernel - np.linalg.pinv(np.vstack([Q.T, K.T, V.T[:1]])) @ (
        np.vstack([Q.T, K.T, V.T[:1]]) @ kernel
    )
    X[1, -1] = X[0, -1] + kernel
    rows = SelfAttention(Q[None], K[None], V[None, :, :1])(X)
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-12)


def test_radon_meets_what_cyclic_polytopes_reach():
    task = SparseAverage(9, 3)
    told = bound_by_radon(task, sizes(embed=5, positional=True))
    assert (told.needed, told.violated) == (6.0, True)
    angles = 2 * np.pi * np.arange(9) / 9
    keys = np.hstack(
        [np.stack([np.cos(k * angles), np.sin(k * angles)], axis=1) for k in (1, 2, 3)]
    )
    assert is_neighbourly(keys, 3)
    assert not is_neighbourly(keys[:, :5], 3)


@pytest.mark.parametrize(
    "change", [{"positional": False}, {"heads": 2}, {"layers": 2}, {"accuracy": 0.17}]
)
def test_radon_is_silent_outside_its_assumptions(change):
    assert not bound_by_radon(
        SparseAverage(9, 3), sizes(embed=1, **({"positional": True} | change))
    ).applies


def test_radon_needs_three_times_as_many_positions_as_a_set():
    assert bound_by_radon(SparseAverage(9, 3), sizes(embed=1, positional=True)).violated
    assert not bound_by_radon(SparseAverage(8, 3), sizes(embed=1, positional=True)).applies


def test_answers_must_come_near_every_point_of_the_ball():
    told = bound_by_answers(
        SparseAverage(10, 2, 3), sizes(bits=4.0, value_width=1, accuracy=2.0**-8)
    )
    assert (told.needed, told.available) == (24.0, 4.0)


def test_disjointness_holds_with_residuals_at_any_depth():
    told = bound_by_disjointness(
        SparseAverage(201, 100), sizes(embed=1, bits=8.0, layers=3, residual=True, accuracy=1e-3)
    )
    assert (told.needed, told.available, told.violated) == (100.0, 96.0, True)
    assert not bound_by_disjointness(SparseAverage(200, 100), sizes(accuracy=1e-3)).applies


@pytest.mark.parametrize(
    ("size", "integer", "fraction", "bits"),
    [
        (1, 0, 0, 2),
        (1, 0, 4, 5),
        (1, 3, 4, 11),
        (500, 3, 4, 11),
        (500, 16, 24, 57),
        (500, 1024, 1074, 3123),
    ],
)
def test_a_log_partition_takes_as_many_bits_as_its_steps(size, integer, fraction, bits):
    """By hand: 2^(2I+F) steps, plus ln(n) 2^(I+F-1), plus 2; e.g. 2^10 + 2 for I = 3, F = 4, n =
    1.
    """
    assert count_partition_bits(size, integer, fraction) == bits


def test_match3_needs_a_message_of_n_bits():
    task = Match3(1001, 5000)
    told = bound_triples_by_message(task, sizes(bits=16.0, fixed=(16, 24), value_width=2))
    assert (told.needed, told.available, told.theorem) == (500.0, 2.0 * 41 + 57, "SHT23/7")
    assert not bound_triples_by_message(task, sizes(bits=16.0, layers=2)).applies
    assert bound_triples_by_message(task, sizes(bits=float("inf"))).available == float("inf")


def test_scores_as_large_as_numbers_of_p_bits_make_them_take_more_bits():
    """I = 3, F = 4, n = 1, m = 5: 2 x 5 x 64 x 2^6 + 2 = 40,962 steps, 16 bits instead of 11."""
    assert count_partition_bits(1, 3, 4, reach=5 * 4**3) == 16
    task = Match3(1001, 5000)
    both = [
        bound_triples_by_message(task, sizes(embed=5, bits=8.0, fixed=(3, 4)), wide=wide)
        for wide in (False, True)
    ]
    assert both[1].available > both[0].available
    assert both[0].excludes != both[1].excludes


def test_without_a_format_the_worst_split_of_the_bits_counts():
    """All 8 bits before the point: 2^14 + ln(500) 2^6 + 2 = 16784 steps, 15 bits."""
    assert bound_by_partition_message(Match3(1001, 5000), sizes(bits=8.0)).available == 8.0 + 15.0


@pytest.mark.parametrize(
    "task",
    [Match4(21, 100), Match3Bigram(21, 9), Match3Local(30, 99, 5), Triangles(30), ClosedWalks(30)],
)
def test_other_tasks_that_decide_in_one_row_need_as_much(task):
    told = bound_by_partition_message(task, sizes(bits=2.0))
    assert told.theorem == "keyhole/one-row"
    assert told.needed == reduction(task).size


def test_four_cycles_need_rows_to_be_exchanged():
    told = bound_by_exchanged_rows(
        FourCycles(1001), sizes(embed=1, bits=16.0, layers=2, heads=1, value_width=1, residual=True)
    )
    assert (told.needed, told.available, told.violated) == (62_500.0, 64_064.0, False)
    assert bound_by_exchanged_rows(FourCycles(1001), sizes(embed=1, bits=16.0)).violated


def test_the_head_outputs_that_two_parties_merge_are_within_the_promised_step(rng):
    """SHT23/7: averages rounded to F bits and log-partitions to 2^(1-I-F) give head outputs to less
    than 2^-F.
    """
    integer, fraction, n = 2, 3, 6
    for _ in range(200):
        scores = rng.uniform(-(2.0**integer), 2.0**integer, size=2 * n)
        values = (
            np.round(rng.uniform(-(2.0**integer), 2.0**integer - 0.2, size=2 * n) * 2**fraction)
            / 2**fraction
        )
        L = [np.log(np.exp(part).sum()) for part in (scores[:n], scores[n:])]
        means = [
            np.exp(s) @ v / np.exp(s).sum()
            for s, v in ((scores[:n], values[:n]), (scores[n:], values[n:]))
        ]
        step = 2.0 ** (1 - integer - fraction)
        sent_L, sent_mean = (
            np.round(L[0] / step) * step,
            np.round(means[0] * 2**fraction) / 2**fraction,
        )
        share = 1 / (1 + np.exp(L[1] - sent_L))
        merged = share * sent_mean + (1 - share) * means[1]
        assert abs(merged - np.exp(scores) @ values / np.exp(scores).sum()) < 2.0**-fraction


@pytest.mark.parametrize(
    ("positions", "q", "at_most"), [(2_500, 1_200, False), (2_100, 1_500, True)]
)
def test_bits_that_name_large_sets_are_rounded_down_and_hardly(positions, q, at_most):
    largest = min(q, positions // 2) if at_most else q
    exact = log2(comb(positions, largest))
    assert exact - 1e-6 <= log_sets(positions, q, at_most=at_most) < exact
