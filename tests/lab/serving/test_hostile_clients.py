"""What hostile and slow clients get from `keyhole serve`: a reason, and no trace."""

import http.client
import json
import resource
import socket
import threading
from collections import Counter
from contextlib import closing
from urllib.parse import urlsplit

import numpy as np
import pytest

from keyhole.lab.serving.server import Limits
from support.served_head import HEAD, WIDTH, post, question, serving


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
