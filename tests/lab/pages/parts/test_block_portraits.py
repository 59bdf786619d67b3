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
