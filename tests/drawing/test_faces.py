"""Objects in a terminal and in a notebook: one line, or words, tables and pictures."""

from dataclasses import dataclass

import numpy as np
import pytest

import keyhole
from keyhole.drawing.faces import Face
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
