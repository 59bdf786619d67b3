"""What cannot be done is said in words: exit 3 for what the target is, exit 2 for how it was
asked.
"""

import json

import numpy as np
import pytest

from keyhole.models import Head, MultiHead, save

WIDTH = 4
FIELDS = {
    *("status", "verdict", "sentence", "class", "reason", "model", "determined", "counterexample"),
    *(
        "width",
        "outputs",
        "heads",
        "rank",
        "queries",
        "degrees_of_freedom",
        "fresh_error",
        "error_bar",
    ),
    *("seconds", "seed"),
}


# --- targets that cannot be learned: exit 3 -------------------------------------------------------


def test_two_heads_taken_for_one_are_refuted_by_answers_anyone_can_replay(
    keyhole, targets, tmp_path
):
    ran = keyhole(
        "learn", "targets:two", "--width", WIDTH, "--learner", "low-rank", "--out", "run", "--json"
    )
    assert (ran.code, ran.json["verdict"]) == (3, "CLASS_REFUTED")
    case = json.loads((tmp_path / "run" / "record.json").read_text())["counterexample"]
    assert case["rule"] in ("copies", "odds")
    again = [targets.two(np.array(tokens)[None])[0] for tokens in case["questions"]]
    np.testing.assert_allclose(np.ravel(again), np.ravel(case["answers"]), rtol=1e-9)
    assert case["gap"] > case["allowed"] > 0


def test_a_saved_sum_of_heads_is_refuted_or_learned_but_never_taken_for_one_head(keyhole, tmp_path):
    for seed in range(5):
        model = MultiHead.random(WIDTH, heads=2, rng=np.random.default_rng(seed))
        save(model, tmp_path / "heads.safetensors")
        ran = keyhole("learn", "heads.safetensors", "--json")
        assert ran.json["heads"] != 1 or ran.code == 3


def test_a_target_that_is_no_attention_at_all_is_refuted(keyhole, targets):
    ran = keyhole("learn", "targets:squares", "--width", WIDTH, "--json")
    assert (ran.code, ran.json["verdict"]) == (3, "CLASS_REFUTED")
    assert ran.json["counterexample"]["rule"] == "doubling"
    # Twelve lone tokens more than witnesses take show that it is no attention layer either.
    assert ran.json["queries"]["total"] <= 70
    (group,) = ran.json["recognised"]["excluded"]
    assert len(group["classes"]) == 8


@pytest.mark.parametrize("name", ["nan", "nan_later"])
def test_a_target_that_answers_nan_stops_the_run(keyhole, targets, name):
    ran = keyhole("learn", f"targets:{name}", "--width", WIDTH, "--json")
    assert ran.code == 3
    assert ran.json["verdict"] == "UNVERIFIED"
    assert "finite" in ran.json["sentence"]


@pytest.mark.parametrize("name", ["raising", "raising_later"])
def test_a_target_that_raises_is_reported_in_its_own_words(keyhole, targets, name):
    ran = keyhole("learn", f"targets:{name}", "--width", WIDTH, "--json")
    assert ran.code == 3
    assert ran.json["verdict"] == "UNVERIFIED"
    assert "the line is dead" in ran.json["sentence"]
    assert "Traceback" not in ran.err


def test_a_target_that_changes_its_mind_is_found_out(keyhole, targets):
    ran = keyhole("learn", "targets:moody", "--width", WIDTH, "--learner", "exact", "--json")
    assert (ran.code, ran.json["verdict"]) == (3, "UNVERIFIED")
    assert "differently" in ran.json["sentence"]


def test_noise_that_nobody_declared_is_measured_and_allowed_for(keyhole, targets):
    ran = keyhole("learn", "targets:moody", "--width", WIDTH, "--json")
    assert (ran.code, ran.json["verdict"]) == (0, "WITHIN_TOLERANCE")
    assert "(estimated)" in ran.json["sentence"]
    assert ran.json["queries"]["by_phase"]["recognise"] > 0


@pytest.mark.parametrize("name", ["constant", "nothing"])
def test_a_constant_is_not_identifiable_and_says_what_is(keyhole, targets, name):
    ran = keyhole("learn", f"targets:{name}", "--width", WIDTH, "--json")
    assert (ran.code, ran.json["verdict"]) == (3, "NOT_IDENTIFIABLE")
    assert "constant" in ran.json["determined"]


def test_a_head_without_readout_is_not_identifiable(keyhole, tmp_path, rng):
    save(Head(rng.normal(size=(3, 3)), np.zeros((3, 1))), tmp_path / "blind.safetensors")
    ran = keyhole("learn", "blind.safetensors", "--json")
    assert (ran.code, ran.json["verdict"]) == (3, "NOT_IDENTIFIABLE")


@pytest.mark.parametrize("budget", [0, 1, 3, 6, 9, 15])
def test_a_budget_is_never_exceeded_and_spends_in_status_three(keyhole, targets, asked, budget):
    ran = keyhole("learn", "targets:counting", "--width", WIDTH, "--budget", budget, "--json")
    assert (ran.code, ran.json["verdict"]) == (3, "BUDGET_SPENT")
    assert asked() == ran.json["queries"]["total"] == budget


def test_a_budget_without_room_for_verification_leaves_the_model_unverified(
    keyhole, targets, asked, tmp_path
):
    full = keyhole("learn", "targets:counting", "--width", WIDTH, "--json").json["queries"]
    (tmp_path / "asked.log").unlink()
    budget = full["total"] - full["by_phase"]["verify"] // 2
    ran = keyhole("learn", "targets:counting", "--width", WIDTH, "--budget", budget, "--json")
    assert (ran.code, ran.json["verdict"]) == (3, "UNVERIFIED")
    assert asked() == budget
    assert ran.json["model"] is not None


@pytest.mark.parametrize("name", ["two", "squares", "nan", "raising", "moody", "constant"])
def test_a_refused_run_still_prints_every_field_and_keeps_a_record(
    keyhole, targets, tmp_path, name
):
    ran = keyhole("learn", f"targets:{name}", "--width", WIDTH, "--out", "run", "--json")
    assert ran.json.keys() >= FIELDS
    assert ran.json["sentence"].endswith(".")
    assert isinstance(ran.json["queries"]["total"], int)
    assert json.loads((tmp_path / "run" / "record.json").read_text()) == ran.json
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize("name", ["two", "raising"])
def test_a_refused_run_still_knows_how_wide_the_target_is(keyhole, targets, name):
    assert keyhole("learn", f"targets:{name}", "--width", WIDTH, "--json").json["width"] == WIDTH


def test_a_refused_run_exits_alike_with_and_without_json(keyhole, targets):
    assert keyhole("learn", "targets:two", "--width", WIDTH, "--learner", "low-rank").code == 3


@pytest.mark.parametrize("budget", [0, 1, 5, 100])
def test_verify_cut_short_by_its_budget_verifies_nothing(keyhole, head, budget):
    ran = keyhole("verify", "head.safetensors", "head.safetensors", "--budget", budget, "--json")
    assert (ran.code, ran.json["verdict"]) == (3, "UNVERIFIED")
    assert ran.json["queries"]["total"] <= budget
    assert "budget" in ran.json["sentence"].lower()


@pytest.mark.parametrize(("name", "said"), [("nan", "finite"), ("raising", "the line is dead")])
def test_verify_of_a_broken_target_exits_with_three(keyhole, targets, tmp_path, rng, name, said):
    save(Head.random(WIDTH, outputs=2, rng=rng), tmp_path / "m.safetensors")
    ran = keyhole("verify", f"targets:{name}", "m.safetensors", "--json")
    assert (ran.code, ran.json["verdict"]) == (3, "UNVERIFIED")
    assert said in ran.json["sentence"]


# --- misuse: exit 2 -------------------------------------------------------------------------------

MISUSE = {
    "no file": (("learn", "none.safetensors"), "no model file at none.safetensors"),
    "no model in the file": (("learn", "targets.safetensors"), "not a readable safetensors file"),
    "neither a file nor a callable": (("learn", "head"), "TARGET must be"),
    "no module": (("learn", "nowhere:f", "--width", 4), "cannot import nowhere"),
    "no such name": (("learn", "targets:missing", "--width", 4), "has no 'missing'"),
    "not a callable": (("learn", "targets:number", "--width", 4), "not a callable"),
    "no width": (("learn", "targets:vector"), "--width"),
    "width zero": (("learn", "targets:vector", "--width", 0), "whole number >= 1; got 0"),
    "another width than the file": (
        ("learn", "head.safetensors", "--width", 5),
        "width 4; --width says 5",
    ),
    "another width than the callable": (
        ("learn", "targets:vector", "--width", 5),
        "Is --width 5 right",
    ),
    "a callable that answers one number": (
        ("learn", "targets:flat", "--width", 4),
        "must answer a batch",
    ),
    "a callable that answers words": (
        ("learn", "targets:text", "--width", 4),
        "must answer a batch",
    ),
    "a negative budget": (("learn", "head.safetensors", "--budget", -1), "budget"),
    "a negative seed": (("learn", "head.safetensors", "--seed", -1), "seed"),
    "an unknown learner": (
        ("learn", "head.safetensors", "--learner", "psychic"),
        "a learner is one of",
    ),
    "an unknown option": (("learn", "head.safetensors", "--speed", 3), "--speed"),
    "a word for a number": (("learn", "head.safetensors", "--budget", "lots"), "lots"),
    "no target": (("learn",), "TARGET"),
    "an unknown command": (("guess", "head.safetensors"), "guess"),
    "no model to verify": (("verify", "head.safetensors", "none.safetensors"), "no model file"),
    "no target to verify": (("verify", "none.safetensors", "head.safetensors"), "no model file"),
    "verify models of other widths": (("verify", "wide.safetensors", "head.safetensors"), "width"),
    "verify models of other outputs": (
        ("verify", "double.safetensors", "head.safetensors"),
        "answers 2 numbers",
    ),
    "compare models of other widths": (
        ("compare", "wide.safetensors", "head.safetensors"),
        "one width",
    ),
    "a plan of no width": (("plan",), "--width"),
    "a plan of width zero": (("plan", "--width", 0), "got 0"),
    "a plan of no outputs": (("plan", "--width", 3, "--outputs", 0), "--outputs"),
    "a sample of no kind": (("sample", "boat"), "got 'boat'"),
    "a sample of no width": (
        ("sample", "head", "--width", 0),
        "--width is a whole number >= 1; got 0",
    ),
    "a sample of too large a rank": (
        ("sample", "head", "--width", 4, "--rank", 5),
        "between 0 and the width 4",
    ),
    "a sample over a file": (("sample", "head", "--out", "head.safetensors"), "--force"),
    "a sample with an infinite scale": (
        ("sample", "head", "--out", "x.safetensors", "--scale", "inf"),
        "finite",
    ),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_exits_with_two_and_says_what_was_needed(
    case, keyhole, head, targets, tmp_path, rng
):
    arguments, said = MISUSE[case]
    save(Head.random(WIDTH + 1, rng=rng), tmp_path / "wide.safetensors")
    save(Head.random(WIDTH, outputs=2, rng=rng), tmp_path / "double.safetensors")
    (tmp_path / "targets.safetensors").write_text("not weights " * 30)
    ran = keyhole(*arguments)
    assert ran.code == 2, ran.err
    assert said in " ".join(ran.err.split())
    assert ran.out == ""
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    "arguments", [("learn", "none.safetensors"), ("learn", "x:y", "--speed", "3"), ("learn",)]
)
def test_misuse_with_json_prints_one_object(arguments, keyhole):
    ran = keyhole(*arguments, "--json")
    assert ran.code == 2
    assert ran.json["sentence"]
    assert ran.json["status"]
    assert ran.json["sentence"].split()[0] in ran.err


def test_sizes_beyond_memory_are_misuse_and_not_a_crash(keyhole):
    ran = keyhole("sample", "head", "--width", 10**9, "--json")
    assert ran.code == 2
    assert "not enough memory" in ran.json["sentence"]
    assert "Traceback" not in ran.err


def test_built_units_are_verified_compared_and_twinned_as_they_are_asked(keyhole):
    keyhole("build", "match2", "--length", "4", "--modulus", "5", "--out", "unit")
    path = "unit/model.safetensors"
    assert keyhole("verify", path, path, "--json").json["verdict"] == "EXACT"
    assert keyhole("compare", path, path, "--json").json["largest"] == 0.0
    assert keyhole("twins", path, "--out", "twins", "--json").code == 0
