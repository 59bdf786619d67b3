"""`keyhole ui TARGET` without a browser: asked, stopped, gone on with, compared, found again."""

import base64
import json
import time

import numpy as np
import pytest

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import UiJob
from keyhole.lab.running import run_job
from keyhole.models import Head, ReluNet, load, save
from keyhole.web.explorer import Explorer, Window, read_ui_target
from keyhole.web.messages import Target
from support.explorer_client import Client
from support.slow_target import SOURCE, WIDTH


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "slowly.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def served(runs, target):
    return Window(Explorer(runs, target), 0, str)


def follow(client, job, until):
    """What is seen of a job once `until` holds."""
    for _ in range(1200):
        _, seen = client.get(f"/api/jobs/{job}")
        if until(seen):
            return seen
        time.sleep(0.02)
    raise AssertionError(seen)


def unpacked(text, shape):
    return np.frombuffer(base64.b64decode(text), "<f4").reshape(shape)


def test_a_target_is_stopped_and_gone_on_with_and_asked_nothing_twice(here):
    save(Head(*load_truth(here)), here / "truth.safetensors")
    target = Target(target="slowly:slow", truth="truth.safetensors")
    window = served(here / "runs", target)
    with window.beside():
        client = Client(window)
        _, job = client.start("watch", seed=3)
        seen = follow(client, job["id"], lambda one: any("reading" in e for e in one["events"]))
        assert seen["state"] == "running"
        status, said = client.post(f"/api/jobs/{job['id']}/cancel", {})
        assert (status, said["state"]) == (200, "stopped")
        follow(client, job["id"], lambda one: one["state"] == "stopped")
        client.explorer.desk.find(job["id"]).hand.process.wait(10)
        assert (here / "runs" / job["id"] / "transcript.sqlite").exists()
    before = count_asked(here)
    # Another explorer: the address alone finds what was stopped.
    window = served(here / "runs", target)
    with window.beside():
        client = Client(window)
        assert client.get(f"/api/jobs/{job['id']}")[1]["state"] == "stopped"
        status, again = client.start("watch", seed=3, run=job["id"])
        assert (status, again["id"]) == (202, job["id"])
        end = follow(client, job["id"], lambda one: one["state"] != "running")
    assert end["state"] == "done", end
    result = end["result"]
    assert result["record"]["verdict"] == "EXACT"
    # What a kill interrupted may be asked once more, as the record tells; nothing else is.
    assert before < count_asked(here) <= result["record"]["queries"]["total"]
    W = load_truth(here)[0]
    np.testing.assert_allclose(unpacked(result["heads"][0]["found"], W.shape), W, rtol=1e-5)
    assert "differ from the truth by" in result["compared"]
    errors = [point["error"] for point in result["course"]]
    assert errors[0] > 0.1 > errors[-1]
    # A third explorer shows the same, from the disk.
    window = served(here / "runs", target)
    with window.beside():
        assert Client(window).get(f"/api/jobs/{job['id']}")[1]["result"] == result


def test_a_run_stopped_before_its_first_answer_is_gone_on_with(here):
    window = served(here / "runs", Target(target="slowly:slow"))
    with window.beside():
        client = Client(window)
        _, job = client.start("watch", seed=3, budget=60)
        assert client.post(f"/api/jobs/{job['id']}/cancel", {})[1]["state"] == "stopped"
        # At once: the process that was ended may not have ended yet.
        status, again = client.start("watch", seed=3, budget=60, run=job["id"])
        assert (status, again["id"]) == (202, job["id"])
        end = follow(client, job["id"], lambda one: one["state"] != "running")
    assert end["state"] == "done", end
    assert end["result"]["record"]["verdict"] == "BUDGET_SPENT"
    assert (here / "runs" / job["id"] / "record.json").exists()


def load_truth(here):
    made: dict = {}
    exec((here / "slowly.py").read_text(), made)  # noqa: S102
    return made["W"], made["V"]


def count_asked(here):
    return sum(map(int, (here / "asked.log").read_text().split()))


def test_a_model_of_another_kind_shows_all_its_matrices(here, rng):
    net = ReluNet.random(3, hidden=4, rng=rng)
    save(net, here / "net.safetensors")
    target = read_ui_target(UiJob("net.safetensors"))
    assert target.truth == "net.safetensors"
    window = served(here / "runs", target)
    with window.beside():
        end = Client(window).finished("watch")
    result = end["result"]
    assert result["heads"] == result["course"] == []
    assert result["record"]["verdict"] == "EXACT"
    found = load(here / "runs" / end["id"] / "model.safetensors")
    shown = {one["name"]: one for one in result["matrices"]}
    for name in ("n", "D"):
        M = np.atleast_2d(getattr(found, name))
        np.testing.assert_allclose(unpacked(shown[name]["numbers"], M.shape), M, rtol=1e-5)
    assert "differ from the truth by" in result["compared"]


def test_without_a_truth_nothing_is_compared(here):
    window = served(here / "runs", Target(target="slowly:attend", width=WIDTH))
    with window.beside():
        result = Client(window).finished("watch", seed=1)["result"]
    assert result["compared"] is result["error"] is None
    assert result["heads"][0]["truth"] is None
    assert len(result["course"]) > 2
    assert all("error" not in point for point in result["course"])


def test_a_page_names_no_target_of_its_own(here):
    window = served(here / "runs", None)
    with window.beside():
        client = Client(window)
        status, said = client.start("watch", seed=1)
        assert (status, "keyhole ui TARGET" in said["sentence"]) == (400, True)
        status, said = client.start("watch", seed=1, target="os:system")
        assert (status, "there is no target" in said["sentence"]) == (400, True)


@pytest.mark.parametrize("name", ["../elsewhere", "nothing", "", "a/../../b", "runs\\0"])
def test_only_a_stopped_run_of_the_directory_is_gone_on_with(here, name):
    window = served(here / "runs", Target(target="slowly:slow"))
    with window.beside():
        status, said = Client(window).start("watch", run=name)
    assert status == 400
    assert "no stopped run" in said["sentence"]


def test_a_target_that_cannot_be_opened_is_a_sentence_and_leaves_nothing(here):
    window = served(here / "runs", Target(target="slowly:nothing"))
    with window.beside():
        job = Client(window).finished("watch")
        assert job["state"] == "failed"
        assert "slowly has no" in job["sentence"]
    assert list((here / "runs").iterdir()) == []


def test_the_command_refuses_what_is_not_there_before_it_serves(here):
    with pytest.raises(InvalidInput, match="no model at nowhere"):
        run_job(UiJob("nowhere.safetensors"))
    with pytest.raises(InvalidInput, match="keyhole ui TARGET"):
        run_job(UiJob(truth="truth.safetensors"))


def test_the_page_is_told_the_target(here):
    window = served(here / "runs", Target(target="slowly:<b>", width=2))
    with window.beside():
        _, _, body = Client(window).ask("GET", "/")
    assert json.dumps("slowly:<b>")[1:-1].encode() not in body
    assert b"slowly:&lt;b&gt;" in body
