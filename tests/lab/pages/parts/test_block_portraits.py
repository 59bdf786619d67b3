"""Portraits of Transformer blocks: how they are built, then their parts."""

import pytest

import keyhole
from keyhole.lab.jobs import LearnJob
from keyhole.lab.pages.parts.block_portraits import draw_block_portrait
from keyhole.lab.running import run_job
from keyhole.models.blocks.random_blocks import BLOCK_STYLES


@pytest.mark.parametrize("style", BLOCK_STYLES)
def test_a_portrait_says_how_a_block_is_built_and_shows_its_parts(style, tmp_path, rng):
    keyhole.save(keyhole.Head.random(2, rng=rng), tmp_path / "head.safetensors")
    told = LearnJob(str(tmp_path / "head.safetensors"), out=str(tmp_path / "run"))
    data = run_job(told).data
    block = keyhole.random_block(8, style=style, heads=2, hidden=12, rng=rng)
    drawn = draw_block_portrait(data, block)
    assert ("Norms stand behind the attention" in drawn) == (style == "bert")
    assert ("RMSNorm of eps" in drawn) == (style == "llama")
    assert "A layer of 2 heads of size 4" in drawn
    assert "network of 12 hidden units" in drawn


def learn_block(tmp_path, **options):
    block = keyhole.random_block(8, style="gpt2", heads=2, hidden=8, rng=5)
    keyhole.save(block, tmp_path / "block.safetensors")
    job = LearnJob(
        str(tmp_path / "block.safetensors"),
        learner="pre-norm-block",
        out=str(tmp_path / "run"),
        **options,
    )
    run_job(job)
    return (tmp_path / "run" / "report.html").read_text()


def test_the_report_of_a_block_draws_it_stage_by_stage(tmp_path):
    page = learn_block(tmp_path)
    assert "questions fill in the block, stage by stage; the limit is 40" in page
    assert "queries recover a Transformer block on tokens of width 8" in page
    assert "sequences: scores of head 2 known to the last digit" in page


def test_the_report_of_a_block_that_was_not_found_draws_how_far_it_came(tmp_path):
    page = learn_block(tmp_path, budget=100)
    assert "fill in the block as far as: units of the network" in page
    assert "fresh questions:" not in page
