"""Training: torch nets equal to numpy models, seeds side by side as if alone, runs that go on, stop
and are refused.
"""

import json
import sys
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch

import keyhole
from keyhole.constructions.shared.coded_tokens import CodedTokens, Perceptron
from keyhole.lab.jobs import AttackJob, LearnJob, SweepJob, TrainJob
from keyhole.lab.pages.training_page import draw_training_page, draw_training_run
from keyhole.lab.running import run_job
from keyhole.lab.targets.tasks import pose_task
from keyhole.lab.training.adam import Adam
from keyhole.lab.training.choosing import choose_net
from keyhole.lab.training.inputs.labelling import choose_lesson
from keyhole.lab.training.inputs.lessons import Examples
from keyhole.lab.training.loop import Course, Trainer
from keyhole.lab.training.supply import Supply

AVERAGE = {"task": "sparse-average", "length": 8, "q": 3, "width": 2}
MATCH = {"task": "match2", "length": 6, "modulus": 7}
CASES = [
    *[
        {**AVERAGE, "model": m}
        for m in ("attention", "linear-attention", "third-order", "mlp", "gru", "lstm", "layers")
    ],
    {**AVERAGE, "model": "attention", "heads": 2, "codes": "random"},
    *[
        {**AVERAGE, "model": m, "tied": True, "codes": codes}
        for m, codes in (
            ("attention", "learned"),
            ("attention", "random"),
            ("linear-attention", "learned"),
        )
    ],
    *[
        {**AVERAGE, "at_most": True, "codes": "random", "model": m}
        for m in ("attention", "mlp", "gru")
    ],
    *[{**MATCH, "model": m} for m in ("attention", "third-order", "mlp", "gru", "layers")],
    {
        **MATCH,
        "task": "match3-bigram",
        "model": "layers",
        "layers": 2,
        "heads": 2,
        "embed": 8,
        "places": True,
    },
    {"task": "triangles", "nodes": 5, "model": "third-order"},
    {"task": "four-cycles", "nodes": 5, "model": "attention"},
]
TINY = TrainJob(
    "sparse-average", length=6, q=2, width=2, steps=60, seeds=2, tests=50, samples=100, keep=False
)


def job(**changes):
    return TrainJob(**{**vars(TINY), **changes})


def named(case):
    return "-".join(str(value) for value in case.values())


def perturbed(net, rng):
    """Weights of one seed with nothing at zero."""
    held = net.initial(rng)
    return {k: a if k in net.fixed else a + 0.1 * rng.normal(size=a.shape) for k, a in held.items()}


def answers_of(net, weights, X):
    stacked = {name: torch.from_numpy(np.stack([w[name] for w in weights])) for name in weights[0]}
    return net(stacked, torch.from_numpy(np.stack([X] * len(weights)))).numpy()


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_net_answers_like_its_numpy_model_after_a_round_trip_through_a_file(case, tmp_path):
    asked, rng = TrainJob(**case), np.random.default_rng(0)
    lesson = choose_lesson(pose_task(asked.task, asked))
    net = choose_net(asked, lesson).net
    weights, X = [perturbed(net, rng) for _ in range(2)], lesson.draw(4, rng=rng)
    odds = answers_of(net, weights, X)
    for k, w in enumerate(weights):
        keyhole.save(net.exported(w), tmp_path / "model.safetensors")
        said = keyhole.load(tmp_path / "model.safetensors")(X)
        right = odds[k] if not lesson.labels else _probability(asked.model, odds[k])
        np.testing.assert_allclose(said, right, atol=1e-12)


def _probability(model, odds):
    """Networks answer log-odds shifted to a threshold of 1/2, attention probabilities."""
    return odds + 0.5 if model in ("mlp", "gru", "lstm") else 1 / (1 + np.exp(-odds))


def test_a_seed_learns_beside_others_what_it_learns_alone():
    both = run_job(TINY).data
    for k, seed in enumerate((0, 1)):
        alone = run_job(job(seed=seed, seeds=1)).data
        np.testing.assert_allclose(alone["errors"], both["errors"][k : k + 1], rtol=1e-3)
        np.testing.assert_allclose(
            alone["curve"]["errors"][0], both["curve"]["errors"][k], rtol=1e-3
        )


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
        if n.startswith("keyhole.lab.training") or n.partition(".")[0] == "torch"
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


def test_sets_are_drawn_uniformly_and_without_repetition():
    lesson = choose_lesson(keyhole.SparseAverage(5, 3))
    X = lesson.draw(4000, rng=np.random.default_rng(0))
    sets, counts = np.unique(X[..., 1:4].reshape(-1, 3), axis=0, return_counts=True)
    assert len(sets) == 10
    assert counts.min() > 0.95 * 2000
    assert counts.max() < 1.05 * 2000


@pytest.mark.parametrize("at_most", [False, True])
def test_lessons_on_averages_have_vectors_of_length_one_and_the_right_answers(at_most):
    task = keyhole.SparseAverage(6, 3, 2, at_most)
    lesson = choose_lesson(task)
    X = lesson.draw(50, rng=np.random.default_rng(0))
    np.testing.assert_allclose(np.linalg.norm(X[..., :2], axis=-1), 1.0)
    np.testing.assert_allclose(lesson.targets(X), task.target(X), atol=1e-14)


@pytest.mark.parametrize("at_most", [False, True])
def test_the_lines_of_averages_are_what_the_predictors_reach(at_most):
    task = keyhole.SparseAverage(8, 3, 2, at_most)
    lesson = choose_lesson(task)
    X = lesson.draw(4000, rng=np.random.default_rng(0))
    Y, z = lesson.targets(X), X[..., :2]
    mean = np.broadcast_to(z.mean(axis=1, keepdims=True), Y.shape)
    named = task.members(X)
    past = np.tril(named) @ z / named.sum(axis=-1, keepdims=True)
    lines = lesson.lines(Examples(X, Y), Examples(X, Y))
    for name, answers in (("zero", 0 * Y), ("mean_of_all", mean), ("causal_floor", past)):
        seen = ((answers - Y) ** 2).sum() / (Y**2).sum()
        assert lines[name] == pytest.approx(seen, abs=0.02)


def test_the_least_error_of_linear_attention_is_that_of_the_best_matrix_of_its_rank():
    data = run_job(job(length=7, q=2, width=1, embed=3, steps=1, seeds=1)).data
    members = np.array([[i in y for i in range(7)] for y in combinations(range(7), 2)], dtype=float)
    values = np.linalg.eigvalsh(members.T @ members / len(members))
    # of M G z with G the projection on the three largest directions
    lost = values[:-3].sum() / values.sum()
    assert data["lines"]["linear_optimum"] == pytest.approx(lost)
    three = run_job(job(length=7, q=2, width=1, embed=1, heads=3, steps=1, seeds=1)).data
    assert three["lines"]["linear_optimum"] == pytest.approx(lost)


def test_lines_of_labels_are_fitted_to_what_was_seen_and_measured_on_tests():
    lesson = choose_lesson(keyhole.Match3(5, 11))
    rng = np.random.default_rng(0)
    seen, tests = (
        Examples(X, lesson.targets(X))
        for X in (lesson.draw(200, rng=rng), lesson.draw(200, rng=rng))
    )
    lines = lesson.lines(tests, seen)
    assert lines["majority"] == pytest.approx(min(tests.Y.mean(), 1 - tests.Y.mean()), abs=1e-12)
    assert lines["distinct_count"] <= lines["majority"] + 0.05
    assert 0 < lines["pairwise"] < 0.5


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
    assert went_on["curve"] == whole["curve"]
    assert went_on["errors"] == whole["errors"]
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
    assert data["curve"]["best_steps"] == [0, 0]
    record = json.loads((out / "record.json").read_bytes())
    assert record["curve"]["alignment"][-1] is None
    assert "to not finite, median" in draw_training_run(record, out)


def test_a_seed_stops_when_it_gets_no_better(tmp_path):
    data = run_job(job(rate=1e-12, steps=1000, check_every=5, patience=3, seeds=2)).data
    assert all(step is not None and step <= 100 for step in data["curve"]["stopped"])
    assert data["curve"]["steps"][-1] == max(data["curve"]["stopped"])


def test_a_model_is_the_best_of_its_checks_and_measured_on_other_sequences():
    data = run_job(job(model="mlp", samples=20, steps=200, rate=0.01, hidden=32)).data
    for errors, best in zip(data["curve"]["errors"], data["curve"]["best_steps"], strict=True):
        assert data["curve"]["steps"][int(np.argmin(errors))] == best
        assert min(errors) < 0.97 * errors[-1]


def test_a_small_training_learns_its_task_and_tells_what_it_did(tmp_path):
    out = str(tmp_path / "run")
    record = run_job(
        job(steps=300, samples=None, keep=True, out=out, round_trip=True, effective_bits=True)
    )
    data = json.loads(record.json())
    assert data["error"]["max"] < 0.01
    assert data["error"]["min"] <= data["error"]["median"] <= data["error"]["max"]
    assert data["lines"]["zero"] == 1.0
    assert data["lines"]["mean_of_all"] == pytest.approx(1 - 2 / 6)
    assert data["parameters"] == (2 + 3 * 6) * (6 + 6 + 2)
    assert data["sentence"].startswith(
        "Attention trained on fresh sequences every step of sparse-average for 300 steps"
    )
    assert data["curve"]["alignment"][0] == pytest.approx(2 / 6, abs=0.05)
    assert data["curve"]["alignment"][-1] > 0.9
    assert data["round_trip"]["verdict"] == "EXACT"
    assert data["round_trip"]["error_after"] == pytest.approx(
        data["round_trip"]["error_before"], abs=1e-9
    )
    assert data["effective_bits"]["ratio"] >= 1.0
    assert data["command"].startswith("keyhole train sparse-average --length 6 --q 2 --width 2")
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
        answers = keyhole.load(data["models"][k])(X)
        gap = ((answers - task.target(X)) ** 2).sum() / (task.target(X) ** 2).sum()
        assert gap == pytest.approx(data["errors"][k], rel=0.7)


def test_a_trained_unit_is_a_target_like_any_other(tmp_path):
    run_job(job(keep=True, out=str(tmp_path / "run")))
    model = str(tmp_path / "run" / "model.safetensors")
    found = run_job(LearnJob(model, out=str(tmp_path / "learned"))).data
    assert found["verdict"] == "EXACT"
    assert found["rank"] == 6


def test_a_trained_model_with_more_than_its_attention_is_not_taken_for_its_attention(tmp_path):
    data = run_job(job(model="layers", steps=2, keep=True, out=str(tmp_path / "run"))).data
    with pytest.raises(
        keyhole.InvalidInput, match="a residual or a network behind its attention layer"
    ):
        run_job(LearnJob(data["model"], out=str(tmp_path / "learned")))


def test_a_narrow_trained_network_is_attacked_and_one_that_reads_twice_is_not(tmp_path):
    for model, verdict in (("mlp", "FOUND"), ("gru", "NONE_FOLLOWS")):
        out = tmp_path / model
        run_job(job(model=model, hidden=4, steps=5, keep=True, out=str(out)))
        told = run_job(
            AttackJob(str(out / "model.safetensors"), "sparse-average", length=6, q=2, width=2)
        ).data
        assert told["status"] == verdict


def test_the_page_of_a_training_shows_curves_lines_and_attention_and_escapes(tmp_path):
    data = dict(run_job(job(keep=True, out=str(tmp_path / "run"))).data)
    text = draw_training_page(data | {"sentence": "<script>"}, {0: np.eye(6), -1: np.eye(6)})
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
        ' tests = 20}\ngrid = {model = ["attention", "mlp"], embed = [2, 6]}\nfigure = {x ='
        ' "job.embed", y = "record.errors", series = "job.model", lines = {mean ='
        ' "record.lines.zero"}}\nexpect = [{value = "record.errors", statistic = "max", at_most ='
        " 5.0}]\n"
    )
    data = run_job(SweepJob(str(file), workers=0, out=str(tmp_path / "out"))).data
    assert data["jobs"] == {"total": 4, "done": 4, "failed": 0, "run_now": 4}
    assert data["expectations"][0]["met"]
    assert not list(tmp_path.rglob("*.safetensors"))
    text = (tmp_path / "out" / "report.html").read_text()
    assert text.count("4 runs, median") == 0
    assert text.count("2 runs, median") == 4
    assert 'class="line limit"' in text


def test_a_sweep_keeps_constructed_weights_beside_trained_ones(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        'job = "train"\ngrid = {model = ["constructed", "attention"]}\nbase = {task = "match2",'
        " length = 5, modulus = 5, steps = 2, seeds = 1, tests = 20, keep = true}\n"
    )
    data = run_job(SweepJob(str(file), workers=0, out=str(tmp_path / "out"))).data
    assert data["jobs"]["done"] == 2
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
        ({"model": "gru", "tied": True}, "--tied is for attention"),
        ({"model": "mlp", "codes": "resampled"}, "--codes resampled is for attention"),
        ({"model": "layers", "embed": 7, "heads": 2}, "--embed 7 is divided among --heads 2"),
        ({"steps": 0}, "--steps is a whole number >= 1; got 0"),
        ({"rate": -1.0}, "--rate is a positive number"),
        ({"lengths": (4,)}, "--lengths needs attention"),
        (
            {"task": "match2", "q": None, "width": None, "modulus": 5, "model": "linear-attention"},
            "one head's weight",
        ),
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
        ({"model": "constructed", "resume": True}, "constructed weights are not trained"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_way_out_before_anything_is_done(
    changes, said, tmp_path
):
    out = tmp_path / "run"
    with pytest.raises(keyhole.InvalidInput, match=said):
        run_job(job(keep=True, out=str(out), **changes))
    assert not out.exists()


def test_resampled_codes_carry_over_to_other_lengths(tmp_path):
    data = run_job(
        job(codes="resampled", code_width=32, tied=True, steps=150, samples=None, lengths=(6, 12))
    ).data
    assert data["lengths"]["median_errors"][0] == pytest.approx(data["error"]["median"], rel=0.5)
    assert data["lengths"]["last_scaled"] < data["lengths"]["last_errors"] < 1.0


@pytest.mark.parametrize("model", ["attention", "third-order"])
def test_units_with_flags_learn_labels(model):
    data = run_job(
        job(
            task="match2",
            length=5,
            q=None,
            width=None,
            modulus=5,
            model=model,
            steps=200,
            rate=0.05,
            embed=5,
        )
    ).data
    assert data["accuracy"]["max"] > 1 - 0.5 * data["lines"]["majority"]
    assert "% of labels right" in data["sentence"]


@pytest.mark.slow
def test_attention_learns_averages_from_a_thousand_sequences():
    data = run_job(
        TrainJob("sparse-average", length=20, q=3, width=4, samples=1000, steps=4000, keep=False)
    ).data
    assert data["error"]["max"] <= 1e-4


@pytest.mark.slow
def test_a_network_without_attention_stays_at_the_mean_of_all():
    data = run_job(
        TrainJob(
            "sparse-average",
            length=20,
            q=3,
            width=4,
            samples=50_000,
            model="mlp",
            codes="random",
            keep=False,
        )
    ).data
    assert abs(data["error"]["median"] - data["lines"]["mean_of_all"]) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "embed", "usual"), [("attention", 16, 0.317), ("linear-attention", 16, 0.726)]
)
def test_softmax_needs_less_width_than_linear_attention(model, embed, usual):
    sizes = {"length": 64, "q": 3, "width": 4, "tied": True, "steps": 800, "rate": 0.03, "seeds": 3}
    data = run_job(
        TrainJob(
            "sparse-average",
            **sizes,
            model=model,
            embed=embed,
            tests=500,
            check_every=200,
            keep=False,
        )
    ).data
    assert abs(data["error"]["median"] - usual) < 0.03


def test_linear_attention_is_the_product_it_is_written_as():
    rng = np.random.default_rng(0)
    Q, K, V = rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 4, 2))
    X = rng.normal(size=(1, 5, 4))
    right = sum(X[0] @ q @ k.T @ X[0].T @ X[0] @ v for q, k, v in zip(Q, K, V, strict=True))
    np.testing.assert_allclose(keyhole.LinearAttention(Q, K, V)(X)[0], right, atol=1e-12)


@pytest.mark.parametrize(
    ("maker", "said"),
    [
        (lambda: CodedTokens(np.eye(3), -1, 1), "plain and coded columns"),
        (lambda: CodedTokens(np.eye(3), 0, 1, 1, places=np.eye(3)), "flagged or have places"),
        (lambda: CodedTokens(np.eye(3), 0, 1)(np.full((1, 2, 1), 3.0)), "whole numbers below 3"),
        (
            lambda: Perceptron(np.eye(2), np.zeros(2), np.eye(2), np.zeros(2), np.eye(2)),
            "Wo and bo",
        ),
        (
            lambda: Perceptron(np.eye(2), np.zeros(2), np.eye(2), np.zeros(2), squash="tanh"),
            "squash is none or sigmoid",
        ),
    ],
)
def test_token_maps_of_trained_models_refuse_what_makes_no_sense(maker, said):
    with pytest.raises(keyhole.InvalidInput, match=said):
        maker()
