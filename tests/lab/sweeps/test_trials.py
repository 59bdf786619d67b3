"""Trials hold the truth: their certificates are confronted with it."""

from dataclasses import replace

import numpy as np
import pytest

from keyhole.lab.jobs import TrialJob
from keyhole.lab.jobs.job_parts import RandomModel
from keyhole.lab.sweeps import trial
from keyhole.lab.sweeps.trial import run_trial


def draw_trial(seed, kind="head", **options):
    return TrialJob(RandomModel(kind, width=4, seed=seed), seed=seed + 50, **options)


@pytest.mark.parametrize("kind", ["head", "multihead", "relu", "onelayer"])
def test_a_trial_confronts_its_theorem_with_the_truth(kind):
    held = run_trial(draw_trial(1, kind)).data.certificate
    assert (held.outcome, held.basis) == ("HOLDS", "CONFRONTED")


def test_equal_trials_have_equal_records():
    assert run_trial(draw_trial(2)).json() == run_trial(draw_trial(2)).json()


def test_a_learner_that_hands_out_a_wrong_model_is_caught(monkeypatch):
    def mislead(*arguments, **options):
        found = learn(*arguments, **options)
        wrong = np.asarray(found.model.W) + 1e-4
        return replace(found, model=replace(found.model, W=wrong))

    learn = trial.learn
    monkeypatch.setattr(trial, "learn", mislead)
    record = run_trial(draw_trial(3))
    assert record.data.verdict == "EXACT"
    assert record.data.certificate.outcome == "REFUTED"
    assert "The truth refutes BSHK26/5.1: this is a bug" in record.data.sentence


def test_a_trial_without_a_theorem_has_no_certificate():
    assert run_trial(draw_trial(4, budget=5)).data.certificate is None
