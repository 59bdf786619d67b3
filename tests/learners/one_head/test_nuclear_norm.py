"""Theorem BSHK26/5.1 in its own mode: Gaussian rank-one measurements, then the least nuclear
norm.
"""

import time
import warnings

import numpy as np
import pytest

from keyhole import Head, InvalidInput, Local, Outcome, Status, Verdict
from keyhole.learners.one_head.learner import recover_head
from keyhole.learners.one_head.nuclear import NuclearNorm
from keyhole.learners.one_head.nuclear_program import minimise_nuclear_norm
from support.measures import gap
from support.seeds import few

pytestmark = pytest.mark.theorem("BSHK26/5.1")


def measured(width, rank, oversampling, seed):
    """A matrix of that rank, Gaussian vectors and its forms, the last written as a trace."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(width, rank)) @ rng.normal(size=(rank, width))
    A, B = rng.normal(size=(2, int(np.ceil(oversampling * rank * (2 * width - rank))), width))
    return W, A, B, np.array([np.trace(W @ np.outer(b, a)) for a, b in zip(A, B, strict=True)])


def peer(A, B, t):
    """The same program, solved by a general conic solver."""
    import cvxpy

    W = cvxpy.Variable((A.shape[1], A.shape[1]))
    fits = cvxpy.sum(cvxpy.multiply(A @ W, B), axis=1) == t
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.normNuc(W)), [fits])
    # whether its last digits converge depends on rounding; they are not compared
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Solution may be inaccurate")
        problem.solve(solver=cvxpy.CLARABEL)
    return problem.value, W.value


ABOVE, BELOW = (
    [(8, 1, 3.5, 0), (12, 2, 2.5, 1), (16, 2, 2.2, 2)],
    [(8, 2, 1.1, 3), (12, 1, 1.2, 4), (14, 4, 1.1, 5)],
)


@pytest.mark.parametrize("case", ABOVE + BELOW)
def test_the_minimum_is_that_of_a_conic_solver_whether_or_not_it_is_the_truth(case):
    truth, A, B, t = measured(*case)
    value, W = peer(A, B, t)
    found = minimise_nuclear_norm(A, B, t)
    assert np.linalg.norm(found.W, "nuc") == pytest.approx(value, rel=1e-6)
    assert gap(found.W, W) <= 1e-3
    np.testing.assert_allclose(((A @ found.W) * B).sum(axis=1), t, atol=1e-7 * np.abs(t).max())
    assert (gap(found.W, truth) <= 1e-10) == (case in ABOVE)


@pytest.mark.parametrize(("width", "rank"), [(16, 2), (20, 3), (24, 4)])
def test_three_times_the_parameters_are_enough(width, rank):
    cases = [measured(width, rank, 3.0, seed) for seed in few(20)]
    errors = [gap(minimise_nuclear_norm(A, B, t).W, truth) for truth, A, B, t in cases]
    assert np.mean(np.array(errors) <= 1e-12) >= 0.95


def test_once_the_parameters_are_not_enough():
    cases = [measured(16, 2, 1.0, seed) for seed in few(20)]
    errors = [gap(minimise_nuclear_norm(A, B, t).W, truth) for truth, A, B, t in cases]
    assert min(errors) > 1e-3


@pytest.mark.parametrize("size", [1e-150, 1e-20, 1.0, 1e20, 1e150])
def test_scales_of_matrix_and_vectors_do_not_matter(size, rng):
    truth, A, B, t = measured(10, 1, 4.0, 0)
    stretch = 10.0 ** rng.uniform(-12, 12, size=len(t))
    found = minimise_nuclear_norm(stretch[:, None] * A, B, size * (stretch * t))
    assert gap(found.W / size, truth) <= 1e-12


def test_the_gap_and_the_residual_are_reported_truly():
    _, A, B, t = measured(12, 2, 1.3, 7)
    best = minimise_nuclear_norm(A, B, t, tolerance=1e-10)
    early = minimise_nuclear_norm(A, B, t, iterations=20)
    excess = np.linalg.norm(early.W, "nuc") / np.linalg.norm(best.W, "nuc") - 1
    assert early.iterations == 20
    assert 0 < excess <= early.gap
    assert best.gap <= 1e-10
    scaled = np.linalg.norm(A, axis=1) * np.linalg.norm(B, axis=1)
    misfit = (((A @ best.W) * B).sum(axis=1) - t) / scaled
    assert best.residual == pytest.approx(
        np.linalg.norm(misfit) / np.linalg.norm(t / scaled), rel=1e-3, abs=1e-15
    )


@pytest.mark.parametrize("extra", [0, 14])
def test_as_many_measurements_as_entries_determine_any_matrix(extra):
    for seed in few(10):
        rng = np.random.default_rng(seed)
        W, A, B = rng.normal(size=(14, 14)), *rng.normal(size=(2, 196 + extra, 14))
        found = minimise_nuclear_norm(A, B, ((A @ W) * B).sum(axis=1))
        assert (found.rank, gap(found.W, W) <= (1e-10 if extra == 0 else 1e-13)) == (14, True)


def test_never_more_is_asked_than_determines_every_entry(rng):
    learner, truth = NuclearNorm(5), Head.random(9, rank=5, rng=rng)
    recovery = learner.run(Local(truth), rng=rng)
    assert learner.plan(9).by_phase["measure"] == recovery.ledger["measure"].sequences == 81 + 9
    assert gap(recovery.unwrap().W, truth.W) <= 1e-12


def test_zero_measurements_of_zero_give_zero(rng):
    A, B = rng.normal(size=(2, 9, 4))
    assert not minimise_nuclear_norm(A, B, np.zeros(9)).W.any()
    assert not minimise_nuclear_norm(A[:0], B[:0], np.zeros(0)).W.any()


def test_measurements_that_cannot_be_used_are_refused_with_a_reason(rng, untyped):
    A, B = rng.normal(size=(2, 9, 4))
    with pytest.raises(InvalidInput, match="depend on one another"):
        minimise_nuclear_norm(np.repeat(A[:1], 9, axis=0), np.repeat(B[:1], 9, axis=0), np.ones(9))
    with pytest.raises(InvalidInput, match="not zero"):
        minimise_nuclear_norm(0 * A, B, np.ones(9))
    with pytest.raises(InvalidInput, match=r"B must have shape \(9, 4\); got \(8, 4\)"):
        minimise_nuclear_norm(A, B[:8], np.ones(9))
    with pytest.raises(InvalidInput, match="t must be finite"):
        minimise_nuclear_norm(A, B, np.full(9, np.nan))


def test_a_head_comes_back_exactly_through_its_oracle():
    for seed in few(20):
        rng = np.random.default_rng(seed)
        truth = Head.random(12, rank=2, rng=rng)
        recovery = NuclearNorm(2).run(Local(truth), rng=rng)
        assert (recovery.verdict, recovery.rank) == (Verdict.EXACT, 2)
        assert (recovery.certificate.theorem, recovery.certificate.outcome) == (
            "BSHK26/5.1",
            Outcome.HOLDS,
        )
        assert recovery.ledger["measure"].sequences <= 3 * 2 * 22 + 12
        assert gap(recovery.model.W, truth.W) <= 1e-12


@pytest.mark.parametrize("outputs", [1, 5])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_constants_residuals_outputs_and_sizes_are_no_obstacle(size, outputs, rng):
    plain = Head.random(9, rank=1, outputs=outputs, rng=rng)
    truth = Head(
        size * np.asarray(plain.W),
        plain.V,
        c=rng.normal(size=outputs),
        U=rng.normal(size=(9, outputs)),
    )
    recovery = NuclearNorm(1, 4.0).run(Local(truth), rng=rng)
    assert recovery.verdict is Verdict.EXACT
    assert gap(recovery.model.W, truth.W) <= 1e-10


def test_sixty_four_wide_is_a_matter_of_seconds(rng):
    truth = Head.random(64, rank=4, rng=rng)
    start = time.process_time()  # other work on the machine does not count
    recovery = NuclearNorm(4).run(Local(truth), rng=rng)
    assert time.process_time() - start <= 20
    assert recovery.verdict is Verdict.EXACT
    assert gap(recovery.model.W, truth.W) <= 1e-12


def test_too_few_measurements_are_noticed_and_more_are_asked(rng):
    learner, truth = NuclearNorm(1, 2.0), Head.random(32, rank=1, rng=rng)
    recovery = learner.run(Local(truth), rng=rng)
    plan, spent = learner.plan(32), recovery.ledger["measure"].sequences
    assert plan.by_phase["measure"] == 2 * 63 < spent <= 4.5 * 63 + 6
    assert recovery.verdict is Verdict.EXACT
    assert recovery.ledger.total().sequences <= plan.at_most


def test_a_rank_named_too_small_is_refused_not_believed(rng):
    recovery = NuclearNorm(1).run(Local(Head.random(24, rank=8, rng=rng)), rng=rng)
    assert (recovery.verdict, recovery.status) == (Verdict.UNVERIFIED, Status.DISAGREES)
    assert recovery.certificate.outcome is Outcome.SILENT


def test_a_higher_rank_that_was_found_all_the_same_is_outside_the_theorem(rng):
    recovery = NuclearNorm(1).run(Local(Head.random(6, rank=4, rng=rng)), rng=rng)
    assert (recovery.verdict, recovery.rank) == (Verdict.EXACT, 4)
    assert recovery.certificate.outcome is Outcome.SILENT


def test_saturated_measurements_are_asked_again(rng):
    truth, learner = Head.random(10, rank=1, rng=rng), NuclearNorm(1, 4.0)

    def with_tokens_too_long(columns, rng):
        columns.prober.sx *= 256.0
        return learner._measure(columns, rng)

    recovery = recover_head(Local(truth), with_tokens_too_long, rng=rng)
    assert recovery.ledger["measure"].sequences > 4 * 19
    assert recovery.verdict is Verdict.EXACT
    assert gap(recovery.model.W, truth.W) <= 1e-12


def test_a_blind_read_out_and_a_zero_matrix_are_told_apart(rng):
    W, v = rng.normal(size=(5, 5)), rng.normal(size=(5, 1))
    assert NuclearNorm(1).run(Local(Head(W, 0 * v)), rng=rng).verdict is Verdict.NOT_IDENTIFIABLE
    zero = NuclearNorm(1).run(Local(Head(0 * W, v)), rng=rng)
    assert (zero.verdict, zero.rank) == (Verdict.EXACT, 0)


def test_misuse_is_refused_with_a_sentence(rng):
    with pytest.raises(InvalidInput, match="rank is a whole number"):
        NuclearNorm(-1)
    with pytest.raises(InvalidInput, match="oversampling >= 1"):
        NuclearNorm(2, 0.5)
    with pytest.raises(InvalidInput, match="at most the width 4; got 5"):
        NuclearNorm(5).run(Local(Head.random(4, rng=rng)), rng=rng)
    with pytest.raises(InvalidInput, match="use LowRank"):
        NuclearNorm(2).run(Local(Head.random(6, biases=True, rng=rng)), rng=rng)
    with pytest.raises(InvalidInput, match="too large to solve"):
        NuclearNorm(100).run(Local(Head.random(400, rng=rng)), rng=rng)
