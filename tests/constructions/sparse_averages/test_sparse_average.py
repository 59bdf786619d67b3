"""SHT23/2, SHT23/3, keyhole/max-margin-keys, keyhole/coherence and keyhole/one-hot-keys: sparse
averaging by one unit.
"""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import ceil, comb, log, prod

import numpy as np
import pytest
from scipy.special import softmax

from keyhole.claims import Basis, Outcome
from keyhole.constructions.proofs.all_sets import enclose_error
from keyhole.constructions.sparse_averages.all_at_once import (
    bound_coherent_score,
    bound_series_rounding,
    measure_coherence,
)
from keyhole.constructions.sparse_averages.closed_gaps import (
    Cyclic,
    count_cyclic_bits,
    list_smallest_factors,
    weigh_exactly,
)
from keyhole.constructions.sparse_averages.directions import find_directions
from keyhole.constructions.sparse_averages.exposing import (
    SOLVERS,
    expose_by_max_margin,
    expose_by_trigonometry,
)
from keyhole.constructions.sparse_averages.sparse_average import (
    EVERYBODY,
    INCOHERENT,
    ITERATED,
    LEAST_SQUARES,
    MAX_MARGIN,
    MONOMIAL,
    ONE_HOT,
    SPARSE_AVERAGES,
    TRIGONOMETRIC,
    build_circle_keys,
    draw_sign_keys,
)
from keyhole.errors import DoesNotFit, InvalidInput
from keyhole.models.attention import SelfAttention
from keyhole.models.stack import Block, Transformer
from keyhole.tasks import Match2, SparseAverage

pytestmark = pytest.mark.theorem(
    "SHT23/2",
    "SHT23/3",
    "keyhole/max-margin-keys",
    "keyhole/coherence",
    "keyhole/one-hot-keys",
)

SMALL = SparseAverage(7, 2, 2)


def built(construction, task=SMALL, *, accuracy=1e-3, form="f64", embed=None, seed=0):
    rng = np.random.default_rng(seed)
    return construction.build(task, accuracy=accuracy, number_format=form, embed=embed, rng=rng)


def distances(model, sets, length):
    """How far attention is from uniform on each set, straight from the definition."""
    phi, layer = model.blocks[0].map, model.blocks[0].layer
    z = np.zeros((1, length, phi.dimension))
    for members in sets:
        y = np.full((1, length, phi.q), -1.0)
        y[..., : len(members)] = members
        tokens = phi(
            np.concatenate([z, y, np.arange(length, dtype=float)[None, :, None]], axis=-1)
        )[0]
        weights = softmax((tokens @ layer.Q[0]) @ (tokens @ layer.K[0]).T, axis=-1)[0]
        uniform = np.isin(np.arange(length), members) / len(members)
        yield float(np.abs(weights - uniform).sum())


@pytest.mark.parametrize(
    "construction", [c for c in SPARSE_AVERAGES if c is not EVERYBODY], ids=lambda c: c.name
)
def test_every_set_is_averaged_within_the_accuracy(construction):
    found = built(construction)
    assert found.certificate.outcome is Outcome.HOLDS
    assert (found.checked.inputs, found.checked.errors, found.checked.exhaustive) == (21, 0, True)
    assert found.error_bound <= 1e-3
    worst = max(distances(found.model, combinations(range(7), 2), 7))
    assert worst == pytest.approx(found.checked.worst, rel=1e-6)
    X = SMALL.sample(20, rng=np.random.default_rng(1))
    assert SMALL.error(found.model(X), X).max() <= 1e-3


@pytest.mark.parametrize("construction", [TRIGONOMETRIC, MAX_MARGIN, ONE_HOT], ids=lambda c: c.name)
@pytest.mark.parametrize("weight", ["Q", "K", "V"])
def test_one_flipped_sign_is_refuted_and_untouched_weights_never_are(construction, weight):
    found = built(construction)
    layer = found.model.blocks[0].layer
    entries = np.argwhere(getattr(layer, weight))
    for seed, at in enumerate(entries[:: max(1, len(entries) // 4)]):
        array = getattr(layer, weight).copy()
        array[tuple(at)] *= -1
        flipped = SelfAttention(**({"Q": layer.Q, "K": layer.K, "V": layer.V} | {weight: array}))
        model = Transformer((Block(found.model.blocks[0].map, flipped),))
        rng = np.random.default_rng(seed)
        settings = {"accuracy": 1e-3, "number_format": "f64", "rng": rng}
        assert construction.certify(SMALL, model, **settings).outcome is Outcome.REFUTED
        assert construction.certify(SMALL, found.model, **settings).outcome is Outcome.HOLDS


@pytest.mark.parametrize("construction", [TRIGONOMETRIC, MAX_MARGIN, ONE_HOT], ids=lambda c: c.name)
def test_every_set_is_enclosed_without_rounding(construction):
    """A proof for all inputs of a size; float64 agrees with it."""
    found = built(construction)
    proven = enclose_error(SMALL, found.model)
    assert proven <= 1e-3
    assert proven == pytest.approx(found.checked.worst, rel=1e-9)
    layer = found.model.blocks[0].layer
    V = layer.V.copy()
    V[0, 0, 0] *= -1
    turned = Transformer((Block(found.model.blocks[0].map, SelfAttention(layer.Q, layer.K, V)),))
    assert enclose_error(SMALL, turned) == np.inf
    Q = layer.Q * np.where(np.arange(layer.Q.shape[2]) == 0, -1.0, 1.0)
    turned = Transformer((Block(found.model.blocks[0].map, SelfAttention(Q, layer.K, layer.V)),))
    assert enclose_error(SMALL, turned) > 1e-3


def test_only_few_sets_are_enclosed():
    with pytest.raises(InvalidInput, match="at most 2,000"):
        enclose_error(SparseAverage(64, 4), built(ONE_HOT).model)


def test_a_key_moved_off_its_place_is_refuted():
    found = built(ONE_HOT)
    phi = found.model.blocks[0].map
    keys = phi.keys.copy()
    keys[4, 4] *= -1.0
    model = Transformer((Block(replace(phi, keys=keys), found.model.blocks[0].layer),))
    seen = ONE_HOT.certify(
        SMALL, model, accuracy=1e-3, number_format="f64", rng=np.random.default_rng(0)
    )
    assert seen.outcome is Outcome.REFUTED


def test_sets_may_be_smaller_and_the_target_is_their_mean():
    task = SparseAverage(7, 3, 2, at_most=True)
    for construction in (TRIGONOMETRIC, MAX_MARGIN, ONE_HOT):
        found = built(construction, task)
        assert found.checked.inputs == 7 + 21 + 35
        assert found.certificate.outcome is Outcome.HOLDS
        for size in (1, 2, 3):
            assert max(distances(found.model, combinations(range(7), size), 7)) <= 1e-3


def test_sets_that_hold_everybody_need_no_keys():
    task = SparseAverage(6, 6, 3)
    found = built(EVERYBODY, task)
    assert (found.size.embed, found.certificate.outcome) == (1, Outcome.HOLDS)
    assert found.error_bound < 1e-15
    X = task.sample(5, rng=np.random.default_rng(0))
    np.testing.assert_allclose(
        found.model(X), np.broadcast_to(X[..., :3].mean(axis=1, keepdims=True), (5, 6, 3))
    )
    assert not ONE_HOT.suits(task)
    assert ONE_HOT.suits(SparseAverage(6, 6, 3, at_most=True))
    assert not EVERYBODY.suits(Match2(4, 5))


@pytest.mark.parametrize(("length", "q"), [(24, 2), pytest.param(48, 3, marks=pytest.mark.slow)])
def test_the_linear_program_needs_at_most_twice_q_log_n(length, q):
    found = built(MAX_MARGIN, SparseAverage(length, q))
    assert found.size.embed <= 2 * q * log(length)
    assert (found.checked.inputs, found.certificate.basis) == (comb(length, q), Basis.EXHAUSTIVE)
    assert found.checked.errors == 0
    assert found.checked.worst <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("length", "q"), [(128, 2), (1024, 2), (1024, 8), (1024, 16), (512, 16)])
def test_the_linear_program_holds_at_the_largest_sizes(length, q):
    found = built(MAX_MARGIN, SparseAverage(length, q), embed=int(2 * q * log(length)))
    assert found.checked.inputs >= 64
    assert found.checked.worst <= 1e-3


def test_the_published_condition_needs_wider_keys_than_the_linear_program():
    widths = [
        built(c, SparseAverage(10, 2)).size.embed for c in (MAX_MARGIN, ITERATED, LEAST_SQUARES)
    ]
    assert widths == sorted(widths)
    assert widths[0] <= ceil(2 * 2 * log(10))


def test_the_program_finds_a_query_exactly_where_one_exists():
    """Corners of a square and its centre: no query singles out a diagonal, nor the centre."""
    keys = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1], [0, 0]], dtype=float)
    for members, exposed in (
        ((0,), True),
        ((0, 1), True),
        ((0, 2), False),
        ((4,), False),
        ((0, 1, 2), False),
    ):
        w, margin = expose_by_max_margin(keys, np.isin(np.arange(5), members))
        assert (margin > 0) is exposed
        if exposed:
            scores = keys @ w
            assert np.ptp(scores[list(members)]) < 1e-12
    doubled = np.array([[1.0, 1.0], [1.0, 1.0], [-1.0, 1.0]])
    assert expose_by_max_margin(doubled, np.array([True, False, False])).margin == 0.0


def test_the_largest_margin_is_that_of_the_face():
    """The two corners of an edge of a square: w = (1, 0), the margin 2."""
    keys = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0], [-1.0, 1.0]])
    w, margin = expose_by_max_margin(keys, np.array([True, True, False, False]))
    np.testing.assert_allclose(w, [1.0, 0.0], atol=1e-9)
    assert margin == pytest.approx(2.0)


@pytest.mark.parametrize("solver", ["monomial", "trigonometric"])
def test_polynomials_fall_short_by_their_values(solver):
    task = SparseAverage(12, 3)
    construction = {"monomial": MONOMIAL, "trigonometric": TRIGONOMETRIC}[solver]
    keys = construction.keys(task, 6, np.random.default_rng(0))
    members = (1, 4, 9)
    on = np.isin(np.arange(12), members)
    w, margin = SOLVERS[solver](keys, on)
    scores = keys @ w
    if solver == "trigonometric":
        angles = 2 * np.pi * np.arange(12) / 12
        gaps = np.prod(1 - np.cos(angles[:, None] - angles[list(members)]), axis=1)
    else:
        t = np.linspace(-1, 1, 12)
        gaps = np.prod((t[:, None] - t[list(members)]) ** 2, axis=1)
    share = (scores[1] - scores) / gaps.clip(1e-300)
    np.testing.assert_allclose(scores[on], scores[1], atol=1e-12)
    np.testing.assert_allclose(share[~on], share[~on][0], rtol=1e-6)
    assert margin == pytest.approx((scores[1] - scores)[~on].min(), rel=1e-6)


@pytest.mark.parametrize(("length", "q", "holds"), [(32, 8, True), (512, 2, True), (256, 8, False)])
def test_float64_holds_trigonometric_keys_only_so_far(length, q, holds):
    task = SparseAverage(length, q)
    if holds:
        assert built(TRIGONOMETRIC, task, accuracy=1e-2).size.embed == 2 * q
    else:
        with pytest.raises(DoesNotFit, match="are wrong by"):
            built(TRIGONOMETRIC, task, accuracy=1e-2)


def test_a_format_too_coarse_is_refused_or_leaves_the_theorem_silent():
    with pytest.raises(DoesNotFit, match="rounding to bf16 alone"):
        built(ONE_HOT, form="bf16")
    with pytest.raises(DoesNotFit, match="are wrong by"):
        built(TRIGONOMETRIC, SparseAverage(16, 4), form="f32")
    coarse = built(MAX_MARGIN, accuracy=1e-3, form="fixed:6.12")
    assert coarse.checked.errors == 0
    # Every set was asked in this format: that is as good as a bound on its rounding.
    assert (coarse.certificate.outcome, coarse.certificate.basis) == (
        Outcome.HOLDS,
        Basis.EXHAUSTIVE,
    )
    assert built(ONE_HOT, form="fixed:4.15").certificate.outcome is Outcome.HOLDS
    assert built(ONE_HOT, form="f32").certificate.outcome is Outcome.HOLDS
    assert built(ONE_HOT, accuracy=5e-2, form="bf16").format == "bf16"


def test_a_number_of_bits_is_split_before_and_behind_the_point():
    found = built(ONE_HOT, form="bits:18")
    assert found.format == "fixed:2.15"
    assert found.size.bits <= 18
    with pytest.raises(DoesNotFit, match="6 bits"):
        built(ONE_HOT, form="bits:6")


def test_the_fewest_bits_hold_and_one_less_does_not():
    bits = built(ONE_HOT).size.bits
    built(ONE_HOT, form=f"bits:{bits}")
    with pytest.raises(DoesNotFit):
        built(ONE_HOT, form=f"bits:{bits - 1}")


def test_a_width_too_small_is_refused_with_what_is_needed():
    with pytest.raises(DoesNotFit, match="20 at least; 19 was allowed"):
        built(ONE_HOT, SparseAverage(20, 3), embed=19)
    with pytest.raises(DoesNotFit, match="single out"):
        built(MAX_MARGIN, SparseAverage(64, 8), embed=8)


def test_keys_are_distinct_even_where_nearly_all_are_taken():
    for length, width in ((16, 4), (15, 4), (100, 7)):
        keys = draw_sign_keys(SparseAverage(length, 2), width, np.random.default_rng(0))
        assert len(np.unique(keys, axis=0)) == length
        assert set(np.unique(keys)) == {-1.0, 1.0}
    with pytest.raises(DoesNotFit, match="distinct rows"):
        draw_sign_keys(SparseAverage(17, 2), 4, np.random.default_rng(0))


def test_one_set_of_a_circle_is_singled_out_by_hand():
    """One point at angle 0: 1 - cos(theta) is singled out by w = (1, 0), the margin 1 - cos(2 pi /
    8).
    """
    keys = build_circle_keys(SparseAverage(8, 1), 2, np.random.default_rng(0))
    w, margin = expose_by_trigonometry(keys, np.arange(8) == 0)
    np.testing.assert_allclose(w, [1.0, 0.0], atol=1e-15)
    assert margin == pytest.approx(1 - np.cos(np.pi / 4))


LARGE = SparseAverage(32, 6)  # 906,192 sets, more than are asked one by one
LARGER = SparseAverage(26, 8)  # 1,562,275 sets, more than are asked at all


def test_sets_that_were_neither_asked_nor_proved_leave_the_theorem_silent():
    found = built(MAX_MARGIN, LARGER, accuracy=1e-1, embed=26)
    assert (found.checked.errors, found.checked.exhaustive, found.proved) == (0, False, False)
    assert found.certificate.outcome is Outcome.SILENT
    asked = found.checked.inputs
    assert asked >= 1_000
    assert found.certificate.sampled.startswith(f"{asked:,} of 1,562,275 sets")
    assert "95 % confidence" in found.certificate.sampled
    assert found.error_bound == np.inf


@pytest.mark.parametrize("at_most", [False, True])
def test_one_hot_keys_prove_every_set_by_one_of_each_size(at_most):
    task = SparseAverage(32, 6, at_most=at_most)
    found = built(ONE_HOT, task)
    assert (found.certificate.outcome, found.certificate.sampled) == (Outcome.HOLDS, "")
    assert found.certificate.proof == "exchange of positions"
    assert found.proved
    assert not found.checked.exhaustive
    rng = np.random.default_rng(2)
    sizes = (1, 2, 3, 6) if at_most else (6,)
    sets = [tuple(rng.choice(32, size, replace=False)) for size in sizes for _ in range(50)]
    assert max(distances(found.model, sets, 32)) <= found.error_bound <= 1e-3


def test_one_hot_keys_of_which_one_is_longer_prove_nothing_of_other_sets():
    found = built(ONE_HOT, LARGE)
    phi, layer = found.model.blocks[0].map, found.model.blocks[0].layer
    keys = phi.keys.copy()
    keys[30, 30] *= 1.0 + 1e-9
    settings = {"accuracy": 1e-3, "number_format": "f64", "rng": np.random.default_rng(0)}
    longer = Transformer((Block(replace(phi, keys=keys), layer),))
    assert ONE_HOT.certify(LARGE, longer, **settings).outcome is not Outcome.HOLDS
    heavier = Transformer((Block(phi, SelfAttention(layer.Q * (1 + 1e-9), layer.K, layer.V)),))
    assert ONE_HOT.certify(LARGE, heavier, **settings).outcome is not Outcome.HOLDS


def list_sets(length, q):
    return np.array(list(combinations(range(length), q)))


def test_a_set_has_the_same_query_whichever_sets_are_asked_beside_it():
    keys = draw_sign_keys(SparseAverage(16, 3), 9, np.random.default_rng(0))
    sets = list_sets(16, 3)
    found = find_directions(keys, sets, enough=0.2)
    for k in range(0, len(sets), 7):
        alone = find_directions(keys, sets[k : k + 1], enough=0.2)
        np.testing.assert_array_equal(alone.w[0], found.w[k])
        assert alone.margin[0] == found.margin[k]


@pytest.mark.parametrize("seed", range(3))
def test_quick_queries_single_out_a_set_exactly_where_the_program_does(seed):
    keys = draw_sign_keys(SparseAverage(14, 3), 7, np.random.default_rng(seed))
    sets = list_sets(14, 3)
    found = find_directions(keys, sets, enough=0.1)
    assert 0 < (found.margin <= 0).sum() < len(sets)
    for members, w, margin in zip(sets, found.w, found.margin, strict=True):
        on = np.isin(np.arange(14), members)
        assert (margin > 0) == (expose_by_max_margin(keys, on).margin > 0)
        scores = keys @ w
        if margin > 0:
            assert scores[on].min() - scores[~on].max() == pytest.approx(margin, abs=1e-9)
            assert np.ptp(scores[on]) < 1e-9


def test_a_unit_that_fails_on_one_set_in_thousands_is_not_given():
    """Every one of 4,960 sets is asked; the narrow keys that a sample let pass are refused."""
    task = SparseAverage(32, 3)
    with pytest.raises(DoesNotFit, match="do not single out all sets"):
        built(MAX_MARGIN, task, accuracy=1 / 12, form="bits:12", embed=11)


@pytest.mark.parametrize(("length", "q"), [(9, 2), (10, 3), (12, 4), (7, 6)])
def test_the_least_gap_over_all_sets_is_one_product(length, q):
    angles = 2 * np.pi * np.arange(length) / length
    least = min(
        prod(1 - np.cos(angles[j] - angles[i]) for i in y)
        for y in combinations(range(length), q)
        for j in set(range(length)) - set(y)
    )
    assert prod(list_smallest_factors(length, q)) == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize(("length", "q"), [(64, 8), (512, 12)])
def test_theorem_3_is_certified_in_exact_arithmetic_where_float64_fails(length, q):
    found = built(TRIGONOMETRIC, SparseAverage(length, q), accuracy=1e-2, form="exact")
    assert found.certificate.outcome is Outcome.HOLDS
    assert (found.certificate.basis, found.certificate.proof) == (Basis.PROVED, "product of gaps")
    assert found.error_bound <= 1e-2
    assert found.size.bits > 64


def test_exact_weights_are_those_of_rational_arithmetic():
    """64 positions, sets of 8: the worst of some sets is 3.6e-4 at most, not 6.6e-2."""
    flint = pytest.importorskip("flint")
    flint.ctx.prec = 400
    task = SparseAverage(64, 8)
    phi = built(TRIGONOMETRIC, task, accuracy=1e-2, form="exact").model.blocks[0].map
    for y in ((0, 1, 2, 3, 4, 5, 6, 7), (0, 9, 20, 33, 34, 40, 50, 61), tuple(range(0, 16, 2))):
        gaps = [
            flint.arb(1)
            if j in y
            else prod(1 - flint.arb.cos_pi_fmpq(flint.fmpq(2 * (j - i), 64)) for i in y)
            for j in range(64)
        ]
        least = min(float(g) for j, g in enumerate(gaps) if j not in y)
        wanted = phi.count_wanted_gap(8)
        raw = [
            flint.arb(1) if j in y else (-wanted * g / flint.arb(least)).exp()
            for j, g in enumerate(gaps)
        ]
        total = sum(raw)
        error = sum(abs(float(r / total) - (j in y) / 8) for j, r in enumerate(raw))
        ours = weigh_exactly(phi, np.array([y]))[0]
        np.testing.assert_allclose(ours, [float(r / total) for r in raw], atol=1e-12)
        assert error <= 5e-3


def test_bits_that_are_counted_hold_theorem_3_in_fixed_point():
    """Keys and queries are rounded to fractions of that many bits, and scores are exact fractions:
    the answers are as accurate as promised.
    """
    flint = pytest.importorskip("flint")
    flint.ctx.prec = 300
    length, q, accuracy = 24, 5, 1e-2
    wanted = log(2 * (length - q) / (q * accuracy / 2))
    keys = Cyclic(length, 2 * q, q, wanted)
    bits = count_cyclic_bits(keys, dimension=1, spare=accuracy / 2)
    fraction = bits - 1 - (int(np.floor(keys.log_entry)) + 1)

    def rounded(x):
        return flint.fmpz(int((x * 2**fraction).mid().floor().unique_fmpz()))

    for y in ((0, 1, 2, 3, 4), (0, 5, 6, 13, 20)):
        gap = {
            j: prod(1 - flint.arb.cos_pi_fmpq(flint.fmpq(2 * (j - i), length)) for i in y)
            for j in set(range(length)) - set(y)
        }
        alpha = wanted / min(float(g) for g in gap.values())
        series = [flint.acb(1)]
        for i in y:
            angle = flint.arb.pi() * 2 * i / length
            point = flint.acb(angle.cos(), angle.sin())
            factors = [-point / 2, flint.acb(1), -point.conjugate() / 2]
            series = [
                sum(
                    (series[k - t] * factors[t] for t in range(3) if 0 <= k - t < len(series)),
                    flint.acb(0),
                )
                for k in range(len(series) + 2)
            ]
        rising = series[q + 1 :]
        query = [rounded(-2 * alpha * c.real) for c in rising]
        query += [rounded(2 * alpha * c.imag) for c in rising]
        scores = []
        for j in range(length):
            turns = [flint.fmpq(2 * j * k, length) for k in range(1, q + 1)]
            key = [rounded(flint.arb.cos_pi_fmpq(t)) for t in turns]
            key += [rounded(flint.arb.sin_pi_fmpq(t)) for t in turns]
            total = sum(a * b for a, b in zip(query, key, strict=True))
            scores.append(flint.arb(total) / flint.arb(2) ** (2 * fraction))
        top = scores[y[0]]
        raw = [(s - top).exp() for s in scores]
        whole = sum(raw)
        error = sum(abs(float(r / whole) - (j in y) / q) for j, r in enumerate(raw))
        assert error <= accuracy


def test_keys_that_are_little_alike_prove_every_set_at_once():
    task = SparseAverage(60, 2)
    found = built(INCOHERENT, task, accuracy=1e-2)
    assert (found.certificate.basis, found.certificate.proof) == (
        Basis.PROVED,
        "coherence of keys",
    )
    assert found.certificate.outcome is Outcome.HOLDS
    rng = np.random.default_rng(3)
    sets = [tuple(sorted(rng.choice(60, 2, replace=False))) for _ in range(40)]
    assert max(distances(found.model, sets, 60)) <= found.error_bound <= 1e-2
    keys = found.model.blocks[0].map.keys.copy()
    keys[7] = keys[8]
    keys[7, :3] *= -1
    alike = replace(found.model.blocks[0].map, keys=keys)
    seen = INCOHERENT.certify(
        task,
        Transformer((Block(alike, found.model.blocks[0].layer),)),
        accuracy=1e-2,
        number_format="f64",
        rng=rng,
    )
    assert seen.proof != "coherence of keys"


def test_mended_keys_meet_the_width_that_is_stated_with_sixteen_bits():
    """Key width over q ln N, every set asked, eps = 1/(2q)."""
    ratios = []
    for length, q in ((12, 2), (14, 3), (12, 4)):
        found = built(MAX_MARGIN, SparseAverage(length, q), accuracy=1 / (2 * q), form="bits:16")
        assert (found.certificate.outcome, found.certificate.basis) == (
            Outcome.HOLDS,
            Basis.EXHAUSTIVE,
        )
        assert found.size.bits <= 16
        ratios.append(found.size.embed / (q * log(length)))
        # Bits behind log2((q / eps) ln N) of Theorem 2.
        extra = found.size.bits - np.log2(2 * q * q * log(length))
        assert 2 <= extra <= 12
    assert np.median(ratios) <= 1.6
    assert max(ratios) <= 2.0


def test_a_unit_refuses_sets_that_name_a_position_twice():
    task = SparseAverage(7, 2, at_most=True)
    model = built(ONE_HOT, task).model
    y = np.broadcast_to([0, 1], (1, 7, 2)).copy()
    y[0, 4] = [3, 3]
    with pytest.raises(InvalidInput, match="once; got 3, 3"):
        model(task.tokens(np.zeros((1, 7, 1)), y))


@pytest.mark.parametrize(("length", "q"), [(20, 2), (40, 3)])
def test_series_of_coherent_keys_solve_within_the_rounding_that_is_derived(length, q):
    """Against whole numbers: the query of a set times 2^200, its scores on it and off it."""
    keys = INCOHERENT.keys(SparseAverage(length, q), 800, np.random.default_rng(0))
    signs = keys.astype(int).astype(object)
    mu = measure_coherence(keys)
    assert (q - 1) * mu < 0.5
    largest = 0.0
    for members in list(combinations(range(length), q))[:: 9 * length]:
        on = np.isin(np.arange(length), members)
        w, margin = SOLVERS["series"](keys, on)
        exact = signs @ np.array([int(Fraction(entry) * 2**200) for entry in w], dtype=object)
        largest = max(largest, *(abs(exact[j] - 2**200) / 2**200 for j in members))
        off = max(exact[j] for j in range(length) if j not in members)
        assert off / 2**200 <= bound_coherent_score(mu, q) + 1e-12
        gap = (min(exact[j] for j in members) - off) / 2**200
        assert margin == pytest.approx(gap, abs=1e-12)
    assert largest <= bound_series_rounding(q, mu) < 1e-11
