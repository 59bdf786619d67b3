"""Portraits of units of higher order: what answers determine of them, and what is left out."""

import re

import numpy as np

from keyhole import TensorAttention, TensorRow, save
from keyhole.lab.jobs import LearnJob
from keyhole.lab.pages.parts.tensor_portraits import draw_tensor_portrait
from keyhole.lab.running import run_job
from keyhole.lab.runs.record_parts import Queries
from keyhole.lab.runs.recovery_records import LearnRecord
from support.pages import read_cells

EXACT = LearnRecord(model="model.safetensors", verdict="EXACT", rank=2, queries=Queries(total=1))


def cells(page):
    return [read_cells(text) for text in re.findall(r'data-cells="([^"]*)"', page)]


def test_slices_of_T_and_products_of_values_are_drawn(rng):
    unit = TensorAttention.random(4, embed=2, outputs=2, rng=rng)
    page = draw_tensor_portrait(EXACT, TensorRow(unit))
    maps = cells(page)
    assert len(maps) == 4 + 2
    for y in range(4):
        T = sum(unit.Q[y, e] * np.outer(unit.K[0][:, e], unit.K[1][:, e]) for e in range(2))
        np.testing.assert_allclose(maps[y].reshape(4, 4), T, rtol=0.06, atol=1e-9)
    for o in range(2):
        V = np.outer(unit.V[0][:, o], unit.V[1][:, o])
        np.testing.assert_allclose(maps[4 + o].reshape(4, 4), V, rtol=0.06, atol=1e-9)
    assert "A unit of order 3 on tokens of width 4, recovered" in page
    assert "T is a sum of 2 products." in page


def test_the_largest_slices_of_a_wide_unit_are_drawn_and_the_rest_is_told(rng):
    unit = TensorAttention.random(12, embed=2, outputs=9, rng=rng)
    page = draw_tensor_portrait(EXACT, TensorRow(unit))
    sizes = [np.linalg.norm((unit.K[0] * q) @ unit.K[1].T) for q in unit.Q]
    largest = sorted(np.argsort(sizes)[-8:] + 1)
    shown = re.findall(r"T at coordinate (\d+) of y, of norm", page)
    assert list(dict.fromkeys(int(k) for k in shown)) == largest
    assert "The 8 largest slices are drawn. The first 8 outputs are drawn." in page


def test_units_of_other_orders_show_the_weights_they_hold(rng):
    unit = TensorAttention.random(3, order=4, embed=2, rng=rng)
    page = draw_tensor_portrait(EXACT, TensorRow(unit))
    maps = cells(page)
    assert len(maps) == 1 + 3 + 3
    np.testing.assert_allclose(maps[3].reshape(2, 3), unit.K[2].T, rtol=0.06, atol=1e-9)
    assert "K3, of norm" in page


def test_the_page_of_a_recovered_unit_shows_its_portrait(tmp_path, rng):
    save(TensorRow.random(4, embed=1, rng=rng), tmp_path / "row.safetensors")
    out = tmp_path / "run"
    run_job(LearnJob(str(tmp_path / "row.safetensors"), out=str(out), verify=24))
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "A unit of order 3 on tokens of width 4, recovered" in page
    assert "T is a sum of 1 product." in page
