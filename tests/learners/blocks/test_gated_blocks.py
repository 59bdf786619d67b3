"""Whole blocks of Llama's build from their answers, stage by stage."""

import json
from dataclasses import replace

import numpy as np
import pytest

import keyhole
from keyhole import GatedBlock, InvalidInput, Local, ReluNet, Wiring, random_block
from keyhole.claims import Verdict
from keyhole.identify.blocks import gated_block_freedom
from keyhole.learners.base import Status
from keyhole.learners.blocks.far_tokens import FarTokens
from keyhole.learners.blocks.gated.gate_fit import GateFit, GateMap
from keyhole.learners.blocks.gated.gate_pairs import find_gate_pairs
from keyhole.learners.blocks.gated.growing_slices import GrowingSlices, limit_gates
from keyhole.learners.blocks.gated.inert_zeros import zeros_are_inert
from keyhole.learners.blocks.gated.peeled_block import SIZE, PeeledBlock
from keyhole.learners.blocks.lone_fit import LoneAnswers
from keyhole.learners.positions.ball import NormBall
from keyhole.models.layers.norms import normalise
from keyhole.models.layers.turning import list_frequencies, turn_pairs
from keyhole.oracles import Counted
from support.blocks import stack_blocks
from support.seeds import few

CASES = {
    "keys and values shared": {"width": 8, "heads": 2, "groups": 1, "hidden": 5},
    "heads of their own": {"width": 8, "heads": 2, "groups": 2, "hidden": 6},
    "12 wide": {"width": 12, "heads": 2, "groups": 1, "hidden": 12},
}


def draw_llama(rng, *, width=8, heads=2, groups=1, hidden=5):
    return random_block(width, style="llama", heads=heads, groups=groups, hidden=hidden, rng=rng)


def open_far(target, width):
    return FarTokens(Counted(Local(target, width)), NormBall.of(width, "rms", 1e-5))


def read_map(block):
    """The network and the value maps of a block, gains folded in."""
    net, heads = block.network, block.attention
    values = heads.Wv[[heads.find_group(h) for h in range(heads.heads)]]
    M = np.einsum("hor,hrd->od", heads.Wo, values) * block.norm1.gain
    g, u = (part * block.norm2.gain for part in (net.A, net.B))
    return GateMap(g, u, net.C.T, M, net.activation)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", few(6))
def test_a_block_of_llamas_build_comes_back(case, seed):
    block = draw_llama(900 + seed, **CASES[case])
    found = GatedBlock().run(Local(block), rng=np.random.default_rng(950 + seed))
    assert found.verdict is Verdict.EXACT, found.sentence
    assert keyhole.compare(block, found.model).largest < 1e-8
    assert found.model.attention.groups == block.attention.groups
    assert "a complex number per turned pair" in found.determined


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_the_activation_of_gates_is_found(activation):
    drawn = draw_llama(31)
    block = replace(drawn, network=replace(drawn.network, activation=activation))
    found = GatedBlock().run(Local(block), rng=np.random.default_rng(32))
    assert found.verdict is Verdict.EXACT, found.sentence
    assert found.model.network.activation == activation


def test_slices_grow_until_they_show_how_many_gates_there_are(rng):
    block = draw_llama(rng, width=16, heads=4, groups=2, hidden=24)
    far = open_far(block, 16)
    grown, slices = GrowingSlices.draw(far, rng), None
    while slices is None and grown.grow(rng):
        slices = grown.read_span()
    # Four points of a subspace of 11 dimensions, as if all that had been known.
    assert (len(slices.basis), slices.split.m) == (2 * 24 + 1, 11)
    assert far.oracle.ledger.total().sequences == 4 * (11 * 12 + 1)
    pairs = find_gate_pairs(slices.basis, 11, 24, rng=rng)
    g = read_map(block).g @ slices.split.inside
    g /= np.linalg.norm(g, axis=1, keepdims=True)
    assert np.abs(g @ pairs.g.T).max(axis=1).min() > 1 - 1e-6


def test_lone_tokens_settle_a_network_that_is_nearly_right(rng):
    block = draw_llama(rng)
    truth = read_map(block)
    x = rng.normal(size=(60, 8))
    near = replace(truth, g=truth.g + 1e-3 * rng.normal(size=truth.g.shape))
    near = replace(near, M=near.M + 1e-3 * rng.normal(size=near.M.shape))
    held, left = GateFit(1e-5, LoneAnswers(x, block(x[:, None]) - x)).fit(near)
    assert left < 1e-12
    np.testing.assert_allclose(held.M, truth.M, atol=1e-10)
    np.testing.assert_allclose(held.g, truth.g, atol=1e-9)


def test_behind_a_known_network_a_block_answers_as_its_attention(rng):
    block = draw_llama(rng)
    X = rng.normal(size=(10, 5, 8))
    X[:, -1] *= SIZE
    peeled = PeeledBlock(Local(block), read_map(block), block.norm2.eps)
    np.testing.assert_allclose(peeled.ask(X), block.front(X), rtol=1e-12, atol=1e-12)


def test_what_gates_answer_is_the_network_behind_the_norm(rng):
    block = draw_llama(rng)
    r = rng.normal(size=(7, 8))
    made = read_map(block).answer(normalise(r, "rms", 1e-5))
    np.testing.assert_allclose(made, block.network.points(block.norm2(r)), atol=1e-13)


@pytest.mark.parametrize("causal", [False, True])
def test_zero_tokens_are_inert_before_one_block_and_not_before_two(causal):
    rng = np.random.default_rng(8)
    inert, stacked = [], []
    for _ in range(3):
        blocks = [draw_llama(rng) for _ in range(2)]
        inert.append(zeros_are_inert(open_far(blocks[0], 8), rng=rng))
        both = stack_blocks(blocks, causal=causal)
        stacked.append(zeros_are_inert(open_far(both, 8), rng=rng))
    assert all(inert)
    assert not any(stacked)


def relu_gates(block):
    return replace(block, network=replace(block.network, activation="relu"))


def biased_gates(block):
    return replace(block, network=replace(block.network, a=np.full(block.network.hidden, 0.5)))


def plain_units(block):
    net = block.network
    plain = ReluNet(net.A, net.a, net.C, net.c, "silu")
    return replace(block, network=plain)


def centred_norms(block):
    norm1, norm2 = (replace(norm, kind="layer") for norm in (block.norm1, block.norm2))
    return replace(block, norm1=norm1, norm2=norm2)


def another_eps(block):
    return replace(block, norm2=replace(block.norm2, eps=1e-3))


def another_base(block):
    wiring = replace(block.attention.wiring, rope_base=50.0)
    return replace(block, attention=replace(block.attention, wiring=wiring))


def short_window(block):
    wiring = replace(block.attention.wiring, window=4)
    return replace(block, attention=replace(block.attention, wiring=wiring))


OTHERS = (
    relu_gates,
    biased_gates,
    plain_units,
    centred_norms,
    another_eps,
    another_base,
    short_window,
)


@pytest.mark.parametrize("change", OTHERS)
def test_blocks_of_another_build_are_not_verified(change):
    block = change(draw_llama(61))
    found = GatedBlock().run(Local(block), rng=np.random.default_rng(62))
    assert found.verdict is Verdict.UNVERIFIED, found.sentence
    assert found.model is None or found.status is not Status.RECOVERED


@pytest.mark.parametrize("part", [{"rope_base": 50.0}, {"softcap": 5.0}, {"rotary_share": 0.5}])
def test_a_wiring_that_is_told_is_taken(part):
    drawn = draw_llama(71)
    heads = replace(drawn.attention, wiring=replace(drawn.attention.wiring, **part))
    block = replace(drawn, attention=heads)
    told = Wiring(positions="rope", eps=1e-5, **part)
    found = GatedBlock(told).run(Local(block), rng=np.random.default_rng(72))
    assert found.verdict is Verdict.EXACT, found.sentence


@pytest.mark.parametrize("seed", range(2))
def test_scores_that_are_clipped_where_few_tokens_reach_are_seen(seed):
    """At nine tenths of the largest score of all places, which is told by a norm."""
    block = draw_llama(300 + seed)
    heads, gain = block.attention, block.norm1.gain
    far, turns = np.arange(48), list_frequencies(heads.rank, 1e4)
    largest = max(
        np.linalg.norm((heads.Wq[h] * gain).T @ turn_pairs(keys, -angles).T, 2)
        for h in range(heads.heads)
        for keys in [(heads.Wk[heads.find_group(h)] * gain).T]
        for angles in np.tile(far[:, None, None] * turns, (1, 8, 1))
    )
    bound = 0.9 * largest * 8 / np.sqrt(heads.rank)

    def ask(X):
        weights = np.exp(np.clip(block.front.logits(X), -bound, bound))
        weights /= weights.sum(axis=2, keepdims=True)
        values = np.einsum("grd,bnd->bgnr", heads.Wv, block.norm1(X))
        values = values[:, [heads.find_group(h) for h in range(heads.heads)]]
        r = X[:, -1] + np.einsum("hor,bhn,bhnr->bo", heads.Wo, weights, values)
        return r + block.network.points(block.norm2(r))

    found = GatedBlock().run(Local(ask, 8), rng=np.random.default_rng(5))
    assert found.verdict is Verdict.UNVERIFIED, found.sentence


def test_more_gates_than_a_width_tells_apart_are_said_to_be_too_many():
    block = draw_llama(81, hidden=12)
    found = GatedBlock().run(Local(block), rng=np.random.default_rng(82))
    assert (found.verdict, found.status) == (Verdict.UNVERIFIED, Status.UNITS_UNSEPARATED)
    assert f"up to {limit_gates(8)} are told apart" in found.sentence


def test_a_plan_says_what_is_asked_and_bounds_it():
    block = draw_llama(91, width=12, heads=3, groups=3, hidden=12)
    learner = GatedBlock(hidden=12)
    plan = learner.plan(12, outputs=12)
    asked = learner.run(Local(block), rng=np.random.default_rng(92)).ledger.total().sequences
    assert 0.8 * plan.queries <= asked <= 1.3 * plan.queries
    assert asked <= plan.at_most


def test_a_budget_that_ends_early_is_told():
    block = draw_llama(51)
    for budget in (3, 30, 250, 390):
        found = keyhole.learn(Local(block), learner="gated-block", rng=52, budget=budget)
        assert found.verdict in (Verdict.BUDGET_SPENT, Verdict.UNVERIFIED)
        assert found.ledger.total().sequences <= budget


def test_the_network_can_be_asked_for_alone():
    block = draw_llama(55)
    found = GatedBlock(until="network").run(Local(block), rng=np.random.default_rng(56))
    assert (found.verdict, found.status) == (Verdict.UNVERIFIED, Status.STAGE_FOUND)
    assert set(found.ledger.phases) == {"zeros", "slices", "reads", "lone"}
    truth = read_map(block)
    g = found.parts["network.A"]
    gaps = np.linalg.norm(truth.g[:, None] - g, axis=2).min(axis=1)
    assert gaps.max() < 1e-8
    assert "keys" not in GatedBlock(until="network").plan(8).by_phase


def test_freedom_is_the_rank_of_the_derivative():
    """By differences of all weights at random sequences of a small block."""
    rng = np.random.default_rng(5)
    block = draw_llama(rng, width=4, heads=2, groups=1, hidden=3)
    X = rng.normal(size=(60, 4, 4))
    heads, net = block.attention, block.network
    parts = [(heads, name) for name in ("Wq", "Wk", "Wv", "Wo")]
    parts += [(net, name) for name in ("A", "B", "C")]
    rows = []
    for part, name in parts:
        weights = getattr(part, name)
        for at in np.ndindex(weights.shape):
            shift = np.zeros(weights.shape)
            shift[at] = 1e-5
            ways = [replace(part, **{name: weights + way * shift}) for way in (1, -1)]
            where = "attention" if part is heads else "network"
            up, down = (replace(block, **{where: way})(X) for way in ways)
            rows.append(((up - down) / 2e-5).ravel())
    values = np.linalg.svd(np.array(rows), compute_uv=False)
    rank = int((values > 1e-7 * values[0]).sum())
    assert rank == gated_block_freedom(block.front.wiring, 4, heads=2, rank=2, hidden=3)


@pytest.mark.parametrize(
    ("wiring", "says"),
    [
        (Wiring(norm="layer"), "told otherwise: norm"),
        (Wiring(positions="alibi"), "told otherwise: positions"),
        (Wiring(window=8), "told otherwise: window"),
        (Wiring(eps=0.0), "eps = 0"),
    ],
)
def test_a_wiring_that_is_not_learned_is_refused(wiring, says):
    with pytest.raises(InvalidInput, match=says):
        GatedBlock(wiring)


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(InvalidInput, match="activation of a gate is gelu"):
        GatedBlock(activation="relu")
    with pytest.raises(InvalidInput, match="whole numbers from 1 on"):
        GatedBlock(hidden=0)
    with pytest.raises(InvalidInput, match="may end after network"):
        GatedBlock(until="values")


def test_the_command_line_learns_a_block_of_llamas_build(keyhole, tmp_path):
    sample = ("--style", "llama", "--width", 8, "--heads", 2, "--hidden", 5)
    keyhole("sample", "block", *sample, "--out", "block.safetensors")
    done = keyhole(
        "learn", "block.safetensors", "--learner", "gated-block", "--out", "run", "--json"
    )
    record = json.loads(done.out)
    assert (record["verdict"], record["class"], record["heads"]) == ("EXACT", "block", 2)
    assert keyhole("compare", "block.safetensors", "run/model.safetensors").code == 0
    page = (tmp_path / "run/report.html").read_text(encoding="utf-8")
    assert "heads told apart" in page


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_block_of_width_32_costs_at_most_12_times_the_limit(seed):
    block = draw_llama(70 + seed, width=32, heads=4, groups=2, hidden=64)
    found = keyhole.learn(Local(block), learner="gated-block", rng=80 + seed)
    assert found.verdict is Verdict.EXACT, found.sentence
    asked = found.ledger.total(without="verify").sequences
    assert asked * 32 <= 12 * found.degrees_of_freedom
    assert keyhole.compare(block, found.model).largest < 1e-8
