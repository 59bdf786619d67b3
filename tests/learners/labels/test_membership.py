"""Theorem BSHK26/membership: a softmax head from labels, W fully and v up to a positive factor."""

import numpy as np
import pytest

from keyhole import (
    Bounded,
    Budgeted,
    Counted,
    Declared,
    Head,
    Imperfection,
    InvalidInput,
    Labels,
    Local,
    Outcome,
    Signs,
    Status,
    Verdict,
    learn,
)
from support.measures import gap

pytestmark = pytest.mark.theorem("BSHK26/membership")


def unit(V):
    norms = np.linalg.norm(V, axis=0)
    return V / np.where(norms > 0, norms, 1.0)


def attend(X, W, V):
    """A head, from its formula."""
    scores = np.einsum("bnd,de,be->bn", X, W, X[:, -1])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.einsum("bn,bnd->bd", weights, X) @ V / weights.sum(axis=1)[:, None]


def draw(seed, *, widths=(1, 5), outputs=1):
    rng = np.random.default_rng([seed, outputs])
    d = int(rng.integers(*widths))
    return rng.normal(size=(d, d)), rng.normal(size=(d, outputs)), rng


def labelled(W, V):
    return Signs(Local(Head(W, V)))


@pytest.mark.parametrize("width", range(1, 9))
def test_w_comes_back_to_ten_digits_with_one_label_per_bit(width):
    for seed in range(2):
        rng = np.random.default_rng([width, seed])
        truth = Head(rng.normal(size=(width, width)), rng.normal(size=(width, 1)))
        recovery = Labels(33).run(labelled(truth.W, truth.V), rng=rng)
        assert recovery.verdict is Verdict.WITHIN_TOLERANCE
        assert recovery.certificate.theorem == "BSHK26/membership"
        assert recovery.certificate.outcome is Outcome.HOLDS
        assert gap(recovery.unwrap().W, truth.W) <= 1.2e-10
        assert np.abs(recovery.model.V - unit(truth.V)).max() <= 1e-10
        assert recovery.degrees_of_freedom == width**2 + width - 1
        if width == 8:
            assert gap(recovery.model.W, truth.W) <= 1e-10
            assert (
                recovery.ledger.total(without="verify").sequences <= 1.12 * (width**2 + width) * 33
            )


def test_more_bits_give_more_digits_and_the_stated_bound_holds():
    for seed in range(2):
        W, V, rng = draw(seed, widths=(2, 7))
        for bits in (16, 28, 40, 46):
            recovery = Labels(bits).run(labelled(W, V), rng=rng)
            error = np.linalg.norm(np.asarray(recovery.unwrap().W) - W)
            assert error <= recovery.bars["W"][0] * len(W)
            assert error <= 2.0 ** (1 - bits) * np.linalg.norm(W)


def readouts(kind, d, rng):
    v = rng.normal(size=d)
    if kind == "tiny":
        v *= 1e-20
    if kind == "mostly zero":
        v[rng.permutation(d)[1:]] = 0.0
    if kind == "graded":
        v *= 10.0 ** rng.uniform(-15, 0, size=d)
    if kind == "equal":
        v[:] = 1.0
    return v[:, None]


@pytest.mark.parametrize("kind", ["plain", "tiny", "mostly zero", "graded", "equal"])
def test_every_size_of_w_and_every_readout_is_recovered(kind):
    for seed in range(5):
        rng = np.random.default_rng([seed, len(kind)])
        d = int(rng.integers(1, 7))
        W = rng.normal(size=(d, d)) * 10.0 ** rng.uniform(-10, 10)
        V = readouts(kind, d, rng)
        recovery = Labels(24).run(labelled(W, V), rng=rng)
        assert recovery.verdict is Verdict.WITHIN_TOLERANCE, (seed, recovery.sentence)
        assert recovery.certificate.outcome is Outcome.HOLDS
        assert gap(recovery.model.W, W) <= 2.0**-23
        entries = V[:, 0] != 0
        ratios = recovery.model.V[entries, 0] / unit(V)[entries, 0]
        assert np.abs(ratios - 1).max() <= 2.0**-22
        assert not recovery.model.V[~entries].any()


def matrices(kind, d, rng):
    if kind == "rank one":
        return np.outer(*rng.normal(size=(2, d)))
    if kind == "one entry":
        return np.eye(d)[:, [0]] @ np.eye(d)[[d - 1]] * 3.0
    if kind == "antisymmetric":
        A = rng.normal(size=(d, d))
        return A - A.T
    return np.diag(10.0 ** -np.arange(d))


@pytest.mark.parametrize("kind", ["rank one", "one entry", "antisymmetric", "graded"])
def test_structured_matrices_are_recovered(kind):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        d = int(rng.integers(2, 7))
        W, V = matrices(kind, d, rng), rng.normal(size=(d, 1))
        recovery = Labels(30).run(labelled(W, V), rng=rng)
        assert recovery.verdict is Verdict.WITHIN_TOLERANCE
        assert gap(recovery.model.W, W) <= 2.0**-29
        if kind in ("rank one", "one entry"):
            assert recovery.rank == 1


def test_no_scores_are_reported_as_none():
    recovery = Labels().run(
        labelled(np.zeros((3, 3)), np.ones((3, 1))), rng=np.random.default_rng(0)
    )
    assert recovery.verdict is Verdict.WITHIN_TOLERANCE
    assert not np.asarray(recovery.model.W).any()
    assert recovery.rank == 0


def test_every_output_has_its_own_column_up_to_its_own_factor():
    for seed in range(3):
        W, V, rng = draw(seed, widths=(2, 6), outputs=3)
        V[:, seed % 3] *= 0.0 if seed % 2 else 1e-6
        recovery = Labels(30).run(labelled(W, V), rng=rng)
        assert recovery.verdict is Verdict.WITHIN_TOLERANCE
        assert gap(recovery.model.W, W) <= 2.0**-29
        np.testing.assert_allclose(recovery.model.V, unit(V), atol=1e-9)
        assert "positive factor" in recovery.determined


@pytest.mark.parametrize(
    "code", [lambda y: y > 0, lambda y: (y > 0).astype(int), lambda y: np.sign(y), lambda y: y]
)
def test_labels_may_be_written_in_any_way(code):
    W, V, rng = draw(3, widths=(3, 4))
    recovery = Labels(24).run(Local(lambda X: code(attend(X, W, V)), 3), rng=rng)
    assert gap(recovery.unwrap().W, W) <= 2.0**-23


@pytest.mark.parametrize("size", [1e3, 1.0, 1e-2, 1e-5])
def test_a_bound_on_tokens_is_kept_and_what_it_costs_is_said(size):
    for seed in range(2):
        W, V, rng = draw(seed, widths=(1, 6))
        oracle = Bounded(labelled(size * W, V), 0.5)
        recovery = Labels(36).run(oracle, rng=rng)
        assert recovery.verdict is Verdict.WITHIN_TOLERANCE, recovery.sentence
        error = np.linalg.norm(np.asarray(recovery.model.W) - size * W)
        assert error <= recovery.bars["W"][0] * len(W)
        assert error <= np.linalg.norm(size * W) * (2.0**-34 + 1e-13 / size)
        assert "norm 0.5" in recovery.detail


def test_scores_too_small_for_bounded_tokens_are_bounded_not_guessed():
    recovery = Labels().run(
        Bounded(labelled(1e-16 * np.eye(3), np.ones((3, 1))), 1.0), rng=np.random.default_rng(0)
    )
    assert not np.asarray(recovery.model.W).any()
    assert recovery.bars["W"][0] > 1e-16
    assert "W is at most" in recovery.sentence


def test_arithmetic_in_float32_lowers_the_digits_asked_for():
    W, V, rng = draw(1, widths=(4, 5))

    def answer(X):
        return np.sign(attend(X.astype(np.float32), W.astype(np.float32), V.astype(np.float32)))

    oracle = Declared(Local(answer, 4), Imperfection(levels=2, roundoff=2.0**-24))
    recovery = Labels().run(oracle, rng=rng)
    assert recovery.verdict is Verdict.WITHIN_TOLERANCE, recovery.sentence
    assert gap(recovery.model.W, W) <= 1e-4


class Flipping:
    """A head whose labels, 0 or 1, are flipped at random."""

    outputs = 1

    def __init__(self, W, V, rate, seed):
        self.W, self.V, self.rate, self.width = W, V, rate, len(W)
        self.rng = np.random.default_rng(seed)

    def __call__(self, X):
        labels = attend(X, self.W, self.V) > 0
        return (labels ^ (self.rng.random(labels.shape) < self.rate)).astype(float)


FLIPS = [(0.05, 9), (0.05, 1), (0.01, 1), (0.002, 1), pytest.param(0.2, 1, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("rate", "votes"), FLIPS)
def test_flipped_labels_are_outvoted_and_mended(rate, votes):
    for seed in range(3):
        W, V, rng = draw(seed, widths=(1, 5))
        recovery = Labels(24, votes).run(Local(Flipping(W, V, rate, seed)), rng=rng)
        assert recovery.verdict is Verdict.WITHIN_TOLERANCE, (seed, recovery.sentence)
        assert gap(recovery.model.W, W) <= 2.0**-21


@pytest.mark.parametrize("rate", [0.4, 0.5])
def test_labels_that_are_nearly_random_are_inconsistent(rate):
    for seed in range(4):
        W, V, rng = draw(seed)
        recovery = Labels(24).run(Local(Flipping(W, V, rate, seed)), rng=rng)
        assert (recovery.status, recovery.verdict) == (Status.INCONSISTENT, Verdict.UNVERIFIED)
        assert recovery.model is None


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_one_label_for_everything_determines_nothing(sign, rng):
    recovery = Labels().run(Local(lambda X: np.full(len(X), sign), 3), rng=rng)
    assert (recovery.status, recovery.verdict) == (Status.NO_READOUT, Verdict.NOT_IDENTIFIABLE)
    assert recovery.certificate.outcome is Outcome.SILENT
    assert "not determined" in recovery.determined


def hard(X, W, V):
    chosen = np.einsum("bnd,de,be->bn", X, W, X[:, -1]).argmax(axis=1)
    return X[np.arange(len(X)), chosen] @ V


OTHERS = {
    "two heads": lambda X, W, V, r: attend(X, W, V) + attend(X, r["W"], r["V"]),
    "a faint second head": lambda X, W, V, r: attend(X, W, V) + 1e-4 * attend(X, r["W"], r["V"]),
    "constant": lambda X, W, V, r: attend(X, W, V) + 0.3,
    "faint constant": lambda X, W, V, r: attend(X, W, V) - 1e-6,
    "first token": lambda X, W, V, r: X[:, 0] @ V,
    "last token": lambda X, W, V, r: X[:, -1] @ V,
    "largest": lambda X, W, V, r: (X @ V).max(axis=1),
    "residual": lambda X, W, V, r: attend(X, W, V) + X[:, -1] @ r["V"],
    "squares": lambda X, W, V, r: (X**2).sum(axis=(1, 2)),
    "quadratic": lambda X, W, V, r: np.einsum("bnd,de,bne->b", X, W, X),
    "hard attention": lambda X, W, V, r: hard(X, W, V),
    "saturating values": lambda X, W, V, r: np.tanh(X @ V).sum(axis=1),
    "cubes": lambda X, W, V, r: ((X @ V) ** 3).sum(axis=1),
    "positions": lambda X, W, V, r: attend(X * np.arange(1, X.shape[1] + 1)[:, None], W, V),
}


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 16), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_a_head_is_never_verified(name, seeds):
    for seed in seeds:
        rng = np.random.default_rng(seed)
        d = int(rng.integers(2, 5))
        W, V = rng.normal(size=(d, d)), rng.normal(size=(d, 1))
        other = {"W": rng.normal(size=(d, d)), "V": rng.normal(size=(d, 1))}
        target = Signs(Local(lambda X: OTHERS[name](X, W, V, other), d))  # noqa: B023
        recovery = Labels(24).run(target, rng=rng)
        assert not recovery.verdict.verified, (name, seed)
        assert recovery.status is not Status.INCONSISTENT
        case = recovery.counterexample
        if case is not None:
            np.testing.assert_array_equal(target.ask(case.tokens[None].copy())[0], case.answer)
            assert (case.answer != case.predicted).any()


def test_a_score_bias_is_refused():
    for seed in range(3):
        W, V, rng = draw(seed, widths=(2, 5))
        target = Signs(Local(Head(W, V, 0.01 * rng.normal(size=len(W)))))
        recovery = Labels(24).run(target, rng=rng)
        assert recovery.verdict is Verdict.UNVERIFIED
        assert recovery.counterexample is not None


def test_a_constant_is_refused_by_a_counterexample_in_the_targets_own_alphabet():
    W, V, rng = draw(4, widths=(3, 4))
    recovery = Labels(24).run(Local(lambda X: (attend(X, W, V) > 1e-3).astype(int), 3), rng=rng)
    assert recovery.verdict is Verdict.UNVERIFIED
    assert {
        float(recovery.counterexample.answer[0]),
        float(recovery.counterexample.predicted[0]),
    } == {0.0, 1.0}


def test_a_spent_budget_is_never_exceeded_and_leaves_what_was_measured():
    W, V, _ = draw(2, widths=(4, 5))
    whole = Labels(20).run(labelled(W, V), rng=np.random.default_rng(0)).ledger.total().sequences
    verdicts = set()
    for budget in np.linspace(0, whole, 13).astype(int).tolist():
        counted = Counted(labelled(W, V))
        recovery = Labels(20).run(Budgeted(counted, budget), rng=np.random.default_rng(0))
        assert counted.ledger.total().sequences <= budget
        assert recovery.verdict.verified == (budget >= whole)
        verdicts.add(recovery.verdict)
    assert verdicts == {Verdict.BUDGET_SPENT, Verdict.UNVERIFIED, Verdict.WITHIN_TOLERANCE}


def test_a_budget_may_end_before_every_output_was_compared(rng):
    W, V = rng.normal(size=(5, 5)), rng.normal(size=(5, 3))
    for budget in range(10, 160, 15):
        recovery = Labels(20).run(Budgeted(labelled(W, V), budget), rng=np.random.default_rng(0))
        assert recovery.verdict is Verdict.BUDGET_SPENT
        assert recovery.model is None or np.isfinite(recovery.model.V).all()


@pytest.mark.parametrize(
    ("width", "outputs", "votes"), [(1, 1, 1), (4, 1, 1), (8, 1, 1), (5, 3, 1), (4, 1, 5)]
)
def test_the_plan_foresees_the_cost(width, outputs, votes):
    learner = Labels(30, votes)
    for seed in range(2):
        rng = np.random.default_rng(seed)
        truth = Head.random(width, outputs=outputs, rng=rng)
        recovery = learner.run(Signs(Local(truth)), rng=rng)
        plan = learner.plan(width, outputs=outputs)
        asked = recovery.ledger.total().sequences
        assert abs(asked - plan.queries) <= 0.1 * plan.queries + 40
        assert asked <= plan.at_most


def test_the_learner_is_found_by_its_name():
    W, V, rng = draw(5)
    assert learn(labelled(W, V), rng=rng, learner="labels").verdict is Verdict.WITHIN_TOLERANCE


@pytest.mark.parametrize(
    "options", [{"bits": 0}, {"bits": 47}, {"votes": 2}, {"votes": 63}, {"votes": -1}]
)
def test_options_that_cannot_be_met_are_refused(options):
    with pytest.raises(InvalidInput):
        Labels(**options)
