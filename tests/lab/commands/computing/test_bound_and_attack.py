"""`keyhole bound` and `keyhole attack`: records, exit codes, the page."""

import json

import numpy as np
import pytest

from keyhole.bounds.base import Sizes
from keyhole.cli import _run_command_line
from keyhole.errors import DoesNotFit
from keyhole.lab.commands.computing.bound import build_and_tell
from keyhole.lab.pages import bound_page
from keyhole.lab.runs.task_records import ConversationRecord, MessageRecord
from keyhole.models import load
from keyhole.tasks import SparseAverage


@pytest.fixture
def said(capsys):
    """`said("bound", ...)` is the exit code and the object that was printed."""

    def run(*words):
        code = _run_command_line([*map(str, words), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


QSA = ("sparse-average", "--length", 1024, "--q", 16)


def test_too_small_names_its_inequality(said):
    code, data = said("bound", *QSA, "--embed", 3, "--bits", 16)
    assert (code, data["verdict"], data["construction"]) == (0, "TOO_SMALL", None)
    assert data["inequality"]["name"] == "counting"
    assert data["inequality"]["needed"] == pytest.approx(115.557, abs=1e-3)
    assert data["inequality"]["available"] == 112
    assert data["assumptions"]
    assert "115.6 bits" in data["sentence"]


def test_open_gives_the_gap_and_a_page_of_the_plane(said, tmp_path):
    code, data = said("bound", *QSA, "--embed", 5, "--bits", 16, "--out", tmp_path / "run")
    assert (code, data["verdict"]) == (0, "OPEN")
    assert (data["gap"]["axis"], data["gap"]["too_small"], data["gap"]["asked"]) == ("embed", 3, 5)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "asked: 5, 16 bits" in page
    assert "provably too small" in page
    assert "keyhole bound sparse-average --length 1024 --q 16 --embed 5 --bits 16" in page
    assert json.loads((tmp_path / "run" / "record.json").read_text()) == data
    assert dict(data["plane"]["lower"])[16] == 4
    again, _ = said("bound", *QSA, "--embed", 5, "--out", tmp_path / "run")
    assert again == 2


def test_real_numbers_are_null_and_never_too_small_but_by_radon(said):
    _, data = said("bound", *QSA, "--embed", 31)
    assert (data["verdict"], data["sizes"]["bits"]) == ("OPEN", None)
    _, data = said("bound", *QSA, "--embed", 31, "--positional")
    assert (data["verdict"], data["inequality"]["name"]) == ("TOO_SMALL", "radon")


def test_other_networks_and_other_tasks_have_bounds_too(said):
    _, data = said("bound", "sparse-average", "--length", 24, "--q", 3, "--hidden", 21)
    assert (data["verdict"], data["inequality"]["needed"]) == ("TOO_SMALL", 22)
    match3 = ("match3", "--length", 1001, "--modulus", 5000, "--embed", 5, "--value-width", 2)
    _, data = said("bound", *match3, "--dtype", "f16")
    # The wider class: scores within 5 x 2^32, so a log-partition takes log2(10 x 2^71) = 74.3 bits.
    assert (data["verdict"], data["inequality"]["available"]) == ("TOO_SMALL", 2 * 41 + 75)
    narrow = next(one for one in data["inequalities"] if one["name"] == "partition-message")
    assert narrow["available"] == 139
    assert "p-bit queries, keys and values" in data["sentence"]
    _, data = said("bound", *match3, "--bits", 16, "--layers", 2)
    assert data["verdict"] == "OPEN"
    assert "says nothing here: layers 2, and it is for at most 1" in data["sentence"]
    _, data = said("bound", *match3, "--dtype", "fixed:3.4", "--order", 3)
    assert (data["verdict"], data["inequalities"]) == ("OPEN", [])


def test_theorem_3_and_radon_meet_without_building_anything(said):
    sizes = ("sparse-average", "--length", 256, "--q", 8, "--positional")
    _, data = said("bound", *sizes, "--embed", 16)
    assert (data["verdict"], data["construction"]) == ("ENOUGH", "trigonometric keys")
    assert (data["proven"]["theorem"], data["built"]) == ("SHT23/3", None)
    _, data = said("bound", *sizes, "--embed", 15)
    assert (data["verdict"], data["inequality"]["name"]) == ("TOO_SMALL", "radon")


def test_sizes_that_no_formula_decides_say_what_building_would_check(said):
    few = ("sparse-average", "--length", 32, "--q", 3, "--embed", 14, "--bits", 12)
    _, data = said("bound", *few)
    assert (data["verdict"], data["gap"]["enough"]) == ("OPEN", 32)
    assert "--build would check all 4,960 sets" in data["sentence"]
    _, data = said("bound", *QSA, "--embed", 60, "--bits", 16)
    assert "could not call that enough" in data["sentence"]


def test_a_whole_embedding_is_bounded_whatever_stands_behind_it(said):
    sizes = (*QSA, "--embed", 64, "--heads", 8, "--bits", 16, "--residual")
    _, data = said("bound", *sizes, "--token-width", 7)
    # 7 x 16 = 112 bits against log2 C(1023, 16) = 115.6.
    assert (data["verdict"], data["inequality"]["name"]) == ("TOO_SMALL", "embedding")
    assert "models of any kind behind a token map" in data["sentence"]
    _, data = said("bound", *sizes, "--token-width", 8)
    assert data["verdict"] == "OPEN"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("bound", "sparse-average", "--length", 9, "--q", 2), "needs --embed"),
        (("bound", *QSA, "--embed", 0), "--embed is a whole number >= 1"),
        (("bound", *QSA, "--embed", 3, "--bits", 8, "--dtype", "f16"), "not both"),
        (("bound", *QSA, "--embed", 3, "--dtype", "f8"), "got 'f8'"),
        (("bound", "match9", "--embed", 3), "TASK is one of"),
        (("sample", "perceptron"), "KIND is head, multihead"),
    ],
)
def test_misuse_has_code_2_and_says_what_was_needed(said, words, message):
    code, data = said(*words)
    assert code == 2
    assert message in data["sentence"]


def test_an_attack_gives_a_failing_input_that_can_be_replayed(said, tmp_path):
    path = tmp_path / "mlp.safetensors"
    assert (
        said(
            "sample", "mlp", "--width", 2, "--length", 10, "--q", 3, "--hidden", 15, "--out", path
        )[0]
        == 0
    )
    code, data = said("attack", path, "sparse-average")
    assert (code, data["status"]) == (0, "FOUND")
    assert data["gap"] == pytest.approx(2 / 3)
    task, X = SparseAverage(10, 3, 2), np.array([data["input"], data["twin"]])
    rows = load(path)(X)[:, data["row"]]
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-9)
    error = np.linalg.norm(rows[0] - task.target(X)[0, data["row"]])
    assert error == pytest.approx(data["error"])
    assert error >= 1 / 3


def test_an_attack_without_a_result_has_code_3(said, tmp_path):
    path = tmp_path / "mlp.safetensors"
    said("sample", "mlp", "--width", 1, "--length", 6, "--q", 2, "--hidden", 5, "--out", path)
    code, data = said("attack", path, "sparse-average")
    assert (code, data["status"], data["input"]) == (3, "NONE_FOLLOWS", None)


def test_a_recurrent_model_is_attacked_at_the_length_asked(said, tmp_path):
    path = tmp_path / "lstm.safetensors"
    said("sample", "lstm", "--width", 1, "--q", 2, "--hidden", 3, "--state-bits", 4, "--out", path)
    code, data = said("attack", path, "sparse-average", "--length", 30)
    assert (code, data["status"], data["hidden_gap"]) == (0, "FOUND", 0)
    assert np.shape(data["input"]) == (30, 4)


def test_a_conversation_is_drawn_with_its_running_total():
    messages = [
        MessageRecord(layer=1, sender=a, receiver=b, content=what, numbers=4, bits=96)
        for a, b, what in (
            ("Alice", "Bob", "queries"),
            ("Bob", "Alice", "log-partitions and averages"),
        )
    ]
    drawn = bound_page.draw_conversation(
        ConversationRecord(messages=messages, bits=192, each=24, needed=7, deviation=1e-6)
    )
    assert "192 so far" in drawn
    assert "any two people need 7 bits" in drawn
    assert bound_page.draw_conversation(None) == ""


def test_building_tells_what_it_tries_and_an_interrupt_leaves_the_verdict_to_formulas():
    lines = []
    sizes = Sizes(embed=12, bits=14.0, accuracy=1 / 8)
    settings = {"order": 2, "rng": np.random.default_rng(0), "seconds": 0.0}
    built = build_and_tell(SparseAverage(12, 2), sizes, write=lines.append, **settings)
    assert built.proved
    assert any("max-margin keys of width 5, all 66 sets" in line for line in lines)
    assert all(line.startswith("building for ") and line.endswith("\n") for line in lines)

    def interrupt(line):
        raise KeyboardInterrupt

    with pytest.raises(DoesNotFit, match="Building was stopped at trigonometric keys"):
        build_and_tell(SparseAverage(12, 2), sizes, write=interrupt, **settings)
