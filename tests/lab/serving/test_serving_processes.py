"""`keyhole serve` as a process: many clients at a time, stopped, killed and started anew."""

import json
import os
import resource
import signal
import threading
import time
from collections import Counter
from urllib.parse import urlsplit

import numpy as np
import pytest

from keyhole import __version__
from keyhole.lab.serving.server import Black, Server
from keyhole.oracles import Local
from keyhole.oracles.http.service import HttpService
from support.served_head import HEAD, WIDTH, command, post, question


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
        envelope = {"record": "serve", "record_format": 2, "version": __version__, "seed": None}
        expected = envelope | {
            "sentence": f"Serving head.safetensors at {address}.",
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
