"""Targets that blur their own answers, declared on the command line, or made so by --simulate."""

import numpy as np
import pytest

from keyhole.models import load

WIDTH = 4
BLURRED = """

blur = np.random.default_rng(8)


def noisy(X):
    if np.linalg.norm(X, axis=2).max() > 2.000001:
        raise ValueError("this token is too long")
    return scalar(X) + 1e-6 * blur.normal(size=len(X))


def rounded(X):
    return np.round(scalar(X), 3)


def half(X):
    return scalar(X).astype(np.float16).astype(np.float64)


def label(X):
    return np.where(scalar(X) > 0, 1.0, -1.0)
"""
DECLARED = {
    "noisy": (("--noise", 1e-6, "--token-bound", 2), 1e-3),
    "rounded": (("--decimals", 3), 1e-9),
    "half": (("--answers", "f16"), 1e-9),
    "label": (("--labels", "--bits", 20), 1e-4),
}
SIMULATED = {
    "noise=1e-6,token-bound=2": 1e-3,
    "tolerance=1e-4": 1e-9,
    "decimals=2": 1e-9,
    "answers=bf16": 1e-9,
    "labels": 1e-9,
}


@pytest.fixture
def blurred(targets, tmp_path):
    with open(tmp_path / "targets.py", "a") as file:
        file.write(BLURRED)
    return targets


def error(path, targets):
    return np.abs(np.asarray(load(path).W) - targets.W).max()


@pytest.mark.parametrize("name", DECLARED)
def test_a_target_that_blurs_its_answers_is_learned_when_that_is_declared(
    keyhole, blurred, tmp_path, name
):
    options, most = DECLARED[name]
    ran = keyhole("learn", f"targets:{name}", "--width", WIDTH, *options, "--json")
    assert (ran.code, ran.json["verdict"]) == (0, "WITHIN_TOLERANCE"), ran.json["sentence"]
    assert error(tmp_path / ran.json["model"], blurred) < most


@pytest.mark.parametrize("policy", SIMULATED)
def test_a_simulated_policy_is_learned_through(keyhole, targets, tmp_path, policy):
    ran = keyhole("learn", "targets:scalar", "--width", WIDTH, "--simulate", policy, "--json")
    assert (ran.code, ran.json["verdict"]) == (0, "WITHIN_TOLERANCE"), ran.json["sentence"]
    assert error(tmp_path / ran.json["model"], targets) < SIMULATED[policy]


@pytest.mark.parametrize(
    "options", [("--noise", 0.1), ("--labels",), ("--token-bound", 1), ("--decimals", 2)]
)
def test_a_learner_that_does_not_bear_what_is_declared_is_refused(keyhole, head, options):
    ran = keyhole("learn", "head.safetensors", "--learner", "exact", *options)
    assert ran.code == 2
    assert "cannot work with" in ran.err
    assert "--learner labels" in ran.err or "noisy" in ran.err


def test_a_noisy_run_is_verified_with_its_error_bars(keyhole, blurred):
    declared = ("--noise", 1e-6, "--token-bound", 2, "--json")
    keyhole("learn", "targets:noisy", "--width", WIDTH, *declared, "--out", "run")
    ran = keyhole("verify", "targets:noisy", "run/model.safetensors", *declared)
    assert (ran.code, ran.json["verdict"]) == (0, "WITHIN_TOLERANCE"), ran.json["sentence"]


def test_a_simulated_noise_run_that_is_resumed_gives_the_same_model(keyhole, head, tmp_path):
    command = ("learn", "head.safetensors", "--simulate", "noise=1e-4,token-bound=2", "--json")
    keyhole(*command, "--out", "whole")
    assert keyhole(*command, "--out", "parts", "--budget", 40).json["verdict"] == "BUDGET_SPENT"
    assert keyhole(*command, "--out", "parts", "--resume").code == 0
    one, two = (load(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    np.testing.assert_array_equal(np.asarray(one.W), np.asarray(two.W))
    np.testing.assert_array_equal(one.V, two.V)
