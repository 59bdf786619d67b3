"""Training: runs that go on, stop and are refused, and what becomes of trained models."""

import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import structs

import keyhole
from keyhole.lab.jobs import AttackJob, LearnJob, SweepJob
from keyhole.lab.pages.training_page import draw_training_page, draw_training_run
from keyhole.lab.running import run_job
from keyhole.lab.runs.other_records import JobCounts
from keyhole.lab.runs.reading import read_run
from keyhole.lab.runs.rows import list_training_rows
from keyhole.lab.targets.round_trip import answer_every_row, hide_layer
from keyhole.lab.training.adam import Adam
from keyhole.lab.training.choosing import choose_net
from keyhole.lab.training.inputs.labelling import choose_lesson
from keyhole.lab.training.inputs.streams import Purpose, open_stream
from keyhole.lab.training.loop import Course, Trainer
from keyhole.lab.training.options import APPLY
from keyhole.lab.training.supply import Supply
from keyhole.lab.training.time_left import TimeLeft, format_duration
from support.training_jobs import BUILT, LOOKUP, MATCH, TINY, job


def test_a_model_that_is_unknown_is_refused_with_the_names_of_those_that_are_known():
    with pytest.raises(
        keyhole.InvalidInput,
        match="attention, linear-attention, third-order, mlp, gru, lstm, layers",
    ):
        run_job(job(model="perceptron"))


def test_training_without_torch_says_how_to_get_it(monkeypatch):
    for name in [
        n
        for n in sys.modules
        # Inputs are drawn without torch.
        if (n.startswith("keyhole.lab.training.") and ".inputs" not in n)
        or n.partition(".")[0] == "torch"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        keyhole.InvalidInput, match=r"needs the torch extra: pip install 'keyhole\[torch\]'"
    ):
        run_job(TINY)


def test_adam_takes_the_steps_of_its_formula():
    w, m, v = np.random.default_rng(0).normal(size=(2, 3)), 0.0, 0.0
    held = torch.tensor(w, requires_grad=True)
    adam = Adam({"w": held})
    for t, rate in enumerate((0.1, 0.05, 0.02), start=1):
        (held**4).sum().backward()
        adam.step(rate)
        g = 4 * w**3
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        w = w - rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        np.testing.assert_allclose(held.detach().numpy(), w, atol=1e-13)


def test_the_rate_rises_in_the_warm_up_and_falls_to_zero():
    course = Course(steps=100, rate=1.0, warm_up=10, check_every=10, patience=None)
    rates = [course.rate_at(step) for step in range(101)]
    assert rates[:10] == pytest.approx([(k + 1) / 10 for k in range(10)])
    assert rates[10] == 1.0
    assert rates[55] == pytest.approx(0.5)
    assert rates[100] == pytest.approx(0.0)


@pytest.mark.parametrize("check_every", [None, 10])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(check_every, tmp_path, monkeypatch):
    often = {"checkpoint_every": 20, "check_every": check_every}
    whole = run_job(job(keep=True, out=str(tmp_path / "whole"), **often)).data
    advance, taken = Trainer._advance, []

    def failing(self):
        taken.append(1)
        if len(taken) == 50:
            raise KeyboardInterrupt
        advance(self)

    monkeypatch.setattr(Trainer, "_advance", failing)
    half = job(keep=True, out=str(tmp_path / "half"), **often)
    with pytest.raises(KeyboardInterrupt):
        run_job(half)
    monkeypatch.setattr(Trainer, "_advance", advance)
    with pytest.raises(keyhole.InvalidInput, match="already holds a run"):
        run_job(half)
    went_on = run_job(replace(half, resume=True)).data
    assert went_on.curve == whole.curve
    assert went_on.errors == whole.errors
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "half")]
    assert files[0] == files[1]


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    run_job(job(keep=True, out=str(tmp_path), steps=4))
    with pytest.raises(keyhole.errors.DifferentRun, match="another training"):
        run_job(job(keep=True, out=str(tmp_path), steps=5, resume=True))
    with pytest.raises(keyhole.errors.DifferentRun, match="another run, none with --seed 7"):
        run_job(job(keep=True, out=str(tmp_path), steps=4, seed=7, resume=True))
    assert not list(tmp_path.glob("*-7.*"))


def test_answers_that_are_no_numbers_are_wrong_labels():
    asked = job(**MATCH, q=None, width=None, seeds=1)
    lesson = choose_lesson(keyhole.Match2(6, 7))
    net = choose_net(asked, lesson).net
    trainer = Trainer(net, Supply(lesson, net.reading, (0,), 8, None), Course(1, 0.1, 0, 1, None))
    broken = {name: torch.full_like(part, np.nan) for name, part in trainer.weights.items()}
    assert trainer.errors(broken, trainer.checks).tolist() == [1.0]


def test_a_training_that_runs_away_is_told_and_shown(tmp_path):
    out = tmp_path / "run"
    data = run_job(job(rate=1e30, keep=True, out=str(out))).data
    assert data.curve.best_steps == [0, 0]
    record = json.loads((out / "record.json").read_bytes())
    assert record["curve"]["alignment"][-1] is None
    assert "to not finite, median" in draw_training_run(read_run(str(out)).data, out)


def test_a_seed_stops_when_it_gets_no_better(tmp_path):
    data = run_job(job(rate=1e-12, steps=1000, check_every=5, patience=3, seeds=2)).data
    assert all(step is not None and step <= 100 for step in data.curve.stopped)
    assert data.curve.steps[-1] == max(data.curve.stopped)


def test_a_model_is_the_best_of_its_checks_and_measured_on_other_sequences():
    data = run_job(job(model="mlp", samples=20, steps=200, rate=0.01, hidden=32)).data
    for errors, best in zip(data.curve.errors, data.curve.best_steps, strict=True):
        assert data.curve.steps[int(np.argmin(errors))] == best
        assert min(errors) < 0.97 * errors[-1]


def test_a_small_training_learns_its_task_and_tells_what_it_did(tmp_path):
    out = str(tmp_path / "run")
    record = run_job(
        job(steps=300, samples=None, keep=True, out=out, round_trip=True, effective_bits=True)
    )
    data = record.data
    assert data.error.max < 0.01
    assert data.error.min <= data.error.median <= data.error.max
    assert data.lines["zero"] == 1.0
    assert data.lines["mean_of_all"] == pytest.approx(1 - 2 / 6)
    assert data.parameters == (2 + 3 * 6) * (6 + 6 + 2)
    assert data.sentence.startswith(
        "Attention trained on fresh sequences every step of sparse-average for 300 steps"
    )
    assert data.curve.alignment[0] == pytest.approx(2 / 6, abs=0.05)
    assert data.curve.alignment[-1] > 0.9
    assert data.round_trip.verdict == "EXACT"
    assert data.round_trip.error_after == pytest.approx(data.round_trip.error_before, abs=1e-9)
    assert data.effective_bits.ratio >= 1.0
    assert data.command.startswith("keyhole train sparse-average --length 6 --q 2 --width 2")
    saved = {path.name for path in (tmp_path / "run").iterdir()}
    assert {
        "record.json",
        "report.html",
        "model.safetensors",
        "seed-0.safetensors",
        "seed-1.safetensors",
    } <= saved
    task, X = (
        keyhole.SparseAverage(6, 2, 2),
        choose_lesson(keyhole.SparseAverage(6, 2, 2)).draw(50, rng=np.random.default_rng(1)),
    )
    for k in (0, 1):
        answers = keyhole.load(data.models[k])(X)
        gap = ((answers - task.target(X)) ** 2).sum() / (task.target(X) ** 2).sum()
        assert gap == pytest.approx(data.errors[k], rel=0.7)


LAYERS = {"model": "layers", "embed": 4, "hidden": 6, "codes": "random", "code_width": 3}


@pytest.mark.parametrize(
    ("changes", "hidden"),
    [({"heads": 2}, "MultiHead"), (LAYERS, "OneLayer"), ({"model": "third-order"}, "TensorRow")],
)
def test_trained_layers_are_hidden_recovered_and_compared(changes, hidden):
    embed = {"embed": 3} if hidden == "TensorRow" else {}
    data = run_job(job(seeds=1, round_trip=True, **{**changes, **embed})).data
    trip = data.round_trip
    assert trip.hidden_class == hidden
    assert trip.verdict == "EXACT", trip.sentence
    assert trip.distance < 1e-8
    assert trip.error_after == pytest.approx(trip.error_before, abs=1e-8)


def test_a_hidden_one_layer_transformer_answers_as_the_model_it_was_made_from(tmp_path):
    data = run_job(job(seeds=1, steps=5, keep=True, out=str(tmp_path / "run"), **LAYERS)).data
    model = keyhole.load(data.model)
    X = keyhole.SparseAverage(6, 2, 2).sample(5, rng=np.random.default_rng(2))
    tokens = model.blocks[0].tokens(X)
    np.testing.assert_allclose(hide_layer(model)(tokens), model(X)[:, -1], atol=1e-12)
    np.testing.assert_allclose(answer_every_row(hide_layer(model), tokens), model(X), atol=1e-12)


def test_a_trained_unit_is_a_target_like_any_other(tmp_path):
    run_job(job(keep=True, out=str(tmp_path / "run")))
    model = str(tmp_path / "run" / "model.safetensors")
    found = run_job(LearnJob(model, out=str(tmp_path / "learned"))).data
    assert found.verdict == "EXACT"
    assert found.rank == 6


def test_a_trained_model_with_more_than_its_attention_is_not_taken_for_its_attention(tmp_path):
    data = run_job(job(model="layers", steps=2, keep=True, out=str(tmp_path / "run"))).data
    with pytest.raises(
        keyhole.InvalidInput, match="a residual or a network behind its attention layer"
    ):
        run_job(LearnJob(data.model, out=str(tmp_path / "learned")))


def test_a_narrow_trained_network_is_attacked_and_one_that_reads_twice_is_not(tmp_path):
    once = {"passes": 1, "state_bits": 1}
    cases = (("mlp", {}, "FOUND"), ("gru", {}, "NONE_FOLLOWS"), ("lstm", once, "FOUND"))
    for model, reading, verdict in cases:
        out = tmp_path / model
        # An lstm keeps two numbers for each unit: four bits, where five are needed.
        sizes = {"hidden": 2 if reading else 4, **reading}
        run_job(job(model=model, steps=5, keep=True, out=str(out), **sizes))
        told = run_job(
            AttackJob(str(out / "model.safetensors"), "sparse-average", length=6, q=2, width=2)
        ).data
        assert told.status == verdict


def test_the_page_of_a_training_shows_curves_lines_and_attention_and_escapes(tmp_path):
    data = run_job(job(keep=True, out=str(tmp_path / "run"))).data
    evil = structs.replace(data, sentence="<script>")
    text = draw_training_page(evil, {0: np.eye(6), -1: np.eye(6)})
    assert text.count('class="line ours"') == 2
    assert all(word in text for word in ("mean of all z", "answering zero", "ideal", "step 0"))
    assert "<script>" not in text.replace("<script>" + text.rpartition("<script>")[2], "")


def test_the_page_is_written_again_with_its_pictures(tmp_path):
    data = run_job(job(steps=5, keep=True, out=str(tmp_path / "run"))).data
    assert (
        draw_training_run(data, tmp_path / "run") == (tmp_path / "run" / "report.html").read_text()
    )


def test_a_sweep_of_trainings_keeps_records_and_writes_no_models(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        'job = "train"\nbase = {task = "sparse-average", length = 6, q = 2, steps = 20, seeds = 2,'
        ' tests = 20}\ngrid = {model = ["attention", "linear-attention"], embed = [2, 6]}\n'
        'figure = {x = "job.embed", y = "record.errors", series = "job.model", lines = {mean ='
        ' "record.lines.zero"}}\nexpect = [{value = "record.errors", statistic = "max", at_most ='
        " 5.0}]\n"
    )
    data = run_job(SweepJob(str(file), workers=0, out=str(tmp_path / "out"))).data
    assert data.jobs == JobCounts(total=4, done=4, failed=0, run_now=4)
    assert data.expectations[0].met
    assert not list(tmp_path.rglob("*.safetensors"))
    text = (tmp_path / "out" / "report.html").read_text()
    assert text.count("4 runs, median") == 0
    # Once on the point, and once in the numbers that are kept with the picture.
    assert len(re.findall("<title>[a-z-]+ 2 runs, median", text)) == 4
    assert text.count("2 runs, median") == 8
    assert 'class="line limit"' in text


def test_a_sweep_keeps_constructed_weights_beside_trained_ones(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        'job = "train"\nlist = [{model = "constructed"}, {steps = 2}]\nbase = {task = "match2",'
        " length = 5, modulus = 5, seeds = 1, tests = 20, keep = true}\n"
    )
    data = run_job(SweepJob(str(file), workers=0, out=str(tmp_path / "out"))).data
    assert data.jobs.done == 2
    assert len(list(tmp_path.rglob("model.safetensors"))) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"codes": "unit"}, "--codes are one-hot, orthonormal"),
        (
            {"codes": "orthonormal", "code_width": 3},
            "6 orthonormal codes need --code-width 6 or more; got 3",
        ),
        ({"codes": "learned", "code_width": 0}, "--code-width is a whole number >= 1"),
        ({"model": "gru", "tied": True}, "--tied says nothing to --model gru: it is for attention"),
        ({"model": "mlp", "codes": "resampled"}, "--codes resampled is for attention"),
        ({"model": "layers", "embed": 7, "heads": 2}, "--embed 7 is divided among --heads 2"),
        ({"steps": 0}, "--steps is a whole number >= 1; got 0"),
        ({"rate": -1.0}, "--rate is a positive number"),
        ({"lengths": (4,)}, "--lengths needs attention"),
        (
            {"task": "match2", "q": None, "width": None, "modulus": 5, "model": "linear-attention"},
            "one head's weight",
        ),
        (LOOKUP, "a token of index-lookup has 2 answers.*take --model layers, mlp, gru or lstm"),
        ({**LOOKUP, "model": "linear-attention"}, "a token of index-lookup has 2 answers"),
        ({**LOOKUP, "model": "third-order"}, "a token of index-lookup has 2 answers"),
        (
            {"model": "mlp", "effective_bits": True},
            "--effective-bits is for models of standard attention",
        ),
        (
            {"codes": "random", "q": 3, "lengths": (6, 2)},
            "at most 2 members, the length; got q = 3",
        ),
        (
            {**MATCH, "q": None, "width": None, "codes": "random", "lengths": (8,)},
            "--lengths is for sparse-average",
        ),
        ({**BUILT, "resume": True}, "constructed weights are not trained"),
        ({**BUILT, "steps": 60}, "--steps says nothing to --model constructed"),
        ({**BUILT, "rate": 0.1}, "--rate says nothing to --model constructed"),
        ({"tied": True, "heads": 2}, "--tied is for one head"),
        ({"hidden": 8}, "--hidden says nothing to --model attention: it is for mlp, gru, lstm"),
        ({"passes": 1}, "--passes says nothing to --model attention: it is for gru, lstm"),
        ({"model": "mlp", "embed": 8}, "mlp takes --code-width, --codes, --hidden, --layers"),
        ({**BUILT, "embed": 8}, "constructed takes none of these"),
        ({"model": "third-order", "heads": 2}, "--heads says nothing to --model third-order"),
        ({"model": "gru", "passes": 0}, "--passes is a whole number >= 1; got 0"),
        ({"model": "gru", "state_bits": 17}, "--state-bits is at most 16; got 17"),
        ({"temperature": 0.0}, "--temperature is a positive number"),
        ({"model": "gru", "round_trip": True}, "--round-trip is for models of which one layer"),
        ({"model": "layers", "heads": 2, "round_trip": True}, "--layers 1 and --heads 1"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_way_out_before_anything_is_done(
    changes, said, tmp_path
):
    out = tmp_path / "run"
    with pytest.raises(keyhole.InvalidInput, match=said):
        run_job(job(keep=True, out=str(out), **changes))
    assert not out.exists()


SIZES = {
    "codes": "learned",
    "code_width": 6,
    "embed": 5,
    "heads": 2,
    "hidden": 9,
    "layers": 2,
    "passes": 1,
    "places": True,
    "state_bits": 2,
    "temperature": 3.0,
    "tied": True,
}


@pytest.mark.parametrize("model", sorted(set(APPLY) - {"constructed"}))
def test_every_size_that_may_be_given_to_a_model_changes_what_it_computes(model):
    assert set(SIZES) >= APPLY[model]
    asked = {"model": model, "codes": "random", "steps": 3, "seeds": 1, "tests": 20, "samples": 20}
    usual = run_job(job(**asked)).data.errors
    for name in sorted(APPLY[model]):
        other = run_job(job(**asked | {name: SIZES[name]}))
        assert other.data.errors != usual, name


def test_one_seed_is_named_and_has_no_median():
    one, two = (run_job(job(steps=1, seeds=seeds, seed=7)).data for seeds in (1, 2))
    assert ", of seed 7; answering zero" in one.sentence
    assert "the median of 2 seeds (from" in two.sentence
    assert ("trained", "1 steps, one seed") in list_training_rows(one)


def test_the_error_of_the_last_token_is_that_of_the_numpy_model():
    task = keyhole.SparseAverage(6, 2, 2)
    lesson = choose_lesson(task)
    data = run_job(job(model="gru", passes=1, hidden=4, steps=30, seeds=1)).data
    assert data.last_errors != data.errors
    net = choose_net(job(model="gru", passes=1, hidden=4), lesson).net
    supply = Supply(lesson, net.reading, (0,), 32, 100)
    trainer = Trainer(net, supply, Course(30, 1e-3, 50, 1, None))
    trainer.run()
    X = lesson.draw(50, rng=open_stream(0, Purpose.TESTS))
    gap = net.exported(trainer.best_of(0))(X)[:, -1] - task.target(X)[:, -1]
    expected = (gap**2).sum() / (task.target(X)[:, -1] ** 2).sum()
    assert data.last_errors == pytest.approx([expected], rel=1e-4)
    constructed = run_job(job(**BUILT, seeds=1)).data
    assert constructed.last_errors[0] < 1e-3


def test_a_training_tells_about_how_long_it_will_take(capsys):
    seconds = iter([0.0, 3.0, 12.0, 13.0, 24.0])
    told = TimeLeft("gru", 10, 2, clock=lambda: next(seconds))
    for step in (1, 2, 3, 4):
        told.tell(0, (7, 8), step)
    lines = capsys.readouterr().err.splitlines()
    # Two groups of ten steps: 18 are left after 2 in 12 seconds, 16 after 4 in 24.
    assert lines == [
        "training gru, seeds 7 to 8: step 2 of 10, about 108 s left",
        "training gru, seeds 7 to 8: step 4 of 10, about 96 s left",
    ]
    assert [format_duration(s) for s in (61.4, 600.0, 9000.0)] == ["61 s", "10 min", "2.5 h"]


def test_the_json_of_a_training_carries_its_curves(keyhole):
    words = "train sparse-average --length 5 --q 2 --steps 20 --seeds 2 --tests 20 --no-keep --json"
    curve = keyhole(*words.split()).json["curve"]
    assert curve["steps"] == [*range(21)]
    assert [len(row) for row in curve["errors"]] == [21, 21]
    assert len(curve["median"]) == 21
