"""Runs of `keyhole learn` of every kind, and their pages taken apart."""

import json
from types import SimpleNamespace

from support.pages import Walk

MODEL = "head.safetensors"
KINDS = {
    "exact": (["sample", "head", "--width", 8, "--rank", 2], MODEL, [], "EXACT"),
    "wide": (["sample", "head", "--width", 130, "--rank", 1], MODEL, [], "EXACT"),
    "biases": (["sample", "head", "--width", 5, "--biases", "--outputs", 4], MODEL, [], "EXACT"),
    "scalar": (["sample", "head", "--width", 1], MODEL, [], "EXACT"),
    "refuted": (
        ["sample", "multihead", "--width", 5],
        "multihead.safetensors",
        ["--learner", "low-rank"],
        "CLASS_REFUTED",
    ),
    "denied": (
        ["sample", "head", "--width", 8, "--rank", 4],
        MODEL,
        ["--learner", "low-rank", "--rank", 2],
        "UNVERIFIED",
    ),
    "constant": (["--version"], "targets:constant", ["--width", 4], "NOT_IDENTIFIABLE"),
    "budget": (["sample", "head", "--width", 8], MODEL, ["--budget", 30], "BUDGET_SPENT"),
    "no verification": (
        ["--version"],
        "targets:vector",
        ["--width", 4, "--budget", 100],
        "UNVERIFIED",
    ),
    "bad answer": (["--version"], "targets:nan_later", ["--width", 4], "UNVERIFIED"),
    "demo": (["demo", "--seed", 3, "--out", "run"], None, [], "EXACT"),
    "moody": (["--version"], "targets:moody", ["--width", 4, "--learner", "exact"], "UNVERIFIED"),
}


def opened(directory):
    """A run as its directory holds it: the record, the page, a walk over the page."""
    record, page = (
        json.loads((directory / "record.json").read_text()),
        (directory / "report.html").read_text(),
    )
    return SimpleNamespace(record=record, page=page, walk=Walk(page), directory=directory)
