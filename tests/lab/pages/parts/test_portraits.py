"""Pictures of recovered models: every class has one, exact, and what is left out is said."""

import re

import numpy as np
import pytest
from msgspec import structs

from keyhole.lab.pages import recovery_page
from keyhole.lab.pages.parts.portraits import draw_portrait
from keyhole.lab.runs.record_parts import Queries, UnitsRecord
from keyhole.lab.runs.recovery_records import LearnRecord
from keyhole.models import AbsAffine, Gated, MultiHead, OneLayer, ReluNet, save
from support.pages import read_cells

EXACT = LearnRecord(model="model.safetensors", verdict="EXACT", queries=Queries(total=1))


@pytest.fixture
def shown(tmp_path):
    """`shown(model)` is the picture of a model."""

    def do(model, **data):
        save(model, tmp_path / "model.safetensors")
        return draw_portrait(structs.replace(EXACT, **data), tmp_path)

    return do


def cells(page):
    return [read_cells(text) for text in re.findall(r'data-cells="([^"]*)"', page)]


def told(page, name):
    return [float(value) for value in re.findall(rf"<title>{name} \d+: ([\d.e-]+)</title>", page)]


def test_every_head_has_its_w_and_its_v(shown, rng):
    model = MultiHead.random(5, heads=3, outputs=2, rng=rng)
    page = shown(model)
    maps = cells(page)
    assert len(maps) == 6
    for k in range(3):
        np.testing.assert_allclose(maps[2 * k].reshape(5, 5), model.W[k], rtol=0.06)
        np.testing.assert_allclose(maps[2 * k + 1].reshape(2, 5), model.V[k].T, rtol=0.06)
    sizes = [np.sqrt((V**2).sum()) for V in model.V]
    np.testing.assert_allclose(told(page, "size of V of head"), sizes, rtol=0.01)
    assert "3 heads of width 5, recovered" in page


def test_a_residual_past_the_heads_is_drawn(shown, rng):
    model = MultiHead(*rng.normal(size=(2, 2, 3, 3)), U=rng.normal(size=(3, 3)))
    page = shown(model)
    np.testing.assert_allclose(cells(page)[-1].reshape(3, 3), model.U.T, rtol=0.06)
    assert "U, past all heads, of norm" in page


def test_singular_values_of_all_heads_are_drawn_and_told(shown, rng):
    model = MultiHead.random(4, heads=2, rng=rng)
    values = np.concatenate([np.linalg.eigvalsh(W.T @ W) for W in model.W]) ** 0.5
    np.testing.assert_allclose(
        told(shown(model), "singular value of all heads"), np.sort(values)[::-1], rtol=0.01
    )


def test_more_than_eight_heads_are_said_to_be_left_out(shown, rng):
    page = shown(MultiHead.random(3, heads=11, rng=rng))
    assert len(cells(page)) == 16
    assert "The first 8 of 11 heads are drawn" in page
    assert len(told(page, "size of W of head")) == 11


@pytest.mark.parametrize(
    "verdict", ["CLASS_REFUTED", "UNVERIFIED", "BUDGET_SPENT", "NOT_IDENTIFIABLE"]
)
def test_only_a_verified_model_is_called_recovered(shown, rng, verdict):
    assert "recovered" not in shown(MultiHead.random(3, heads=2, rng=rng), verdict=verdict)


def test_a_network_shows_jumps_offsets_and_normals_in_one_order(shown, rng):
    net = ReluNet.random(4, hidden=6, outputs=2, rng=rng)
    page = shown(net.normal_form())
    jump = np.array([np.linalg.norm(net.W1[j]) * np.linalg.norm(net.W2[:, j]) for j in range(6)])
    order = jump.argsort()[::-1]
    away = np.abs(net.b1) / np.linalg.norm(net.W1, axis=1)
    np.testing.assert_allclose(told(page, "jump of slope at unit"), jump[order], rtol=0.01)
    np.testing.assert_allclose(
        told(page, "distance from the origin of unit"), away[order], rtol=0.01
    )
    np.testing.assert_allclose(
        cells(page)[0].reshape(6, 4),
        (net.W1 / np.linalg.norm(net.W1, axis=1)[:, None])[order],
        rtol=0.06,
    )
    assert "A network of 6 hidden units" in page


def test_error_bars_stand_in_the_order_of_units_and_not_of_pairs(shown, rng):
    """The last two units of this model carry a linear part, and have no bars of their own."""
    net = ReluNet.random(4, hidden=8, outputs=2, activation="gelu", rng=rng)
    bars = [1e-12, 3e-9, 2e-10, 4e-11, 5e-12, 6e-11]
    units = UnitsRecord(activation="gelu", sizes=[1.0] * 6, bars=bars, faint=1e-9)
    jump = np.linalg.norm(net.W1, axis=1) * np.linalg.norm(net.W2, axis=0)
    order = [j for j in jump.argsort()[::-1] if j < 6]
    page = shown(net, units=units)
    drawn = told(page, "error bar of the normal of unit")
    np.testing.assert_allclose(drawn, np.array(bars)[order], rtol=0.01)
    assert "error bar of the normal" not in shown(net)


def test_smooth_units_are_drawn_by_the_hyperplanes_they_turn_about(shown, rng):
    net = ReluNet.random(4, hidden=6, outputs=2, activation="gelu", rng=rng)
    page = shown(net)
    normals = net.W1 / np.linalg.norm(net.W1, axis=1, keepdims=True)
    order = np.argsort(-np.linalg.norm(net.W1, axis=1) * np.linalg.norm(net.W2, axis=0))
    np.testing.assert_allclose(cells(page)[0].reshape(6, 4), normals[order], rtol=0.06)


def test_a_gated_network_shows_gates_and_factors_in_one_order(shown, rng):
    net = Gated.random(4, hidden=6, outputs=3, rng=rng)
    page = shown(net)
    size = [np.linalg.norm(a) * np.linalg.norm(b) for a, b in zip(net.A, net.B, strict=True)]
    order = np.argsort(-np.array(size) * np.linalg.norm(net.C, axis=0))
    gates, factors = (map_.reshape(6, 4) for map_ in cells(page))
    np.testing.assert_allclose(gates, net.A[order], rtol=0.06)
    np.testing.assert_allclose(factors, net.B[order], rtol=0.06)
    assert "A gated network of 6 hidden units, recovered" in page


def test_a_one_layer_transformer_shows_its_scores_and_its_network(shown, rng):
    model = OneLayer.random(4, hidden=5, rng=rng)
    page = shown(model)
    assert len(cells(page)) == 2
    np.testing.assert_allclose(cells(page)[0].reshape(4, 4), np.asarray(model.head.W), rtol=0.06)
    assert "A network of 5 hidden units" in page


def test_models_without_anything_to_draw_say_so(shown):
    empty = AbsAffine(np.zeros((0, 3)), np.zeros(0), np.zeros((0, 1)), np.ones((1, 3)), np.zeros(1))
    assert "no bend to draw" in shown(empty)
    assert "data-cells" in shown(MultiHead(np.zeros((1, 3, 3)), np.zeros((1, 3, 1))))


def test_a_run_without_a_model_has_no_picture(tmp_path):
    assert draw_portrait(structs.replace(EXACT, model=None), tmp_path) == ""


def test_the_count_of_queries_of_several_heads_speaks_of_all_of_them():
    data = structs.replace(EXACT, width=8, heads=3, rank=8, degrees_of_freedom=144)
    assert recovery_page._describe_shape(data) == "3 heads of width 8"
    one = structs.replace(data, heads=1, model_class="head")
    assert recovery_page._describe_shape(one) == "a 8 x 8 head of rank 8"


def test_what_is_no_head_is_not_called_one():
    unit = structs.replace(
        EXACT, width=4, heads=1, rank=2, degrees_of_freedom=27, model_class="tensor"
    )
    assert recovery_page._describe_shape(unit) == "a unit of third order on tokens of width 4"
    assert recovery_page._describe_shape(structs.replace(unit, verdict="UNVERIFIED")) is None
