"""`keyhole twins`: other parameters, the same answers, and a page that shows both."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from keyhole import Wiring, random_layer
from keyhole.cli import _run_command_line
from keyhole.lab.jobs import TwinsJob
from keyhole.lab.running import run_job
from keyhole.models import Head, MultiHead, OneLayer, ReluNet, SelfAttention, load, save
from support.pages import Walk, read_cells

MODELS = {
    "head": lambda rng: Head.random(5, rng=rng),
    "factored": lambda rng: Head.random(6, rank=2, outputs=3, biases=True, rng=rng),
    "multihead": lambda rng: MultiHead.random(4, heads=3, outputs=2, rng=rng),
    "wide": lambda rng: MultiHead.random(70, heads=5, rng=rng),
    "unit": lambda rng: SelfAttention(*rng.normal(size=(2, 2, 4, 2)), rng.normal(size=(2, 4, 3))),
    "layer": lambda rng: random_layer(
        6, heads=3, wiring=Wiring(norm="layer", positions="absolute"), displacements=8, rng=rng
    ),
    "constant": lambda rng: Head(np.zeros((3, 3)), np.zeros((3, 1))),
    "large": lambda rng: Head(1e12 * rng.normal(size=(3, 3)), rng.normal(size=(3, 1))),
}


@pytest.fixture
def twinned(tmp_path, rng):
    """`twinned(name)` is a run on a model of that name."""

    def do(name):
        path = tmp_path / f"{name}.safetensors"
        save(MODELS[name](rng), path)
        data = run_job(TwinsJob(str(path), out=str(tmp_path / "run"), seed=3)).data
        page = (tmp_path / "run" / "report.html").read_text()
        return SimpleNamespace(data=data, page=page, walk=Walk(page), path=path)

    return do


@pytest.mark.parametrize("name", MODELS)
def test_every_twin_has_other_parameters_and_the_same_answers(twinned, name, rng):
    made = twinned(name)
    model = load(made.path)
    model = model.read_last() if isinstance(model, SelfAttention) else model
    X = rng.normal(size=(40, 5, model.width)) / (1e6 if name == "large" else 1)
    assert len(made.data.twins) >= 3
    for row in made.data.twins:
        twin = load(row.model)
        np.testing.assert_allclose(
            twin(X), model(X), rtol=0, atol=1e-12 * (1 + np.abs(model(X)).max())
        )
        proved = "keyhole/layer-symmetries" if name == "layer" else "BSHK26/7.1"
        assert row.certificate.theorem == proved
        assert row.certificate.outcome == "HOLDS"
        assert row.parameters_differ > 1e-6
        assert row.answers_differ < 1e-11


@pytest.mark.parametrize("name", MODELS)
def test_the_page_is_well_formed_fetches_nothing_and_shows_every_twin(twinned, name):
    made = twinned(name)
    assert (made.walk.errors, made.walk.open) == ([], [])
    assert all(attrs["src"].startswith("data:") for tag, attrs in made.walk.tags if "src" in attrs)
    for row in made.data.twins:
        assert row.proof in made.walk.text
        assert row.changed in made.walk.text
    assert made.walk.text.count("every dot lies inside its circle") == len(made.data.twins)
    assert len(made.walk.maps) % 3 == 0
    assert "nan" not in re.sub(r'data-cells="[^"]*"', "", made.page).partition("<script>")[0]


def test_the_pictures_hold_both_parameter_sets_and_their_difference(twinned):
    made = twinned("factored")
    model, twin = load(made.path), load(made.data.twins[0].model)
    mine, theirs, gap = (read_cells(m["data-cells"]).reshape(6, 2) for m in made.walk.maps[:3])
    np.testing.assert_allclose(mine, model.W.A, rtol=0.06)
    np.testing.assert_allclose(theirs, twin.W.A, rtol=0.06)
    np.testing.assert_allclose(gap, twin.W.A - model.W.A, rtol=0.06)


def test_dots_and_circles_are_drawn_at_the_same_place(twinned):
    marks = re.findall(
        r'<circle class="(truth|ours)" cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"',
        twinned("multihead").page,
    )
    assert len(marks) == 2 * 48 * 4
    circles, dots = ([mark for mark in marks if mark[0] == kind] for kind in ("truth", "ours"))
    for (_, *there, outer), (_, *here, inner) in zip(circles, dots, strict=True):
        assert there == here
        assert float(inner) < float(outer)


def test_what_is_left_out_is_said(twinned):
    assert "the first 8 of them are shown" in twinned("wide").walk.text


def test_a_head_with_a_residual_has_twins_that_are_sums_beside_it(tmp_path, rng):
    head = Head(rng.normal(size=(3, 3)), rng.normal(size=(3, 1)), U=rng.normal(size=(3, 1)))
    save(head, tmp_path / "head.safetensors")
    made = run_job(TwinsJob(str(tmp_path / "head.safetensors"), out=str(tmp_path / "run")))
    assert made.code == 0
    assert "SPLIT" in {twin.symmetry for twin in made.data.twins}
    assert "No twin" not in (tmp_path / "run" / "report.html").read_text()


def test_networks_are_refused_in_words(tmp_path, rng, capsys):
    for kind in (ReluNet, OneLayer):
        path = tmp_path / f"{kind.__name__}.safetensors"
        save(kind.random(3, hidden=4, rng=rng), path)
        assert _run_command_line(["twins", str(path), "--out", str(tmp_path / "run")]) == 2
        assert f"holds a {kind.__name__}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_is_replaced_only_by_force_and_its_old_twins_go(tmp_path, rng, capsys):
    many, one, out = (
        str(tmp_path / name) for name in ("many.safetensors", "one.safetensors", "run")
    )
    save(MultiHead.random(3, heads=2, rng=rng), many)
    save(Head.random(3, rng=rng), one)
    assert _run_command_line(["twins", many, "--out", out]) == 0
    capsys.readouterr()
    assert _run_command_line(["twins", one, "--out", out]) == 2
    said = capsys.readouterr().err
    assert "--force" in said
    assert "--resume" not in said
    assert _run_command_line(["twins", one, "--out", out, "--force"]) == 0
    assert not (tmp_path / "run" / "twin-order.safetensors").exists()


def test_the_command_prints_one_object_and_a_person_reads_the_sentence(keyhole, head):
    done = keyhole("twins", "head.safetensors", "--out", "run")
    assert done.code == 0
    assert done.out.startswith("3 other sets of parameters answer like head.safetensors")
