"""`keyhole serve`: a black box over HTTP for real, its budgets, rates and policies."""

import http.client
import json
import re
import struct
from contextlib import closing
from urllib.parse import urlsplit

import numpy as np
import pytest

from keyhole.errors import InvalidInput, TargetFailed
from keyhole.lab.jobs import LearnJob
from keyhole.lab.running import run_job
from keyhole.lab.serving.server import Black, Server
from keyhole.oracles import Local
from keyhole.oracles.http.service import HttpService
from support.served_head import HEAD, WIDTH, command, post, question, serving


def get(address, path):
    parts = urlsplit(address)
    with closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)) as line:
        line.request("GET", path)
        answer = line.getresponse()
        return answer.status, answer.read()


def test_json_questions_are_answered_as_the_head_answers(service, rng):
    X = rng.normal(size=(5, 3, WIDTH))
    status, said = post(service, question(X))
    assert status == 200
    assert (said["outputs"][0]["shape"], said["outputs"][0]["datatype"]) == ([5, 2], "FP64")
    np.testing.assert_array_equal(np.array(said["outputs"][0]["data"]).reshape(5, 2), HEAD(X))


def test_nested_data_is_read_in_order(service, rng):
    X = rng.normal(size=(5, 3, WIDTH))
    status, said = post(service, question(X, data=X.tolist()))
    assert status == 200
    np.testing.assert_array_equal(np.array(said["outputs"][0]["data"]).reshape(5, 2), HEAD(X))


def test_bytes_behind_a_head_are_answered_with_bytes(service, rng):
    X = rng.normal(size=(2, 3, WIDTH)).astype("<f4")
    tensor = {
        "name": "t",
        "shape": [2, 3, WIDTH],
        "datatype": "FP32",
        "parameters": {"binary_data_size": X.nbytes},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    parts = urlsplit(service)
    with closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)) as line:
        line.request(
            "POST",
            f"{parts.path}/infer",
            head + X.tobytes(),
            {"Inference-Header-Content-Length": len(head)},
        )
        answer = line.getresponse()
        end, body = int(answer.headers["Inference-Header-Content-Length"]), answer.read()
    assert json.loads(body[:end])["outputs"][0]["parameters"] == {"binary_data_size": 32}
    np.testing.assert_array_equal(
        struct.unpack("<4d", body[end:]), HEAD(X.astype(np.float64)).ravel()
    )


@pytest.mark.parametrize("binary", ["true", "false"])
def test_the_client_and_the_server_lose_no_bit(service, binary, rng):
    oracle = HttpService(f"{service}?binary={binary}")
    X = rng.normal(size=(9, 2, WIDTH))
    np.testing.assert_array_equal(oracle.ask(X), HEAD(X))
    assert (oracle.width, oracle.outputs) == (WIDTH, 2)
    oracle.close()


def test_health_metadata_and_the_page_are_there(service):
    assert get(service, "/v2/health/live") == (200, b'{"live":true}')
    assert get(service, "/v2/health/ready") == (200, b'{"ready":true}')
    assert json.loads(get(service, "/v2")[1])["extensions"] == ["binary_tensor_data"]
    told = json.loads(get(service, "/v2/models/head")[1])
    assert told["inputs"] == [{"name": "tokens", "datatype": "FP64", "shape": [-1, -1, WIDTH]}]
    assert told["outputs"] == [{"name": "answers", "datatype": "FP64", "shape": [-1, 2]}]
    described = json.loads(get(service, "/openapi.json")[1])
    assert "/v2/models/head/infer" in described["paths"]
    page = get(service, "/")[1].decode()
    assert "POST /v2/models/head/infer" in page
    assert not re.search(r'(src|href)="(https?:)?//', page)
    assert get(service, "/nowhere")[0] == 404


def test_a_head_is_recovered_through_http(service, tmp_path):
    data = run_job(LearnJob(service, out=str(tmp_path / "run"))).data
    assert (data.verdict, data.width, data.outputs) == ("EXACT", WIDTH, 2)


def test_a_budget_per_client_is_kept_to_the_sequence(tmp_path):
    with serving(budget=30) as (address, black):
        data = run_job(LearnJob(address, out=str(tmp_path / "run"))).data
        assert "the budget of 30 queries per client" in data.sentence
        assert data.queries.total == black.queries <= 30
        oracle = HttpService(address)
        left = 30 - black.queries
        oracle.ask(np.ones((left, 1, WIDTH)))
        with pytest.raises(TargetFailed, match="has 0 left, not 1"):
            oracle.ask(np.ones((1, 1, WIDTH)))
        oracle.close()


def test_a_client_that_is_too_fast_is_told_when_to_come_back(rng):
    with serving(rate=20.0) as (address, _):
        X = rng.normal(size=(25, 2, WIDTH))
        assert post(address, question(X))[0] == 200
        status, said = post(address, question(X))
        assert (status, said) == (429, {"error": "20 queries a second are allowed per client."})
        oracle = HttpService(address)
        np.testing.assert_array_equal(oracle.ask(X[:3]), HEAD(X[:3]))
        assert oracle.meters.total == 0
        oracle.close()


@pytest.mark.parametrize(
    ("policy", "declared"),
    [
        ("decimals=3", {"decimals": 3}),
        ("labels", {"labels": True}),
        ("noise=0.001", {"noise": 0.001}),
    ],
)
def test_output_policies_are_applied_on_the_server(policy, declared, rng):
    with serving(policies=(policy,)) as (address, _):
        oracle = HttpService(address)
        X = rng.normal(size=(40, 2, WIDTH))
        Y = oracle.ask(X)
        oracle.close()
    exact = HEAD(X)
    if "labels" in declared:
        np.testing.assert_array_equal(Y, np.where(exact > 0, 1.0, -1.0))
    elif "decimals" in declared:
        np.testing.assert_array_equal(Y, np.round(exact, 3))
    else:
        assert 0.0005 < np.std(Y - exact) < 0.002


def test_long_tokens_are_refused_where_tokens_are_bounded(rng):
    with serving(policies=("token-bound=2",)) as (address, _):
        assert post(address, question(np.full((1, 1, WIDTH), 5.0)))[0] == 400
        assert post(address, question(np.full((1, 1, WIDTH), 1.0)))[0] == 200


def test_a_token_is_wanted_where_one_is_set(rng):
    with serving(token="sesame") as (address, _):  # noqa: S106
        X = rng.normal(size=(1, 2, WIDTH))
        assert post(address, question(X))[0] == 401
        assert post(address, question(X), Authorization="Bearer open")[0] == 401
        assert post(address, question(X), Authorization="Bearer sesame")[0] == 200
        assert get(address, "/v2/models/head")[0] == 401
        assert get(address, "/v2/health/ready")[0] == 200
        oracle = HttpService(address, token="sesame")  # noqa: S106
        np.testing.assert_array_equal(oracle.ask(X), HEAD(X))
        oracle.close()


def test_a_question_without_a_finite_answer_is_refused_not_crashed_on():
    with serving(policies=("answers=f16",)) as (address, _):
        X = np.full((1, 1, WIDTH), 1e7)
        status, said = post(address, question(X))
        assert status == 422
        assert "must be finite" in said["error"]
        assert post(address, question(X / 1e7))[0] == 200


def test_a_target_that_fails_is_a_500_with_its_reason():
    def broken(X):
        raise OSError("the line is dead")

    with serving(Local(broken, WIDTH, 2)) as (address, _):
        status, said = post(address, question(np.ones((1, 1, WIDTH))))
    assert (status, said["error"].startswith("the target raised OSError: the line is dead")) == (
        500,
        True,
    )


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 101, "ü"])
def test_a_name_that_fits_no_address_is_refused(name):
    with pytest.raises(InvalidInput, match="the name of a served model"):
        Black(Local(HEAD), name)


def test_a_port_that_is_taken_is_misuse(service):
    with pytest.raises(InvalidInput, match="cannot listen on"):
        Server(Black(Local(HEAD), "head"), "127.0.0.1", urlsplit(service).port)


def test_learn_and_verify_go_through_a_served_model(keyhole, head, tmp_path):
    with command(tmp_path, KEYHOLE_TOKEN="") as (_, address):
        learned = keyhole("learn", address, "--out", "run", "--json")
        assert (learned.code, learned.json["verdict"]) == (0, "EXACT")
        checked = keyhole("verify", address, "run/model.safetensors", "--json", "--rate", "100000")
        assert (checked.code, checked.json["verdict"]) == (0, "EXACT")
