"""Runs on the shelf of the explorer: listed, shown, and nothing outside their directory."""

import json
import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

import pytest

from keyhole.lab.runs.records import encode_json
from keyhole.web import runs as shelf
from support.explorer_client import HOSTILE


@pytest.fixture
def held(tmp_path):
    """A directory of runs: one with a hostile name and record, one outside, one behind a link."""
    runs = tmp_path / "runs"
    for place, sentence in (
        (runs / "one", HOSTILE),
        (tmp_path / "outside", "secret"),
        (runs / "deep" / "two", "found"),
    ):
        place.mkdir(parents=True)
        (place / "record.json").write_text(
            json.dumps({"sentence": sentence, "verdict": HOSTILE, "queries": {}})
        )
        (place / "report.html").write_text(f"<p>{sentence}</p>")
    (runs / "link").symlink_to(tmp_path / "outside")
    (runs / "broken").mkdir()
    (runs / "broken" / "record.json").write_text("{")
    (runs / "linked-report").mkdir()
    (runs / "linked-report" / "record.json").write_text("{}")
    (runs / "linked-report" / "report.html").symlink_to(tmp_path / "outside" / "report.html")
    return runs


def test_the_shelf_lists_what_is_there_and_follows_no_link(held):
    names = {row.name: row.sentence for row in shelf.list_runs(held).runs}
    assert set(names) == {"one", "deep/two", "broken", "linked-report"}
    assert names["one"] == HOSTILE
    assert "cannot be read" in names["broken"]


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../outside",
        "one/../../outside",
        "link",
        "deep",
        "/etc",
        "",
        "one/",
        "a/b/c/d",
        "one\0",
        "..\\outside",
        "none",
    ],
)
def test_nothing_outside_the_directory_of_runs_is_read(held, name):
    with pytest.raises(shelf.NotThere):
        shelf.show_run(held, name)
    with pytest.raises(shelf.NotThere):
        shelf.read_run_report(held, name)


def test_a_report_that_is_a_link_out_is_not_read(held):
    with pytest.raises(shelf.NotThere, match="no report"):
        shelf.read_run_report(held, "linked-report")


def test_a_record_or_store_that_is_a_link_out_is_not_read(held):
    for name, target in (
        ("record.json", "outside/record.json"),
        ("store.sqlite", "outside/report.html"),
    ):
        (held / f"linked-{name}").mkdir()
        (held / f"linked-{name}" / name).symlink_to(held.parent / target)
        with pytest.raises(shelf.NotThere):
            shelf.show_run(held, f"linked-{name}")
    assert "secret" not in str(shelf.list_runs(held))


def test_a_name_that_is_not_text_does_not_hide_the_other_runs(held):
    odd = os.fsencode(held) + b"/odd\xff"
    os.mkdir(odd)
    Path(os.fsdecode(odd), "record.json").write_text("{}")
    assert b'"one"' in encode_json(shelf.list_runs(held))


@pytest.mark.parametrize(
    "rows", [[("k", "{", "done", "{}", None, "{}")], [("k", "{}", "done", "[1]", None, "{}")], []]
)
def test_a_damaged_store_is_told_in_a_sentence(held, rows):
    with sqlite3.connect(held / "one" / "store.sqlite") as base:
        base.execute(
            "CREATE TABLE job (key, job, state, record, reason, about)"
            if rows
            else "CREATE TABLE job (key)"
        )
        (
            base.executemany("INSERT INTO job VALUES (?, ?, ?, ?, ?, ?)", rows)
            if rows
            else base.execute("INSERT INTO job VALUES (1)")
        )
    base.close()
    assert "not a readable store" in shelf.show_run(held, "one").rows.sentence


def test_an_absent_directory_of_runs_is_an_empty_one(tmp_path):
    assert shelf.list_runs(tmp_path / "none").runs == []


@pytest.mark.parametrize(
    "name", ["../secret", "%2e%2e%2fsecret", "..%2f..%2fetc%2fpasswd", "x/../../y"]
)
def test_traversal_is_refused_over_http(client, name):
    for path in ("/api/runs/", "/report/"):
        assert client.ask("GET", path + name)[0] == 404


def test_a_report_is_served_in_a_sandbox_of_its_own(client, recovered):
    status, headers, body = client.ask("GET", f"/report/{quote(recovered['result']['run'])}")
    policy = headers["content-security-policy"]
    assert status == 200
    assert body.startswith(b"<!doctype html>")
    assert policy.startswith("sandbox allow-scripts; default-src 'none'")
    assert "same-origin" not in policy


def test_a_run_is_shown_as_its_record_is_on_the_disk(client, recovered):
    name = recovered["result"]["run"]
    _, said = client.get(f"/api/runs/{name}")
    assert said["record"] == json.loads((client.explorer.runs / name / "record.json").read_text())
    assert (said["kind"], said["verdict"], said["report"]) == ("learn", "EXACT", True)
