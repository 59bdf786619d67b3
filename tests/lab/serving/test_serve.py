"""`keyhole serve`: a black box over HTTP for real, and what hostile clients get from it."""

import http.client
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import numpy as np
import pytest

from keyhole.errors import InvalidInput, TargetFailed
from keyhole.lab.jobs import LearnJob
from keyhole.lab.running import run_job
from keyhole.lab.serving.accounts import Accounts
from keyhole.lab.serving.server import Black, Limits, Server
from keyhole.lab.targets.opening import simulate_policies
from keyhole.models import Head
from keyhole.oracles import Local
from keyhole.oracles.http_service import HttpService

WIDTH = 4
HEAD = Head.random(WIDTH, outputs=2, rng=np.random.default_rng(3))


@contextmanager
def serving(oracle=None, policies=(), token=None, limits=None, **accounts):
    """The head behind policies, served in a thread."""
    black = Black(
        simulate_policies(oracle or Local(HEAD), policies, 5),
        "head",
        Accounts(**accounts),
        limits or Limits(),
        token,
    )
    server = Server(black, "127.0.0.1", 0)
    with server.beside() as address:
        yield address, black


@pytest.fixture(scope="module")
def service():
    with serving(limits=Limits(request_bytes=100_000)) as (address, _):
        yield address


@pytest.fixture
def oracle(service):
    made = HttpService(service)
    yield made
    made.close()


def post(address, body, **headers):
    """Status and JSON answer of one request, by the standard library's client."""
    parts = urlsplit(address)
    with closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)) as line:
        line.request(
            "POST",
            f"{parts.path}/infer",
            body,
            {name.replace("_", "-"): v for name, v in headers.items()},
        )
        answer = line.getresponse()
        return answer.status, json.loads(answer.read())


def question(X, **more):
    tensor = {
        "name": "tokens",
        "shape": list(X.shape),
        "datatype": "FP64",
        "data": X.ravel().tolist(),
    }
    return json.dumps({"inputs": [tensor | more]})


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
    assert (data["verdict"], data["width"], data["outputs"]) == ("EXACT", WIDTH, 2)


def test_a_budget_per_client_is_kept_to_the_sequence(tmp_path):
    with serving(budget=30) as (address, black):
        data = run_job(LearnJob(address, out=str(tmp_path / "run"))).data
        assert "the budget of 30 queries per client" in data["sentence"]
        assert data["queries"]["total"] == black.queries <= 30
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


def hostile(rng):
    """One message that is wrong somewhere, and its headers."""
    good = json.loads(question(rng.normal(size=(2, 2, WIDTH))))
    tensor = good["inputs"][0]
    size = int(rng.integers(1, 3000))
    odd = [
        None,
        True,
        "x",
        [],
        {},
        -1,
        0,
        1e400,
        2**70,
        [[]],
        [None],
        "9" * 50,
        [1, [2]],
        ["1"],
        float("nan"),
        -0.5,
    ]
    kind = int(rng.integers(12))
    if kind == 0:
        return rng.bytes(size), {}
    if kind == 1:
        return "[" * size * 20, {}
    if kind == 2:
        return (
            '{"inputs":[{"name":"x","shape":[1,1,4],"datatype":"FP64","data":'
            + "[" * size
            + "]" * size
            + "}]}",
            {},
        )
    if kind == 3:
        return json.dumps(good)[: int(rng.integers(len(json.dumps(good))))], {}
    if kind == 4:
        field = ("name", "shape", "datatype", "data", "parameters")[rng.integers(5)]
        tensor[field] = odd[rng.integers(len(odd))]
        if field == "name" and isinstance(tensor[field], str):
            tensor["data"] = None
        return (
            json.dumps(good | ({"inputs": [tensor, tensor]} if field == "parameters" else {})),
            {},
        )
    if kind == 5:
        tensor["data"][int(rng.integers(16))] = odd[rng.integers(3)]
        return json.dumps(good), {}
    if kind == 6:
        tensor["shape"] = [int(n) for n in rng.integers(-3, 2**40, size=rng.integers(1, 6))]
        return json.dumps(good), {}
    if kind == 7:
        tensor["datatype"] = ("BYTES", "INT64", "fp64", "", "FP128", "🦜")[rng.integers(6)]
        return json.dumps(good), {}
    if kind == 8:
        return json.dumps(good), {
            "Inference_Header_Content_Length": (
                str(odd[rng.integers(len(odd))]).encode("ascii", "replace")
            )
        }
    if kind == 9:
        tensor.pop("data")
        tensor["parameters"] = {"binary_data_size": int(rng.integers(-10, 2**40))}
        head = json.dumps(good)
        return head.encode() + rng.bytes(size), {"Inference_Header_Content_Length": str(len(head))}
    if kind == 10:
        tensor["data"] = [1e308 * float(s) for s in rng.choice([-10, 10], size=16)]
        return json.dumps(good), {}
    return " " * 120_000, {}


def attack(address, count, seed):
    """So many hostile messages over one address; how often each status came back."""
    rng, statuses, parts = np.random.default_rng(seed), Counter(), urlsplit(address)
    with closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)) as line:
        for _ in range(count):
            body, headers = hostile(rng)
            headers = {name.replace("_", "-"): value for name, value in headers.items()}
            try:
                line.request("POST", f"{parts.path}/infer", body, headers)
                answer = line.getresponse()
                said = answer.read()
            except (http.client.HTTPException, ConnectionError):  # hung up on while still sending
                line.close()
                statuses["cut"] += 1
                continue
            assert answer.status in (400, 413), (answer.status, said, body[:300], headers)
            assert json.loads(said)["error"]
            statuses[answer.status] += 1
    return statuses


def unharmed(address, rng):
    X = rng.normal(size=(3, 2, WIDTH))
    status, said = post(address, question(X))
    assert status == 200
    np.testing.assert_array_equal(np.array(said["outputs"][0]["data"]).reshape(3, 2), HEAD(X))


def test_hostile_messages_are_refused_with_a_reason(service, rng):
    statuses = attack(service, 600, 1)
    assert statuses[400] > 400
    assert statuses["cut"] + statuses[413] < 120
    unharmed(service, rng)


@pytest.mark.slow
def test_twenty_thousand_hostile_messages_leave_no_trace(service, rng):
    attack(service, 500, 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    threads = [threading.Thread(target=attack, args=(service, 5000, seed)) for seed in range(3, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    unharmed(service, rng)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


def slow_line(address, sent):
    """A connection that sends something and then nothing; HOST in it is the server's own name."""
    parts = urlsplit(address)
    line = socket.create_connection((parts.hostname, parts.port), timeout=20)
    line.sendall(sent.replace(b"HOST", parts.netloc.encode()))
    return line


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /v2/mod",
        b"GET /v2/health/live HTTP/1.1\r\nHost: HOST\r\n\r\nGET /v2",
        b"\r\n" * 3,
    ],
)
def test_whoever_does_not_finish_a_head_is_hung_up_on(sent, rng):
    with serving(limits=Limits(head_seconds=0.3)) as (address, _):
        lines = [slow_line(address, sent) for _ in range(20)]
        unharmed(address, rng)
        for line in lines:
            # a line that stays open runs into its time limit
            said = [line.recv(1000) for _ in range(20)]
            assert said[-1] == b""
            line.close()


def test_whoever_does_not_finish_a_body_is_told_so_and_hung_up_on(rng):
    with serving(limits=Limits(body_seconds=0.3)) as (address, _):
        head = b"POST /v2/models/head/infer HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1000\r\n\r\n{"
        lines = [slow_line(address, head) for _ in range(20)]
        unharmed(address, rng)
        for line in lines:
            assert line.recv(1000).startswith(b"HTTP/1.1 408")
            while line.recv(1000):
                pass
            line.close()


def test_a_body_without_end_is_cut_off():
    with serving(limits=Limits(request_bytes=10_000)) as (address, _):
        head = (
            b"POST /v2/models/head/infer HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding:"
            b" chunked\r\n\r\n"
        )
        line = slow_line(address, head)
        with pytest.raises(OSError):  # noqa: PT011
            line.sendall((b"1000\r\n" + b" " * 4096 + b"\r\n") * 10_000)
        line.close()


def test_clients_at_the_same_time_get_their_own_answers(service):
    wrong = []

    def client(seed):
        rng, oracle = np.random.default_rng(seed), HttpService(service)
        for _ in range(20):
            X = rng.normal(size=(int(rng.integers(1, 30)), int(rng.integers(1, 5)), WIDTH))
            if not np.array_equal(oracle.ask(X), HEAD(X)):
                wrong.append(X)
        oracle.close()

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@contextmanager
def command(tmp_path, port=0, **environment):
    """`keyhole serve` as a person starts it; the process and the address it said."""
    arguments = [
        sys.executable,
        "-m",
        "keyhole",
        "serve",
        "head.safetensors",
        "--port",
        str(port),
        "--json",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = subprocess.Popen(arguments, cwd=tmp_path, env=os.environ | environment, **pipes)
    try:
        said = running.stderr.readline()
        yield running, re.search(r"http\S+", said)[0]
    finally:
        running.kill()
        running.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_stops_in_good_order_and_says_what_it_served(number, head, tmp_path):
    with command(tmp_path) as (running, address):
        assert urlsplit(address).hostname == "127.0.0.1"
        assert post(address, question(np.ones((7, 2, WIDTH))))[0] == 200
        running.send_signal(number)
        out, _ = running.communicate(timeout=30)
    assert running.returncode == 0
    said = json.loads(out)
    assert (said["queries"], said["requests"], said["refused"]) == (7, 1, 0)


def test_the_ready_line_is_there_as_soon_as_the_server_listens(head, tmp_path):
    with command(tmp_path) as (running, address):
        ready = json.loads(running.stderr.readline())
        expected = {
            "ready": True,
            "address": address,
            "name": "head",
            "width": WIDTH,
            "outputs": 1,
            "pid": running.pid,
        }
        assert ready == expected
        assert post(ready["address"], question(np.ones((1, 2, WIDTH))))[0] == 200


def test_what_is_under_way_is_answered_before_a_server_stops(rng):
    def slow(X):
        time.sleep(1.0)
        return HEAD(X)

    X, found = rng.normal(size=(3, 2, WIDTH)), []
    with Server(Black(Local(slow, WIDTH), "head"), "127.0.0.1", 0).beside() as address:
        oracle = HttpService(address)
        asking = threading.Thread(target=lambda: found.append(oracle.ask(X.copy())))
        asking.start()
        time.sleep(0.4)
    asking.join()
    oracle.close()
    np.testing.assert_array_equal(found[0], HEAD(X))


def resident(pid):
    """Memory of a process, in bytes."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as sizes:
        return int(sizes.read().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is read from /proc")
@pytest.mark.parametrize("seconds", [2.5, pytest.param(60.0, marks=pytest.mark.slow)])
def test_eight_clients_under_load_get_no_wrong_answer_and_memory_stays(seconds, head, tmp_path):
    wrong, counts, end = [], Counter(), time.monotonic() + 1.0 + seconds

    def client(seed, address):
        rng, oracle = (
            np.random.default_rng(seed),
            HttpService(f"{address}?binary={'true' if seed % 2 else 'false'}"),
        )
        while time.monotonic() < end:
            X = rng.normal(size=(int(rng.integers(1, 200)), int(rng.integers(1, 9)), WIDTH))
            if np.abs(oracle.ask(X.copy()) - head(X)).max() > 1e-12:
                wrong.append(X)
            counts[seed] += len(X)
        oracle.close()

    with command(tmp_path) as (running, address):
        threads = [threading.Thread(target=client, args=(seed, address)) for seed in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(1.0)
        before = resident(running.pid)
        for thread in threads:
            thread.join()
        grown = resident(running.pid) - before
        running.send_signal(signal.SIGTERM)
        out, _ = running.communicate(timeout=30)
    assert wrong == []
    assert json.loads(out.splitlines()[-1])["queries"] == sum(counts.values())
    assert len(counts) == 8
    assert grown < 50_000_000


def test_learn_and_verify_go_through_a_served_model(keyhole, head, tmp_path):
    with command(tmp_path, KEYHOLE_TOKEN="") as (_, address):
        learned = keyhole("learn", address, "--out", "run", "--json")
        assert (learned.code, learned.json["verdict"]) == (0, "EXACT")
        checked = keyhole("verify", address, "run/model.safetensors", "--json", "--rate", "100000")
        assert (checked.code, checked.json["verdict"]) == (0, "EXACT")


def test_a_killed_server_that_is_started_anew_answers_the_same_client(head, tmp_path):
    with command(tmp_path) as (running, address):
        port = urlsplit(address).port
        oracle = HttpService(address)
        first = oracle.ask(np.ones((3, 2, WIDTH)))
        running.kill()
        running.wait()
    with command(tmp_path, port):
        np.testing.assert_array_equal(oracle.ask(np.ones((3, 2, WIDTH))), first)
    oracle.close()
