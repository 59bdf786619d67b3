"""A directory of runs for the explorer, some of them hostile."""

import json

from keyhole.lab.jobs import LearnJob, SampleJob, SweepJob
from keyhole.lab.running import run_job

HOSTILE = "<script>alert(1)<script>"
PICTURE = "<img src=x onerror=alert(1)>"
SWEEP = """
name = "ranks"
job = "trial"
[base]
model.kind = "head"
model.width = 4
[grid]
model.rank = [1, 4]
budget = [20, 200]
[figure]
kind = "map"
title = "Two hundred queries are enough"
x = "job.budget"
y = "job.model.rank"
value = "record.verdict"
value_equals = "EXACT"
value_name = "share exact"
boundary = [[20, 1], [24, 4]]
boundary_name = "hidden numbers"
"""


def shelved(runs):
    """A directory of runs: a recovery of a file with a hostile name, a sweep, a training, a run
    for every colour of a verdict, a run that is hostile.
    """
    runs.mkdir()
    model = runs.parent / f"{HOSTILE}.safetensors"
    run_job(SampleJob("head", width=4, out=str(model)))
    run_job(LearnJob(str(model), out=str(runs / "learned")))
    (runs.parent / "ranks.toml").write_text(SWEEP)
    run_job(SweepJob(str(runs.parent / "ranks.toml"), workers=0, out=str(runs / "ranks")))
    curve = {
        "steps": [0, 100, 200],
        "errors": [[0.7, 0.04, 0.002], [0.8, 0.05, 0.004], [0.6, 0.1, 0.003]],
    }
    for name, record in {
        "trained": {
            "sentence": "A unit learned it.",
            "status": "TRAINED",
            "curve": curve,
            "lines": {"zero": 1.0},
        },
        **{
            name: {"sentence": f"{name}.", "verdict": name}
            for name in ("BUILT", "ENOUGH", "TOO_SMALL", "OPEN", "CLASS_REFUTED", "BUDGET_SPENT")
        },
        PICTURE: {
            "sentence": PICTURE,
            "verdict": PICTURE,
            "queries": {"total": 1, "by_phase": {PICTURE: 1}},
        },
    }.items():
        (runs / name).mkdir()
        (runs / name / "record.json").write_text(json.dumps(record))
    (runs / PICTURE / "report.html").write_text(
        "<p id=said>waiting</p><script>fetch('/api/runs').then(() => 1, () => { said.textContent ="
        " 'kept out' });try { parent.opener.document } catch (e) {} </script>"
    )
