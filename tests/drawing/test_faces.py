"""Objects in a terminal and in a notebook: one line, or words, tables and pictures."""

import copy
import json
import sys
from dataclasses import dataclass

import numpy as np
import pytest

import keyhole
from keyhole.drawing.faces import Face
from keyhole.drawing.plain_values import is_same
from keyhole.errors import InvalidInput
from keyhole.models.registry import KINDS

FIRST = keyhole.Head.random(16, rng=1)


@dataclass(repr=False)
class Odd(Face):
    words: str
    numbers: np.ndarray


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_model_has_a_face(name):
    kind = KINDS[name]
    assert issubclass(kind.model, Face)
    assert kind.model.__repr__ is Face.__repr__


def test_a_model_is_one_line_of_shapes():
    assert repr(FIRST) == "<Head: W 16 x 16, V 16 x 1>"
    assert (
        repr(keyhole.MultiHead.random(4, heads=2, rng=0)) == "<MultiHead: W 2 x 4 x 4, V 2 x 4 x 1>"
    )


def test_a_recovery_is_one_line_with_its_verdict():
    recovery = keyhole.learn(FIRST, rng=0)
    line = repr(recovery)
    assert "verdict EXACT" in line
    assert "rank 16" in line
    assert "\n" not in line
    assert len(line) < 300
    shown = recovery._repr_html_()
    assert recovery.sentence.split(". ")[0] in shown
    assert shown.count("<figure") >= 2
    assert recovery.certificate.theorem in shown


def test_faces_need_neither_scripts_nor_anything_from_elsewhere():
    built = keyhole.build(keyhole.SparseAverage(6, 1), rng=0)
    for one in (FIRST, built, keyhole.bound(keyhole.SparseAverage(6, 1), embed=3, bits=8.0)):
        shown = one._repr_html_()
        assert "<script" not in shown
        assert "http" not in shown.replace("http://www.w3.org/", "")


def test_foreign_words_are_escaped():
    shown = Odd("<script>alert(1)</script>\x1b[31m", np.eye(2))._repr_html_()
    assert "<script" not in shown
    assert "\x1b" not in shown


def test_numbers_that_cannot_be_drawn_are_left_out():
    shown = Odd("", np.array([[np.nan, 1.0]]))._repr_html_()
    assert "<figure" not in shown
    assert repr(Odd("", np.zeros((0, 3)))) == "<Odd: numbers 0 x 3>"


def test_one_array_is_plotted_by_its_name():
    layer = keyhole.MultiHead.random(4, heads=2, outputs=3, rng=0)
    assert layer.plot("W")._repr_html_().count("<figure") == 2
    with pytest.raises(InvalidInput, match=r"name of an array \(V, W\); got 'X'"):
        layer.plot("X")


def test_arrays_of_parts_are_plotted_and_all_of_them_where_none_is_named():
    block = keyhole.random_block(8, heads=2, hidden=4, rng=0)
    assert block.plot("attention.Wq")._repr_html_().count("<figure") == 2
    assert block.plot("Wq")._repr_html_() == block.plot("attention.Wq")._repr_html_()
    found = keyhole.learn(FIRST, rng=0)
    assert found.plot("W")._repr_html_() == found.plot("model.W")._repr_html_()
    assert FIRST.plot()._repr_html_().count("<figure") == 2
    with pytest.raises(InvalidInput, match=r"this Bound holds none: page\(\) shows all of it"):
        keyhole.bound(keyhole.SparseAverage(6, 1), embed=3, bits=8.0).plot()


def test_a_model_of_many_parts_is_one_short_line():
    block = keyhole.random_block(8, heads=2, hidden=4, rng=0)
    assert len(repr(block)) < 300
    assert "(AttentionLayer)" in repr(block)


DRAWN = {
    "head": lambda rng: keyhole.Head.random(4, rng=rng),
    "factors": lambda rng: keyhole.Head.random(4, rank=2, rng=rng),
    "heads": lambda rng: keyhole.MultiHead.random(4, heads=2, rng=rng),
    "network": lambda rng: keyhole.ReluNet.random(4, hidden=3, rng=rng),
    "one layer": lambda rng: keyhole.OneLayer.random(4, hidden=3, rng=rng),
}


@pytest.mark.parametrize("name", DRAWN)
def test_models_are_equal_where_every_number_is(name):
    one, same, other = (DRAWN[name](seed) for seed in (1, 1, 2))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != "a model"


def test_equality_sees_one_bit_and_minds_no_missing_number():
    W = np.array([[1.0, np.nan], [2.0, 3.0]])
    near = W.copy()
    near[1, 1] = np.nextafter(3.0, 4.0)
    assert is_same({"W": (W, None)}, {"W": (W.copy(), None)})
    assert not is_same({"W": (W, None)}, {"W": (near, None)})
    assert not is_same({"W": W}, {"V": W})
    assert not is_same(W, W.astype(np.float32))


def test_a_recovery_is_a_dictionary_that_json_holds():
    found = keyhole.learn(FIRST, rng=0)
    told = json.loads(json.dumps(found.to_dict()))
    assert told["verdict"] == "EXACT"
    assert told["certificate"]["theorem"] == found.certificate.theorem
    np.testing.assert_array_equal(told["model"]["W"], found.model.W)


def test_a_page_of_an_object_is_whole_and_needs_nothing(tmp_path):
    told = FIRST.page(tmp_path / "head.html")
    assert (tmp_path / "head.html").read_text() == told
    assert told.startswith("<!doctype html><html")
    assert "<title>Head: W 16 x 16, V 16 x 1</title>" in told
    assert told.count("<figure") == 2
    assert "http" not in told.replace("http://www.w3.org/", "")


def test_a_recovery_is_one_row_of_a_table_and_its_parts_are_many():
    pytest.importorskip("pandas")
    found = keyhole.learn(FIRST, rng=0)
    row = found.to_frame()
    assert row.shape[0] == 1
    assert row.loc[0, "verdict"] == "EXACT"
    assert row.loc[0, "certificate.theorem"] == found.certificate.theorem
    assert row.loc[0, "certificate.assumptions"] == len(found.certificate.assumptions)
    checks = found.certificate.to_frame("assumptions")
    assert list(checks["name"]) == [check.name for check in found.certificate.assumptions]
    assert list(checks["limit"]) == [check.limit for check in found.certificate.assumptions]


def test_an_array_is_a_table_of_its_entries():
    pytest.importorskip("pandas")
    heads = keyhole.MultiHead.random(4, heads=2, rng=0)
    table = heads.to_frame("W")
    assert len(table) == 2 * 4 * 4
    entry = table.query("index_0 == 1 and index_1 == 2 and index_2 == 3")["value"].item()
    assert entry == heads.W[1, 2, 3]
    cube = table["value"].to_numpy().reshape(2, 4, 4)
    np.testing.assert_array_equal(cube, heads.W)


def test_a_mapping_is_a_table_of_names_and_values():
    pytest.importorskip("pandas")
    plan = keyhole.LowRank().plan(16)
    table = plan.to_frame("by_phase")
    assert dict(zip(table["name"], table["value"], strict=True)) == dict(plan.by_phase)


def test_without_pandas_a_table_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidInput, match=r"needs pandas: pip install pandas; to_dict gives"):
        FIRST.to_frame()


def test_a_field_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(InvalidInput, match=r"one of W, V; got 'X'"):
        FIRST.to_frame("X")


@pytest.mark.parametrize("name", DRAWN)
def test_a_copy_is_equal_and_as_frozen_as_what_was_copied(name):
    model = DRAWN[name](1)
    for other in (copy.copy(model), copy.deepcopy(model)):
        assert other == model
    for array in vars_of(copy.deepcopy(model)):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0.0


def vars_of(one):
    """Every array that an object holds, in its parts too."""
    for name in getattr(one, "__dataclass_fields__", {}):
        value = getattr(one, name)
        if isinstance(value, np.ndarray):
            yield value
        else:
            yield from vars_of(value)


def test_a_matrix_held_in_factors_is_an_array_where_one_is_needed():
    head = keyhole.Head.random(4, rank=2, rng=0)
    W = np.asarray(head.W)
    assert W.shape == (4, 4)
    np.testing.assert_allclose(W, np.asarray(head.W.A) @ np.asarray(head.W.B).T, atol=1e-15)


def test_notebooks_are_handed_plain_text():
    for one in (FIRST, FIRST.plot("W")):
        assert type(one._repr_html_()) is str
