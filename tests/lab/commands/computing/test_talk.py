"""`keyhole talk`: a saved model run by several people, counted and drawn."""

import json

import numpy as np
import pytest

import keyhole
from keyhole.cli import _run_command_line
from keyhole.constructions import save
from keyhole.tasks import Match2, SparseAverage

pytestmark = pytest.mark.theorem("keyhole/conversation")


@pytest.fixture(scope="module")
def pairs_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("talk") / "match2.safetensors"
    built = keyhole.build(Match2(8, 11), rng=0)
    save(built.model, path)
    return path, built.size


@pytest.fixture
def said(capsys):
    def run(*words):
        code = _run_command_line([*map(str, words), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


SIZES = ("match2", "--length", 8, "--modulus", 11)


def test_two_people_send_what_the_formula_counts(pairs_file, said):
    path, size = pairs_file
    code, data = said("talk", path, *SIZES, "--bits", 20)
    talk = data["conversation"]
    assert (code, data["record"], data["people"]) == (0, "talk", 2)
    counted = 8 * size.heads * size.layers * (size.embed + size.value_width + 1) * 20
    assert talk["bits"] == sum(one["bits"] for one in talk["messages"]) == counted
    assert {one["sender"] for one in talk["messages"]} == {"Alice", "Bob"}
    assert data["error"] == data["error_direct"] == 0.0
    assert "as well as by one person" in data["sentence"]


def test_a_third_person_hears_the_queries_and_answers_too(pairs_file, said):
    path, size = pairs_file
    talk = said("talk", path, *SIZES, "--people", 3, "--bits", 20)[1]["conversation"]
    assert talk["bits"] == 8 * size.heads * (size.embed + 2 * (size.value_width + 1)) * 20


def test_more_than_three_people_are_refused(pairs_file, capsys):
    words = ["talk", str(pairs_file[0]), *map(str, SIZES), "--people", "5"]
    assert _run_command_line(words) == 2
    assert "two or three people" in capsys.readouterr().err


def test_a_bit_a_number_is_too_coarse_and_that_is_said(pairs_file, said):
    path, _ = pairs_file
    data = said("talk", path, *SIZES, "--bits", 1)[1]
    assert data["error"] > data["error_direct"]
    assert "worse than by one person" in data["sentence"]


def test_the_bits_any_two_people_need_stand_beside_those_sent(tmp_path, said):
    task = SparseAverage(9, 3, 2)
    path = tmp_path / "qsa.safetensors"
    save(keyhole.build(task, rng=np.random.default_rng(1)).model, path)
    out = tmp_path / "run"
    words = ("sparse-average", "--length", 9, "--q", 3, "--width", 2)
    data = said("talk", path, *words, "--bits", 24, "--out", out)[1]
    assert data["conversation"]["needed"] == 3
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "any two people need 3 bits" in page
    assert "log-partitions and averages" in page
    assert json.loads((out / "record.json").read_text())["conversation"] == data["conversation"]


def test_models_that_nobody_can_run_so_are_refused_in_a_sentence(tmp_path, capsys):
    path = tmp_path / "match3.safetensors"
    keyhole.save(keyhole.TensorAttention.random(1, embed=1, rng=0), path)
    words = ["talk", str(path), "match3", "--length", "4", "--modulus", "5"]
    assert _run_command_line(words) == 2
    assert "people can run" in capsys.readouterr().err
