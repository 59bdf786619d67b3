"""`keyhole ui` without a browser: what the page may ask for, and what everybody else gets."""

import html
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import UiJob
from keyhole.lab.running import run_job
from keyhole.tasks import TASKS
from keyhole.web.explorer import read_page_files
from keyhole.web.requests import Recover, read_recover_wish
from support.explorer_client import HOSTILE
from support.majority import WHOLE
from support.processes import children


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
        b'{"kin\xe4": "recover", "task": "\xff"}',
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
    assert "recover, watch, bound" in said["sentence"]


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


def test_the_page_is_told_every_task_with_the_sizes_it_can_ask_for(client, monkeypatch):
    monkeypatch.setitem(TASKS, "majority", WHOLE)
    _, _, body = client.ask("GET", "/")
    held = re.search(rb'name="keyhole-tasks" content="([^"]*)"', body)[1]
    told = json.loads(html.unescape(held.decode()))
    assert list(told) == list(TASKS)
    assert told["sparse-average"]["sizes"] == ["length", "q", "width"]
    assert told["majority"] == {"title": "majority", "sizes": ["length"], "usual": {}}
    sliders = re.findall(r"^  (\w+): \{", read_page_files()["limits.js"].decode(), re.MULTILINE)
    assert {size for one in told.values() for size in one["sizes"]} <= set(sliders)


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
    assert read_recover_wish(b'{"width": 4}').simulate == ()
