"""A small run of every kind, and records written by hand."""

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"
SWEEP = """
name = "small"
job = "trial"
[base]
model.kind = "head"
[grid]
model.width = [3, 4]
budget = [5, 60]
[figure]
x = "job.budget"
y = "job.model.width"
kind = "map"
value = "record.verdict"
value_equals = "UNVERIFIED"
boundary = [[5, 3], [60, 4]]
[[expect]]
value = "record.error"
statistic = "max"
at_most = 2
"""
MAKE = """
import numpy as np
from keyhole.lab.jobs import BoundJob, BuildJob, LearnJob, SweepJob, TwinsJob
from keyhole.lab.running import run_job
from keyhole.models import Head, MultiHead, save
rng = np.random.default_rng(5)
save(Head.random(3, rng=rng), "head.safetensors")
save(MultiHead.random(3, heads=2, rng=rng), "heads.safetensors")
run_job(LearnJob("head.safetensors", out="learn"))
run_job(LearnJob("head.safetensors", out="spent", budget=7,
                 simulate=("noise=1e-4", "token-bound=2")))
run_job(TwinsJob("heads.safetensors", out="twins"))
run_job(BuildJob("match2", length=4, modulus=5, out="build"))
run_job(BoundJob("sparse-average", length=6, q=1, embed=6, bits=12, build=True, out="bound"))
run_job(SweepJob("small.toml", workers=0, out="sweep"))
"""
ATTEMPT = {
    "options": {},
    "queries": 151,
    "verification": 128,
    "error": 7e-15,
    "function_error": 4e-15,
}
ATTEMPT |= {
    "verdict": "EXACT",
    "status": "RECOVERED",
    "sentence": "done",
    "model": None,
    "run": None,
    "seconds": None,
}
LESS = ATTEMPT | {
    "options": {"budget": 17},
    "queries": 17,
    "verification": 0,
    "error": 0.9,
    "verdict": "BUDGET_SPENT",
}
AUDIT = {
    "sentence": (
        "1 of 2 output policies do not protect this target; a budget below 23 queries does."
    ),
    "target": "head.safetensors",
    "width": 3,
    "outputs": 1,
    "token_bound": 1.73,
    "error_of": "W",
    "policies": [
        {
            "policy": "full precision",
            "simulate": [],
            "protects": False,
            "verdict": "none",
            "attempts": [ATTEMPT],
        },
        {
            "policy": "a budget",
            "simulate": [],
            "protects": True,
            "verdict": "some",
            "attempts": [LESS, LESS],
        },
    ],
    "queries": {"total": 232},
    "seed": 0,
    "command": "keyhole audit head.safetensors",
    "run": "audit",
    "seconds": {"total": 1.5},
    "version": "0.1.0",
}
KINDS = ("learn", "spent", "audit", "twins", "build", "bound", "sweep")
TRAINED = {
    "sentence": f"trained {EVIL}",
    "task": "sparse-average",
    "task_sizes": {"length": 8, "q": 2},
    "model_kind": "attention",
    "model_name": f"attention {EVIL}",
    "model_sizes": {"embed": 4},
    "parameters": 120,
    "steps": 20,
    "seed": 0,
    "seeds": 2,
    "measure": "squared error",
    "errors": [0.1, 0.2],
    "error": {"min": 0.1, "median": 0.15, "max": 0.2},
    "lines": {"zero": 1.0, "mean_of_all": 0.75},
    "curve": {
        "steps": [0, 10, 20],
        "errors": [[1.0, 0.5, 0.1], [1.0, 0.6, 0.2]],
        "median": [1.0, 0.55, 0.15],
    },
    "command": "keyhole train sparse-average",
}
TRAINED["curve"] |= {"alignment": [], "best_steps": [20, 20]}
