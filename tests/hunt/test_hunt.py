"""Verdicts on generated targets: what is false in them is known beforehand, or there is none."""

import subprocess
import sys
from pathlib import Path

import pytest

from hunt.base import Truth
from hunt.demands import list_complaints
from hunt.tables import read_rows
from hunt.targets import KINDS

RUN = Path(__file__).with_name("run.py")
# Targets of each kind: 300 in all, and 2,124.
QUICK = {Truth.OURS: 3, Truth.DEVIATION: 1, Truth.FOREIGN: 2, Truth.NEEDLE: 5}
SLOW = dict.fromkeys(Truth, 12)


def count_targets(truth, each):
    return each[truth] * sum(kind.truth is truth for kind in KINDS.values())


def hunt(truth, each, where, **options):
    """Rows of so many targets of each kind, and their table on standard output.

    Another process learns: checks of shapes would take longer than all else.
    """
    rows = where / "rows.json"
    words = {"truth": truth, "targets": count_targets(truth, each), "rows": rows, **options}
    command = [str(word) for name, value in words.items() for word in (f"--{name}", value)]
    done = subprocess.run([sys.executable, RUN, *command], capture_output=True, text=True)
    sys.stdout.write(done.stdout + done.stderr)
    return read_rows(rows.read_text(encoding="utf-8"))


def test_the_quick_hunt_is_no_small_one():
    assert sum(count_targets(truth, QUICK) for truth in Truth) >= 300
    assert sum(count_targets(truth, SLOW) for truth in Truth) >= 2000


@pytest.mark.parametrize("truth", Truth)
def test_no_verdict_is_false_but_where_that_is_known(truth, tmp_path):
    # What deviates from our classes is searched to the end of any budget.
    budget = 5_000 if truth is Truth.DEVIATION else 20_000
    rows = hunt(truth, QUICK, tmp_path, seed=20, budget=budget)
    assert len(rows) == count_targets(truth, QUICK)
    assert list_complaints(rows) == []


@pytest.mark.slow
@pytest.mark.parametrize("truth", Truth)
def test_no_verdict_of_two_thousand_is_false_but_where_that_is_known(truth, tmp_path):
    rows = hunt(truth, SLOW, tmp_path, seed=100)
    assert len(rows) == count_targets(truth, SLOW)
    assert list_complaints(rows) == []
