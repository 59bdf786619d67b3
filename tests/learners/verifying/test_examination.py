"""The examination: which questions are asked, what explains a gap, and what it detects."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from hunt.deviations import DEVIATIONS, answer_changed, make_base
from keyhole import Verdict, learn, verify
from keyhole.errors import TargetFailed
from keyhole.learners.base import Examined
from keyhole.learners.one_layer.antisymmetric import Antisymmetric
from keyhole.learners.verifying.examination import Ruler, examine_model
from keyhole.learners.verifying.question_kinds import AGAIN, KINDS, PERMUTED
from keyhole.learners.verifying.questions import QUERIES, Limits, draw_questions, read_limits
from keyhole.learners.verifying.swelling import is_swollen
from keyhole.models import Head, MultiHead, OneLayer, ReluNet
from keyhole.oracles import Counted, Examining, Local, Sized

MODELS = {
    "head": partial(Head.random, 5, biases=True),
    "heads": partial(MultiHead.random, 4, heads=3),
    "one layer": partial(OneLayer.random, 4, hidden=6),
    "network": partial(ReluNet.random, 4, hidden=6),
}


@pytest.mark.parametrize("kind", MODELS)
def test_eight_calls_ask_every_kind_at_eight_lengths(kind, rng):
    batches = list(draw_questions(MODELS[kind](rng=rng), rng=rng))
    lengths = [batch.length for batch in batches]
    assert sum(len(batch.X) for batch in batches) == QUERIES == 160
    assert lengths[:2] == [1, 2]
    assert lengths[-1] == 300
    assert all(low <= n <= high for n, (low, high) in zip(lengths[2:7], STRATA, strict=True))
    asked = {name for batch in batches for name in batch.kinds}
    unasked = {"levels"} if kind == "network" else set()
    assert asked == {*KINDS, PERMUTED, AGAIN} - unasked


STRATA = ((3, 6), (7, 14), (17, 31), (41, 64), (80, 160))


def test_the_last_question_of_a_call_is_its_first_again(rng):
    for batch in draw_questions(Head.random(3, rng=rng), rng=rng):
        np.testing.assert_array_equal(batch.X[-1], batch.X[0])


def test_questions_are_of_the_kind_they_are_called(rng):
    head = Head.random(4, rng=rng)
    for batch in draw_questions(head, rng=rng):
        for before, X, kind in zip(batch.X, batch.X[1:], batch.kinds[1:], strict=False):
            earlier, last = X[:-1], X[-1]
            if kind == "zeros":
                assert (earlier == 0).all(axis=1).any()
            if kind == "last zero":
                assert (last == 0).all()
            if kind == "all equal":
                assert (last == earlier).all()
            if kind == "last repeated":
                assert (earlier == last).all(axis=1).any()
            if kind == "neighbours":
                assert (X[1:] == X[:-1]).all(axis=1).any()
            if kind == "one-hot":
                assert ((X != 0).sum(axis=1) == 1).all()
            if kind == PERMUTED:
                assert sorted(map(tuple, X)) == sorted(map(tuple, before))


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_scores_have_the_spread_that_is_wanted_whatever_the_size_of_w(size, rng):
    head = Head.random(6, scale=size, rng=rng)
    seen = []
    for batch in draw_questions(head, rng=rng):
        for X, kind in zip(batch.X, batch.kinds, strict=True):
            if kind == "gauss" and batch.length > 1:
                apart = head.scores(X[None])[0, :-1] - head.scores(X[None])[0, -1]
                seen.append(np.sqrt(np.mean(apart**2)))
    nearest = [min(abs(np.log(s / t)) for t in (0.3, 1, 3, 10, 30)) for s in seen]
    assert max(nearest) <= 1e-6
    assert min(seen) == pytest.approx(0.3)
    assert max(seen) == pytest.approx(30.0)


def test_levels_raise_all_scores_of_earlier_tokens(rng):
    head = Head.random(6, rng=rng)
    found = []
    for batch in draw_questions(head, rng=rng):
        for X, kind in zip(batch.X, batch.kinds, strict=True):
            if kind == "levels":
                found.append(np.median(head.scores(X[None])[0, :-1]))
    assert max(found) > 70
    assert min(found) < -70


def test_a_declared_longest_shrinks_all_lengths(rng):
    limits = Limits(lengths=(1, 32))
    lengths = [batch.length for batch in draw_questions(Head.random(3, rng=rng), limits, rng=rng)]
    assert lengths[0] == 1
    assert lengths[-1] == 32
    assert len(set(lengths)) == len(lengths) >= 6


def test_only_tokens_of_a_vocabulary_are_asked_and_what_that_leaves_out_is_listed(rng):
    head = Head.random(3, rng=rng)
    tokens = rng.normal(size=(7, 3))
    limits = Limits(tokens=tokens)
    seen = examine_model(Local(head), head, ruler=Ruler(), rng=rng, limits=limits)
    for batch in draw_questions(head, limits, rng=rng):
        assert all((tokens == x).all(axis=1).any() for x in batch.X.reshape(-1, 3))
    assert set(seen.examined.not_asked) >= {"zeros", "one-hot", "levels", "far"}


def test_no_token_is_longer_than_a_declared_bound(rng):
    for batch in draw_questions(Head.random(4, rng=rng), Limits(bound=0.7), rng=rng):
        assert np.linalg.norm(batch.X, axis=2).max() <= 0.7 * (1 + 1e-12)


def test_an_oracle_says_how_many_questions_and_which_lengths(rng):
    head = Head.random(3, rng=rng)
    limits = read_limits(Counted(Examining(Sized(Local(head), (1, 20)), 80)))
    assert (limits.size, limits.lengths) == (80, (1, 20))
    asked = Counted(Examining(Local(head), 40))
    examine_model(asked, head, ruler=Ruler(), rng=rng)
    assert 36 <= asked.ledger.total().sequences <= 44


def test_a_target_that_refuses_long_sequences_is_asked_shorter_ones(rng):
    head = Head.random(3, rng=rng)

    def refuse_long(X):
        if X.shape[1] > 50:
            raise ValueError("too long")
        return head(X)

    seen = examine_model(Local(refuse_long, 3), head, ruler=Ruler(), rng=rng)
    assert seen.passed
    assert seen.complete
    assert 20 < seen.examined.longest <= 50
    assert f"up to {seen.examined.longest} tokens long" in seen.examined.sentence


def test_a_target_that_refuses_far_tokens_is_asked_the_others(rng):
    head = Head.random(3, rng=rng)

    def refuse_far(X):
        if np.abs(X).max() > 30:
            raise ValueError("too far")
        return head(X)

    seen = examine_model(Local(refuse_far, 3), head, ruler=Ruler(), rng=rng)
    assert seen.passed
    assert "far" in seen.examined.not_asked


def test_a_target_that_refuses_pairs_is_not_examined(rng):
    def refuse(X):
        raise ValueError("no")

    with pytest.raises(TargetFailed):
        examine_model(Local(refuse, 3), Head.random(3, rng=rng), ruler=Ruler(), rng=rng)


def test_a_target_that_changes_its_answers_is_seen(rng):
    head = Head.random(3, rng=rng)
    noise = np.random.default_rng(0)

    def scatter(X):
        return head(X) * (1 + 1e-5 * noise.normal(size=(len(X), 1)))

    assert examine_model(Local(scatter, 3), head, ruler=Ruler(), rng=rng).changed > 0


def test_copies_and_repeats_are_not_counted_as_independent(rng):
    head = Head.random(3, rng=rng)
    seen = examine_model(Local(head), head, ruler=Ruler(), rng=rng).examined
    counts = {kind.name: kind.count for kind in seen.kinds}
    assert seen.sequences == sum(counts.values()) == QUERIES
    assert seen.independent == QUERIES - counts[PERMUTED] - counts[AGAIN]
    assert seen.wrong_share == pytest.approx(3 / seen.independent)


def test_the_sentence_says_of_what_and_how_surely():
    seen = Examined(kinds=(), sequences=160, independent=140, longest=300, not_asked=())
    assert "all 160 fresh sequences" in seen.sentence
    assert "140 of them independent" in seen.sentence
    assert "up to 300 tokens long" in seen.sentence
    assert "less than 2.2 % of such sequences" in seen.sentence


BASES = ("head", "three heads", "one layer", "network")


def test_what_deviates_from_a_model_in_hand_is_not_called_exact():
    """One target of each deviation, the models in turn; the hunt has more, and learns them."""
    missed = []
    for i, (name, change) in enumerate(DEVIATIONS.items()):
        rng = np.random.default_rng([31, i])
        model = make_base(BASES[i % (3 if change.attends else 4)], rng)
        with np.errstate(all="ignore"):
            target = Local(partial(answer_changed, model, change), model.width)
            if verify(target, model, rng=rng).verdict is Verdict.EXACT:
                missed.append(name)
    assert all(DEVIATIONS[name].misses for name in missed), missed
    assert len(missed) <= 1


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_is_exact_beside_itself_whatever_its_size(kind):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        model = MODELS[kind](scale=10.0 ** rng.uniform(-6, 6), rng=rng)
        assert verify(model, model, rng=rng).verdict is Verdict.EXACT


def test_answers_that_are_rounding_are_no_typical_size(rng):
    model = ReluNet.random(3, hidden=4, rng=rng)
    alive = 1.0 + rng.random((40, 1))
    dead = np.where(rng.random((60, 1)) < 0.5, 0.0, 1e-16)
    usual = Ruler().fit_to(model, [alive])
    assert Ruler().fit_to(model, [alive, dead]).left == usual.left > 0.0
    assert Ruler().fit_to(model, [alive, np.full((3, 1), np.inf)]).left == usual.left
    assert Ruler().fit_to(model, [0.0 * dead]).left == 0.0
    # Nor is the answer to one question far out, beside which all others would be nothing.
    assert Ruler().fit_to(model, [alive, np.full((3, 1), 1e16)]).left <= 2.0 * usual.left


def test_models_without_biases_are_exact_though_many_of_their_answers_are_zero():
    for seed in range(6, 12):
        rng = np.random.default_rng(seed)
        net = ReluNet(rng.normal(size=(4, 3)), np.zeros(4), rng.normal(size=(1, 4)), np.zeros(1))
        target = OneLayer(Head.random(3, outputs=3, rng=rng), net)
        assert learn(target, rng=rng, learner=Antisymmetric()).verdict is Verdict.EXACT


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_other_scores_are_seen_whatever_the_bias(size, rng):
    for _ in range(6):
        head = Head.random(5, rng=rng)
        biased = Head(head.W, head.V, h=size * rng.normal(size=5))
        other = Head(biased.W + 1e-6 * np.abs(biased.W).max(), biased.V, h=biased.h)
        assert not examine_model(Local(biased), other, ruler=Ruler(), rng=rng).passed
        assert all(np.abs(batch.X).max() < 1e9 for batch in draw_questions(other, rng=rng))


def test_a_constant_does_not_hide_that_any_answer_would_be_explained(rng):
    """One entry of 1e14 leaves all others unresolved: a model of other weights agrees with every
    answer, by gaps that are small beside the constant and as large as answers vary.
    """
    truth = ReluNet.random(4, hidden=8, outputs=3, rng=rng)
    truth = replace(truth, b2=truth.b2 + 6e4)
    other = ReluNet(
        np.vstack([truth.W1, 1e14 * np.ones((1, 4))]),
        np.append(truth.b1, 1e14),
        np.hstack([truth.W2 * rng.normal(1.0, 0.1, truth.W2.shape), 1e-15 * np.ones((3, 1))]),
        truth.b2,
    )
    seen = examine_model(Local(truth), other, ruler=Ruler(), rng=rng)
    assert seen.passed
    assert seen.unresolved
    assert seen.vacuous
    assert is_swollen(other, 1.0, seen)
    right = examine_model(Local(truth), truth, ruler=Ruler(), rng=rng)
    assert right.passed
    assert not right.vacuous
