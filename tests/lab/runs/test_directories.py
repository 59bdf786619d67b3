"""Run directories: never overwritten by accident, resumed without asking again."""

import signal
import subprocess
import sys
import time

import pytest

from keyhole.models import Head, save

WIDTH = 4


def test_a_directory_that_holds_a_run_is_refused_and_left_alone(keyhole, head, tmp_path):
    keyhole("learn", "head.safetensors", "--out", "run")
    before = (tmp_path / "run" / "record.json").read_bytes()
    ran = keyhole("learn", "head.safetensors", "--out", "run", "--seed", 5)
    assert ran.code == 2
    assert "already holds a run" in ran.err
    assert "--resume" in ran.err
    assert "--force" in ran.err
    assert (tmp_path / "run" / "record.json").read_bytes() == before


def test_force_replaces_the_run(keyhole, head):
    keyhole("learn", "head.safetensors", "--out", "run")
    ran = keyhole("learn", "head.safetensors", "--out", "run", "--seed", 5, "--force", "--json")
    assert (ran.code, ran.json["seed"]) == (0, 5)


def test_resume_without_out_is_refused(keyhole, head):
    ran = keyhole("learn", "head.safetensors", "--resume")
    assert ran.code == 2
    assert "--resume needs --out" in ran.err


def test_resuming_a_finished_run_asks_nothing(keyhole, targets, tmp_path):
    command = ("learn", "targets:counting", "--width", WIDTH, "--out", "run", "--json")
    first, log = keyhole(*command), (tmp_path / "asked.log").read_text()
    second = keyhole(*command, "--resume")
    assert (tmp_path / "asked.log").read_text() == log
    assert second.code == 0
    assert second.json["queries"] == first.json["queries"]
    assert (second.json["width"], second.json["outputs"]) == (WIDTH, 2)


@pytest.mark.parametrize(("option", "value"), [("--seed", 9), ("--learner", "exact")])
def test_resuming_with_other_settings_is_refused_by_name(keyhole, head, option, value):
    keyhole("learn", "head.safetensors", "--out", "run")
    ran = keyhole("learn", "head.safetensors", "--out", "run", "--resume", option, value)
    assert ran.code == 2
    assert f"{option.removeprefix('--')} was" in ran.err


def test_resuming_after_the_target_has_changed_is_refused(keyhole, head, tmp_path, rng):
    keyhole("learn", "head.safetensors", "--out", "run")
    save(Head.random(WIDTH, rng=rng), tmp_path / "head.safetensors")
    ran = keyhole("learn", "head.safetensors", "--out", "run", "--resume")
    assert ran.code == 2
    assert "another run" in ran.err


def test_a_spent_budget_is_resumed_with_a_larger_one(keyhole, targets, asked):
    command = ("learn", "targets:counting", "--width", WIDTH, "--out", "run", "--json")
    assert keyhole(*command, "--budget", 9).json["verdict"] == "BUDGET_SPENT"
    ran = keyhole(*command, "--resume", "--budget", 1000)
    assert (ran.code, ran.json["verdict"]) == (0, "EXACT")
    assert asked() == ran.json["queries"]["total"]


def test_a_target_that_cannot_bear_large_tokens_is_learned_and_resumed(keyhole, targets, asked):
    command = ("learn", "targets:delicate", "--width", WIDTH, "--out", "run", "--json")
    assert keyhole(*command, "--budget", 12).json["verdict"] == "BUDGET_SPENT"
    ran = keyhole(*command, "--resume", "--budget", 1000)
    assert (ran.code, ran.json["verdict"]) == (0, "EXACT")
    assert asked() <= ran.json["queries"]["total"] <= 1000


def test_a_budget_below_what_was_asked_is_refused(keyhole, targets):
    command = ("learn", "targets:counting", "--width", WIDTH, "--out", "run")
    keyhole(*command, "--budget", 9)
    ran = keyhole(*command, "--resume", "--budget", 4)
    assert ran.code == 2
    assert "already asked 9" in ran.err


def test_a_mended_target_is_resumed(keyhole, targets, tmp_path):
    command = ("learn", "targets:raising_later", "--width", WIDTH, "--out", "run", "--json")
    assert keyhole(*command).code == 3
    mended = (tmp_path / "targets.py").read_text().replace("len(calls) > 8", "False")
    (tmp_path / "targets.py").write_text(mended)
    ran = keyhole(*command, "--resume")
    assert (ran.code, ran.json["verdict"]) == (0, "EXACT")


def test_ctrl_c_exits_with_130_and_keeps_what_was_answered(keyhole, targets, tmp_path):
    command = [
        sys.executable,
        "-m",
        "keyhole",
        "learn",
        "targets:slow",
        "--width",
        "4",
        "--out",
        "run",
    ]
    running = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "run" / "transcript.sqlite").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "--resume" in err
    assert "Traceback" not in err
    assert keyhole("learn", "targets:slow", "--width", 4, "--out", "run", "--resume").code == 0
