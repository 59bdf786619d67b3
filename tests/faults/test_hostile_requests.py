"""Both servers under requests of strangers: every one is answered in words or hung up on, and
memory and descriptors stay.
"""

import http.client
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import numpy as np
import pytest

from keyhole.models import Head, save
from support.hostile_requests import (
    ask_much,
    count_resources,
    hang_up_rudely,
    write_questions,
    write_wishes,
)
from support.outcomes import print_counts

WIDTH = 4


@contextmanager
def running(tmp_path, *arguments):
    """A server in a process of its own, and its port."""
    command = [sys.executable, "-m", "keyhole", *arguments, "--port", "0", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as server:
        said = (server.stderr if arguments[0] == "serve" else server.stdout).readline()
        try:
            yield server, urlsplit(re.search(r"http://[^\"\s]+", said)[0]).port
        finally:
            server.kill()


def read_token(port):
    """The token that the page of an explorer carries."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    line.request("GET", "/")
    page = line.getresponse().read().decode()
    line.close()
    return re.search(r'"([A-Za-z0-9_-]{32})"', page)[1].encode()


def attack(server, port, goods, lines, count, seed):
    rng = np.random.default_rng(seed)
    # What is loaded or cached at first use is no leak.
    ask_much(port, goods, lines, 300, rng)
    memory, files = count_resources(server.pid)
    counts, bad = ask_much(port, goods, lines, count, rng)
    for _ in range(20):
        hang_up_rudely(port)
    time.sleep(0.3)
    grown, more = np.subtract(count_resources(server.pid), (memory, files))
    print_counts(f"requests ({grown:.0f} MB and {more:.0f} descriptors more)", counts)
    return counts, bad, grown, more


def stop(server):
    """What a server says when it is asked to stop."""
    server.send_signal(signal.SIGINT)
    out, err = server.communicate(timeout=30)
    return server.returncode, out, err


SLOW = [pytest.param(12_500, seed, marks=pytest.mark.slow) for seed in range(2, 6)]


@pytest.mark.parametrize(("count", "seed"), [(2500, 1), *SLOW])
@pytest.mark.parametrize("kind", ["serve", "ui"])
def test_strangers_are_answered_in_words_and_leave_no_trace(kind, count, seed, tmp_path):
    save(Head.random(WIDTH, outputs=2, rng=0), tmp_path / "head.safetensors")
    arguments = ("serve", "head.safetensors") if kind == "serve" else ("ui", "--no-open")
    with running(tmp_path, *arguments) as (server, port):
        token = b"" if kind == "serve" else read_token(port)
        lines = [b"Content-Type: application/json", b"X-Keyhole-Token: " + token]
        goods = write_questions(WIDTH) if kind == "serve" else write_wishes()
        counts, bad, grown, more = attack(server, port, goods, lines, count, seed)
        code, _, err = stop(server)
    assert not bad[:3]
    assert grown < 100
    assert more <= 5
    assert (code, "Traceback" in err) == (0, False), err[-2000:]
    assert min(counts["status 200"], counts["status 400"]) > count / 50
