"""Heads that share keys and values come back, from tokens that have no value."""

from dataclasses import replace

import numpy as np
import pytest

import keyhole
from keyhole import Cast, Local, WiredLayer, Wiring, random_layer
from keyhole.claims import Verdict
from keyhole.identify.layers import layer_distance, layer_freedom
from keyhole.learners.base import Status
from keyhole.learners.positions.ball import NormBall
from keyhole.learners.positions.grouped.kernel_split import split_by_kernel
from keyhole.learners.positions.grouped.kernel_try import find_row_space
from keyhole.learners.positions.placed import Asking, measure_linear_part
from keyhole.oracles.limits import Sized
from support.seeds import few
from support.wired_layers import answer_in_torch, differentiate

ROPE = Wiring(norm="rms", eps=1e-5, residual=True, positions="rope")
LAYER = replace(ROPE, norm="layer")


def draw(wiring, rng, *, width=16, heads=4, groups=2, **options):
    options = {"displacements": 16} | options
    wiring = replace(wiring, groups=groups)
    return random_layer(width, heads=heads, wiring=wiring, rng=rng, **options)


def measure_error(truth, model, rng):
    """The largest relative error; what is true is written a second time, in torch."""
    errors = []
    for length in (1, 2, 7, 16):
        X = rng.normal(size=(8, length, truth.width))
        answers = answer_in_torch(truth, X)
        errors.append(np.linalg.norm(model(X) - answers) / np.linalg.norm(answers))
    return max(errors)


# Width, heads, groups, and the goal: queries beside the limit.
SIZES = {"16, 4, 2": (16, 4, 2), "16, 4, 1": (16, 4, 1), "32, 4, 2": (32, 4, 2)}


@pytest.mark.parametrize("name", SIZES)
def test_grouped_rotary_layers_come_back_from_few_queries(name):
    width, heads, groups = SIZES[name]
    for seed in few(4):
        truth_rng, rng, fresh = np.random.default_rng(7000 + seed).spawn(3)
        truth = draw(ROPE, truth_rng, width=width, heads=heads, groups=groups)
        found = WiredLayer(truth.wiring).run(Local(truth), rng=rng)
        assert found.verdict is Verdict.EXACT
        assert (found.model.heads, found.model.groups) == (heads, groups)
        assert measure_error(truth, found.model, fresh) <= 1e-9
        assert layer_distance(truth, found.model).largest <= 1e-6
        asked = found.ledger.total(without="verify").sequences
        assert asked * truth.outputs <= 4.0 * found.degrees_of_freedom


CASES = {
    "biases": (ROPE, {"biases": True}),
    "half rope": (replace(ROPE, rotary_share=0.5), {"biases": True}),
    "ALiBi": (replace(LAYER, positions="alibi"), {"biases": True}),
    "a table": (replace(LAYER, positions="table"), {"biases": True}),
    "no positions": (replace(LAYER, positions="none"), {"biases": True}),
    "absolute": (replace(LAYER, positions="absolute"), {}),
    "a window": (replace(ROPE, window=6), {}),
    "a cap": (replace(ROPE, softcap=5.0), {}),
    "a cap and biases": (replace(LAYER, positions="alibi", softcap=5.0), {"biases": True}),
    "no norm": (Wiring(norm="none", residual=False, positions="rope"), {"outputs": 20}),
    "room to spare": (ROPE, {"rank": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_grouped_layers_of_other_wirings_come_back(name):
    wiring, options = CASES[name]
    truth_rng, rng, fresh = np.random.default_rng(71).spawn(3)
    truth = draw(wiring, truth_rng, **options)
    found = WiredLayer(truth.wiring, displacements=16).run(Local(truth), rng=rng)
    assert found.verdict is Verdict.EXACT
    assert (found.model.heads, found.model.groups, found.model.rank) == (4, 2, truth.rank)
    assert measure_error(truth, found.model, fresh) <= 1e-9


def test_large_key_biases_are_borne():
    """Biases of 1.8, six times as large as is usual here."""
    truth_rng, rng, fresh = np.random.default_rng(72).spawn(3)
    truth = draw(ROPE, truth_rng, biases=True)
    truth = replace(truth, bq=6 * truth.bq, bk=6 * truth.bk, bv=6 * truth.bv)
    found = WiredLayer(truth.wiring).run(Local(truth), rng=rng)
    assert found.verdict is Verdict.EXACT
    assert measure_error(truth, found.model, fresh) <= 1e-9


@pytest.mark.parametrize("groups", [2, 4])
def test_layers_with_sinks_come_back(groups):
    for seed in few(4):
        truth_rng, rng, fresh = np.random.default_rng(8100 + seed).spawn(3)
        truth = draw(replace(ROPE, sinks=True), truth_rng, groups=groups)
        found = WiredLayer(truth.wiring).run(Local(truth), rng=rng)
        assert found.verdict is Verdict.EXACT
        assert measure_error(truth, found.model, fresh) <= 1e-9
        np.testing.assert_allclose(np.sort(found.model.sinks), np.sort(truth.sinks), atol=1e-7)
        asked = found.ledger.total(without="verify").sequences
        assert asked * truth.outputs <= 5.5 * found.degrees_of_freedom


def test_heads_of_equal_sinks_are_told_apart():
    """As in a softmax with one added to its sum, where every sink is 0."""
    exact = 0
    for seed in range(4):
        truth_rng, rng, fresh = np.random.default_rng(8200 + seed).spawn(3)
        truth = draw(replace(ROPE, sinks=True), truth_rng)
        truth = replace(truth, sinks=np.zeros(truth.heads))
        found = WiredLayer(truth.wiring).run(Local(truth), rng=rng)
        assert found.verdict in (Verdict.EXACT, Verdict.UNVERIFIED)
        exact += found.verdict is Verdict.EXACT
        if found.verdict is Verdict.EXACT:
            assert measure_error(truth, found.model, fresh) <= 1e-9
            np.testing.assert_allclose(found.model.sinks, 0.0, atol=1e-7)
    assert exact >= 2


def test_sinks_in_short_sequences_are_refused_with_the_cause():
    truth = draw(replace(ROPE, sinks=True), 82)
    oracle = Sized(Local(truth), (1, 64))
    found = WiredLayer(truth.wiring).run(oracle, rng=np.random.default_rng(83))
    assert (found.verdict, found.status) == (Verdict.UNVERIFIED, Status.UNSEPARATED)
    assert "Sinks are told from sequences of 256 tokens" in found.detail
    assert found.ledger.total().sequences == 0


def test_no_question_is_longer_than_allowed():
    truth = draw(ROPE, 84)
    found = WiredLayer(truth.wiring).run(
        Sized(Local(truth), (1, 64)), rng=np.random.default_rng(85)
    )
    assert found.verdict is Verdict.EXACT


def test_answers_in_float32_are_borne():
    for seed in few(4):
        truth_rng, rng, fresh = np.random.default_rng(8000 + seed).spawn(3)
        truth = draw(ROPE, truth_rng)
        found = WiredLayer(truth.wiring).run(Cast(Local(truth), "f32"), rng=rng)
        assert found.verdict is Verdict.WITHIN_TOLERANCE
        assert (found.model.heads, found.model.groups) == (4, 2)
        assert measure_error(truth, found.model, fresh) <= 1e-5


def test_groups_are_found_where_nothing_is_told():
    truth = draw(ROPE, 73, biases=True)
    found = keyhole.learn(truth, rng=74)
    assert found.verdict is Verdict.EXACT
    assert (found.model.heads, found.model.groups) == (4, 2)
    assert "4 heads of size 4, 2 of whose keys" in found.reason


def test_heads_with_values_of_their_own_and_room_to_spare_come_back():
    """Outputs that no head answers leave tokens without a value, too."""
    truth = random_layer(16, heads=3, rank=4, wiring=ROPE, rng=75)
    found = WiredLayer(ROPE).run(Local(truth), rng=np.random.default_rng(76))
    assert found.verdict is Verdict.EXACT
    assert (found.model.heads, found.model.groups, found.model.rank) == (3, 3, 4)


def test_rows_of_one_head_annul_all_others(rng):
    truth = draw(ROPE, rng)
    asking = Asking(Local(truth), NormBall.of(16, "rms", 1e-5), residual=True)
    linear = measure_linear_part(asking, size=0.8, rng=rng)
    split = split_by_kernel(asking, linear, longest=None, rng=rng)
    seen = np.einsum("hrp,op,kos->hkrs", split.V, split.shown, truth.Wo)
    sizes = np.sort(np.linalg.norm(seen, axis=(2, 3)), axis=1)
    assert sizes[:, -2].max() <= 1e-9 * sizes[:, -1].min()


def test_more_heads_of_a_group_than_a_head_is_large_are_refused_in_few_queries():
    truth = draw(ROPE, 77, heads=8, groups=1)  # of size 2
    found = WiredLayer(truth.wiring).run(Local(truth), rng=np.random.default_rng(78))
    assert (found.verdict, found.status) == (Verdict.UNVERIFIED, Status.UNSEPARATED)
    assert "Some tokens have no value" in found.detail
    assert found.ledger.total().sequences <= 300


def test_another_function_behind_shared_values_is_not_called_exact():
    layer = draw(ROPE, 79)
    wiring = replace(layer.wiring, residual=False)

    def bent(X):
        return answer_in_torch(replace(layer, wiring=wiring), X) ** 3

    # Of sequences that may be longer the learner of wide heads asks thousands of tokens.
    short = Sized(Local(bent, size=16), (1, 200))
    found = keyhole.learn(short, wiring=wiring, rng=80)
    assert found.verdict is Verdict.UNVERIFIED


def test_what_grouped_heads_determine_is_counted(rng):
    """The rank of the derivative of many answers by all parts, which no formula enters."""
    wiring = Wiring(norm="rms", eps=1e-2, positions="rope", rotary_share=0.5, groups=2)
    layer = random_layer(6, heads=4, rank=4, wiring=wiring, biases=True, rng=rng)
    layer = replace(layer, gain=None, bv=None)
    names = ("Wq", "Wk", "Wv", "Wo", "bq", "bk", "bo")
    X = [rng.normal(size=(40, length, 6)) for length in (1, 2, 5)]
    J = np.concatenate([differentiate(layer, name, X) for name in names], axis=1)
    values = np.linalg.svd(J / np.linalg.norm(J, axis=0).clip(1e-2), compute_uv=False)
    counted = layer_freedom(wiring, 6, heads=4, rank=4, outputs=6, biased=True)
    assert (values > 1e-7).sum() == counted


def test_a_decomposition_that_finds_no_end_is_made_of_the_transpose(monkeypatch, rng):
    matrix = rng.normal(size=(7, 2)) @ rng.normal(size=(2, 5))
    decompose = np.linalg.svd

    def give_up_on_long_ones(A, **options):
        if len(A) > A.shape[1]:
            raise np.linalg.LinAlgError("SVD did not converge")
        return decompose(A, **options)

    monkeypatch.setattr(np.linalg, "svd", give_up_on_long_ones)
    rows = find_row_space(matrix, 1e-9)
    np.testing.assert_allclose(rows @ rows.T, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(matrix @ rows.T @ rows, matrix, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2])
def test_large_biases_of_queries_and_keys_are_borne(groups):
    """Weights of equal tokens then differ by up to e to the tenth from place to place."""
    wiring, lost = replace(ROPE, groups=groups), 0
    for seed in range(12):
        drawing, rng = np.random.default_rng([seed, 80]).spawn(2)
        layer = draw(wiring, drawing, groups=groups, biases=True)
        truth = replace(layer, **{name: 6.0 * getattr(layer, name) for name in ("bq", "bk", "bv")})
        found = WiredLayer(wiring).run(Local(truth), rng=rng)
        lost += found.verdict is not Verdict.EXACT
    assert lost <= 1
