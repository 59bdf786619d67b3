"""`keyhole verify TARGET --witness RUN`: the witness of a run, asked again."""

import json

import numpy as np
import pytest

from keyhole.models import Head, MultiHead, save

WIDTH = 4


@pytest.fixture
def refuted(keyhole, targets):
    ran = keyhole("learn", "targets:squares", "--width", WIDTH, "--out", "run", "--json")
    assert ran.json["verdict"] == "CLASS_REFUTED"
    return ran.json


def test_a_witness_that_holds_is_confirmed(keyhole, refuted):
    ran = keyhole("verify", "targets:squares", "--witness", "run", "--json")
    assert (ran.code, ran.json["verdict"]) == (0, "CLASS_REFUTED")
    again = ran.json["witness"]
    assert again["holds"]
    assert again["rule"] == refuted["counterexample"]["rule"]
    np.testing.assert_allclose(again["gap"], refuted["counterexample"]["gap"])
    assert ran.json["queries"]["total"] == len(refuted["counterexample"]["questions"])
    assert ran.json["model"] is None


def test_another_target_does_not_confirm_it(keyhole, refuted, tmp_path, rng):
    save(Head.random(WIDTH, rng=rng), tmp_path / "head.safetensors")
    ran = keyhole("verify", "head.safetensors", "--witness", "run/record.json", "--json")
    assert (ran.code, ran.json["verdict"]) == (3, "UNVERIFIED")
    assert not ran.json["witness"]["holds"]
    assert "does not hold" in ran.json["sentence"]


def test_a_witness_against_one_head_is_replayed_for_a_named_learner(keyhole, tmp_path, rng):
    save(MultiHead.random(WIDTH, heads=2, rng=rng), tmp_path / "two.safetensors")
    keyhole("learn", "two.safetensors", "--learner", "low-rank", "--out", "run")
    ran = keyhole("verify", "two.safetensors", "--witness", "run")
    assert ran.code == 0
    assert "In one head" in ran.out


def damage(record, **changes):
    record["counterexample"] |= changes
    return record


DAMAGES = {
    "no such rule": ({"rule": "oddness"}, "a rule is one of"),
    "an answer too few": ({"answers": [[1.0]]}, "one answer for each of its questions"),
    "no questions": ({"questions": [], "answers": []}, "not of one width"),
    "a question that is not finite": (
        {"questions": [[[None] * WIDTH], [[1.0] * WIDTH]]},
        "no table of numbers",
    ),
    "ragged questions": ({"questions": [[[1.0], [1.0, 2.0]], [[1.0]]]}, "no table of numbers"),
    "too few for the rule": (
        {"questions": [[[1.0] * WIDTH]], "answers": [[1.0]]},
        "is not held against 1 answers",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_witness_is_refused_in_one_sentence(keyhole, refuted, tmp_path, name):
    changes, said = DAMAGES[name]
    file = tmp_path / "run" / "record.json"
    file.write_text(json.dumps(damage(json.loads(file.read_text()), **changes)))
    ran = keyhole("verify", "targets:squares", "--witness", "run")
    assert ran.code == 2, ran.err
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_what_holds_no_witness_is_refused(keyhole, tmp_path, rng):
    save(Head.random(WIDTH, rng=rng), tmp_path / "head.safetensors")
    keyhole("learn", "head.safetensors", "--out", "run")
    for words, said in (
        (("--witness", "run"), "holds no witness (EXACT)"),
        (("--witness", "nowhere"), "is not a directory"),
        ((), "got neither"),
        (("head.safetensors", "--witness", "run"), "got both"),
    ):
        ran = keyhole("verify", "head.safetensors", *words)
        assert ran.code == 2
        assert said in ran.err


def test_a_witness_of_another_width_is_refused(keyhole, refuted, tmp_path, rng):
    save(Head.random(WIDTH + 1, rng=rng), tmp_path / "wide.safetensors")
    ran = keyhole("verify", "wide.safetensors", "--witness", "run")
    assert ran.code == 2
    assert "width" in ran.err


def test_a_budget_too_small_for_a_witness_ends_with_three(keyhole, refuted):
    ran = keyhole("verify", "targets:squares", "--witness", "run", "--budget", 1, "--json")
    assert ran.code == 3
    assert ran.json["verdict"] == "UNVERIFIED"
