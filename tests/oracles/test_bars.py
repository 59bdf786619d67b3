"""Bars in notebooks: what is shown in them, and how often."""

import re
import sys
import types

from keyhole.oracles.progress.bars import NotebookBar, open_bar


def test_a_bar_of_a_notebook_is_drawn_at_most_once_a_percent():
    shown = []
    bar = NotebookBar("learning", 1000, shown.append)
    for _ in range(1000):
        bar.advance(1)
    assert 90 <= len(shown) <= 101
    assert shown[-1].endswith(" learning: 1,000 of about 1,000 sequences")
    bar.close()
    assert shown[-1] == ""


def test_a_bar_that_was_given_too_few_stays_within_its_length():
    shown = []
    bar = NotebookBar("<learning>", 10, shown.append)
    bar.advance(9)
    bar.advance(30)
    most, value = map(int, re.search(r'max="(\d+)" value="(\d+)"', shown[-1]).groups())
    assert value == most == 39
    assert "<learning>" not in shown[-1]


class Handle:
    def __init__(self, seen):
        self.seen = seen

    def update(self, body):
        self.seen.append(body)


def test_jupyter_is_known_by_its_kernel(monkeypatch):
    seen = []
    display = types.SimpleNamespace(HTML=str, display=lambda body, display_id: Handle(seen))
    shell = types.SimpleNamespace(kernel=None)
    python = types.SimpleNamespace(get_ipython=lambda: shell, display=display)
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.delitem(sys.modules, "marimo", raising=False)
    # IPython in a terminal: here standard error is none, so that there is no bar at all.
    assert open_bar("learning", 5) is None
    shell.kernel = object()
    bar = open_bar("learning", 5)
    bar.advance(5)
    bar.close()
    assert ["of about 5" in body for body in seen] == [True, False]


def test_marimo_is_asked_whether_it_runs_us(monkeypatch):
    seen = []
    marimo = types.SimpleNamespace(
        running_in_notebook=lambda: True,
        Html=str,
        output=types.SimpleNamespace(replace=seen.append),
    )
    monkeypatch.setitem(sys.modules, "marimo", marimo)
    bar = open_bar("learning", 5)
    bar.advance(3)
    assert "3 of about 5" in seen[-1]
    marimo.running_in_notebook = lambda: False
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert open_bar("learning", 5) is None
