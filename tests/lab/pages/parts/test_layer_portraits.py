"""Portraits of attention layers: how far back heads look, tables and slopes as curves."""

from dataclasses import replace

import numpy as np
import pytest

import keyhole
from keyhole.lab.jobs import LearnJob
from keyhole.lab.pages.parts.layer_portraits import (
    average_attention,
    draw_layer_portrait,
    draw_position_curves,
    list_position_scores,
)
from keyhole.lab.running import run_job
from keyhole.lab.runs.record_parts import Queries
from keyhole.lab.runs.recovery_records import LearnRecord
from support.wired_layers import draw_wired


def test_mean_weights_are_those_of_a_table_where_tokens_do_not_count(rng):
    layer = draw_wired("table", rng, displacements=6)
    still = keyhole.AttentionLayer(
        np.zeros_like(layer.Wq),
        layer.Wk,
        layer.Wv,
        layer.Wo,
        keyhole.Wiring(positions="table"),
        table=layer.table,
    )
    powers = np.exp(layer.table)
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(average_attention(still), expected, atol=1e-12)


def test_tables_and_slopes_are_curves_that_begin_at_zero(rng):
    table, tilted = (draw_wired(name, rng) for name in ("table", "alibi"))
    shown = list_position_scores(table)
    np.testing.assert_allclose(shown[:, 3], table.table[:, 3] - table.table[:, 0])
    np.testing.assert_allclose(list_position_scores(tilted)[:, 5], -5 * tilted.table[:, 0])
    assert list_position_scores(draw_wired("rms rope", rng)) is None
    for layer, word in ((table, "Tables"), (tilted, "Slopes")):
        drawn = draw_position_curves(layer)
        assert word in drawn
        assert drawn.count('class="line ours"') == layer.heads
    assert "positions" in draw_position_curves(draw_wired("absolute", rng))


@pytest.mark.parametrize("positions", ["rope", "table"])
def test_the_page_of_a_recovered_layer_shows_its_portrait(positions, tmp_path, rng):
    wiring = keyhole.Wiring(norm="rms", positions=positions)
    layer = keyhole.random_layer(16, heads=4, wiring=wiring, displacements=12, rng=rng)
    keyhole.save(layer, tmp_path / "layer.safetensors")
    out = tmp_path / "run"
    told = {"norm": "rms", "positions": positions, "lengths": "1:12"}
    told = told if positions == "table" else {**told, "lengths": None}
    run_job(LearnJob(str(tmp_path / "layer.safetensors"), out=str(out), **told))
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "A layer of 4 heads of size 4, recovered" in page
    assert "How far back heads look" in page
    assert ("Tables of the heads" in page) == (positions == "table")
    assert page.count("scores of head") >= 4


def test_groups_are_named_only_where_heads_share_keys_and_values(rng):
    queries = Queries(total=1)
    data = LearnRecord(verdict="EXACT", status="RECOVERED", sentence="done", queries=queries)
    alone = draw_wired("rms rope", rng)
    assert "groups" not in draw_layer_portrait(data, alone)
    shared = replace(
        alone, Wk=alone.Wk[:1], Wv=alone.Wv[:1], wiring=replace(alone.wiring, groups=None)
    )
    assert "groups 1" in draw_layer_portrait(data, shared)
