"""keyhole/third-order-recovery: one unit of third order, recovered from its last row or refused."""

import numpy as np
import pytest

import keyhole
from keyhole import (
    Budgeted,
    Cast,
    Local,
    Outcome,
    TensorAttention,
    TensorHeads,
    TensorRow,
    ThirdOrder,
    Verdict,
    load,
    save,
)
from keyhole.errors import OracleError
from keyhole.learners.base import Status
from keyhole.learners.confronting import confront
from keyhole.learners.recognising.recognition import recognise
from keyhole.learners.third_order.unit_fit import refine_unit
from keyhole.learners.verifying.rules import replay_witness
from keyhole.oracles import Examining
from support.seeds import few

pytestmark = pytest.mark.theorem("keyhole/third-order-recovery")

# Questions for T by width and products, as counted in the derivation (spec 4b, section A).
COUNTS = {(6, 1): 21, (6, 4): 66, (8, 2): 62, (12, 3): 121}


def dense_answers(Q, K1, K2, V1, V2, X):
    """The formula with explicit loops over pairs, for one sequence."""
    y = X[-1]
    top, total = 0.0, 0.0
    for a in X:
        for b in X:
            weight = np.exp(np.sum((y @ Q) * (a @ K1) * (b @ K2)))
            top, total = top + weight * (a @ V1) * (b @ V2), total + weight
    return top / total


def make_full_unit(width, rng, outputs=1, symmetric=False):
    """A unit whose T is no sum of few products."""
    T = rng.normal(size=(width, width, width)) / width
    T = (T + T.transpose(0, 2, 1)) / 2 if symmetric else T
    eye = np.eye(width)
    K = np.repeat(eye, width, axis=1), np.tile(eye, width)
    return TensorAttention(T.reshape(width, -1), K, tuple(rng.normal(size=(2, width, outputs))))


def measure_scores_gap(truth, model):
    """The largest difference of T, both places exchanged where that is nearer."""
    T, S = (np.einsum("ye,ae,be->yab", one.Q, *one.K) for one in (truth, model.unit))
    return min(np.abs(T - S).max(), np.abs(T - S.transpose(0, 2, 1)).max()) / np.abs(T).max()


def make_match3_unit(modulus, length):
    """The weights of the paper's construction for Match3, written out."""
    g = 2 * np.sin(np.pi / modulus) ** 2
    c = 2 / g * np.log(8 * length**2)
    Q = c * np.array([[1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1 - g / 2], [0, 0, 0, 0, 0]])
    K1 = np.array([[1, 0, 0, -1, 0], [0, -1, -1, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1.0]])
    K2 = np.array([[1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1.0]])
    V = np.array([[0], [0], [1.0], [0]])
    return TensorAttention(Q, (K1, K2), (V, V))


def ask_little(row):
    """The oracle of a row with an examination of few questions, which long ones make slow."""
    return Examining(Local(row), 24)


def recover(unit, seed, wrap=ask_little):
    return ThirdOrder().run(wrap(TensorRow(unit)), rng=np.random.default_rng([seed, 8]))


def test_the_last_row_is_the_average_over_all_pairs(rng):
    unit = TensorAttention.random(4, embed=3, outputs=2, rng=rng)
    X = rng.normal(size=(3, 5, 4))
    expected = [dense_answers(unit.Q, *unit.K, *unit.V, one) for one in X]
    np.testing.assert_allclose(TensorRow(unit)(X), expected, rtol=1e-12)


@pytest.mark.parametrize(("width", "rank"), COUNTS)
def test_sums_of_few_products_come_back_exactly_with_the_counted_questions(width, rank):
    asked: list[int] = []
    for seed in few(8):
        rng = np.random.default_rng([seed, width, rank])
        unit = TensorAttention.random(width, embed=rank, rng=rng)
        found = recover(unit, seed)
        assert found.verdict is Verdict.EXACT, (seed, found.sentence)
        assert found.rank == rank
        assert measure_scores_gap(unit, found.model) <= 1e-8
        asked.append(found.ledger["scores"].sequences)
    assert confront(TensorRow(unit), found, rng=rng).outcome is not Outcome.REFUTED
    # Some bases do not do, and are asked in part before the next one.
    assert min(asked) == COUNTS[width, rank]


@pytest.mark.parametrize("width", [2, 5])
def test_all_of_T_takes_as_many_questions_as_it_has_entries(width):
    for seed in few(8):
        unit = make_full_unit(width, np.random.default_rng([seed, width, 1]))
        found = recover(unit, seed)
        assert found.verdict is Verdict.EXACT, (seed, found.sentence)
        assert measure_scores_gap(unit, found.model) <= 1e-8
        assert found.ledger["scores"].sequences >= width**3
        if found.certificate.outcome is Outcome.HOLDS:
            assert found.ledger["scores"].sequences == width**3


@pytest.mark.parametrize("outputs", [2, 4])
def test_several_outputs_need_fewer_questions_and_keep_their_places(outputs, rng):
    unit = make_full_unit(5, rng, outputs)
    found = recover(unit, 3)
    assert found.verdict is Verdict.EXACT, found.sentence
    distance = keyhole.compare(TensorRow(unit), found.model)
    assert distance.largest <= 1e-8
    assert found.ledger["scores"].sequences < 0.75 * 125


@pytest.mark.parametrize("symmetric", [True, False])
def test_one_value_vector_in_both_places_leaves_T_up_to_their_exchange(symmetric):
    for seed in few(8):
        rng = np.random.default_rng([seed, 17])
        unit = make_full_unit(4, rng, symmetric=symmetric)
        one = TensorAttention(unit.Q, unit.K, (unit.V[0], -0.7 * unit.V[0]))
        found = recover(one, seed)
        assert found.verdict is Verdict.EXACT, (seed, found.sentence)
        assert measure_scores_gap(one, found.model) <= 1e-8
        # The claim is about two value vectors that are not parallel.
        assert found.certificate.outcome is Outcome.SILENT


@pytest.mark.parametrize("modulus", [11, 50, 400])
def test_built_units_of_match3_are_recognised_and_come_back_exactly(modulus):
    unit = make_match3_unit(modulus, 20)
    found = keyhole.learn(ask_little(TensorRow(unit)), rng=2)
    assert found.verdict is Verdict.EXACT, found.sentence
    assert found.recognised.label == "third order"
    assert measure_scores_gap(unit, found.model) <= 1e-8


@pytest.mark.parametrize("rank", [2, None])
def test_answers_in_float32_are_met_within_what_their_rounding_explains(rank):
    for seed in few(8):
        rng = np.random.default_rng([seed, 23])
        unit = TensorAttention.random(6, embed=rank, rng=rng) if rank else make_full_unit(4, rng)
        found = keyhole.learn(Cast(ask_little(TensorRow(unit)), "f32"), rng=seed)
        assert found.verdict is Verdict.WITHIN_TOLERANCE, (seed, found.sentence)
        assert measure_scores_gap(unit, found.model) <= 1e-2


def test_auto_finds_the_class_and_says_what_is_determined(rng):
    unit = TensorAttention.random(5, embed=2, outputs=2, rng=rng)
    found = keyhole.learn(Local(TensorRow(unit)), rng=4)
    assert found.verdict is Verdict.EXACT, found.sentence
    assert found.degrees_of_freedom == 2 * 13 + 2 * 9
    assert "exchanging both places" in found.determined


def squash(row):
    def answer(X):
        return np.tanh(row(X))

    answer.width = row.width
    return answer


STRANGERS = {
    "order 2": lambda rng: keyhole.Head.random(5, rng=rng),
    "order 4": lambda rng: TensorRow(TensorAttention.random(5, order=4, embed=3, rng=rng)),
    "tanh": lambda rng: squash(TensorRow(TensorAttention.random(5, embed=3, rng=rng))),
    "two units": lambda rng: last_row(TensorHeads.random(5, heads=2, embed=3, rng=rng)),
}


def last_row(layer):
    def answer(X):
        return layer(X)[:, -1]

    answer.width = layer.width
    return answer


@pytest.mark.parametrize("name", STRANGERS)
def test_what_is_no_unit_of_third_order_is_refused_with_a_witness_that_replays(name):
    for seed in few(4):
        target = Local(STRANGERS[name](np.random.default_rng([seed, 9])))
        found = keyhole.learn(target, rng=seed, learner="third-order")
        assert found.verdict is Verdict.CLASS_REFUTED, (seed, found.sentence)
        assert replay_witness(target, found.counterexample).holds


def refuse(row, refused, how):
    """A row that does not answer sequences for which `refused` holds: it raises, or says NaN."""

    def answer(X):
        lost = refused(X)
        if how == "raises" and lost.any():
            raise ValueError("no such tokens")
        return np.where(lost[:, None], np.nan, row(X))

    answer.width = row.width
    return Local(answer)


def hold_zero_tokens(X):
    return (X == 0).all(axis=2).any(axis=1)


@pytest.mark.parametrize("how", ["raises", "NaN"])
def test_a_target_that_refuses_zero_tokens_is_told_so_in_a_sentence(how, rng):
    target = refuse(TensorRow.random(4, embed=2, rng=rng), hold_zero_tokens, how)
    found = keyhole.learn(target, rng=1, learner="third-order")
    assert (found.verdict, found.status) == (Verdict.UNVERIFIED, Status.NO_ZERO_TOKENS)
    assert "Let it answer them. " in found.sentence
    assert "A token beside its copy is answered; beside a zero token " in found.sentence
    assert found.model is None
    with pytest.raises(OracleError, match=r"recognised with zero tokens: let the target answer"):
        keyhole.learn(target, rng=1)


@pytest.mark.parametrize("how", ["raises", "NaN"])
def test_zero_tokens_are_not_blamed_where_every_pair_or_token_is_refused(how, rng):
    row = TensorRow.random(4, embed=2, rng=rng)
    for least in (1, 2):
        target = refuse(row, lambda X, n=least: np.full(len(X), X.shape[1] >= n), how)
        with pytest.raises(OracleError, match=r"when asked|must be finite"):
            ThirdOrder().run(target, rng=rng)
        with pytest.raises(OracleError) as told:
            keyhole.learn(target, rng=1)
        assert "zero tokens" not in str(told.value)


def test_no_unit_of_third_order_breaks_a_rule_of_its_class():
    for seed in few(16):
        rng = np.random.default_rng([seed, 5])
        scale = 10.0 ** rng.uniform(-2, 2)
        unit = TensorAttention.random(4, embed=4, outputs=1 + seed % 3, scale=scale, rng=rng)
        seen = recognise(Local(TensorRow(unit)), rng=rng)
        assert "tensor" not in seen.excluded, (seed, seen.findings)


def test_values_that_are_zero_leave_nothing_to_recover(rng):
    unit = TensorAttention.random(4, embed=2, rng=rng)
    dead = TensorAttention(unit.Q, unit.K, (unit.V[0], 0 * unit.V[1]))
    assert recover(dead, 1).verdict is Verdict.NOT_IDENTIFIABLE


def test_scores_of_any_size_are_found_at_a_length_of_their_own(rng):
    for scale in (1e-6, 1e6):
        unit = TensorAttention.random(5, embed=2, scale=scale, rng=rng)
        assert recover(unit, 6).verdict is Verdict.EXACT


def test_a_budget_is_kept_and_told(rng):
    unit = TensorAttention.random(5, embed=2, rng=rng)
    found = recover(unit, 1, lambda row: Budgeted(Local(row), 50))
    assert found.verdict is Verdict.BUDGET_SPENT
    assert found.ledger.total().sequences == 50


def test_a_plan_counts_what_a_run_asks_and_bounds_it(rng):
    unit = TensorAttention.random(8, embed=3, rng=rng)
    plan = ThirdOrder(3).plan(8)
    found = recover(unit, 2)
    assert plan.by_phase["scores"] == found.ledger["scores"].sequences == 77
    assert plan.degrees_of_freedom == 3 * 22 + 15
    assert found.ledger.total().sequences <= ThirdOrder().plan(8).at_most


def test_a_fit_goes_down_to_rounding_from_weights_that_are_nearly_right(rng):
    unit = TensorAttention.random(5, embed=2, rng=rng)
    X = rng.normal(size=(60, 4, 5))
    bent = TensorAttention(
        unit.Q + 1e-4 * rng.normal(size=unit.Q.shape),
        tuple(K + 1e-4 * rng.normal(size=K.shape) for K in unit.K),
        unit.V,
    )
    fitted = refine_unit(TensorRow(bent), X, TensorRow(unit)(X), keys=True)
    assert measure_scores_gap(unit, TensorRow(bent)) > 1e-5
    assert measure_scores_gap(unit, fitted) <= 1e-10


def test_files_of_the_row_keep_its_answers(tmp_path, rng):
    row = TensorRow(TensorAttention.random(4, embed=3, outputs=2, rng=rng))
    path = tmp_path / "row.safetensors"
    save(row, path)
    X = rng.normal(size=(2, 4, 4))
    assert type(load(path)) is TensorRow
    np.testing.assert_array_equal(load(path)(X), row(X))


def test_units_are_compared_modulo_exchange_and_how_T_splits(rng):
    unit = TensorAttention.random(4, embed=3, outputs=2, rng=rng)
    exchanged = TensorAttention(2 * unit.Q, (unit.K[1] / 2, unit.K[0]), unit.V[::-1])
    assert keyhole.compare(unit, TensorRow(exchanged).unit).largest <= 1e-12
    # Exchanged in the values of one output alone it is another unit.
    half = [np.column_stack([unit.V[i][:, 0], unit.V[1 - i][:, 1]]) for i in range(2)]
    other = TensorAttention(unit.Q, unit.K, tuple(half))
    assert keyhole.compare(unit, other).largest > 1e-3
    with pytest.raises(keyhole.InvalidInput, match="one width"):
        keyhole.compare(unit, TensorAttention.random(5, embed=3, outputs=2, rng=rng))
