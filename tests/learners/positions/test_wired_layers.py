"""keyhole/layers-as-built: layers behind norms and with positions come back, and nothing else."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import keyhole
from keyhole import Hints, InvalidInput, Local, WiredLayer, Wiring, random_layer
from keyhole.claims import Verdict
from keyhole.identify.layers import layer_freedom
from keyhole.learners.base import Status
from keyhole.learners.choosing import choose_learner, plan_recovery
from keyhole.learners.positions.ball import NormBall
from keyhole.learners.positions.found_wiring import draw_direction, find_eps, find_residual
from keyhole.oracles.limits import Sized
from support.seeds import some
from support.wired_layers import differentiate

pytestmark = pytest.mark.theorem("keyhole/layers-as-built")

# Wirings, whether there are biases, and how many queries beside the limit are allowed.
CASES = {
    "rope": (Wiring(norm="rms", positions="rope"), False, 1.7),
    "rope with biases": (Wiring(norm="rms", positions="rope"), True, 1.8),
    "half rope": (Wiring(norm="rms", positions="rope", rotary_share=0.5), False, 1.8),
    "table": (Wiring(norm="layer", positions="table"), True, 2.0),
    "alibi": (Wiring(norm="layer", positions="alibi"), True, 2.0),
    "no positions": (Wiring(norm="layer", positions="none"), True, 2.0),
    "no norm": (Wiring(norm="none", positions="rope", residual=False), True, 1.8),
    "capped": (Wiring(norm="rms", positions="rope", softcap=5.0), False, 1.7),
    "capped with biases": (Wiring(norm="layer", positions="alibi", softcap=5.0), True, 2.5),
    "window": (Wiring(norm="rms", positions="table", window=12), False, 2.2),
    "absolute": (Wiring(norm="rms", positions="absolute"), False, 1.9),
    "absolute with biases": (Wiring(norm="layer", positions="absolute"), True, 1.9),
    "absolute, no residual": (
        Wiring(norm="layer", positions="absolute", residual=False),
        True,
        2.3,
    ),
    "absolute, no norm": (Wiring(norm="none", positions="absolute", residual=True), True, 2.1),
}


def tell(wiring):
    """A wiring with eps and the residual told."""
    normed = wiring.norm != "none"
    residual = normed if wiring.residual is None else wiring.residual
    return replace(wiring, eps=1e-5 if normed else None, residual=residual)


def count_places(wiring):
    return 8 if wiring.positions == "absolute" else 32


def draw(wiring, rng, *, width=16, heads=4, **options):
    options = {"displacements": count_places(wiring)} | options
    return random_layer(width, heads=heads, wiring=wiring, rng=rng, **options)


def measure_error(truth, model, rng):
    """Largest relative error over lengths up to 32, or as many as there are absolute positions."""
    errors = []
    for length in (1, 2, 4, 8) if truth.positions is not None else (1, 2, 8, 32):
        X = rng.normal(size=(20, length, truth.width))
        errors.append(np.linalg.norm(truth(X) - model(X)) / np.linalg.norm(truth(X)))
    return max(errors)


@pytest.mark.parametrize("name", CASES)
def test_layers_come_back_from_few_queries(name):
    """All of three seeds exact, and the typical one near the counting limit."""
    wiring, biases, ratio = CASES[name]
    ratios = []
    for seed in range(3):
        truth_rng, rng, fresh = np.random.default_rng(seed).spawn(3)
        truth = draw(tell(wiring), truth_rng, biases=biases)
        learner = WiredLayer(tell(wiring), displacements=count_places(wiring))
        found = learner.run(Local(truth), rng=rng)
        assert found.verdict is Verdict.EXACT
        assert (found.model.heads, found.model.rank) == (4, 4)
        assert measure_error(truth, found.model, fresh) <= 1e-9
        asked = found.ledger.total(without="verify").sequences
        ratios.append(asked * truth.outputs / found.degrees_of_freedom)
    assert np.median(ratios) <= ratio


def test_eps_and_the_residual_are_found_where_they_are_not_told():
    truth = draw(Wiring(norm="rms", eps=3e-6, residual=True, positions="rope"), 3)
    found = keyhole.learn(truth, wiring=Wiring(norm="rms", positions="rope"), rng=4)
    assert found.verdict is Verdict.EXACT
    assert found.model.wiring.residual
    assert abs(found.model.wiring.eps / 3e-6 - 1) < 1e-9
    assert "Found: eps 3e-06, residual yes." in found.reason
    assert found.ledger.phases["wiring"].sequences == 6


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_eps_of_any_size_is_found(norm, rng):
    for eps in 10.0 ** rng.uniform(-12, -3, size=8):
        truth = draw(Wiring(norm=norm, eps=eps, residual=True), rng, biases=True)
        oracle = Local(truth)
        u = draw_direction(16, rng=rng)
        assert find_residual(oracle, u)
        assert abs(find_eps(oracle, u, residual=True) / eps - 1) < 1e-9


def test_a_layer_without_residual_has_none(rng):
    truth = draw(Wiring(norm="rms"), rng)
    assert not find_residual(Local(truth), draw_direction(16, rng=rng))


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_what_is_sent_is_read_as_it_was_meant(norm, rng):
    ball = NormBall.of(8, norm, 1e-5)
    n = ball.draw(5, 1, size=0.9, rng=rng)
    layer = random_layer(8, heads=2, wiring=Wiring(norm=norm, eps=1e-5), rng=rng)
    read = replace(layer, gain=None).normed(ball.send(n))
    np.testing.assert_allclose(read, n @ ball.basis.T, atol=1e-12)


def test_layers_whose_norm_hardly_lets_some_inputs_through_come_back():
    """Trained gains are near zero here and there, and M is then nearly singular."""
    wiring = Wiring(norm="rms", eps=1e-5, residual=True, positions="rope")
    for seed in range(3):
        drawn = random_layer(24, heads=2, wiring=wiring, rng=seed)
        faint = np.concatenate([[1e-4, 3e-4, 1e-8], np.ones(21)])
        truth = replace(drawn, gain=drawn.gain * faint)
        found = WiredLayer(wiring).run(Local(truth), rng=np.random.default_rng(seed))
        assert found.verdict is Verdict.EXACT
        assert measure_error(truth, found.model, np.random.default_rng(seed)) <= 1e-9


DEVIATIONS = {
    "a cap that was not told": {"softcap": 3.0},
    "a window that was not told": {"window": 5},
    "another base": {"rope_base": 500.0},
    "a share that was not told": {"rotary_share": 0.5},
    "sinks": {"sinks": True},
    "normed queries and keys": {"qk_norm": True},
}


@pytest.mark.parametrize("name", DEVIATIONS)
def test_a_layer_that_is_wired_otherwise_is_not_called_exact(name):
    told = Wiring(norm="rms", eps=1e-5, residual=True, positions="rope", qk_norm=False)
    truth = draw(replace(told, **DEVIATIONS[name]), 5, width=8, heads=2)
    found = keyhole.learn(truth, wiring=told, rng=6)
    assert found.verdict is Verdict.UNVERIFIED
    assert found.status in (Status.UNSEPARATED, Status.LAYER_DISAGREES)


class TwoLayers:
    """A layer that reads what another layer answered at every position."""

    def __init__(self, first, second):
        self.first, self.second, self.width, self.outputs = (
            first,
            second,
            first.width,
            first.outputs,
        )

    def __call__(self, X):
        inner = [self.first(X[:, : i + 1]) for i in range(X.shape[1])]
        return self.second(np.stack(inner, axis=1))


def test_two_layers_are_not_called_one():
    wiring = Wiring(norm="rms", eps=1e-5, residual=True, positions="rope")
    target = TwoLayers(*(draw(wiring, seed, width=8, heads=2) for seed in (7, 8)))
    # Of sequences that may be longer the learner of wide heads asks thousands of tokens.
    found = keyhole.learn(
        Sized(Local(target), (1, 200)), wiring=replace(wiring, residual=True), rng=9
    )
    assert found.verdict is Verdict.UNVERIFIED


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"qk_norm": True, "positions": "alibi"}, "layers with qk_norm are learned with rotary"),
        ({"qk_norm": True, "eps": 0.0}, "do not show the size of these maps"),
        ({"sinks": True}, "sinks are learned beside rotary positions and without a cap"),
        ({"norm": "rms", "eps": 0.0}, "eps = 0 lets tokens be read on a sphere only"),
    ],
)
def test_a_wiring_that_is_not_learned_is_refused(told, says, rng):
    with pytest.raises(InvalidInput, match=says):
        keyhole.learn(draw(Wiring(), rng), wiring=Wiring(**told), rng=0)


def test_a_budget_is_kept_and_told():
    wiring = tell(Wiring(norm="rms", positions="rope"))
    truth = draw(wiring, 1)
    found = keyhole.learn(truth, wiring=wiring, rng=2, budget=60)
    assert found.verdict is Verdict.BUDGET_SPENT
    assert found.ledger.total().sequences == 60
    unchecked = keyhole.learn(truth, wiring=wiring, rng=2, budget=120)
    assert unchecked.status is Status.UNCHECKED


def test_a_plan_tells_what_is_asked():
    wiring = tell(Wiring(norm="rms", positions="rope"))
    plan = plan_recovery("wired-layer", width=16, outputs=16, hints=Hints(wiring=wiring))
    found = keyhole.learn(draw(wiring, 1), wiring=wiring, rng=2)
    asked = found.ledger.total().sequences
    assert asked <= plan.queries <= 1.3 * asked
    assert plan.queries < plan.at_most
    assert isinstance(choose_learner("auto", Hints(wiring=wiring)), WiredLayer)


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_position_vectors_and_eps_are_found_where_only_the_kind_is_told(norm):
    """Places end where the target refuses longer sequences; vectors come back to rounding."""
    truth = draw(Wiring(norm=norm, eps=3e-6, residual=True, positions="absolute"), 11)
    target = Local(lambda X: truth(X), truth.width)
    found = keyhole.learn(target, wiring=Wiring(norm=norm, positions="absolute"), rng=12)
    assert found.verdict is Verdict.EXACT
    assert abs(found.model.wiring.eps / 3e-6 - 1) < 1e-9
    apart = found.model.positions - truth.positions
    # Behind a LayerNorm one number is free, the same for all entries of all vectors.
    free = apart.mean() if norm == "layer" else 0.0
    np.testing.assert_allclose(apart, free, atol=1e-11)
    assert found.ledger.phases["positions"].sequences == 2 * 7 + 1


def test_lone_tokens_that_bend_otherwise_have_no_position_vector(rng):
    """A network behind the norm is no linear map of what the norm leaves."""
    layer = draw(Wiring(norm="rms", eps=1e-5, positions="absolute"), rng)

    def bent(X):
        return np.tanh(layer(X))

    told = Wiring(norm="rms", eps=1e-5, residual=False, positions="absolute")
    found = WiredLayer(told, displacements=8).run(Local(bent, size=16), rng=rng)
    assert (found.verdict, found.status) == (Verdict.UNVERIFIED, Status.UNSEPARATED)
    assert "No vector that is added" in found.detail


@pytest.mark.parametrize(
    "told",
    [
        Wiring(),
        Wiring(norm="rms"),
        Wiring(norm="rms", positions="rope"),
        Wiring(norm="rms", eps=1e-5, residual=True),
    ],
    ids=["nothing", "norm", "positions", "norm and residual"],
)
def test_a_plan_counts_the_questions_that_tell_the_wiring(told):
    layer = draw(Wiring(norm="rms", eps=1e-5, residual=True, positions="rope"), 1)
    plan = WiredLayer(told).plan(16, outputs=16)
    found = WiredLayer(told).run(Local(layer), rng=np.random.default_rng(2))
    asked = {name: entry.sequences for name, entry in found.ledger.phases.items()}
    assert asked["wiring"] <= plan.by_phase["wiring"] <= asked["wiring"] + 2
    assert asked["split"] <= plan.by_phase["split"] <= asked["split"] + 8
    assert found.ledger.total().sequences <= plan.queries <= plan.at_most


def test_a_plan_tells_what_absolute_positions_cost():
    wiring = tell(Wiring(norm="rms", positions="absolute"))
    learner = WiredLayer(wiring, displacements=8)
    plan = learner.plan(16, outputs=16)
    asked = learner.run(Local(draw(wiring, 1)), rng=np.random.default_rng(2)).ledger.total()
    assert asked.sequences <= plan.queries <= 1.3 * asked.sequences


@pytest.mark.parametrize("told", [Wiring(norm="rms", positions="table"), None])
def test_a_layer_that_knows_few_displacements_is_asked_no_longer_sequences(told):
    truth = draw(Wiring(norm="rms", eps=1e-5, residual=True, positions="table"), 3)
    longest = truth.longest
    assert longest < 64
    found = keyhole.learn(truth, wiring=told, rng=4)
    assert found.verdict is Verdict.EXACT
    assert found.model.longest == longest


def count_numbers(layer, lengths, rng):
    """The rank of the derivative of many answers by all parts, which no formula enters."""
    names = ("Wq", "Wk", "Wv", "Wo", "bq", "bk", "bo", "table", "positions")
    X = [rng.normal(size=(40, length, layer.width)) for length in lengths]
    J = np.concatenate(
        [differentiate(layer, name, X) for name in names if getattr(layer, name) is not None],
        axis=1,
    )
    sizes = np.linalg.norm(J, axis=0)
    # What no answer shows leaves the rounding of the differences.
    seen = sizes > 1e-7 * sizes.max()
    values = np.linalg.svd(J[:, seen] / sizes[seen], compute_uv=False)
    return (values > 1e-7).sum()


KINDS = list(
    product(["rope", "half", "table", "none", "alibi"], ["rms", "layer", "none"], [True, False])
)


@pytest.mark.theorem("keyhole/layer-symmetries")
@pytest.mark.parametrize(("positions", "norm", "biased"), some(KINDS, 5))
def test_what_positions_and_norms_leave_free_is_counted(positions, norm, biased, rng):
    half = positions == "half"
    wiring = Wiring(
        norm=norm,
        eps=None if norm == "none" else 1e-2,
        residual=True,
        positions="rope" if half else positions,
        rotary_share=0.5 if half else None,
    )
    width = 8 if half else 4
    layer = draw(wiring, rng, width=width, heads=2, displacements=3, biases=biased)
    layer = replace(layer, gain=None, shift=None)
    sizes = {"heads": 2, "rank": width // 2, "outputs": width, "displacements": 3}
    expected = layer_freedom(wiring, width, **sizes, biased=biased)
    assert count_numbers(layer, (1, 2, 3), rng) == expected


@pytest.mark.theorem("keyhole/layer-symmetries")
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("norm", ["none", "rms", "layer"])
def test_what_absolute_positions_leave_free_is_counted(norm, residual, biased, rng):
    eps = None if norm == "none" else 1e-2
    wiring = Wiring(norm=norm, eps=eps, residual=residual, positions="absolute")
    layer = draw(wiring, rng, width=4, heads=2, displacements=3, biases=biased)
    layer = replace(layer, gain=None, shift=None)
    sizes = {"heads": 2, "rank": 2, "outputs": 4, "displacements": 3}
    expected = layer_freedom(wiring, 4, **sizes, biased=biased)
    assert count_numbers(layer, (1, 2, 3), rng) == expected


def test_what_is_determined_is_counted():
    """Counted by hand: r(d + o) - r^2 of values, 2rd - r or 2rd - r^2 of scores, per head."""
    sizes = {"heads": 2, "rank": 8, "outputs": 16}
    rope = layer_freedom(Wiring(norm="rms", positions="rope"), 16, **sizes)
    assert rope == 2 * (8 * 32 - 64) + 2 * (2 * 8 * 16 - 8)
    plain = layer_freedom(Wiring(norm="layer"), 16, **sizes, biased=True)
    assert plain == 2 * (8 * 31 - 64) + 2 * (2 * 8 * 15 - 64 + 8) + 16
