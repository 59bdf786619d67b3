"""Recognition: what a few questions say of targets of our classes, and of others."""

import sys
from collections import Counter

import numpy as np
import pytest

from keyhole.errors import BadAnswer
from keyhole.learners.recognising.decisions import KINDS, LABELS, LEARNERS_BY_KIND
from keyhole.learners.recognising.formats import see_format
from keyhole.learners.recognising.recognition import recognise
from keyhole.learners.recognising.table import CLASSES, FINDINGS
from keyhole.learners.registry import LEARNERS
from keyhole.learners.verifying.rules import RULES, replay_witness
from keyhole.models import Head, MultiHead, OneLayer, ReluNet, Wiring
from keyhole.models.layers.random_layers import random_layer
from keyhole.oracles import (
    Bounded,
    Budgeted,
    Cast,
    Counted,
    Declared,
    Disturbed,
    Imperfection,
    Local,
    Noisy,
    Rounded,
    Signs,
)
from support.generated_targets import FOREIGN, OWN, opposite_heads

# Questions and calls: seven calls, three rescales of eight questions, a witness asked again.
MOST_QUESTIONS = 50 + 3 * 8 + 3
MOST_CALLS = 7 + 3 + 1


def look(target, *, width=None, seed=0, **options):
    oracle = target if hasattr(target, "ask") else Local(target, size=width)
    return recognise(oracle, rng=np.random.default_rng(seed), **options)


def draw(draw_target, seed):
    """A target of a kind and what is recognised of it."""
    rng = np.random.default_rng([20261116, seed])
    target, width = draw_target(rng)
    return target, width, recognise(Local(target, size=width), rng=rng)


def cost(seen):
    entry = seen.ledger["recognise"]
    assert list(seen.ledger.phases) == ["recognise"]
    return entry.sequences, entry.calls


def test_the_class_of_a_target_is_never_excluded_and_one_of_its_learners_is_suggested():
    mislabelled, missed = [], []
    for kind, (own, labels) in OWN.items():
        for seed in range(5):
            _, _, seen = draw(kind, seed)
            assert own not in seen.excluded, (kind, seed)
            questions, calls = cost(seen)
            assert 17 <= questions <= MOST_QUESTIONS
            assert calls <= MOST_CALLS
            mislabelled += [] if seen.label in labels else [(kind, seed, seen.label)]
            missed += [] if KIND_OF[own].intersection(seen.suggested) else [(kind, seed)]
    # What a label suggests may fail now and then; what excludes may not.
    assert len(mislabelled) <= 0.05 * 5 * len(OWN), mislabelled
    assert len(missed) <= 0.02 * 5 * len(OWN), missed


def test_rounding_of_heads_that_cancel_excludes_nothing():
    # Their answers are up to 1e-9 of what cancels, so that gaps of rounding look large beside them.
    seen = [draw(opposite_heads, seed)[2] for seed in range(10, 22)]
    assert [one.excluded["multihead"].rule for one in seen if "multihead" in one.excluded] == []


KIND_OF = {
    "head": {"low-rank", "balanced"},
    "multihead": {"several-heads", "low-rank"},
    "relu": {"network", "low-rank"},
    "smooth": {"smooth-network"},
    "onelayer": {"one-layer", "smooth-layer", "several-heads-layer", "network"},
}


def test_a_target_of_no_class_of_ours_is_called_what_it_is():
    for name, (kind, labels) in FOREIGN.items():
        told = Counter(draw(kind, seed)[2].label for seed in range(4))
        assert sum(told[label] for label in labels) >= 3, (name, told)


@pytest.mark.parametrize("name", ["alibi", "repeats once", "softmax plus one", "capped scores"])
def test_a_witness_against_a_class_is_replayed(name):
    target, width, seen = draw(FOREIGN[name][0], 1)
    assert {"head", "multihead", "layer"} <= seen.excluded.keys()
    of_heads = {own: one for own, one in seen.excluded.items() if own != "tensor"}
    for witness in of_heads.values():
        assert replay_witness(Local(target, size=width), witness).holds
        head = Head.random(width, outputs=len(witness.answers[0]), rng=np.random.default_rng(3))
        assert witness.rule == "earlier tokens" or not replay_witness(Local(head), witness).holds


PLAIN = Head.random(5, rng=np.random.default_rng(1))
RICH = Head(PLAIN.W, PLAIN.V, h=np.arange(5.0), c=np.array([2.0]), U=np.ones((5, 1)))
TWO = MultiHead.random(5, heads=2, rng=np.random.default_rng(2))
NETWORK = ReluNet.random(5, hidden=6, rng=np.random.default_rng(3))
LAYER = OneLayer.random(5, hidden=20, rng=np.random.default_rng(4))


def test_costs_are_those_that_are_stated():
    assert cost(look(PLAIN)) == (39, 6)
    assert cost(look(NETWORK)) == (39, 5)
    assert cost(look(LAYER)) == (50, 7)
    assert cost(look(lambda X: X[:, -1, :1], width=3)) == (23, 4)
    questions, calls = cost(look(TWO))
    assert questions <= 39 + 3
    assert calls == 7


def test_parts_of_a_head_are_seen():
    plain, rich = look(PLAIN), look(RICH)
    assert (plain.label, rich.label) == ("one head", "one head")
    assert (plain.residual, plain.bias) == (False, False)
    assert (rich.residual, rich.bias) == (True, True)
    np.testing.assert_array_equal(plain.constant, [0.0])
    np.testing.assert_array_equal(rich.constant, [2.0])


def test_small_scores_of_two_heads_are_seen_whichever_output_shows_them_best():
    """Where other outputs lose least to rounding at other scales, one alone tells the scores."""
    labels = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        heads = MultiHead(1e-4 * rng.normal(size=(2, 6, 6)), rng.normal(size=(2, 6, 8)))
        labels.append(look(heads, seed=seed).label)
    assert labels.count("several heads") >= 39


@pytest.mark.parametrize("positions", ["alibi", "table"])
def test_order_is_seen_whatever_the_size_of_scores(positions):
    """Far beyond the scale where scores act one token has all weight, and order changes nothing."""
    labels = []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        scale = 10 ** rng.uniform(-3, 3)
        wiring = Wiring(positions=positions)
        layer = random_layer(8, heads=2, wiring=wiring, scale=scale, rng=rng)
        labels.append(look(layer, seed=seed).label)
    assert labels.count("positions") >= 48


def test_every_question_is_kept_with_its_answer():
    seen = look(TWO)
    assert len(seen.questions) == len(seen.answers) == cost(seen)[0]
    for name, question in seen.questions.items():
        np.testing.assert_allclose(seen.answers[name], TWO(question[None])[0], atol=1e-12)
    assert {"0", "x", "y", "[x;y]"} <= seen.answers.keys()


def test_a_recognition_can_be_repeated():
    one, two = look(TWO, seed=7), look(TWO, seed=7)
    assert (one.label, one.scale, one.suggested) == (two.label, two.scale, two.suggested)
    for name, question in one.questions.items():
        np.testing.assert_array_equal(question, two.questions[name])


def test_a_counted_oracle_is_counted_under_recognise():
    counted = Counted(Local(PLAIN))
    seen = recognise(counted, rng=np.random.default_rng(0))
    assert seen.ledger is counted.ledger
    assert counted.ledger.total().sequences == 39


def test_several_outputs_suggest_a_layer():
    wide = MultiHead.random(5, heads=2, outputs=6, rng=np.random.default_rng(2))
    assert look(wide).suggested == ("several-heads", "layer")
    assert look(TWO).suggested == ("several-heads",)


@pytest.mark.parametrize("name", ["f32", "bf16", "f16"])
def test_a_number_format_is_seen(name):
    class Hidden:
        """Casts without saying so; what overflows is not finite."""

        width, outputs = 5, 1

        def ask(self, X):
            return Cast(Local(PLAIN), name).ask(X)

    seen = look(Hidden())
    assert seen.format == name
    assert seen.label == "one head"
    assert "head" not in seen.excluded
    declared = look(Cast(Local(PLAIN), name))
    assert (declared.format, declared.label) == (name, "one head")
    assert "balanced" in declared.suggested


def test_answers_at_the_end_of_their_format_say_nothing():
    def saturate(X):
        return np.clip(PLAIN(X), -65504.0, 65504.0).astype(np.float16)

    seen = look(saturate, width=5)
    assert (seen.format, seen.label) == ("f16", "one head")
    assert "head" not in seen.excluded


def test_without_copies_heads_are_not_counted():
    assert look(PLAIN, lengths=(1, 3)).label == "heads"
    assert look(PLAIN, lengths=(1, 4)).label == "one head"


def test_decimals_and_labels_are_seen():
    assert look(lambda X: np.round(PLAIN(X), 3), width=5).format == "decimals 3"
    assert look(Rounded(Local(PLAIN), 3)).suggested[0] == "noisy"
    labels = look(Signs(Local(PLAIN)))
    assert (labels.label, labels.suggested, labels.excluded) == ("labels", ("labels",), {})
    assert cost(labels)[1] == 2


def test_formats_are_told_apart():
    numbers = np.random.default_rng(0).normal(size=50)
    assert see_format(numbers) == "f64"
    assert see_format(numbers.astype(np.float32).astype(float)) == "f32"
    assert see_format(numbers.astype(np.float16).astype(float)) == "f16"
    assert see_format(np.round(numbers, 4)) == "decimals 4"
    assert see_format(1e13 * numbers) == "f64"
    assert see_format(np.array([0.0, 1.0, 1.0])) == "labels"
    assert see_format(np.full(9, 2.5)) == "f64"


def test_a_declared_tolerance_is_not_taken_for_weights_on_one_token():
    seen = look(Disturbed(Local(PLAIN), 1e-3))
    assert seen.label not in ("saturated", "max-like")
    assert cost(seen) == (39, 6)
    two = look(Disturbed(Local(TWO), 1e-6))
    assert (two.label, two.suggested) == ("several heads", ("several-heads", "noisy"))
    assert "head" not in two.excluded


def test_declared_noise_excludes_no_class_of_the_target():
    for seed in range(5):
        oracle = Noisy(Local(PLAIN), 1e-3, seed=seed)
        seen = look(oracle, seed=seed)
        assert "head" not in seen.excluded
        assert seen.label != "non-deterministic"
        assert seen.suggested[0] == "noisy"
        unknown = Declared(oracle.inner, Imperfection(noise=float("nan")))
        assert look(unknown).label == "hidden"


@pytest.mark.parametrize("bound", [1e-2, 1.0, 50.0])
def test_a_declared_bound_on_tokens_is_kept(bound):
    for target, own in (
        (PLAIN, "head"),
        (TWO, "multihead"),
        (NETWORK, "relu"),
        (LAYER, "onelayer"),
    ):
        # The oracle refuses longer tokens.
        seen = look(Bounded(Local(target), bound))
        assert own not in seen.excluded
        assert "tokens beyond the declared bound" in seen.not_examined
    assert look(Bounded(Local(PLAIN), 5.0)).suggested[0] == "noisy"
    assert look(Bounded(Local(TWO), 5.0)).suggested == ("heads-in-ball",)
    assert cost(look(Bounded(Noisy(Local(PLAIN), 0.0), 1.0)))[0] <= 39


@pytest.mark.parametrize("longest", [1, 2, 3, 4, 7, 20, 64])
def test_declared_lengths_are_kept(longest):
    for target in (PLAIN, NETWORK, LAYER):

        def short(X, target=target):
            assert X.shape[1] <= longest
            return target(X)

        seen = look(short, width=5, lengths=(1, longest))
        assert seen.label == "not finished" or longest > 1
        assert any("four tokens" in words for words in seen.not_examined) == (longest < 4)


def test_where_lone_tokens_may_not_be_asked_nothing_is():
    seen = look(PLAIN, lengths=(2, 10))
    assert (seen.label, seen.suggested, seen.questions) == ("not finished", (), {})
    assert seen.not_examined[0].startswith("anything")


def test_a_target_that_is_undefined_far_out_loses_those_questions_alone():
    def delicate(X):
        return np.where(np.abs(X).max(axis=(1, 2)) > 30.0, np.nan, PLAIN(X)[:, 0])

    seen = look(delicate, width=5)
    assert seen.label == "one head"
    assert any(words.startswith("questions that were refused") for words in seen.not_examined)
    assert "far x" not in seen.answers


def test_a_target_that_refuses_long_sequences_loses_those_questions_alone():
    def short(X):
        if X.shape[1] > 10:
            raise ValueError("too long")
        return PLAIN(X)

    seen = look(short, width=5)
    assert seen.label == "one head"
    assert "*Z" not in seen.answers


def test_a_target_without_a_finite_answer_near_zero_is_an_error():
    with pytest.raises(BadAnswer):
        look(Local(lambda X: np.full(len(X), np.nan), 3, 1))


@pytest.mark.parametrize("budget", [0, 1, 9, 10, 15, 25, 37])
def test_a_budget_that_ends_leaves_what_was_seen(budget):
    oracle = Budgeted(Local(PLAIN), budget)
    seen = look(oracle)
    assert (seen.label, seen.suggested) == ("not finished", ())
    assert len(seen.answers) == budget == oracle.spent
    assert "head" not in seen.excluded


def test_a_witness_that_is_not_repeated_excludes_nothing():
    calls = []

    def late(X):
        """Positions until the seventh call, and never again."""
        calls.append(1)
        tilt = 0.1 * np.arange(X.shape[1])[:, None] if len(calls) < 7 and X.shape[1] == 4 else 0.0
        return PLAIN(X + tilt * X[:, :1])

    seen = look(late, width=5)
    assert (seen.label, seen.excluded) == ("non-deterministic", {})


def test_constant_and_affine_targets_are_called_so():
    assert look(lambda X: np.full(len(X), 2.5), width=3).label == "constant"
    assert look(lambda X: X[:, -1] @ np.arange(3.0) + 1, width=3).label == "affine"


def test_a_network_is_excluded_only_once_an_earlier_token_was_seen_to_act():
    assert {"relu", "smooth"} <= look(LAYER).excluded.keys()
    assert not {"relu", "smooth"} & look(NETWORK).excluded.keys()


def test_the_tables_name_what_there_is():
    for row in FINDINGS.values():
        assert set(row.excludes) <= set(CLASSES)
    for row in LABELS:
        assert set(row.suggests) <= set(KINDS)
    for names in LEARNERS_BY_KIND.values():
        assert {name for group in names.values() for name in group} <= set(LEARNERS)
    assert {name for names in KINDS.values() for name in names} <= set(CLASSES)
    assert set(LEARNERS_BY_KIND) == set(KINDS)
    # The last line fits whatever was found.
    assert (LABELS[-1].facts, LABELS[-1].bars) == ((), ())
    assert len(RULES) > len({row.sentence for row in FINDINGS.values()}) > 0


@pytest.mark.slow
def test_no_class_of_ours_is_excluded_in_five_thousand(capsys):
    each = 5000 // (len(OWN) + len(FOREIGN)) + 1
    excluded, table = 0, {}
    for kind, (own, _) in OWN.items():
        seen = [draw(kind, 1000 + seed)[2] for seed in range(each)]
        excluded += sum(own in one.excluded for one in seen)
        table[kind.__name__] = Counter(one.label for one in seen)
    right = Counter()
    for name, (kind, labels) in FOREIGN.items():
        told = Counter(draw(kind, 1000 + seed)[2].label for seed in range(each))
        right[name] = sum(told[label] for label in labels)
        table[name] = told
    with capsys.disabled():
        for name, told in table.items():
            counts = ", ".join(f"{count} {label}" for label, count in told.most_common())
            sys.stdout.write(f"\n{name:26s} {counts}")
    assert excluded == 0
    assert all(count >= 0.8 * each for count in right.values())
