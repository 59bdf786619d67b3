"""The registry of kinds of models: every place in it is there, and a new kind is one entry."""

from dataclasses import fields

import numpy as np
import pytest

import keyhole
from keyhole.lab.jobs import CompareJob, SampleJob, TwinsJob
from keyhole.lab.onnx.export import export_onnx
from keyhole.lab.pages.parts.portraits import draw_portrait
from keyhole.lab.running import run_job
from keyhole.lab.runs.record_parts import Queries
from keyhole.lab.runs.recovery_records import RecoveryRecord
from keyhole.models.registry import KINDS, name_kind
from keyhole.oracles.onnx_file import OnnxFile
from support.constant import BARE, WHOLE, Constant

# The room that asks for a part, so that no room imports one above it.
ROOMS = {
    "distance": "keyhole.identify",
    "canonical": "keyhole.identify",
    "twins": "keyhole.identify",
    "sample": "keyhole.lab.targets",
    "portrait": "keyhole.lab.pages",
    "export": "keyhole.lab.onnx",
}
DECLARED = [
    (name, part)
    for name, kind in KINDS.items()
    for part in ROOMS
    if getattr(kind, part) is not None
]


@pytest.fixture
def declared(monkeypatch):
    """Declares the kind of the tests with all its parts."""
    monkeypatch.setitem(KINDS, "constant", WHOLE)


@pytest.fixture
def bare(monkeypatch):
    """Declares the kind of the tests with its file alone."""
    monkeypatch.setitem(KINDS, "constant", BARE)


@pytest.fixture
def saved(tmp_path):
    """Writes a model of the kind of the tests, and says where."""

    def write(value):
        path = tmp_path / f"{value:g}.safetensors"
        keyhole.save(Constant(np.array([value]), 3), path)
        return str(path)

    return write


def test_every_part_of_a_kind_has_its_room():
    words = {"name", "model", "describe", "restore", "called", "sampled_as", "holds"}
    assert {item.name for item in fields(WHOLE)} == words | set(ROOMS)


@pytest.mark.parametrize(("name", "part"), DECLARED)
def test_every_place_is_there_and_in_the_room_that_asks_for_it(name, part):
    assert getattr(KINDS[name], part).startswith(f"{ROOMS[part]}.")
    assert callable(KINDS[name].load(part))


def test_records_call_a_network_by_its_class_in_either_form(rng):
    net = keyhole.ReluNet.random(3, hidden=2, rng=rng)
    assert (name_kind(net), name_kind(net.normal_form())) == ("relu", "relu")
    assert name_kind(keyhole.Head.random(3, rng=rng)) == "head"
    assert name_kind(object()) is None


@pytest.mark.usefixtures("declared")
def test_a_declared_kind_is_drawn_saved_and_loaded(tmp_path):
    path = tmp_path / "model.safetensors"
    record = run_job(SampleJob("constant", width=3, outputs=2, out=str(path)))
    model = keyhole.load(path)
    assert (record.data.outputs, model.width, name_kind(model)) == (2, 3, "still")
    assert np.array_equal(model.c, np.random.default_rng(0).normal(size=2))


@pytest.mark.usefixtures("declared")
def test_a_declared_kind_is_compared(saved):
    found = run_job(CompareJob(saved(1.5), saved(2.0))).data
    assert (found.distance, found.largest) == ({"c": 0.5}, 0.5)


@pytest.mark.usefixtures("declared")
def test_a_declared_kind_is_drawn_on_its_page(saved, tmp_path):
    saved(1.5)
    (tmp_path / "1.5.safetensors").rename(tmp_path / "model.safetensors")
    record = RecoveryRecord(verdict="EXACT", queries=Queries(total=0), model="model.safetensors")
    assert draw_portrait(record, tmp_path) == "<p>always 1.5</p>"


@pytest.mark.usefixtures("declared")
def test_a_declared_kind_is_written_as_onnx(tmp_path, rng):
    export_onnx(Constant(np.array([1.5, -2.0]), 3), tmp_path / "model.onnx")
    answers = OnnxFile(tmp_path / "model.onnx").ask(rng.normal(size=(4, 5, 3)))
    assert np.array_equal(answers, [[1.5, -2.0]] * 4)


@pytest.mark.usefixtures("bare")
def test_what_a_kind_does_not_declare_is_refused_in_a_sentence(saved, tmp_path):
    with pytest.raises(keyhole.InvalidInput, match="one kind are compared; got Constant and Const"):
        keyhole.compare(keyhole.load(saved(1.5)), keyhole.load(saved(2.0)))
    with pytest.raises(keyhole.InvalidInput, match=r"KIND is head, .* or lstm; got 'constant'"):
        run_job(SampleJob("constant", out=str(tmp_path / "drawn.safetensors")))
    with pytest.raises(keyhole.InvalidInput, match="a Constant cannot be written as ONNX"):
        export_onnx(keyhole.load(saved(1.5)), tmp_path / "model.onnx")
    with pytest.raises(keyhole.InvalidInput, match="holds a Constant: twins are known for a head"):
        run_job(TwinsJob(saved(1.5)))


def test_a_kind_that_nobody_declared_is_not_saved(tmp_path):
    with pytest.raises(keyhole.InvalidInput, match=r"only head, .* can be saved; got Constant"):
        keyhole.save(Constant(np.ones(1), 3), tmp_path / "model.safetensors")


def test_networks_and_their_normal_forms_are_compared_in_python(rng):
    net = keyhole.ReluNet.random(3, hidden=2, rng=rng)
    assert keyhole.compare(net, net.normal_form()).largest < 1e-12
    layer = keyhole.OneLayer.random(3, hidden=2, rng=rng)
    assert keyhole.compare(layer, layer).largest == 0.0
    with pytest.raises(keyhole.InvalidInput, match="got ReluNet and OneLayer"):
        keyhole.compare(net, layer)
