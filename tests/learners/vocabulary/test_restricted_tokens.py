"""Only rows of a given matrix may be asked: a head comes back as far as their affine hull
determines it.
"""

import numpy as np
import pytest

from keyhole import Budgeted, Head, Local, MultiHead, Status, Verdict
from keyhole.errors import InvalidInput
from keyhole.learners.vocabulary.learner import Restricted
from keyhole.oracles import Declared
from keyhole.oracles.base import Imperfection
from support.seeds import few

pytestmark = pytest.mark.theorem("BSHK26/4.1")

SEEDS = few(20)


class OnlyRows:
    """A head that refuses any token that is not, bit by bit, a row of the vocabulary."""

    def __init__(self, head, E):
        self.head, self.rows, self.width = head, {row.tobytes() for row in E}, E.shape[1]
        self.longest = 0

    def __call__(self, X):
        strange = [x for x in X.reshape(-1, self.width) if x.tobytes() not in self.rows]
        if strange:
            raise ValueError(f"not a row of the vocabulary: {strange[0]}")
        self.longest = max(self.longest, X.shape[1])
        return self.head(X)


def vocabulary(kind, d, n, rng):
    G = rng.normal(size=(n, d)) / np.sqrt(d)
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return {
        "gaussian": lambda: G,
        "of lower rank": lambda: G[:, : d // 2] @ turn[: d // 2] * np.sqrt(2),
        "beside the origin": lambda: np.column_stack([G[:, 1:], np.full(n, 0.7)]) @ turn,
        "with an offset": lambda: G + rng.normal(size=d) / np.sqrt(d),
        "one-hot": lambda: np.eye(d),
    }[kind]()


def function_error(found, truth, E, rng):
    worst = 0.0
    for length in (1, 2, 3, 7, 20):
        X = E[rng.integers(len(E), size=(40, length))]
        worst = max(worst, np.abs(found(X) - truth(X)).max() / np.abs(E @ truth.V).max())
    return worst


KINDS = ["gaussian", "of lower rank", "beside the origin", "with an offset", "one-hot"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("biases", [False, True])
def test_a_head_is_recovered_on_the_vocabulary_and_only_its_rows_are_asked(kind, outputs, biases):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        d = int(rng.integers(4, 13))
        E = vocabulary(kind, d, 3 * d, rng)
        truth = Head.random(d, outputs=outputs, scale=2.0, biases=biases, rng=rng)
        learner, target = Restricted(E), OnlyRows(truth, E)
        recovery = learner.run(Local(target), rng=rng)
        assert (recovery.verdict, recovery.status) == (Verdict.EXACT, Status.RECOVERED), (
            seed,
            recovery.sentence,
        )
        assert function_error(recovery.unwrap(), truth, E, rng) <= 1e-10, seed
        assert target.longest == 300
        plan = learner.plan(d, outputs=outputs)
        assert recovery.ledger.total().sequences <= min(plan.at_most, 1.5 * plan.queries + 30)


def test_what_differences_of_tokens_see_of_w_is_determined():
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        E = vocabulary("of lower rank", 10, 30, rng)
        truth = Head.random(10, outputs=2, biases=True, rng=rng)
        found = Restricted(E).run(Local(truth), rng=rng).unwrap()
        keys = E[1:] - E[0]
        scores = keys @ (np.asarray(truth.W) @ E.T + truth.h[:, None])
        np.testing.assert_allclose(
            keys @ (np.asarray(found.W) @ E.T + found.h[:, None]), scores, atol=1e-9
        )
        np.testing.assert_allclose(E @ found.V + found.c, E @ truth.V + truth.c, atol=1e-12)


def test_a_hull_through_the_origin_tells_biases_apart():
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        E = vocabulary("gaussian", 6, 18, rng)
        truth = Head.random(6, biases=True, rng=rng)
        recovery = Restricted(E).run(Local(truth), rng=rng)
        for name in ("W", "V", "h", "c"):
            np.testing.assert_allclose(
                getattr(recovery.unwrap(), name), getattr(truth, name), atol=1e-8
            )
        assert "contains 0" in recovery.determined
        assert recovery.degrees_of_freedom == 36 + 6 + 6 + 1


def test_a_hull_beside_the_origin_mixes_biases_into_w_and_v(rng):
    E = vocabulary("beside the origin", 6, 18, rng)
    truth = Head.random(6, biases=True, rng=rng)
    recovery = Restricted(E).run(Local(truth), rng=rng)
    assert recovery.verdict is Verdict.EXACT
    assert (recovery.model.h, recovery.model.c) == (None, None)
    assert "span 6 of 6 dimensions, their affine hull has dimension 5" in recovery.determined
    assert "h = c = 0 was chosen" in recovery.determined


def test_a_hull_beside_the_origin_gives_back_a_head_without_biases(rng):
    E = vocabulary("beside the origin", 6, 18, rng)
    truth = Head.random(6, outputs=2, rng=rng)
    found = Restricted(E).run(Local(truth), rng=rng).unwrap()
    differences = E - E.mean(axis=0)
    np.testing.assert_allclose(found.V, truth.V, atol=1e-11)
    np.testing.assert_allclose(differences @ found.W, differences @ np.asarray(truth.W), atol=1e-10)


@pytest.mark.parametrize(("outputs", "share"), [(1, 0.5), (6, 0.7)])
def test_a_low_rank_costs_less(outputs, share):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        E = vocabulary("with an offset", 24, 100, rng)
        truth = Head.random(24, outputs=outputs, rank=2, biases=True, rng=rng)
        learner = Restricted(E)
        recovery = learner.run(Local(truth), rng=rng)
        assert (recovery.verdict, recovery.rank) == (Verdict.EXACT, 2)
        assert (
            recovery.ledger["measure"].sequences
            <= share * learner.plan(24, outputs=outputs).by_phase["measure"]
        )
        assert function_error(recovery.model, truth, E, rng) <= 1e-10


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_residual_is_told_from_what_attention_averages(outputs):
    exact = 0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        E = vocabulary("gaussian", 7, 30, rng)
        truth = Head.random(7, outputs=outputs, biases=True, rng=rng)
        truth = Head(truth.W, truth.V, truth.h, truth.c, rng.normal(size=(7, outputs)))
        recovery = Restricted(E).run(Local(truth), rng=rng)
        assert recovery.verdict in (Verdict.EXACT, Verdict.UNVERIFIED)
        if recovery.verdict is Verdict.EXACT:
            exact += 1
            np.testing.assert_allclose(recovery.model.U, truth.U, atol=1e-8)
            np.testing.assert_allclose(recovery.model.V, truth.V, atol=1e-8)
    assert exact >= len(SEEDS) - 1


@pytest.mark.parametrize(("scale", "lost"), [(15.0, 0), (60.0, 2), (1000.0, None)])
@pytest.mark.parametrize("outputs", [1, 3])
def test_strong_scores_are_verified_or_reported_never_refuted(scale, lost, outputs):
    verdicts = []
    for seed in SEEDS[:4] if lost is None else SEEDS:
        rng = np.random.default_rng(seed)
        E = vocabulary("gaussian", 5, 40, rng)
        truth = Head.random(5, outputs=outputs, scale=scale, rng=rng)
        learner = Restricted(E)
        recovery = learner.run(Local(OnlyRows(truth, E)), rng=rng)
        verdicts.append(recovery.verdict)
        assert recovery.ledger.total().sequences <= learner.plan(5, outputs=outputs).at_most
        if recovery.verdict is Verdict.EXACT:
            assert function_error(recovery.model, truth, E, rng) <= 1e-8
        else:
            assert (recovery.verdict, recovery.status) == (Verdict.UNVERIFIED, Status.SATURATED)
    assert verdicts.count(Verdict.EXACT) >= (0 if lost is None else len(SEEDS) - lost)


@pytest.mark.parametrize("outputs", [1, 3])
def test_two_heads_are_refused_by_a_sequence_of_vocabulary_rows(outputs):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        E = vocabulary("gaussian", 6, 30, rng)
        truth = MultiHead.random(6, heads=2, outputs=outputs, scale=2.0, rng=rng)
        recovery = Restricted(E).run(Local(OnlyRows(truth, E)), rng=rng)
        assert recovery.verdict is Verdict.UNVERIFIED, (seed, recovery.sentence)
        case = recovery.counterexample
        assert all((token == E).all(axis=1).any() for token in case.tokens)
        np.testing.assert_allclose(truth(case.tokens[None])[0], case.answer)
        assert case.gap > 1e-9


def test_single_tokens_that_are_not_answered_affinely_are_refused(rng):
    E = vocabulary("gaussian", 5, 20, rng)
    recovery = Restricted(E).run(Local(lambda X: np.sin(X.sum(axis=(1, 2))), 5), rng=rng)
    assert (recovery.verdict, recovery.status) == (Verdict.UNVERIFIED, Status.NOT_A_HEAD)
    assert len(recovery.counterexample.tokens) == 1


def test_a_target_that_changes_its_answers_is_called_inconsistent(rng):
    E, noise = vocabulary("gaussian", 5, 20, rng), np.random.default_rng(1)
    head = Head.random(5, rng=rng)
    recovery = Restricted(E).run(
        Local(lambda X: head(X) + 1e-3 * noise.normal(size=(len(X), 1)), 5), rng=rng
    )
    assert (recovery.verdict, recovery.status) == (Verdict.UNVERIFIED, Status.INCONSISTENT)


@pytest.mark.parametrize("budget", [0, 1, 5, 12, 30, 60, 75, 150])
def test_a_budget_is_kept_and_what_is_known_is_handed_over(budget, rng):
    E = vocabulary("gaussian", 6, 20, rng)
    asked = []
    head = Head.random(6, biases=True, rng=rng)
    target = Local(lambda X: asked.append(len(X)) or head(X), 6)
    recovery = Restricted(E).run(Budgeted(target, budget), rng=rng)
    assert sum(asked) <= budget
    assert recovery.verdict in (Verdict.BUDGET_SPENT, Verdict.UNVERIFIED)
    assert (recovery.model is not None) == (budget >= 12)


def test_rounded_answers_are_recovered_within_what_was_declared():
    verdicts = []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        E = vocabulary("with an offset", 6, 30, rng)
        head = Head.random(6, outputs=2, biases=True, rng=rng)
        target = Local(lambda X, head=head: head(X).astype(np.float32), 6)
        recovery = Restricted(E).run(Declared(target, Imperfection(roundoff=2.0**-23)), rng=rng)
        verdicts.append(recovery.verdict)
        assert recovery.verdict in (Verdict.WITHIN_TOLERANCE, Verdict.UNVERIFIED)
    assert verdicts.count(Verdict.WITHIN_TOLERANCE) >= len(SEEDS) - 2


def test_the_same_seed_asks_the_same_questions():
    E, head = (
        vocabulary("gaussian", 6, 20, np.random.default_rng(2)),
        Head.random(6, rng=np.random.default_rng(3)),
    )
    runs = []
    for _ in range(2):
        asked = []
        Restricted(E).run(
            Local(lambda X, asked=asked: asked.append(X.tobytes()) or head(X), 6),
            rng=np.random.default_rng(4),
        )
        runs.append(asked)
    assert runs[0] == runs[1]


def test_attention_that_cannot_show_is_not_identifiable(rng):
    E = vocabulary("gaussian", 5, 20, rng)
    blind = Head(rng.normal(size=(5, 5)), np.zeros((5, 1)), c=np.ones(1))
    recovery = Restricted(E).run(Local(blind), rng=rng)
    assert (recovery.verdict, recovery.status) == (Verdict.NOT_IDENTIFIABLE, Status.NO_READOUT)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_vocabulary_of_very_few_tokens_is_learned_as_far_as_it_goes(n, rng):
    E = rng.normal(size=(n, 5))
    truth = Head.random(5, scale=0.3, rng=rng)
    recovery = Restricted(E).run(Local(OnlyRows(truth, E)), rng=rng)
    assert recovery.verdict is (Verdict.NOT_IDENTIFIABLE if n == 1 else Verdict.EXACT)
    assert f"affine hull has dimension {n - 1}" in recovery.determined
    assert function_error(recovery.model, truth, E, rng) <= 1e-10


@pytest.mark.parametrize("outputs", [1, 3])
def test_no_scores_at_all_are_recovered_as_rank_zero(outputs, rng):
    E = vocabulary("gaussian", 6, 20, rng)
    recovery = Restricted(E).run(
        Local(Head(np.zeros((6, 6)), rng.normal(size=(6, outputs)))), rng=rng
    )
    assert (recovery.verdict, recovery.rank) == (Verdict.EXACT, 0)


def test_repeated_rows_do_no_harm(rng):
    E = np.repeat(rng.normal(size=(7, 4)) / 2, 3, axis=0)
    truth = Head.random(4, rng=rng)
    assert Restricted(E).run(Local(truth), rng=rng).verdict is Verdict.EXACT


def test_a_vocabulary_that_does_not_fit_is_refused(rng):
    learner = Restricted(rng.normal(size=(10, 4)))
    with pytest.raises(InvalidInput, match="have width 4, the target's 5"):
        learner.run(Local(Head.random(5, rng=rng)), rng=rng)
    with pytest.raises(InvalidInput, match="must be finite"):
        Restricted(np.full((3, 2), np.nan))
    with pytest.raises(InvalidInput, match="at least one token"):
        Restricted(np.zeros((0, 2)))
