"""Work started from the explorer: the same as from the command line, cancelled, limited, mortal."""

import json
import shlex
import signal
import time

import numpy as np

from keyhole.lab.jobs import BoundJob, LearnJob, SampleJob
from keyhole.lab.running import run_job
from keyhole.models import load
from keyhole.web import jobs as desk
from keyhole.web.messages import Said


def test_a_recovery_is_the_one_of_the_command_line(recovered, tmp_path):
    result = recovered["result"]
    run_job(SampleJob("head", width=6, rank=2, seed=3, out=str(tmp_path / "truth.safetensors")))
    job = LearnJob(str(tmp_path / "truth.safetensors"), seed=4, out=str(tmp_path / "run"))
    record = json.loads(run_job(job).json())
    for name in ("status", "verdict", "sentence", "rank", "queries", "degrees_of_freedom"):
        assert result["record"][name] == record[name]
    assert result["record"]["verdict"] == "EXACT"
    words = shlex.split(result["command"])
    assert words == ["keyhole", "learn", result["record"]["target"], *words[3:]]
    assert words[3:] == ["--learner", "auto", "--seed", "4"]


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


def test_what_fills_in_is_read_from_the_answers_of_the_run_itself(recovered):
    """Nothing is asked again: every reading stands at a number of queries that was told before."""
    told = [event["reading"] for event in recovered["events"] if "reading" in event]
    course = recovered["result"]["course"]
    assert course[:-1] == told[: len(course) - 1]
    assert "asking again" not in str(recovered["events"])


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
    assert hand.said() == Said(ready=True)
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


LONG = {"task": "match3", "length": 64, "modulus": 101, "embed": 64, "bits": 24, "build": True}


def test_two_jobs_run_at_a_time_and_a_third_is_told_to_wait(client):
    jobs = [client.start("bound", **LONG)[1] for _ in range(desk.AT_ONCE)]
    status, said = client.start("bound", task="match2", length=8, modulus=5, embed=3)
    for job in jobs:
        client.post(f"/api/jobs/{job['id']}/cancel", {})
    assert status == 429
    assert "cancel" in said["sentence"]


def test_an_unknown_job_cannot_be_followed(client):
    assert client.get("/api/jobs/0123456789ab")[0] == 404
    assert client.post("/api/jobs/0123456789ab/cancel", {})[0] == 404


def test_a_job_whose_process_dies_has_failed(client):
    _, job = client.start(
        "bound", task="match3", length=64, modulus=101, embed=64, bits=24, build=True
    )
    client.explorer.desk.find(job["id"]).hand.process.kill()
    for _ in range(100):
        _, job = client.get(f"/api/jobs/{job['id']}")
        if job["state"] != "running":
            break
        time.sleep(0.05)
    assert (job["state"], "died" in job["sentence"]) == ("failed", True)
