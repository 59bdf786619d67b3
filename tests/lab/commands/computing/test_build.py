"""`keyhole build` as people run it: weights, a page, refusals, and the loop back through a
learner.
"""

import json

import numpy as np
import pytest

import keyhole

SMALL = ("sparse-average", "--length", "6", "--q", "2", "--width", "2")


@pytest.fixture
def run(keyhole):
    """The exit code and both streams of `keyhole build`."""

    def built(*arguments):
        done = keyhole("build", *arguments, timeout=300)
        return done.code, done.out, done.err

    return built


def test_a_unit_is_built_recovered_and_scored(run, tmp_path):
    code, out, _ = run(*SMALL, "--round-trip", "--out", "first", "--json")
    data = json.loads(out)
    assert code == 0
    assert {"embed", "value_width", "heads", "layers", "bits"} == set(data["size"])
    assert data["checked"] | {"worst": 0} == {
        "inputs": 15,
        "errors": 0,
        "worst": 0,
        "exhaustive": True,
    }
    assert (data["status"], data["certificate"]["outcome"]) == ("BUILT", "HOLDS")
    assert data["error_bound"] <= 1e-3
    trip = data["round_trip"]
    assert trip["verdict"] == "EXACT"
    assert trip["error_after"] <= 1e-3
    assert trip["error_after"] == pytest.approx(trip["error_before"], abs=1e-6)
    model, task = keyhole.load(tmp_path / data["model"]), keyhole.SparseAverage(6, 2, 2)
    X = task.sample(10, rng=np.random.default_rng(1))
    assert task.error(model(X), X).max() <= 1e-3
    assert json.loads((tmp_path / "first" / "record.json").read_text()) == data
    page = (tmp_path / "first" / "report.html").read_text()
    assert data["construction"] in page
    assert "Attention on one input" in page

    code, _, err = run(*SMALL, "--out", "first")
    assert code == 2
    assert "--force" in err


def test_what_does_not_fit_is_said_with_exit_code_three(run, tmp_path):
    code, out, _ = run(*SMALL, "--dtype", "bf16", "--out", "none", "--json")
    data = json.loads(out)
    assert (code, data["status"], data["model"]) == (3, "DOES_NOT_FIT", None)
    assert "bf16" in data["sentence"]
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("match7",), "TASK is one of"),
        (("sparse-average", "--length", "5"), "needs --q"),
        ((*SMALL, "--bits", "8", "--dtype", "f32"), "not both"),
        ((*SMALL, "--bits", "1"), "--bits"),
        ((*SMALL, "--modulus", "3"), "no --modulus"),
    ],
)
def test_misuse_is_exit_code_two(run, arguments, words, tmp_path):
    code, _, err = run(*arguments)
    assert code == 2
    assert words in err


def test_a_matching_unit_goes_through_the_loop_without_error(run, tmp_path):
    code, out, _ = run("match2", "--length", "4", "--modulus", "5", "--round-trip", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["round_trip"]["verdict"] == "EXACT"
    assert (data["round_trip"]["error_before"], data["round_trip"]["error_after"]) == (0.0, 0.0)
    assert data["checked"]["errors"] == 0


def test_weights_of_which_every_set_was_asked_hold_and_say_so(run, tmp_path):
    words = ("sparse-average", "--length", "12", "--q", "3", "--embed", "8", "--accuracy", "0.01")
    code, out, _ = run(*words, "--out", "run", "--json")
    data = json.loads(out)
    assert code == 0
    assert (data["status"], data["certificate"]["outcome"]) == ("BUILT", "HOLDS")
    assert data["certificate"]["basis"] == "EXHAUSTIVE"
    assert data["checked"]["exhaustive"]
    assert data["checked"]["inputs"] == 220
    assert data["error_bound"] <= 0.01
    assert "holds, exhaustive" in (tmp_path / "run" / "report.html").read_text()
