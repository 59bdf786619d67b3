"""Every way in which the world was once found to break a command ends in a sentence and a
documented exit code.
"""

import json
import os
import resource
import sqlite3
import subprocess
import sys

import pytest

from keyhole._files import write_atomically
from keyhole.errors import InvalidInput, StorageFailed
from keyhole.lab.runs.directories import make_directory
from keyhole.lab.runs.tables import export_rows
from keyhole.models import Head, save
from keyhole.oracles.http.service import _parse_retry_after
from support.forged import FORGED, forge

BASE = {"job": "trial", "base": {"model": {"kind": "head", "width": 2}}}
DEEP = '{"job": "trial", "base": ' + '{"a": ' * 5000 + "1" + "}" * 5001
SWEEPS = {
    "a range of words": BASE | {"grid": {"seed.range": ["a", 3]}},
    "a range of fractions": BASE | {"grid": {"seed.range": [0.5, 3]}},
    "a range without steps": BASE | {"grid": {"seed.range": [0, 3, 0]}},
    "a range of four": BASE | {"grid": {"seed.range": [0, 3, 1, 1]}},
    "a range too far": BASE | {"grid": {"seed.range": [0, 10**30]}},
    "a range of sixty million": BASE | {"grid": {"seed.range": [0, 60_000_000]}},
    "a value and a table": BASE | {"grid": {"model": [1], "model.width": [2]}},
    "a list and a range": BASE | {"grid": {"seed": [1], "seed.range": [0, 2]}},
    "a list as job": {"job": ["trial"]},
    "a table as job": {"job": {"a": 1}},
    "a figure of numbers": BASE | {"figure": {"x": 1, "y": 2}},
    "a figure that is a list": BASE | {"figure": [1]},
    "an expectation that is a number": BASE | {"expect": 3},
    "an expectation that is a table": BASE | {"expect": {"value": "a"}},
    "an odd statistic": BASE | {"expect": [{"value": "a", "statistic": ["a"], "at_most": 1}]},
    "tables too deep": DEEP,
    "lists too deep": '{"job": "trial", "base": ' + "[" * 200_000,
    "half a letter": '{"job": "trial", "name": "\\ud800"}',
    "nothing": "",
}
TOMLS = {
    "a key of twenty thousand parts": 'job = "trial"\n[base]\n' + ".".join(["a"] * 20_000) + "=1",
    "a table of as many": 'job = "trial"\n[' + " . ".join(['"a"'] * 20_000) + "]",
    "lists in lists": 'job = "trial"\nbase = ' + "[" * 20_000 + "]" * 20_000,
    "a number without end": 'job = "trial"\nbase = ' + "9" * 10_000,
    "bytes that are no text": b"job = '\xff'",
}


def refused(ran):
    """Whether a command ended in one sentence about what it was given."""
    return ran.code == 2 and ran.err.startswith("keyhole: ") and "Traceback" not in ran.err


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_model_file_is_refused(name, keyhole, tmp_path):
    kind, words, tensors = FORGED[name]
    forge(tmp_path / "f.safetensors", {"kind": kind, "format": "1", **words}, tensors)
    ran = keyhole("attack", "f.safetensors", "sparse-average", "--length", 4, "--q", 1)
    assert refused(ran), ran


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_of_nonsense_is_refused(name, keyhole, tmp_path):
    text = SWEEPS[name] if isinstance(SWEEPS[name], str) else json.dumps(SWEEPS[name])
    (tmp_path / "s.json").write_text(text)
    ran = keyhole("sweep", "s.json", "--workers", 0)
    assert refused(ran), ran
    assert len(ran.err) < 1000


@pytest.mark.parametrize("name", TOMLS)
def test_a_sweep_in_toml_is_refused_before_it_costs_memory(name, keyhole, tmp_path):
    text = TOMLS[name] if isinstance(TOMLS[name], bytes) else TOMLS[name].encode()
    (tmp_path / "s.toml").write_bytes(text)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    ran = keyhole("sweep", "s.toml", "--workers", 0)
    assert refused(ran), ran
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, 1 << 19)


@pytest.mark.parametrize(
    "arguments",
    [
        ("learn", "x" * 300 + ".safetensors"),
        ("sweep", "x" * 300 + ".toml"),
        ("report", "x" * 300),
        ("report", "--index", "x" * 300),
        ("inspect", "x" * 300),
        ("learn", "targets:vector", "--tokens", "x" * 300 + ".npy"),
        ("learn", "x" * 300 + ".onnx"),
        ("learn", "\udcff.safetensors"),
        ("learn", "head.safetensors", "--out", "\udcff"),
        ("learn", "head.safetensors", "--out", "x" * 300),
        ("learn", "\x1b[31m.safetensors"),
    ],
)
def test_a_name_no_file_can_have_is_refused(arguments, keyhole, head, targets):
    ran = keyhole(*arguments)
    assert refused(ran), ran
    assert "\x1b" not in ran.err
    assert "Errno" not in ran.err


@pytest.mark.parametrize("command", [("serve", "head.safetensors"), ("ui", "--no-open")])
@pytest.mark.parametrize("port", [-1, 65536, 99999, 1 << 70])
def test_a_port_that_is_none_is_no_other_port(command, port, keyhole, head):
    ran = keyhole(*command, "--port", port, timeout=20)
    assert refused(ran), ran
    assert "from 0 to 65535" in ran.err


def test_a_value_without_end_is_not_quoted_without_end(keyhole, head):
    ran = keyhole("learn", "head.safetensors", "--budget", "x" * 9000)
    assert refused(ran), ran
    assert len(ran.err) < 2000


TRANSCRIPTS = {
    "short blobs": "UPDATE batch SET answers = substr(answers, 1, 5)",
    "a renamed column": "ALTER TABLE batch RENAME COLUMN answers TO replies",
    "no outputs": "UPDATE batch SET outputs = 0",
    "fewer sequences": "UPDATE batch SET sequences = -1",
    "outputs unknown": "UPDATE batch SET outputs = NULL",
    "a cost without end": "UPDATE batch SET charged = 9223372036854775807",
    "a lower cost": "UPDATE batch SET charged = charged - 1",
    "another answer": "UPDATE batch SET answers = zeroblob(length(answers))",
    "another checksum": "UPDATE batch SET checksum = checksum + 1",
    "no batches": "DROP TABLE batch; CREATE TABLE batch (number)",
}


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_transcript_that_was_tampered_with_is_refused(name, keyhole, head, tmp_path):
    assert keyhole("learn", "head.safetensors", "--out", "run").code == 0
    base = sqlite3.connect(tmp_path / "run" / "transcript.sqlite")
    base.executescript(TRANSCRIPTS[name])
    base.close()
    ran = keyhole("learn", "head.safetensors", "--out", "run", "--resume")
    assert refused(ran), ran
    assert "--out" in ran.err


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_not_taken_for_a_transcript(make, keyhole, head, tmp_path):
    (tmp_path / "run").mkdir()
    make(tmp_path / "run" / "transcript.sqlite")
    ran = keyhole("learn", "head.safetensors", "--out", "run", "--resume", timeout=30)
    assert refused(ran), ran


def learn_with_little_room(tmp_path, bytes_each, *more):
    """`learn` where no file can grow beyond so many bytes, as on a full disk."""
    command = [sys.executable, "-m", "keyhole", "learn", "head.safetensors", "--out", "run", *more]
    return subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_each, bytes_each)),
    )


@pytest.mark.parametrize("room", [0, 6000, 30_000])
def test_a_full_disk_ends_in_a_sentence_and_the_run_can_be_resumed(room, keyhole, tmp_path, rng):
    save(Head.random(8, outputs=3, rng=rng), tmp_path / "head.safetensors")
    ran = learn_with_little_room(tmp_path, room)
    assert ran.returncode in (2, 3), ran
    assert ran.stderr.startswith("keyhole: cannot write")
    assert "Traceback" not in ran.stderr
    if ran.returncode == 3:
        assert "make room" in ran.stderr
    again = keyhole("learn", "head.safetensors", "--out", "run", "--resume", "--json")
    assert again.json["verdict"] == "EXACT"


def test_a_full_disk_ends_a_write_in_a_sentence(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageFailed, match="make room"):
        save(Head.random(2, rng=0), tmp_path / "m.safetensors")


def test_cells_that_a_spreadsheet_would_run_are_quoted_and_numbers_are_not(tmp_path):
    rows = [{"=1+1": "=HYPERLINK(1)", "plain": -1.5, "at": "@SUM(1)", "list": ["=1"]}]
    export_rows(rows, tmp_path, ["csv"])
    text = (tmp_path / "rows.csv").read_text().splitlines()
    assert text == ["'=1+1,plain,at,list", '\'=HYPERLINK(1),-1.5,\'@SUM(1),"[""=1""]"']


@pytest.mark.parametrize("text", ["²", "9" * 5000, "Mon, 99 Foo 99999 99:99:99", "\x00", "-1", ""])
def test_a_wait_that_makes_no_sense_is_no_wait(text):
    assert _parse_retry_after(text) is None


def test_words_of_others_reach_a_message_cleaned_and_once():
    said = str(InvalidInput("a\x1b[31mred\u202e\nline\ttwo\x9b"))
    assert said == "a\\x1b[31mred\\u202e line two\\x9b"
    assert str(InvalidInput(said)) == said


def test_a_message_that_quotes_a_whole_file_is_cut():
    said = str(InvalidInput("needed a name; got " + "x" * 100_000 + ". Give another."))
    assert len(said) < 2000
    assert said.startswith("needed a name; got xxx")
    assert said.endswith("x. Give another.")
    assert str(InvalidInput(said)) == said


def test_folders_deeper_than_anybodys_are_refused(tmp_path):
    deep = tmp_path / "/".join("a" * 1500)
    for make in (make_directory, lambda path: write_atomically(path / "x", b"")):
        with pytest.raises(InvalidInput, match=r"too long"):
            make(deep)
