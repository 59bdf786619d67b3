"""What an audit says of a policy, what a job declares or simulates, and what a plan promises."""

import math

import numpy as np
import pytest
from msgspec import structs

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import PlanJob
from keyhole.lab.running import run_job
from keyhole.lab.runs.recovery_records import AttemptRecord, PolicyRecord
from keyhole.lab.targets.opening import read_declarations, simulate_policies
from keyhole.lab.targets.policies import (
    Policy,
    describe_policy,
    find_nearer_attempt,
    gives_no_less,
    judge_error,
    judge_policy,
    list_policies,
)
from keyhole.oracles import Local
from keyhole.oracles.base import read_imperfection
from support.targets import mean

POLICY = Policy("labels only", ("labels",), "a label is one bit")


def attempt(queries, error):
    return AttemptRecord(
        queries=queries,
        verification=0,
        error=error,
        function_error=error,
        verdict="BUDGET_SPENT",
        sentence="It ran out.",
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (1e-12, "no protection"),
        (1e-4, "hardly any protection"),
        (0.1, "a blurred copy leaks"),
        (0.5, "protection against this extractor, at this cost"),
        (None, "the extractor got no model"),
    ],
)
def test_an_error_of_w_is_judged_in_words(error, said):
    assert judge_error(error) == said


def test_a_verdict_names_the_policy_the_first_and_the_last_attempt_and_the_reason():
    said = describe_policy(
        POLICY, [attempt(1000, 1e-3), attempt(2000, 1e-5), attempt(4000, 1e-13)], "W"
    )
    assert (
        said
        == "Labels only: no protection. 1,000 queries give W with a relative error of 0.001, 4,000"
        " queries give W with a relative error of 1e-13: a label is one bit."
    )


def test_a_single_attempt_is_told_once_and_one_without_a_model_in_its_own_words():
    assert describe_policy(POLICY, [attempt(7, 0.1)], "W").count("queries") == 1
    said = describe_policy(POLICY, [attempt(7, None)], "W")
    assert "got no model. 7 queries ended with BUDGET_SPENT. It ran out." in said


def test_no_policy_is_judged_where_the_target_was_not_learned():
    said = describe_policy(POLICY, [attempt(7, 0.9)], "answers", judged=False)
    assert "protection" not in said
    assert "not judged" in said


@pytest.mark.parametrize(
    ("of", "verdict", "error", "protects"),
    [
        ("W", "UNVERIFIED", 0.5, True),
        ("W", "EXACT", 0.1, False),
        ("answers", "UNVERIFIED", 0.1, False),
        ("answers", "UNVERIFIED", 0.5, None),
        ("answers", "UNVERIFIED", None, None),
        ("answers", "WITHIN_TOLERANCE", 0.5, True),
    ],
)
def test_a_failed_copy_of_a_larger_class_is_no_protection(of, verdict, error, protects):
    made = structs.replace(attempt(7, error), verdict=verdict)
    assert judge_policy(POLICY, made, of) is protects


def test_a_budget_that_left_no_copy_protects_whatever_the_class():
    budget = Policy("a budget", (), "too few", ({"budget": 7},))
    assert judge_policy(budget, attempt(7, None), "answers") is True


def test_answers_are_coarsened_but_never_refined():
    """Of answers of size 1: digits may be dropped, noise added, long tokens left out."""
    (
        full,
        budget,
        f32,
        f16,
        bf16,
        three,
        one,
        noise,
        labels,
        ball,
        six_in,
        three_in,
        one_in,
        blur,
    ) = list_policies(40, 1.0, 2.0)
    finer = {
        policy.name: {
            other.name for other in list_policies(40, 1.0, 2.0) if gives_no_less(policy, other, 1.0)
        }
        for policy in (full, budget, f32, bf16, three, noise, labels, ball, six_in, one_in)
    }
    every = {policy.name for policy in list_policies(40, 1.0, 2.0)}
    assert finer[full.name] == every - {full.name, budget.name}
    assert not finer[budget.name]
    assert not finer[labels.name]
    assert finer[f32.name] == {p.name for p in (f16, bf16, labels, six_in, three_in, one_in, blur)}
    assert finer[bf16.name] == {labels.name, one_in.name}
    assert finer[three.name] == {p.name for p in (one, noise, three_in, one_in, blur)}
    assert finer[ball.name] == {p.name for p in (six_in, three_in, one_in, blur)}
    assert finer[six_in.name] == {p.name for p in (three_in, one_in, blur)}
    assert not finer[one_in.name]


def test_a_copy_from_coarser_answers_counts_where_it_means_more_to_the_owner():
    fine, coarse = Policy("f32", ("answers=f32",), ""), Policy("bf16", ("answers=bf16",), "")
    near = structs.replace(attempt(9, 0.02), verdict="WITHIN_TOLERANCE")
    (taken,) = find_nearer_attempt(fine, [(fine, attempt(5, None)), (coarse, near)], 1.0)
    assert (taken.error, taken.behind) == (0.02, "bf16")
    assert judge_policy(fine, taken, "answers") is False
    said = describe_policy(fine, [attempt(5, None), taken], "answers")
    assert "can be coarsened to bf16: there 9 queries give answers with a relative error" in said
    # What is no worse for the owner, and what coarse answers give beyond fine ones, is not taken.
    assert not find_nearer_attempt(fine, [(fine, attempt(5, 0.03)), (coarse, near)], 1.0)
    assert not find_nearer_attempt(coarse, [(fine, near), (coarse, attempt(5, None))], 1.0)


def test_budgets_are_shares_of_what_learning_costs():
    (policy,) = (policy for policy in list_policies(40, 1.0, 2.0) if "budget" in policy.name)
    assert policy.name == "a budget below 40 queries"
    assert [options["budget"] for options in policy.attempts] == [10, 20, 30]


def test_what_a_job_declares_is_combined():
    stated = read_declarations(
        PlanJob(answers="bf16", decimals=3, noise=0.1, tolerance=1e-4, token_bound=2.0, labels=True)
    )
    assert stated.tolerance == pytest.approx(1e-4 + 5e-4)
    assert (stated.noise, stated.token_bound, stated.levels, stated.format) == (0.1, 2.0, 2, "bf16")
    assert read_declarations(PlanJob()).perfect


def test_simulated_policies_act_in_order_and_declare_themselves():
    X = np.random.default_rng(0).normal(size=(50, 2, 3))
    oracle = simulate_policies(Local(mean, 3), ("decimals=1,token-bound=9", "answers=f16"), 0)
    np.testing.assert_array_equal(
        oracle.ask(X.copy())[:, 0], np.round(mean(X), 1).astype(np.float16)
    )
    stated = read_imperfection(oracle)
    assert (stated.tolerance, stated.token_bound, stated.format) == (
        pytest.approx(0.05),
        9.0,
        "f16",
    )
    assert set(simulate_policies(Local(mean, 3), ("labels",), 0).ask(X.copy()).ravel()) == {
        -1.0,
        1.0,
    }


@pytest.mark.parametrize("wrong", ["fog=1", "noise=lots", "decimals=", "answers=int8"])
def test_a_policy_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(InvalidInput):
        simulate_policies(Local(mean, 3), (wrong,), 0)


def test_the_largest_tolerance_for_an_accuracy_guarantees_just_that_accuracy():
    bounds = {"width": 4, "norm_bound": 2.0, "margin": 0.5}
    there = run_job(PlanJob(accuracy=0.1, **bounds))
    assert there.data.learner == "tolerant"
    assert "largest tolerance" in there.text()
    back = run_job(PlanJob(tolerance=there.data.tolerance, **bounds))
    assert pytest.approx(0.1) == back.data.guarantee.W
    # 2 L d B (1.5 B + sigma(1/2)) tau / (mu - tau), written out with numbers
    tau = there.data.tolerance
    assert 2 * 4.2553 * 4 * 2 * (3 + 0.62246) * tau / (0.5 - tau) == pytest.approx(0.1, rel=1e-4)
    assert back.data.guarantee.v == pytest.approx(2 * tau)


def test_a_tolerance_above_the_margin_guarantees_nothing():
    record = run_job(PlanJob(width=4, norm_bound=2.0, margin=0.5, tolerance=0.5))
    assert b'"guarantee":{"W":null' in record.json()


def test_noise_in_a_ball_is_planned_with_a_standard_error_that_repeats_shrink():
    once, often = (
        run_job(PlanJob(width=4, noise=1e-3, token_bound=2.0, repeats=count)).data
        for count in (1, 4)
    )
    assert once.standard_error == pytest.approx(12 * math.sqrt(3) * 1e-3 / 8)
    assert often.standard_error == pytest.approx(once.standard_error / 2)
    assert run_job(PlanJob(width=4)).data.standard_error is None


def test_labels_are_planned_by_bits():
    ten, twenty = (
        run_job(PlanJob(width=8, labels=True, bits=bits)).data.queries.by_phase for bits in (10, 20)
    )
    assert twenty["measure"] - ten["measure"] == 10 * 64


@pytest.mark.parametrize(
    "wrong",
    [
        {"accuracy": 0.1},
        {"accuracy": 0.1, "norm_bound": 1.0},
        {"accuracy": 0.1, "norm_bound": 1.0, "margin": 1.0, "learner": "noisy"},
        {"accuracy": 0.1, "norm_bound": 1.0, "margin": 1.0, "noise": 0.1},
        {"accuracy": -0.1, "norm_bound": 1.0, "margin": 1.0},
    ],
)
def test_an_accuracy_that_cannot_be_promised_is_refused(wrong):
    with pytest.raises(InvalidInput):
        run_job(PlanJob(width=4, **wrong))


def test_the_nearest_copy_decides_whichever_attempt_made_it():
    made = [attempt(500, 0.04), attempt(900, 0.3), attempt(2000, None)]
    row = PolicyRecord(policy="noise", simulate=[], protects=False, verdict="", attempts=made)
    assert row.nearest is made[0]
    assert structs.replace(row, attempts=made[2:]).nearest is made[2]
    assert "a blurred copy leaks" in describe_policy(Policy("noise", (), ""), made, "answers")
