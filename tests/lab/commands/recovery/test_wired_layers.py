"""Attention layers as they are built, through every command that asks or judges them."""

import json
import signal
import subprocess
import sys

import pytest

TOLD = ("--norm", "rms", "--positions", "rope")


@pytest.fixture
def layer(keyhole):
    sizes = ("--width", "8", "--heads", "2", "--seed", "31")
    keyhole("sample", "layer", *sizes, *TOLD, "--residual", "--out", "layer.safetensors")
    return "layer.safetensors"


def test_a_layer_is_learned_verified_resumed_and_compared(keyhole, layer):
    first = json.loads(keyhole("learn", layer, *TOLD, "--out", "run", "--json").out)
    assert (first["verdict"], first["class"]) == ("EXACT", "layer")
    again = json.loads(keyhole("learn", layer, *TOLD, "--out", "run", "--resume", "--json").out)
    assert again["queries"] == first["queries"]
    assert again["seconds"]["oracle"] <= first["seconds"]["oracle"]
    verified = keyhole("verify", layer, "run/model.safetensors", "--json")
    assert (verified.code, json.loads(verified.out)["verdict"]) == (0, "EXACT")
    apart = json.loads(keyhole("compare", layer, "run/model.safetensors", "--json").out)
    assert apart["largest"] < 1e-9


def test_a_layer_of_another_seed_is_found_to_be_another(keyhole, layer):
    sizes = ("--width", "8", "--heads", "2", "--seed", "32")
    keyhole("sample", "layer", *sizes, *TOLD, "--residual", "--out", "other.safetensors")
    assert keyhole("verify", layer, "other.safetensors").code == 3


def test_a_run_with_another_wiring_is_another_run(keyhole, layer):
    keyhole("learn", layer, *TOLD, "--out", "run")
    told = keyhole("learn", layer, "--norm", "layer", "--out", "run", "--resume")
    assert told.code == 2


def test_an_audit_is_told_the_wiring_and_caps_what_attempts_cost(keyhole, layer):
    budget = ("--budget", "900", "--out", "audit", "--json")
    done = keyhole("audit", layer, *TOLD, *budget)
    told = json.loads(done.out)
    assert done.code == 0
    first = told["policies"][0]["attempts"][0]
    assert (first["verdict"], told["error_of"]) == ("EXACT", "answers")
    assert first["function_error"] < 1e-9
    assert told["queries"]["total"] <= 900
    assert told["cap"] == 16 * first["queries"]
    assert "--positions rope" in told["command"]
    # Other flags are another audit.
    assert keyhole("audit", layer, "--norm", "layer", "--out", "audit", "--resume").code == 2


SLOW = """
import time, torch
print("imported", flush=True)
time.sleep(60)
"""


def test_ctrl_c_ends_an_inspection_with_130(tmp_path):
    (tmp_path / "slow_model.py").write_text(SLOW)
    command = [sys.executable, "-m", "keyhole", "inspect", "slow_model:model"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = subprocess.Popen(command, cwd=tmp_path, **pipes)
    try:
        assert running.stdout.readline() == "imported\n"
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=20)
    finally:
        running.kill()
    assert running.returncode == 130
    assert "Traceback" not in said


def test_an_inspection_without_torch_says_what_to_install(tmp_path):
    (tmp_path / "my_model.py").write_text("def model():\n    return 3\n")
    blocked = "import sys; sys.modules['torch'] = None; from keyhole.cli import main; main()"
    command = [sys.executable, "-c", blocked, "inspect", "my_model:model"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'keyhole[torch]'" in done.stderr
    assert "Traceback" not in done.stderr
