"""One-layer language models of attention alone: the function, from token ids."""

import numpy as np
import pytest

import keyhole
from keyhole import Budgeted, InvalidInput, TokenIds, Verdict
from keyhole.learners.tokens.decoding import count_read_at_once
from keyhole.learners.tokens.learner import TokenLayer
from keyhole.learners.tokens.ratios import COPIES, fit_pair
from keyhole.models.layers.token_heads import TokenHeads
from support.language_models import LanguageModel

V, D = 10, 8


def draw(heads, seed, *, size=D):
    """Scores and values between ids, from Gaussian embeddings and weights."""
    rng = np.random.default_rng([seed, heads])
    E, U = rng.normal(size=(V, size)), rng.normal(size=(size, V)) / np.sqrt(size)
    W, A = rng.normal(size=(2, heads, size, size)) / np.sqrt(size)
    return E @ W @ E.T / np.sqrt(size), E @ A @ U


def answer(scores, values):
    """The layer written as a loop over prompts and heads."""

    def f(ids):
        rows = []
        for prompt in ids:
            row = np.zeros(V)
            for S, A in zip(scores, values, strict=True):
                weights = np.exp(S[prompt, prompt[-1]])
                row += weights @ A[prompt] / weights.sum()
            rows.append(row)
        return np.array(rows)

    return f


def learn(target, *, seed=0, learner=None, **options):
    learner = TokenLayer() if learner is None else learner
    return keyhole.learn(TokenIds(target, V), rng=seed, learner=learner, **options)


def test_a_layer_between_ids_answers_as_written_by_hand():
    scores, values = draw(2, 0)
    ids = np.random.default_rng(0).integers(V, size=(20, 5))
    said = TokenHeads(values, scores)(keyhole.pack_ids(ids))
    np.testing.assert_allclose(said, answer(scores, values)(ids), atol=1e-12)


@pytest.mark.parametrize("heads", [1, 2])
def test_one_and_two_heads_are_recovered_as_functions(heads):
    exact = 0
    for seed in range(3):
        target = answer(*draw(heads, seed))
        found = learn(target, seed=seed)
        ids = np.random.default_rng(seed).integers(V, size=(100, 7))
        gap = np.abs(found.model(keyhole.pack_ids(ids)) - target(ids)).max()
        assert gap <= 1e-8
        assert found.model.heads == heads
        exact += found.verdict is Verdict.EXACT
    assert exact >= 2


def test_more_heads_are_never_verified_falsely():
    for heads, seed in ((3, 0), (4, 0)):
        target = answer(*draw(heads, seed))
        found = learn(target, seed=seed)
        if found.verdict.verified:
            ids = np.random.default_rng(seed).integers(V, size=(100, 7))
            assert np.abs(found.model(keyhole.pack_ids(ids)) - target(ids)).max() <= 1e-7


def test_what_is_not_such_a_layer_is_not_verified():
    table = np.random.default_rng(0).normal(size=(V, V))
    scores, values = draw(1, 0)
    layer = answer(scores, values)
    others = {
        "a norm and a network": LanguageModel(V, D, norm="rms"),
        "the last but one": lambda ids: layer(ids) + table[ids[:, -min(2, ids.shape[1])]],
    }
    for name, target in others.items():
        found = learn(target, learner=TokenLayer(2))
        assert not found.verdict.verified, name
        assert found.verdict is not Verdict.CLASS_REFUTED


@pytest.mark.parametrize("heads", [1, 2])
def test_what_goes_past_the_heads_is_recovered_with_them(heads):
    scores, values = draw(heads, 1)
    table, constant = np.random.default_rng(1).normal(size=(V, V)), np.arange(V) / V
    layer = answer(scores, values)

    def target(ids):
        return layer(ids) + table[ids[:, -1]] + constant

    found = learn(target)
    ids = np.random.default_rng(2).integers(V, size=(100, 7))
    assert found.verdict is Verdict.EXACT
    assert found.model.direct is not None
    assert np.abs(found.model(keyhole.pack_ids(ids)) - target(ids)).max() <= 1e-8
    # Values and direct part share one vector more than values alone share among themselves.
    plain = learn(layer)
    assert plain.model.direct is None
    assert found.degrees_of_freedom - plain.degrees_of_freedom == V * (V - 1)


@pytest.mark.parametrize("heads", [1, 2])
def test_two_ids_of_the_same_values_are_no_verified_model(heads):
    """What one of them weighs where the other comes last shows in no prompt of these two alone."""
    for seed in range(3):
        scores, values = draw(heads, seed)
        values[0, 1] = values[0, 2]
        assert not learn(answer(scores, values), learner=TokenLayer(heads)).verdict.verified
    # Where all ids have the same values, no weight moves an answer.
    table = np.random.default_rng(0).normal(size=(V, V))
    found = learn(lambda ids: table[ids[:, -1]])
    assert found.verdict is Verdict.EXACT


def test_a_budget_is_kept_and_ends_the_run():
    oracle = Budgeted(TokenIds(answer(*draw(1, 0)), V), 40)
    found = TokenLayer().run(oracle, rng=np.random.default_rng(0))
    assert found.verdict is Verdict.BUDGET_SPENT
    assert oracle.spent == 40
    plan = TokenLayer().plan(1, outputs=V)
    done = learn(answer(*draw(2, 0)))
    assert done.ledger.total().sequences <= plan.at_most


def test_the_odds_and_values_of_two_ids_are_read_from_how_often_they_come():
    odds, changes = np.array([0.3, 2.0]), np.random.default_rng(0).normal(size=(2, V))
    ratios = [a / b for a, b in COPIES]
    G = np.array([(u * odds / (1 + u * odds)) @ changes for u in ratios])
    pair = fit_pair(G, 2)
    order = np.argsort(pair.odds)
    np.testing.assert_allclose(pair.odds[order], odds, rtol=1e-9)
    np.testing.assert_allclose(pair.changes[order], changes, atol=1e-9)
    assert fit_pair(G, 1).residual > 1e-3


def test_as_many_ids_are_read_at_once_as_values_tell_apart():
    _, values = draw(2, 0, size=5)
    assert count_read_at_once(values - values[:, :1]) == int(0.6 * 5 / 2)


def test_misuse_is_told(tmp_path):
    from safetensors.numpy import save_file

    held = {"values": np.zeros((2, 4, 4)), "scores": np.zeros((1, 4, 4))}
    words = {"kind": "tokens", "format": "1", "vocabulary": "4"}
    save_file(held, tmp_path / "a.safetensors", words)
    with pytest.raises(InvalidInput, match=r"a.safetensors"):
        keyhole.load(tmp_path / "a.safetensors")
    with pytest.raises(InvalidInput, match="1 to 4 heads are learned from ids; got 5"):
        TokenLayer(5)
    with pytest.raises(InvalidInput, match=r"Wrap it in keyhole.TokenIds"):
        TokenLayer().run(keyhole.Local(lambda X: X[:, 0], 3), rng=np.random.default_rng(0))


def test_a_file_of_kind_tokens_holds_values_scores_and_the_vocabulary(tmp_path):
    from safetensors import safe_open

    scores, values = draw(2, 0)
    keyhole.save(TokenHeads(values, scores), tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", "numpy") as held:
        assert held.metadata()["kind"] == "tokens"
        assert held.metadata()["vocabulary"] == str(V)
        np.testing.assert_array_equal(held.get_tensor("values"), values)
        np.testing.assert_array_equal(held.get_tensor("scores"), scores)
    again = keyhole.load(tmp_path / "a.safetensors")
    assert again.direct is None
    beside = TokenHeads(values, scores, scores[0])
    keyhole.save(beside, tmp_path / "b.safetensors")
    np.testing.assert_array_equal(keyhole.load(tmp_path / "b.safetensors").direct, scores[0])
    with pytest.raises(InvalidInput, match="direct is vocabulary x vocabulary"):
        TokenHeads(values, scores, scores)
    np.testing.assert_array_equal(again.scores, scores)
