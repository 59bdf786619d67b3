"""`keyhole ui` without a browser: what the page may ask for, and what everybody else gets."""

import http.client
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np
import pytest

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import BoundJob, LearnJob, SampleJob, UiJob
from keyhole.lab.running import run_job
from keyhole.lab.runs.records import Record
from keyhole.models import load
from keyhole.web import jobs as desk
from keyhole.web import runs as shelf
from keyhole.web import showcase
from keyhole.web.explorer import Explorer, Window, read_page_files
from keyhole.web.requests import Recover, read_recover_wish

HOSTILE = "<script>alert(1)</script>"


class Client:
    """Requests to one explorer, with or without what its page sends along."""

    def __init__(self, window):
        self.explorer, self.place = window.explorer, urlsplit(window.address)

    def ask(self, method, path, body=None, *, token=True, **headers):
        """Status, headers and body of one request."""
        connection = http.client.HTTPConnection(self.place.hostname, self.place.port, timeout=30)
        sent = {"X-Keyhole-Token": self.explorer.token} if token else {}
        text = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(
            method,
            path,
            text,
            sent | {name.replace("_", "-"): value for name, value in headers.items()},
        )
        answer = connection.getresponse()
        seen = answer.status, dict(answer.getheaders()), answer.read()
        connection.close()
        return seen

    def get(self, path):
        status, _, body = self.ask("GET", path)
        return status, json.loads(body)

    def post(self, path, data, **more):
        status, _, body = self.ask("POST", path, data, **more)
        return status, json.loads(body)

    def start(self, kind, **fields):
        return self.post("/api/jobs", {"kind": kind, "fields": fields})

    def finished(self, kind, **fields):
        """A job, followed to its end."""
        status, job = self.start(kind, **fields)
        assert status == 202, job
        for _ in range(600):
            _, job = self.get(f"/api/jobs/{job['id']}")
            if job["state"] != "running":
                return job
            time.sleep(0.05)
        raise AssertionError(f"{kind} did not end")


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    window = Window(Explorer(tmp_path_factory.mktemp("explorer") / "runs"), 0, str)
    with window.beside():
        yield Client(window)


@pytest.fixture(scope="module")
def recovered(client):
    return client.finished("recover", width=6, rank=2, seed=3)


def test_the_page_is_small_and_names_no_other_host(client):
    held = read_page_files()
    assert sum(map(len, held.values())) < 200_000
    for name, body in held.items():
        assert set(re.findall(rb"https?://[^\"'\s)]+", body)) <= {b"http://www.w3.org/2000/svg"}, (
            name
        )


def test_the_page_comes_with_a_policy_that_forbids_all_but_its_own_files(client):
    status, headers, body = client.ask("GET", "/")
    policy = headers["content-security-policy"]
    assert status == 200
    assert client.explorer.token.encode() in body
    assert "default-src 'none'" in policy
    assert not re.search(r"unsafe|\*|http", policy)
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["app.js", "style.css", "icon.svg"])
def test_files_of_the_page_are_served_with_their_kind(client, name):
    status, headers, body = client.ask("GET", f"/static/{name}")
    assert (status, body) == (200, read_page_files()[name])
    assert headers["content-type"].split(";")[0] in ("text/javascript", "text/css", "image/svg+xml")


@pytest.mark.parametrize(
    "path", ["/static/index.html", "/static/../explorer.py", "/static/%2e%2e%2fdesk.py", "/nowhere"]
)
def test_nothing_else_is_served(client, path):
    status, _, body = client.ask("GET", path)
    assert status == 404
    assert json.loads(body)["sentence"].endswith(".")


@pytest.mark.parametrize(
    "host",
    ["example.org", "example.org:{port}", "127.0.0.1", "127.0.0.1:1", "", "localhost.evil:{port}"],
)
def test_a_foreign_host_is_refused(client, host):
    status, _, body = client.ask("GET", "/api/runs", Host=host.format(port=client.place.port))
    assert status == 403
    assert b"this machine" in body


def test_the_name_localhost_is_our_own(client):
    assert client.ask("GET", "/", Host=f"localhost:{client.place.port}")[0] == 200


@pytest.mark.parametrize(
    "origin", ["http://example.org", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1"]
)
def test_a_foreign_origin_starts_nothing(client, origin):
    ask = {"kind": "recover", "fields": {"width": 4}}
    assert client.post("/api/jobs", ask, Origin=origin.format(port=client.place.port))[0] == 403


def test_without_the_token_of_the_page_nothing_is_started(client):
    ask = {"kind": "recover", "fields": {"width": 4}}
    assert client.ask("POST", "/api/jobs", ask, token=False)[0] == 403
    assert (
        client.ask("POST", "/api/jobs", ask, token=False, **{"X-Keyhole-Token": "wrong"})[0] == 403
    )
    assert client.post("/api/jobs/any/cancel", {}, token=False)[0] == 403


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1, 2]",
        b'"words"',
        b"\xff\xfe",
        b'{"kind": 3, "fields": {}}',
        b'{"kind": "recover"}',
        b'{"kind": "recover", "fields": [], "more": 1}',
    ],
)
def test_bad_json_is_answered_with_a_sentence(client, body):
    for path in ("/api/jobs", "/api/compute", "/api/limits"):
        status, said = client.post(path, body)
        assert status == 400
        assert said["sentence"].strip()


def test_a_body_that_is_too_large_is_refused_before_it_is_read(client):
    assert client.ask("POST", "/api/compute", b"x" * 70_000)[0] == 413


@pytest.mark.parametrize("kind", ["learn", "serve", "__import__", HOSTILE, ""])
def test_an_unknown_job_is_refused(client, kind):
    status, said = client.start(kind, target="os:system")
    assert status == 400
    assert "recover, bound" in said["sentence"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"width": 65}, "width is a whole number from 2 to 64"),
        ({"width": 10**12}, "width"),
        ({"width": 4, "rank": 5}, "rank is a whole number from 1 to 4"),
        ({"width": 4, "heads": 5}, "heads"),
        ({"width": 4, "policy": HOSTILE}, "policy is one of"),
        ({"width": 4, "policy": "noise", "amount": 0}, "noise"),
        ({"width": 4, "policy": "decimals", "amount": 1.5}, "decimals"),
        ({"width": 4, "seed": -1}, "seed"),
        ({"width": 4, "budget": -1}, "budget"),
        ({"width": "4"}, "int"),
        ({"width": 4, "target": "os:system"}, "target"),
        ({}, "width"),
    ],
)
def test_a_recovery_that_makes_no_sense_is_refused_with_its_reason(client, fields, words):
    status, said = client.start("recover", **fields)
    assert status == 400
    assert words in said["sentence"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"task": "match9", "embed": 3}, "TASK is one of"),
        ({"task": "match2", "length": 10**9, "modulus": 5, "embed": 3}, "length"),
        (
            {"task": "match2", "length": 8, "modulus": 5, "embed": 3, "out": "elsewhere"},
            "does not set out",
        ),
        ({"task": "match2", "length": 8, "modulus": 5}, "--embed"),
        ({"task": "sparse-average", "length": 8, "q": 9, "embed": 3}, "at most 8"),
    ],
)
def test_a_bound_that_makes_no_sense_is_refused_with_its_reason(client, fields, words):
    status, said = client.post("/api/limits", fields)
    assert status == 400
    assert words in said["sentence"]


def test_a_recovery_is_the_one_of_the_command_line(recovered, tmp_path):
    result = recovered["result"]
    run_job(SampleJob("head", width=6, rank=2, seed=3, out=str(tmp_path / "truth.safetensors")))
    record = run_job(
        LearnJob(str(tmp_path / "truth.safetensors"), seed=4, out=str(tmp_path / "run"))
    ).data
    for name in ("status", "verdict", "sentence", "rank", "queries", "degrees_of_freedom"):
        assert result["record"][name] == record[name]
    assert result["record"]["verdict"] == "EXACT"


def test_queries_are_told_by_phase_while_they_are_asked(recovered):
    told = [event["asked"] for event in recovered["events"] if "asked" in event]
    totals = [sum(asked.values()) for asked in told]
    assert len(told) >= 2
    assert totals == sorted(totals)
    assert told[-1] == recovered["result"]["record"]["queries"]["by_phase"]
    first = recovered["events"][0]
    assert first["limit"] == 26  # r (2d - r) + d numbers are hidden
    assert first["hidden"] == [head["truth"] for head in recovered["result"]["heads"]]


def test_the_pictures_are_of_the_hidden_and_the_recovered_matrix(client, recovered):
    result = recovered["result"]
    directory = client.explorer.runs / result["run"]
    for name, file in (("truth", "truth"), ("found", "model")):
        W = np.asarray(load(directory / f"{file}.safetensors").W)
        np.testing.assert_allclose(unpacked(result["heads"][0][name], W.shape), W, rtol=1e-6)
    values = np.linalg.svd(np.asarray(load(directory / "truth.safetensors").W), compute_uv=False)
    np.testing.assert_allclose(result["heads"][0]["values"], values, atol=1e-12)


def unpacked(text, shape):
    import base64

    return np.frombuffer(base64.b64decode(text), "<f4").reshape(shape)


def test_the_error_falls_with_the_budget_and_ends_at_that_of_the_run(recovered):
    course = recovered["result"]["course"]
    assert [point["queries"] for point in course] == sorted(point["queries"] for point in course)
    assert course[-1]["error"] == recovered["result"]["error"] < 1e-12
    assert any(point["error"] is not None and point["error"] > 0.1 for point in course[:-1])


def test_heads_are_shown_in_pairs(client):
    job = client.finished("recover", width=4, heads=2, seed=1)
    heads = job["result"]["heads"]
    assert len(heads) == 2
    for head in heads:
        np.testing.assert_allclose(
            unpacked(head["found"], (4, 4)), unpacked(head["truth"], (4, 4)), atol=1e-5
        )


def test_a_spent_budget_is_a_verdict_and_not_an_error(client):
    job = client.finished("recover", width=6, budget=20)
    assert job["state"] == "done"
    assert job["result"]["record"]["verdict"] == "BUDGET_SPENT"


def test_a_bound_is_the_one_of_the_command_line(client):
    sizes = {"task": "sparse-average", "length": 4, "q": 1, "embed": 4}
    job = client.finished("bound", **sizes)
    record = json.loads(run_job(BoundJob(**sizes)).json())
    for name in ("verdict", "sentence", "construction", "inequalities", "built"):
        assert job["result"]["record"][name] == record[name]
    assert record["verdict"] == "ENOUGH"
    assert job["result"]["plane"]["asked"] == [4, None]


def test_nothing_of_the_current_directory_is_imported(tmp_path, monkeypatch):
    (tmp_path / "msgspec.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    hand = desk.Hand()
    assert hand.said() == {"ready": True}
    hand.end()


def test_a_cancelled_job_ends_at_once_and_leaves_nothing(client):
    client.explorer.runs.mkdir(exist_ok=True)
    before = set(client.explorer.runs.iterdir())
    _, job = client.start("recover", width=64, heads=4, policy="labels")
    status, said = client.post(f"/api/jobs/{job['id']}/cancel", {})
    assert (status, said["state"]) == (200, "cancelled")
    task = client.explorer.desk.find(job["id"])
    assert task.hand.process.wait(10) == -signal.SIGKILL
    for _ in range(100):
        if set(client.explorer.runs.iterdir()) == before:
            break
        time.sleep(0.05)
    assert set(client.explorer.runs.iterdir()) == before


def test_a_job_cancelled_after_its_record_was_written_leaves_nothing_either(tmp_path):
    place = tmp_path / "run"
    place.mkdir()
    (place / "record.json").write_text("{}")
    task = desk.Task("a", "recover", place, desk.Hand())
    clerk = desk.Desk(tmp_path)
    clerk.cancel(task)
    clerk._listen(task)
    clerk.close()
    assert (task.state, place.exists()) == ("cancelled", False)


def test_two_jobs_run_at_a_time_and_a_third_is_told_to_wait(client):
    jobs = [
        client.start("bound", task="match3", length=64, modulus=101, embed=64, bits=24)[1]
        for _ in range(desk.AT_ONCE)
    ]
    status, said = client.start("bound", task="match2", length=8, modulus=5, embed=3)
    for job in jobs:
        client.post(f"/api/jobs/{job['id']}/cancel", {})
    assert status == 429
    assert "cancel" in said["sentence"]


def test_an_unknown_job_cannot_be_followed(client):
    assert client.get("/api/jobs/0123456789ab")[0] == 404
    assert client.post("/api/jobs/0123456789ab/cancel", {})[0] == 404


def test_a_job_whose_process_dies_has_failed(client):
    _, job = client.start("bound", task="match3", length=64, modulus=101, embed=64, bits=24)
    client.explorer.desk.find(job["id"]).hand.process.kill()
    for _ in range(100):
        _, job = client.get(f"/api/jobs/{job['id']}")
        if job["state"] != "running":
            break
        time.sleep(0.05)
    assert (job["state"], "died" in job["sentence"]) == ("failed", True)


def test_match2_answers_as_brute_force_does(client):
    tokens, M = [1, 5, 7, 3, 6], 12
    status, said = client.post(
        "/api/compute", {"kind": "match2", "fields": {"modulus": M, "tokens": tokens, "query": 1}}
    )
    assert status == 200
    assert said["truth"] == [float(any((a + b) % M == 0 for b in tokens)) for a in tokens]
    assert said["wrong"] == 0
    assert said["weights"][1 + tokens.index(7)] > 0.98
    assert sum(said["weights"]) == pytest.approx(1)


def test_match3_gives_its_weight_to_the_pairs_that_match(client):
    tokens, M = [4, 9, 18, 25, 2], 31
    _, said = client.post(
        "/api/compute", {"kind": "match3", "fields": {"modulus": M, "tokens": tokens}}
    )
    weights = np.array(said["weights"])
    matched = {
        (a, b) for a in range(5) for b in range(5) if (tokens[0] + tokens[a] + tokens[b]) % M == 0
    }
    assert {(int(a) - 1, int(b) - 1) for a, b in np.argwhere(weights > 0.1)} == matched
    assert weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("keys", showcase.FAMILIES)
def test_an_average_of_three_is_near_the_truth_and_its_set_stands_above_the_rest(client, keys):
    fields = {"length": 12, "q": 3, "members": [7, 1, 2], "keys": keys, "seed": 5}
    _, said = client.post("/api/compute", {"kind": "sparse-average", "fields": fields})
    z, heights = np.array(said["vectors"]), np.array(said["heights"])
    np.testing.assert_allclose(said["truth"], z[[1, 2, 7]].mean(axis=0), atol=1e-12)
    assert np.linalg.norm(np.array(said["answer"]) - said["truth"]) <= 0.01
    on, off = heights[[1, 2, 7]], np.delete(heights, [1, 2, 7])
    assert on.min() - off.max() == pytest.approx(said["margin"], rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        ("match9", {}, "the page computes"),
        ("match2", {"modulus": 5, "tokens": []}, "number of tokens"),
        ("match2", {"modulus": 5, "tokens": [5]}, "a token is a whole number from 0 to 4"),
        ("match2", {"modulus": 5, "tokens": [1] * 33}, "from 1 to 32"),
        ("match3", {"modulus": 10**9, "tokens": [1]}, "modulus"),
        ("match3", {"modulus": 5, "tokens": [1], "query": 1}, "query"),
        ("sparse-average", {"length": 8, "q": 2, "members": [1, 1]}, "different positions"),
        ("sparse-average", {"length": 8, "q": 2, "members": []}, "1 to 2"),
        ("sparse-average", {"length": 8, "q": 2, "members": [8]}, "a position"),
        ("sparse-average", {"length": 8, "q": 2, "members": [1], "keys": "magic"}, "keys are"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_their_reason(client, kind, fields, words):
    status, said = client.post("/api/compute", {"kind": kind, "fields": fields})
    assert status == 400
    assert words in said["sentence"]


def test_what_is_shown_is_answered_in_a_fifth_of_a_second(client):
    asks = [
        ("match2", {"modulus": 97, "tokens": list(range(32))}),
        ("match3", {"modulus": 97, "tokens": list(range(32))}),
    ]
    asks += [
        (
            "sparse-average",
            {"length": 32, "q": 4, "members": [1, 9, 20, 31], "keys": "trigonometric"},
        )
    ]
    for kind, fields in asks:
        taken = []
        for _ in range(3):
            start = time.perf_counter()
            assert client.post("/api/compute", {"kind": kind, "fields": fields})[0] == 200
            taken.append(time.perf_counter() - start)
        assert min(taken) < 0.2


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
    names = {row["name"]: row["sentence"] for row in shelf.list_runs(held)["runs"]}
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
    assert b'"one"' in Record(shelf.list_runs(held)).json()


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
    assert "not a store" in shelf.show_run(held, "one")["rows"]["sentence"]


def test_an_absent_directory_of_runs_is_an_empty_one(tmp_path):
    assert shelf.list_runs(tmp_path / "none")["runs"] == []


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


def test_a_missing_library_is_named_with_the_way_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    for name in ("keyhole.web.explorer", "keyhole.lab.serving.listening"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InvalidInput, match=r"pip install 'keyhole\[web\]'"):
        run_job(UiJob())


def test_a_port_that_is_taken_is_misuse(client):
    with pytest.raises(InvalidInput, match="--port 0"):
        run_job(UiJob(port=client.place.port))


def test_the_command_says_where_it_is_in_one_line_and_stops_in_good_order(tmp_path):
    command = [sys.executable, "-m", "keyhole", "ui", "--port", "0", "--json"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        said = json.loads(running.stdout.readline())
        place = urlsplit(said["address"])
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=30)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()
        hands = children(running.pid)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    assert (said["status"], place.hostname, running.returncode, out, err) == (
        "READY",
        "127.0.0.1",
        0,
        "",
        "",
    )
    assert not (tmp_path / "runs").exists()
    assert hands
    for hand in hands:
        with pytest.raises(ProcessLookupError):
            os.kill(hand, 0)


def children(parent):
    """Processes that a process has started."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(place.parent.name))
    return found


def test_policies_are_said_as_the_command_line_says_them():
    said = {
        name: Recover(width=4, policy=name, amount=amount).simulate
        for name, amount in (("noise", 1e-4), ("decimals", 3), ("bf16", 0))
    }
    assert said == {
        "noise": ("noise=0.0001",),
        "decimals": ("decimals=3",),
        "bf16": ("answers=bf16",),
    }
    assert read_recover_wish({"width": 4}).simulate == ()
