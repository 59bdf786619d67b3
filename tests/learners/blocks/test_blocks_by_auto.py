"""Blocks from a bare callable: which build it is, and honest ends where it is none."""

from dataclasses import replace

import numpy as np
import pytest

import keyhole
from keyhole import Local, Wiring, random_block
from keyhole.claims import Verdict
from keyhole.learners.choosing import plan_recovery
from support.blocks import stack_blocks
from support.seeds import few


@pytest.mark.parametrize("style", ["gpt2", "bert"])
@pytest.mark.parametrize("seed", few(6))
def test_auto_tells_the_build_of_a_block_and_recovers_it(style, seed):
    block = random_block(8, style=style, heads=2, hidden=8, rng=300 + seed)
    found = keyhole.learn(Local(block, 8), rng=400 + seed)
    assert found.verdict is Verdict.EXACT, found.sentence
    assert found.model.style == block.style
    assert keyhole.compare(block, found.model).largest < 1e-8


@pytest.mark.parametrize("groups", [1, 2])
def test_auto_recovers_a_block_of_llamas_build(groups):
    block = random_block(8, style="llama", heads=2, groups=groups, hidden=5, rng=310 + groups)
    found = keyhole.learn(Local(block, 8), rng=410)
    assert found.verdict is Verdict.EXACT, found.sentence
    assert keyhole.compare(block, found.model).largest < 1e-8


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("style", ["gpt2", "bert", "llama"])
@pytest.mark.parametrize("width", [8, 16])
def test_auto_refuses_two_blocks_in_a_row_within_500_questions(style, causal, width):
    rng = np.random.default_rng(7)
    blocks = [random_block(width, style=style, heads=2, hidden=16, rng=rng) for _ in range(2)]
    found = keyhole.learn(Local(stack_blocks(blocks, causal=causal), width), rng=8)
    assert found.verdict is Verdict.UNVERIFIED, found.sentence
    assert found.ledger.total().sequences <= 500


def test_auto_says_how_far_it_came_with_units_that_are_not_learned():
    drawn = random_block(8, style="bert", heads=2, hidden=8, rng=11)
    block = replace(drawn, network=replace(drawn.network, activation="relu"))
    found = keyhole.learn(Local(block, 8), rng=12)
    assert found.verdict is Verdict.UNVERIFIED, found.sentence
    assert "Found: the last norm, 2 heads that write 4 numbers" in found.reason


def test_a_recovery_of_a_block_shows_itself_stage_by_stage():
    block = random_block(8, style="gpt2", heads=2, hidden=8, rng=21)
    shown = keyhole.learn(Local(block, 8), rng=22)._repr_html_()
    assert "the block, stage by stage" in shown
    assert "sequences: values of head 2 known to the last digit" in shown


WIRINGS = {
    "llama": Wiring(norm="rms", eps=1e-5, residual=True, positions="rope"),
    "gpt2": Wiring(norm="layer", eps=1e-5, residual=True, positions="none"),
    "bert": Wiring(norm="layer", eps=1e-12, residual=True, positions="none"),
}


@pytest.mark.parametrize("style", WIRINGS)
def test_what_is_told_of_a_block_does_not_keep_auto_from_it(style):
    told = WIRINGS[style]
    block = random_block(8, style=style, heads=2, hidden=5 if style == "llama" else 8, rng=31)
    found = keyhole.learn(Local(block, 8), wiring=told, rng=32)
    assert found.verdict is Verdict.EXACT, found.sentence
    most = plan_recovery(width=8, outputs=8, hints=keyhole.Hints(wiring=told)).at_most
    assert found.ledger.total().sequences <= most


def test_two_blocks_of_a_told_wiring_are_refused_within_500_questions():
    rng = np.random.default_rng(7)
    blocks = [random_block(8, style="gpt2", heads=2, hidden=16, rng=rng) for _ in range(2)]
    target = Local(stack_blocks(blocks, causal=False), 8)
    found = keyhole.learn(target, wiring=WIRINGS["gpt2"], rng=8)
    assert found.verdict is Verdict.UNVERIFIED, found.sentence
    assert found.ledger.total().sequences <= 500
