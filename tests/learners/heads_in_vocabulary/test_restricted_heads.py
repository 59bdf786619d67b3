"""Only rows of a given matrix may be asked: a sum of heads comes back on their affine hull."""

import numpy as np
import pytest

import keyhole
from keyhole import Local, MultiHead, Status, Verdict
from keyhole.errors import InvalidInput
from keyhole.learners.choosing import plan_recovery
from keyhole.learners.heads_in_vocabulary.learner import RestrictedHeads
from keyhole.learners.registry import Hints
from support.seeds import few


class OnlyRows:
    """A target that refuses any token that is not, bit by bit, a row of the vocabulary."""

    def __init__(self, model, E):
        self.model, self.rows, self.width = model, {row.tobytes() for row in E}, E.shape[1]

    def __call__(self, X):
        assert all(x.tobytes() in self.rows for x in X.reshape(-1, self.width))
        return self.model(X)


def draw_vocabulary(kind, d, rng):
    E = rng.normal(size=(4 * d, d)) / np.sqrt(d)
    return {
        "gaussian": E,
        "with equal rows": np.concatenate([E[: 2 * d], E[: 2 * d]]),
        "beside the origin": E + rng.normal(size=d) / np.sqrt(d),
        "of lower rank": E[:, :-2] @ np.linalg.qr(rng.normal(size=(d, d)))[0][:-2],
    }[kind]


def draw_heads(heads, d, rng, *, wired=False):
    W, V = rng.normal(size=(2, heads, d, d)) / np.sqrt(d)
    if not wired:
        return MultiHead(W, V)
    h, c, U = rng.normal(size=(heads, d)), rng.normal(size=d), rng.normal(size=(d, d)) / np.sqrt(d)
    return MultiHead(W, V, h, c, U)


def measure_error(found, truth, E, rng):
    tables = [rng.integers(len(E), size=(40, length)) for length in (1, 2, 3, 7, 20)]
    size = max(np.abs(E @ V).max() for V in truth.V)
    return max(np.abs(found(E[table]) - truth(E[table])).max() for table in tables) / size


@pytest.mark.parametrize(
    "kind", ["gaussian", "with equal rows", "beside the origin", "of lower rank"]
)
@pytest.mark.parametrize(("heads", "wired"), [(2, False), (3, True), (4, False)])
def test_heads_are_recovered_on_the_vocabulary_and_only_its_rows_are_asked(kind, heads, wired):
    verdicts = []
    for seed in few(6):
        rng = np.random.default_rng([4, seed])
        E = draw_vocabulary(kind, 8, rng)
        truth = draw_heads(heads, 8, rng, wired=wired)
        found = RestrictedHeads(E).run(Local(OnlyRows(truth, E)), rng=rng)
        verdicts.append(found.verdict)
        if found.verdict is Verdict.EXACT:
            assert "rows of the vocabulary" in found.sentence
            assert measure_error(found.unwrap(), truth, E, rng) <= 1e-8
            assert len(found.unwrap().W) == heads
    assert set(verdicts) <= {Verdict.EXACT, Verdict.UNVERIFIED}
    assert verdicts.count(Verdict.EXACT) >= 0.8 * len(verdicts)


def test_more_heads_than_outputs_end_unverified_and_say_so():
    rng = np.random.default_rng(1)
    E = draw_vocabulary("gaussian", 6, rng)
    truth = MultiHead.random(6, heads=3, outputs=2, rng=rng)
    found = RestrictedHeads(E).run(Local(truth), rng=rng)
    assert (found.verdict, found.status) == (Verdict.UNVERIFIED, Status.UNSEPARATED)
    assert "outputs" in found.sentence


@pytest.mark.parametrize("size", [30.0, 1e6])
def test_scores_that_no_copies_outweigh_end_unverified_and_say_so(size):
    for seed in few(3):
        rng = np.random.default_rng([8, seed])
        E = size * draw_vocabulary("gaussian", 8, rng)
        found = RestrictedHeads(E).run(Local(draw_heads(4, 8, rng)), rng=rng)
        assert (found.verdict, found.status) == (Verdict.UNVERIFIED, Status.UNSEPARATED)
        assert "outweighs 48 copies" in found.sentence


def test_learn_goes_on_to_several_heads_where_one_is_not_enough():
    for seed in few(3):
        rng = np.random.default_rng([5, seed])
        E = draw_vocabulary("gaussian", 6, rng)
        hints = Hints(tokens=E)
        two = keyhole.learn(OnlyRows(draw_heads(2, 6, rng), E), rng=rng, hints=hints)
        assert two.verdict is Verdict.EXACT, two.sentence
        assert isinstance(two.unwrap(), MultiHead)
        plan = plan_recovery(width=6, outputs=6, hints=hints)
        assert two.ledger.total().sequences <= plan.at_most
        one = keyhole.learn(OnlyRows(draw_heads(1, 6, rng), E), rng=rng, hints=hints)
        assert one.verdict is Verdict.EXACT
        assert isinstance(one.unwrap(), keyhole.Head)
        # No sum of heads is refuted for not being one head.
        six = keyhole.learn(OnlyRows(draw_heads(6, 6, rng), E), rng=rng, hints=hints)
        assert six.verdict is Verdict.UNVERIFIED


def test_a_target_that_is_no_sum_of_heads_is_never_verified():
    for seed in few(4):
        rng = np.random.default_rng([6, seed])
        E = draw_vocabulary("gaussian", 5, rng)
        heads = draw_heads(2, 5, rng)
        targets = {
            "longest first": lambda X, f=heads: f(X) + 1e-5 * np.tanh(X[:, 0, :1]),
            "counts": lambda X, f=heads: f(X) * (1.0 + 1e-6 * X.shape[1]),
            "bent": lambda X, f=heads: np.tanh(f(X)),
        }
        for name, target in targets.items():
            found = RestrictedHeads(E).run(Local(target, 5), rng=rng)
            assert found.verdict is not Verdict.EXACT, name


def test_one_token_alone_is_refused():
    with pytest.raises(InvalidInput, match="two different tokens"):
        RestrictedHeads(np.ones((3, 2)))
