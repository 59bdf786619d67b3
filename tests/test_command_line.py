"""The command line as documented: what it prints, what it writes, how it exits."""

import json
import re
import shlex
import time

import numpy as np
import pytest

from keyhole import cli
from keyhole.lab.jobs import COMMANDS
from keyhole.lab.targets.random_models import list_sampled_kinds
from keyhole.learners.registry import LEARNERS
from keyhole.models import Head, MultiHead, SelfAttention, load, save
from keyhole.tasks import TASKS

WIDTH = 4


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_text(value):
    return isinstance(value, str) and value != ""


# --- learn ----------------------------------------------------------------------------------------

LEARNED = {
    "status": is_text,
    "verdict": is_text,
    "sentence": is_text,
    "class": lambda v: v in {"head", "multihead", "relu", "onelayer", "layer"},
    "reason": is_text,
    "model": is_text,
    "determined": is_text,
    "counterexample": lambda v: v is None,
    "width": is_count,
    "outputs": is_count,
    "heads": is_count,
    "rank": is_count,
    "queries": lambda v: {"total", "tokens", "by_phase"} <= v.keys(),
    "degrees_of_freedom": is_count,
    "fresh_error": lambda v: (
        is_number(v["max"]) and is_number(v["relative"]) and is_count(v["sequences"])
    ),
    "error_bar": is_number,
    "seconds": lambda v: (
        is_number(v["total"]) and is_number(v["oracle"]) and v["oracle"] <= v["total"]
    ),
    "seed": is_count,
}


def test_learn_prints_every_field_of_the_contract(keyhole, head):
    ran = keyhole("learn", "head.safetensors", "--json", "--out", "run", "--seed", 7)
    assert ran.code == 0
    assert [name for name, fits in LEARNED.items() if not fits(ran.json.get(name))] == []
    assert (ran.json["status"], ran.json["verdict"]) == ("RECOVERED", "EXACT")
    assert (ran.json["width"], ran.json["outputs"], ran.json["heads"], ran.json["seed"]) == (
        WIDTH,
        1,
        1,
        7,
    )
    assert ran.json["degrees_of_freedom"] == WIDTH * WIDTH + WIDTH


def test_the_phases_add_up_and_verification_is_one_of_them(keyhole, head):
    queries = keyhole("learn", "head.safetensors", "--json").json["queries"]
    assert sum(queries["by_phase"].values()) == queries["total"]
    assert queries["by_phase"]["verify"] > 0
    assert queries["tokens"] >= queries["total"]


@pytest.mark.parametrize("name", ["counting", "delicate"])
def test_every_query_the_target_saw_is_in_the_record_once(keyhole, targets, asked, name):
    ran = keyhole("learn", f"targets:{name}", "--width", WIDTH, "--json")
    assert (ran.code, ran.json["queries"]["total"]) == (0, asked())


def test_a_run_directory_holds_record_model_transcript_and_report(keyhole, head, tmp_path):
    ran = keyhole("learn", "head.safetensors", "--json", "--out", "deep/run")
    run = tmp_path / "deep" / "run"
    held = {path.name for path in run.iterdir()}
    assert {"record.json", "model.safetensors", "transcript.sqlite", "report.html"} <= held
    assert json.loads((run / "record.json").read_text()) == ran.json
    assert (tmp_path / ran.json["model"]).samefile(run / "model.safetensors")
    assert ran.json["sentence"] in (run / "report.html").read_text()


def test_without_out_a_run_directory_is_made_under_runs(keyhole, head, tmp_path):
    for _ in range(2):
        assert keyhole("learn", "head.safetensors").code == 0
    runs = list((tmp_path / "runs").iterdir())
    assert len(runs) == 2
    assert all(run.name.endswith("head") or "-head" in run.name for run in runs)
    assert all((run / "record.json").exists() for run in runs)


def test_a_person_reads_the_sentence_first(keyhole, head):
    spoken, data = (
        keyhole("learn", "head.safetensors"),
        keyhole("learn", "head.safetensors", "--json"),
    )
    assert spoken.code == 0
    assert spoken.out.splitlines()[0] == data.json["sentence"]
    assert "EXACT" in spoken.out


def test_nothing_is_said_on_standard_error_when_it_is_no_terminal(keyhole, head):
    assert keyhole("learn", "head.safetensors").err == ""


def test_the_learned_weights_are_the_hidden_ones(keyhole, head, tmp_path):
    ran = keyhole("learn", "head.safetensors", "--json")
    found = load(tmp_path / ran.json["model"])
    np.testing.assert_allclose(found.W, head.W, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.V, head.V, rtol=0, atol=1e-9)


def test_the_same_seed_gives_the_same_weights_bit_for_bit(keyhole, head, tmp_path):
    for out in ("one", "two"):
        keyhole("learn", "head.safetensors", "--out", out, "--seed", 3)
    one, two = (load(tmp_path / out / "model.safetensors") for out in ("one", "two"))
    np.testing.assert_array_equal(np.asarray(one.W), np.asarray(two.W))
    np.testing.assert_array_equal(one.V, two.V)


@pytest.mark.parametrize(
    ("name", "options", "outputs"),
    [
        ("vector", ["--width", 4], 2),
        ("scalar", ["--width", 4], 1),
        ("knows", [], 2),
        ("vector", ["--width=4"], 2),
    ],
)
def test_a_callable_beside_the_command_is_learned(
    keyhole, targets, tmp_path, name, options, outputs
):
    ran = keyhole("learn", f"targets:{name}", *options, "--json")
    assert (ran.code, ran.json["verdict"]) == (0, "EXACT")
    assert ran.json["outputs"] == outputs
    np.testing.assert_allclose(
        np.asarray(load(tmp_path / ran.json["model"]).W), targets.W, rtol=0, atol=1e-9
    )


def test_a_layer_is_learned_by_its_last_row(keyhole, tmp_path, rng):
    layer = SelfAttention(*rng.normal(size=(2, 1, 4, 2)), rng.normal(size=(1, 4, 3)))
    save(layer, tmp_path / "layer.safetensors")
    ran = keyhole("learn", "layer.safetensors", "--json")
    assert (ran.code, ran.json["verdict"], ran.json["rank"]) == (0, "EXACT", 2)
    np.testing.assert_allclose(
        np.asarray(load(tmp_path / ran.json["model"]).W),
        layer.K[0] @ layer.Q[0].T,
        rtol=0,
        atol=1e-9,
    )


# --- the other commands ---------------------------------------------------------------------------


def test_sample_writes_the_model_it_describes(keyhole, tmp_path):
    ran = keyhole(
        "sample", "head", "--width", 6, "--rank", 2, "--outputs", 3, "--seed", 4, "--json"
    )
    model = load(tmp_path / ran.json["model"])
    assert (ran.code, ran.json["kind"]) == (0, "head")
    assert (model.width, model.outputs, np.linalg.matrix_rank(np.asarray(model.W))) == (6, 3, 2)
    assert (ran.json["width"], ran.json["outputs"], ran.json["seed"]) == (6, 3, 4)


def test_sample_makes_several_heads(keyhole, tmp_path):
    ran = keyhole(
        "sample", "multihead", "--width", 5, "--heads", 3, "--out", "a/b/m.safetensors", "--json"
    )
    assert load(tmp_path / "a" / "b" / "m.safetensors").W.shape == (3, 5, 5)
    assert ran.code == 0


def test_a_sample_is_the_same_for_the_same_seed_only(keyhole, tmp_path):
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        keyhole("sample", "head", "--seed", seed, "--out", f"{name}.safetensors")
    one, same, other = (
        np.asarray(load(tmp_path / f"{name}.safetensors").W) for name in ("one", "same", "other")
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).all()


def test_sample_says_what_a_tolerant_learner_has_to_be_told(keyhole, tmp_path):
    sentence = keyhole("sample", "head", "--width", 4, "--out", "h.safetensors", "--json").json[
        "sentence"
    ]
    head = load(tmp_path / "h.safetensors")
    assert f"|W|_F is {np.linalg.norm(head.W):.4g}," in sentence
    assert f"smallest entry of V {np.abs(head.V).min():.4g}." in sentence


@pytest.mark.parametrize("command", ["bound", "build", "attack", "talk", "train"])
def test_the_help_of_a_command_lists_its_tasks(command, keyhole):
    words = " ".join(keyhole(command, "--help").out.replace("│", " ").split())
    assert all(name in words for name in TASKS)


def test_sample_says_where_the_file_is(keyhole):
    ran = keyhole("sample", "head", "--biases")
    assert ran.code == 0
    assert "head.safetensors" in ran.out


def test_plan_costs_nothing_and_names_the_limit(keyhole, targets):
    ran = keyhole("plan", "targets:never", "--width", WIDTH, "--json")
    assert ran.code == 0
    plan = ran.json
    assert is_text(plan["sentence"])
    assert plan["degrees_of_freedom"] == plan["limit"] == WIDTH * WIDTH + WIDTH
    assert plan["limit"] <= plan["queries"]["total"] <= plan["queries"]["at_most"]
    assert sum(plan["queries"]["by_phase"].values()) == plan["queries"]["total"]
    assert plan["queries"]["by_phase"]["verify"] > 0


def test_the_limit_of_a_plan_falls_with_the_outputs(keyhole):
    # 36 numbers of W and 18 of V; three come with every answer.
    assert keyhole("plan", "--width", 6, "--outputs", 3, "--json").json["limit"] == 18


@pytest.mark.parametrize("seed", range(5))
def test_a_plan_is_kept(keyhole, head, seed):
    at_most = keyhole("plan", "head.safetensors", "--json").json["queries"]["at_most"]
    assert (
        keyhole("learn", "head.safetensors", "--seed", seed, "--json").json["queries"]["total"]
        <= at_most
    )


def test_a_plan_in_words_starts_with_its_sentence(keyhole):
    words, data = keyhole("plan", "--width", 4), keyhole("plan", "--width", 4, "--json")
    assert words.out.splitlines()[0] == data.json["sentence"]


def test_verify_accepts_the_model_behind_the_target(keyhole, head):
    ran = keyhole("verify", "head.safetensors", "head.safetensors", "--json")
    assert (ran.code, ran.json["verdict"]) == (0, "EXACT")
    assert ran.json["fresh_error"]["sequences"] > 30
    assert ran.json["queries"]["by_phase"].keys() == {"verify"}
    assert ran.json["counterexample"] is None


def test_verify_finds_a_mismatch_that_can_be_replayed(keyhole, head, tmp_path):
    wrong = Head(np.asarray(head.W) + 1e-6, head.V)
    save(wrong, tmp_path / "wrong.safetensors")
    ran = keyhole("verify", "head.safetensors", "wrong.safetensors", "--json")
    assert (ran.code, ran.json["verdict"]) == (3, "CLASS_REFUTED")
    case = ran.json["counterexample"]
    tokens = np.array(case["tokens"])[None]
    np.testing.assert_allclose(head(tokens)[0], case["answer"], rtol=1e-12)
    np.testing.assert_allclose(wrong(tokens)[0], case["predicted"], rtol=1e-12)


def test_verify_in_words_exits_alike(keyhole, head, tmp_path):
    save(Head(2 * np.asarray(head.W), head.V), tmp_path / "wrong.safetensors")
    assert keyhole("verify", "head.safetensors", "wrong.safetensors").code == 3
    ran = keyhole("verify", "head.safetensors", "head.safetensors")
    assert ran.code == 0
    assert "EXACT" in ran.out


def test_compare_ignores_the_order_of_heads(keyhole, tmp_path, rng):
    model = MultiHead.random(WIDTH, heads=3, rng=rng)
    save(model, tmp_path / "a.safetensors")
    save(MultiHead(model.W[::-1], model.V[::-1]), tmp_path / "b.safetensors")
    ran = keyhole("compare", "a.safetensors", "b.safetensors", "--json")
    assert (ran.code, ran.json["largest"], ran.json["heads"]) == (0, 0.0, [3, 3])
    assert ran.json["distance"].keys() == {"W", "V", "h", "c", "U"}


def test_compare_of_other_numbers_of_heads_is_far_and_still_json(keyhole, head, tmp_path, rng):
    save(MultiHead.random(WIDTH, heads=2, rng=rng), tmp_path / "two.safetensors")
    ran = keyhole("compare", "head.safetensors", "two.safetensors", "--json")
    assert (ran.code, ran.json["largest"], ran.json["heads"]) == (0, None, [1, 2])


def test_compare_in_words(keyhole, head):
    ran = keyhole("compare", "head.safetensors", "head.safetensors")
    assert ran.code == 0
    assert "differ" in ran.out.splitlines()[0]


def test_the_demo_recovers_its_hidden_head_and_writes_a_page(keyhole, tmp_path):
    start = time.perf_counter()
    ran = keyhole("demo", "--out", "demo", "--json")
    assert time.perf_counter() - start < 60
    assert (ran.code, ran.json["verdict"]) == (0, "EXACT")
    verdicts = [stop["verdict"] for stop in ran.json["stops"]]
    recovered, built = ["EXACT"] * 3 + ["WITHIN_TOLERANCE"] * 3, ["HOLDS"] * 3
    layers = ["EXACT"] * 3
    assert verdicts == [*recovered, "HOLDS", *layers, *built, "EXACT", "ENOUGH"]
    assert all("limit" in stop["sentence"] for stop in ran.json["stops"])
    page = (tmp_path / "demo" / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "http://" not in page
    assert "https://" not in page


def test_the_demo_in_words_names_its_page(keyhole, tmp_path):
    ran = keyhole("demo", "--out", "demo")
    assert ran.code == 0
    assert "report.html" in ran.out


def test_the_commands_make_one_loop(keyhole, tmp_path):
    assert keyhole("sample", "head", "--width", 8, "--biases", "--outputs", 2).code == 0
    learned = keyhole("learn", "head.safetensors", "--out", "run", "--json")
    assert learned.code == 0
    assert keyhole("verify", "head.safetensors", learned.json["model"], "--seed", 9).code == 0
    assert (
        keyhole("compare", "head.safetensors", learned.json["model"], "--json").json["largest"]
        < 1e-9
    )


def test_the_version_is_printed(keyhole):
    import keyhole as package

    ran = keyhole("--version")
    assert (ran.code, ran.out.strip()) == (0, package.__version__)


# --- help -----------------------------------------------------------------------------------------

SHOWN = [name for name, command in COMMANDS.items() if command.help is not None]


@pytest.mark.parametrize("name", SHOWN)
def test_the_example_in_the_help_of_a_command_is_a_line_that_it_takes(name):
    program, command, *arguments = shlex.split(COMMANDS[name].example)
    assert (program, command) == ("keyhole", name)
    _, bound, _ = cli.app.parse_args([command, *arguments], exit_on_error=False, print_error=False)
    assert bound.arguments
    assert COMMANDS[name].example in cli.app[name].help


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bound"], "TASK is missing. Example: keyhole bound sparse-average"),
        (["learn"], "TARGET is missing. Example: keyhole learn hidden.safetensors"),
        (["sample"], "KIND is missing. Example: keyhole sample head"),
        (["attack"], "MODEL is missing. Example: keyhole attack gru.safetensors"),
        (["sample", "head", "--width"], "--width needs a value. Example: keyhole sample head"),
    ],
)
def test_what_is_missing_is_called_as_the_help_calls_it(capsys, arguments, said):
    assert cli._run_command_line(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"keyhole: {said}")
    assert told.rstrip().endswith(f"`keyhole {arguments[0]} --help` lists the choices.")


def read_help(name, capsys):
    cli._run_command_line([name, "--help"])
    return " ".join(re.sub("[│╭╰─╮╯]", " ", capsys.readouterr().out).split())


def test_help_lists_the_choices_of_learners_tasks_and_kinds(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("learn", "plan"):
        told = read_help(name, capsys)
        assert all(re.search(rf"\b{learner}\b", told) for learner in LEARNERS)
    for name in ("bound", "build", "attack", "talk", "train"):
        told = read_help(name, capsys)
        assert all(re.search(rf"\b{task}\b", told) for task in TASKS)
    told, _ = read_help("sample", capsys).split("Example:")
    assert all(re.search(rf"\b{kind}\b", told) for kind in list_sampled_kinds())
