"""The audit of a language model: what each policy gives away, and the first that keeps it back."""

import json
from itertools import count, pairwise

import numpy as np
import pytest
from safetensors.numpy import load_file

import keyhole
from keyhole.errors import DifferentRun, InvalidInput
from keyhole.lab.commands.recovery import token_audit
from keyhole.lab.jobs import AuditJob, LearnJob, PlanJob, ReportJob, VerifyJob
from keyhole.lab.pages.parts.question_bounds import (
    describe_costs,
    list_function_costs,
    list_rotation_costs,
    list_space_costs,
    state_costs,
)
from keyhole.lab.running import run_job
from keyhole.lab.runs.reading import read_run
from keyhole.learners.logits.spectra import withdraw_rank
from keyhole.oracles.own_time import Stopwatch
from support.language_models import LanguageModel
from support.pages import Walk

V, H = 60, 6
TARGETS = """
from keyhole.learners.logits.spectra import withdraw_rank
from keyhole.oracles.own_time import Stopwatch
from support.language_models import LanguageModel
import numpy as np

model = LanguageModel(60, 6, norm="rms", seed=2)
answer = lambda ids: model(ids)
trained_before = LanguageModel(60, 6, norm="rms", seed=8, projection=model.projection)
layer = LanguageModel(60, 6, norm="layer", seed=3, shift=0.2)
other_words = LanguageModel(61, 6, norm="rms")
table = np.random.default_rng(0).normal(size=(20, 20))
bigram = lambda ids: table[ids[:, -1]]
failing = lambda ids: 1 / 0
scores, values = np.random.default_rng(4).normal(size=(2, 8, 8))


moved = lambda ids: 1.001 * attention(ids)
asked = []


mended = []


def counting(ids):
    asked.append(len(ids))
    return model(ids)


def breaking(ids):
    counting(ids)
    if sum(asked) > 0 and not mended:
        raise RuntimeError("out of order")
    return model(ids)


def logarithms(ids):
    answers = model(ids)
    return answers - np.log(np.exp(answers).sum(axis=1, keepdims=True))


def shaken(ids):
    return model(ids) + 1e-3 * np.random.default_rng(len(asked)).normal(size=(len(ids), 60))


def weak(ids):
    return model(ids) @ shrunk


basis = np.linalg.qr(model.projection)[0]
# Two directions of the six are a thousandth of the others.
shrunk = np.eye(60) - 0.999 * basis[:, :2] @ basis[:, :2].T
half = lambda ids: model(ids).astype(np.float16)
loud = lambda ids: 1e4 * model(ids)
capped = lambda ids: 30 * np.tanh(model(ids) / 3)


def attention(ids):
    weights = np.exp(scores[ids, ids[:, -1:]])
    return np.einsum("bl,blv->bv", weights / weights.sum(axis=1, keepdims=True), values[ids])
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "language_targets.py").write_text(TARGETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def audit(name, **options):
    options = {"vocabulary": V, "prompts": 128, "out": "run"} | options
    return run_job(AuditJob(f"language_targets:{name}", tokens_in=True, **options))


def test_an_audit_states_the_rank_and_the_size_behind_each_norm(place):
    record = audit("answer", against="language_targets:trained_before")
    found = record.data.tokens
    assert record.code == 0
    first = found.policies[0]
    assert (first.policy, first.rank, first.verdict) == ("full logits", H, "WITHIN_TOLERANCE")
    assert first.sizes == {"none": H, "rms": H, "layer": H + 1}
    assert first.limit == H + 1 <= first.questions
    assert first.signature.finding == "SHARED"
    named = {policy.policy: policy for policy in found.policies}
    assert {named[name].rank for name in named if "decimals" in name} == {H}
    kept = named["the 5 likeliest, no bias"]
    assert (kept.rank, kept.verdict) == (None, "UNVERIFIED")
    assert "too few ids" in kept.reason
    assert kept.signature.finding == "UNVERIFIED"
    # Every policy was applied here: each prompt was asked once, of both snapshots.
    assert "were tried" in first.function.reason
    assert record.data.queries.total <= 2 * (128 + 32) + first.function.questions


def test_what_is_stopped_is_stopped_by_the_first_policy_that_keeps_it(place):
    found = audit("answer").data.tokens
    names = [policy.policy for policy in found.policies]
    stopping = names.index(found.stopped_by["hidden size"])
    assert all(policy.rank == H for policy in found.policies[:stopping])
    assert found.policies[stopping].rank is None
    # Nothing was given to compare with, so that nothing could be kept back.
    assert "signature of snapshots" not in found.stopped_by


def test_the_projection_is_written_as_it_is_known(place):
    truth = LanguageModel(V, H, norm="rms", seed=2).projection
    held = load_file(audit("answer").data.tokens.projection)
    basis = held["basis"]
    np.testing.assert_allclose(basis @ (basis.T @ truth), truth, atol=1e-10)
    gram = H * truth @ truth.T
    factor = held["factor"]
    assert np.linalg.norm(factor @ factor.T - gram) < 1e-3 * np.linalg.norm(gram)


def test_singular_values_of_the_record_show_the_gap_that_is_stated(place):
    first = audit("layer").data.tokens.policies[0]
    assert first.rank == H - 1
    ratios = [a / b for a, b in pairwise(first.spectrum)]
    assert int(np.argmax(ratios)) == H - 2
    # A gap is told no wider than the rounding of the decomposition lets it be seen.
    assert 1e4 < first.gap <= max(ratios) * (1 + 1e-9)


def test_a_model_without_a_bottleneck_has_no_size(place):
    record = audit("bigram", vocabulary=20)
    assert record.data.tokens.policies[0].rank is None
    assert "UNVERIFIED" in record.data.sentence
    assert record.data.tokens.projection is None


def test_the_page_is_drawn_again_from_the_record_alone(place):
    made = audit("answer", against="language_targets:trained_before")
    page = (place / "run" / "report.html").read_text()
    read = read_run("run").data
    assert read.tokens == made.data.tokens
    assert json.loads(made.json())["tokens"]["policies"][0]["rank"] == H
    run_job(ReportJob(("run",)))
    assert (place / "run" / "report.html").read_text() == page
    Walk(page)
    for words in ("full logits", "the 5 likeliest, no bias", "SHARED", "rank 6", "fewest"):
        assert words in page
    assert "--tokens-in" in page
    assert "hidden size stops at" in made.text()


def test_a_layer_of_attention_alone_is_learned_by_the_command(place):
    options = {"tokens_in": True, "vocabulary": 8, "out": "learned"}
    record = run_job(LearnJob("language_targets:attention", **options))
    assert (record.code, record.data.verdict, record.data.model_class) == (0, "EXACT", "tokens")
    assert "--tokens-in --vocabulary 8" in record.data.command
    assert (place / "learned" / "report.html").exists()
    kept = load_file(place / "learned" / "model.safetensors")
    assert kept["values"].shape == kept["scores"].shape == (1, 8, 8)
    with pytest.raises(InvalidInput, match="by a learner of their own"):
        run_job(LearnJob("language_targets:attention", learner="exact", force=True, **options))


def test_what_is_learned_is_planned_before_and_verified_after(place):
    planned = run_job(PlanJob(tokens_in=True, vocabulary=8))
    options = {"tokens_in": True, "vocabulary": 8}
    learned = run_job(LearnJob("language_targets:attention", out="learned", **options))
    assert learned.data.queries.total <= planned.data.queries.at_most
    seen = run_job(VerifyJob("language_targets:attention", learned.data.model, tokens_in=True))
    assert (seen.code, seen.data.verdict) == (0, "EXACT")
    moved = run_job(VerifyJob("language_targets:moved", learned.data.model, **options))
    assert (moved.code, moved.data.verdict) == (3, "CLASS_REFUTED")
    keyhole.save(keyhole.Head(np.eye(2), np.ones((2, 1))), place / "head.safetensors")
    with pytest.raises(InvalidInput, match="needs --vocabulary"):
        run_job(PlanJob(tokens_in=True, width=4))
    with pytest.raises(InvalidInput, match="a saved model of kind tokens"):
        run_job(VerifyJob("language_targets:model", "head.safetensors", **options))


def test_the_function_of_a_layer_of_attention_alone_follows_until_answers_are_coarse(place):
    found = audit("attention", vocabulary=8).data.tokens
    named = {policy.policy: policy.function for policy in found.policies}
    assert named["full logits"].verdict == named["log-probabilities"].verdict == "EXACT"
    assert named["full logits"].error < 1e-10
    assert named["full logits"].limit == 15
    errors = [named[f"logits to {k} decimals"].error for k in (6, 4, 2)]
    assert errors == sorted(errors)
    assert errors[0] < 1e-5
    assert named["the 5 likeliest, no bias"].error is None
    stopping = named[found.stopped_by["the function itself"]]
    assert stopping.error is None or stopping.error > 0.01


def test_a_budget_of_both_snapshots_is_kept_and_told(place, monkeypatch):
    import language_targets

    for budget in (1, 70, 100, 130):
        del language_targets.asked[:]
        record = audit("counting", against="language_targets:counting", budget=budget, force=True)
        assert sum(language_targets.asked) <= budget
        assert record.data.queries.total == sum(language_targets.asked)
        first = record.data.tokens.policies[0]
        assert (first.rank is None) == (budget < 80)
        if first.rank is None:
            assert record.code == 3
            assert f"the budget of {budget} queries is spent" in first.reason


@pytest.fixture
def asked(place):
    import language_targets

    del language_targets.asked[:]
    return language_targets.asked


def test_an_audit_that_ended_is_replayed_without_a_question(asked):
    options = {"against": "language_targets:counting", "resume": True}
    first = audit("counting", **options | {"resume": False})
    told = sum(asked)
    again = audit("counting", **options)
    assert sum(asked) == told == first.data.queries.total == again.data.queries.total
    assert again.data.tokens == first.data.tokens


def test_an_audit_that_a_budget_cut_goes_on_with_a_larger_one(asked):
    whole = audit("counting", out="whole")
    told = sum(asked)
    for budget in (30, 70, 90, None):
        record = audit("counting", budget=budget, resume=True)
        assert sum(asked) - told <= (budget or told)
        assert record.data.queries.total == sum(asked) - told
    assert sum(asked) == 2 * told
    assert record.data.tokens.policies == whole.data.tokens.policies
    with pytest.raises(InvalidInput, match=f"has already asked {told} queries"):
        audit("counting", budget=20, resume=True)


def test_an_audit_of_other_settings_is_not_gone_on_with(place):
    audit("counting")
    for options in ({"seed": 1}, {"prompts": 64}, {"against": "language_targets:answer"}):
        with pytest.raises(DifferentRun, match=f"another run: {next(iter(options))} was"):
            audit("counting", resume=True, **options)


def test_a_target_that_failed_and_was_mended_is_not_asked_again_what_it_answered(asked):
    import language_targets

    whole = audit("counting", out="whole")
    told = sum(asked)
    language_targets.asked[:] = [-70]
    assert audit("breaking").code == 3
    language_targets.mended.append(True)
    record = audit("breaking", resume=True)
    assert record.data.tokens.policies == whole.data.tokens.policies
    # The batch that failed was paid for twice.
    assert sum(asked) + 70 == record.data.queries.total > told


def test_once_the_time_is_over_nothing_new_is_asked_and_more_time_goes_on(asked, monkeypatch):
    whole = audit("counting", out="whole")
    told = sum(asked)
    with monkeypatch.context() as patch:
        # A second goes by each time the clock is looked at.
        ticks = count()
        patch.setattr(token_audit, "Stopwatch", lambda limit: Stopwatch(limit, ticks.__next__))
        short = audit("counting", max_seconds=4)
    assert 0 < sum(asked) - told < told
    assert any("(--max-seconds) are over" in one.reason for one in short.data.tokens.policies)
    again = audit("counting", resume=True)
    assert sum(asked) == 2 * told
    assert again.data.tokens.policies == whole.data.tokens.policies


def test_own_time_is_kept(place):
    record = audit("model", max_seconds=1e-6)
    assert record.code == 3
    assert "(--max-seconds) are over" in record.data.tokens.policies[0].reason


def test_logits_that_no_common_bias_lifts_are_read_all_the_same(place):
    named = {policy.policy: policy for policy in audit("loud").data.tokens.policies}
    assert named["the 5 likeliest with a bias, to 4 decimals"].rank == H


def test_a_soft_cap_is_found_and_undone(place):
    record = audit("capped")
    first = record.data.tokens.policies[0]
    assert first.rank == H
    assert first.softcap == pytest.approx(30.0, rel=1e-9)
    assert "once a soft cap of 30 is undone" in record.data.sentence
    assert first.rotation.verdict == "WITHIN_TOLERANCE"


def test_log_probabilities_of_a_target_are_no_larger_a_size(place):
    """What a normaliser adds to all ids of a prompt is no direction of the hidden state."""
    record = audit("logarithms")
    by_name = {policy.policy: policy for policy in record.data.tokens.policies}
    first = by_name["full logits"]
    assert (first.rank, first.shift) == (H + 1, True)
    assert {policy.sizes["rms"] for policy in by_name.values() if policy.rank} == {H}
    assert by_name["log-probabilities"].rank == H
    assert not by_name["log-probabilities"].shift
    assert "which all ids share, as in log-probabilities" in record.data.sentence
    assert f"a hidden size of {H} behind no norm" in record.data.sentence


def test_a_size_behind_coarse_answers_is_that_of_full_ones_or_none(place):
    for name, full in (("weak", H), ("shaken", None)):
        found = audit(name, out=name).data.tokens.policies
        assert found[0].rank == full
        assert {policy.rank for policy in found} <= {full, None}
        coarse = next(policy for policy in found if policy.policy == "logits to 1 decimal")
        assert coarse.rank is None
        assert "directions stand out, where full logits" in coarse.reason
    # Once it is said how large the errors are, they hide nothing.
    assert audit("shaken", out="told", noise=1e-3).data.tokens.policies[0].rank == H


def test_answers_keep_nothing_back_that_they_show_when_they_are_rounded(place, monkeypatch):
    look = token_audit._look_for_space

    def overlook(prompts, most):
        spectrum, cut = look(prompts, most)
        if getattr(prompts.oracle.inner, "decimals", None) != 4:
            return spectrum, cut
        return withdraw_rank(spectrum, "It was overlooked."), cut

    monkeypatch.setattr(token_audit, "_look_for_space", overlook)
    found = audit("answer").data.tokens
    policy = next(one for one in found.policies if one.policy == "logits to 4 decimals")
    assert (policy.rank, policy.verdict) == (None, "UNVERIFIED")
    assert policy.reason == (
        "It was overlooked. Rounded, they show what logits to 2 decimals do: rank 6."
    )
    assert found.stopped_by["hidden size"] == "the 5 likeliest, no bias"


def test_answers_in_half_precision_show_their_size_behind_every_policy(place):
    found = audit("half").data.tokens
    assert {policy.rank for policy in found.policies[:-1]} == {H}
    assert found.stopped_by["hidden size"] == "the 5 likeliest, no bias"


@pytest.mark.parametrize("kind", [AuditJob, LearnJob, PlanJob, VerifyJob])
def test_a_vocabulary_without_token_ids_is_told_what_is_missing(kind, place):
    named = () if kind is not VerifyJob else ("no.safetensors",)
    with pytest.raises(InvalidInput, match=r"--vocabulary 60 is for .* add --tokens-in"):
        run_job(kind("language_targets:answer", *named, vocabulary=V))


@pytest.mark.parametrize(("lengths", "asked"), [("3:5", 5), ("9:12", 9), ("2:40", 8), ("1:1", 1)])
def test_prompts_have_a_length_that_is_allowed(lengths, asked, place):
    found = audit("answer", lengths=lengths).data.tokens
    assert found.prompt_length == asked
    assert found.policies[0].rank == H


def test_what_is_not_learned_of_ids_is_no_head(place):
    record = run_job(LearnJob("language_targets:model", tokens_in=True, vocabulary=V, out="none"))
    assert (record.code, record.data.verdict) == (3, "UNVERIFIED")
    assert record.data.model_class == "tokens"


def test_misuse_is_told(place):
    with pytest.raises(InvalidInput, match="--ball, --fail-above means nothing"):
        audit("bigram", fail_above=0.1, ball=2.0)
    with pytest.raises(InvalidInput, match="of your own in this process"):
        run_job(AuditJob("http://127.0.0.1:1/v2/models/m", tokens_in=True, vocabulary=V))
    with pytest.raises(InvalidInput, match="a vocabulary has 2 to"):
        run_job(AuditJob("language_targets:bigram", tokens_in=True))
    with pytest.raises(InvalidInput, match="--prompts is a whole number"):
        audit("answer", prompts=1)
    with pytest.raises(InvalidInput, match="only models of one vocabulary"):
        audit("model", against="language_targets:other_words", vocabulary=None)


def test_a_target_that_fails_ends_the_audit_with_its_own_words(place):
    record = audit("failing")
    assert record.code == 3
    assert "ZeroDivisionError" in record.data.sentence
    assert "mend the target and use --resume" in record.data.sentence


def test_a_module_that_fails_to_make_what_is_named_is_told(place):
    (place / "made_targets.py").write_text(
        "def __getattr__(name):\n    if name != 'model':\n        raise AttributeError(name)\n"
        "    raise SystemExit(5)\n"
    )
    with pytest.raises(InvalidInput, match="reading 'model' of made_targets raised SystemExit"):
        run_job(AuditJob("made_targets:model", tokens_in=True, vocabulary=V))
    with pytest.raises(InvalidInput, match="made_targets has no 'other'"):
        run_job(AuditJob("made_targets:other", tokens_in=True, vocabulary=V))


def test_what_was_used_is_drawn_beside_the_fewest_for_every_policy(place):
    found = audit("answer").data.tokens
    costs = list_space_costs(found)
    known = [policy.policy for policy in found.policies if policy.rank is not None]
    assert [cost.policy for cost in costs] == known
    # By counting: a space of 6 in 60 dimensions has 6 * 54 numbers, and each answer holds 60 or 5.
    assert {cost.policy: cost.fewest for cost in costs} == {
        name: 65 if "likeliest" in name else 7 for name in known
    }
    chart = describe_costs("about", "questions", costs)
    drawn = {(line.kind, point.y): point.x for line in chart.lines for point in line.points}
    assert drawn["limit", 0] == 65
    assert drawn["ours", len(known) - 1] == found.policies[0].questions
    page = (place / "run" / "report.html").read_text()
    assert state_costs("The space of the projection", "questions", costs) in page
    # An ellipsoid of 6 half axes with a centre has 21 + 6 numbers, and a prompt is one equation.
    assert {cost.fewest for cost in list_rotation_costs(found)} == {27}
    assert "The function itself took" not in page


def test_copies_that_answer_otherwise_are_not_drawn(place):
    found = audit("attention", vocabulary=8).data.tokens
    drawn = {cost.policy for cost in list_function_costs(found)}
    assert "full logits" in drawn
    assert "logits to 1 decimal" not in drawn
    assert "logits with noise of 0.1" not in drawn
