"""The notebooks: every cell runs, and what they claim comes out."""

import json
import subprocess
import sys

import pytest

from support.paths import ROOT

pytest.importorskip("marimo")
FOLDER = ROOT / "tutorials"
# Cells run as a script runs them, without the checks of shapes that tests add.
RUN = """
import json, runpy, sys
recover = runpy.run_path("recover_a_head.py")["app"].run()[1]
compute = runpy.run_path("what_attention_can_compute.py")["app"].run()[1]
kept = {name: recover[name] for name in ("entry", "true_entry", "error", "rounded_error", "told")}
kept |= {name: compute[name] for name in ("worst", "right", "ring", "face", "gap")}
kept |= {"verdict": recover["recovery"].verdict.name, "judged": compute["judged"][3].verdict.name}
print(json.dumps(kept))
"""


@pytest.fixture(scope="module")
def names():
    """What both notebooks define, once all their cells have run."""
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=FOLDER, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_first_notebook_recovers_a_head_also_behind_bfloat16(names):
    assert names["entry"] == pytest.approx(names["true_entry"], abs=1e-12)
    assert names["verdict"] == "EXACT"
    assert names["error"] < 1e-12
    assert names["rounded_error"] < 1e-9
    assert {outcome for _, outcome in names["told"]} == {"HOLDS"}


def test_the_second_notebook_builds_bounds_and_recovers(names):
    assert names["worst"] < 1e-3
    assert names["right"]
    assert "it finds token 4" in names["ring"]
    assert "Keys of positions 3, 8 are a face" in names["face"]
    assert names["judged"] == "TOO_SMALL"
    assert names["gap"] < 1e-9
