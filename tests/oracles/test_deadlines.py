"""`--timeout` bounds a whole exchange over HTTP, whatever a server does to keep it alive."""

import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpcore2
import httpx2
import numpy as np
import pytest

from keyhole.errors import TargetFailed
from keyhole.oracles.http.attempts import Patience
from keyhole.oracles.http.deadline import hold_to_deadline
from keyhole.oracles.http.service import HttpService
from support.dripping import HOLD, WIDTH, Dripping

ONCE = Patience(attempts=1)
WAYS = ["silence", "head", "interim", "body", "chunks", "extension", "trailers"]


def ask_once(address, batch=2, **options):
    """The answers of one exchange, and nothing of it left behind."""
    oracle = HttpService(address, patience=ONCE, timeout=0.5, **options)
    try:
        return oracle.ask(np.ones((batch, 2, WIDTH)))
    finally:
        oracle.close()


@contextmanager
def no_thread_left():
    """Whatever is started inside ends soon after it."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(HOLD)
        assert not thread.is_alive()


def test_a_server_that_does_not_drip_is_heard():
    with Dripping() as server:
        np.testing.assert_array_equal(ask_once(server.address), np.ones((2, WIDTH)))


@pytest.mark.parametrize("where", ["metadata", "infer"])
@pytest.mark.parametrize("how", WAYS)
def test_an_exchange_that_is_kept_alive_ends_with_its_connection(how, where):
    with no_thread_left(), Dripping(how, where) as server:
        with pytest.raises(TargetFailed, match=r"did not answer within 0\.5 s"):
            ask_once(server.address)
        assert server.hung_up.wait(HOLD)
        assert not server.outlasted.is_set()


def test_a_server_that_takes_a_question_bit_by_bit_is_left():
    listener, given_up = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def take_slowly():
        with listener, listener.accept()[0] as connection:
            while not given_up.wait(0.01) and connection.recv(1 << 16):
                pass

    with no_thread_left(), httpx2.Client(trust_env=False) as client:
        threading.Thread(target=take_slowly).start()
        deadline = hold_to_deadline(client)
        network = client._transport._pool._network_backend
        with deadline.within(0.5):
            stream = network.connect_tcp("127.0.0.1", listener.getsockname()[1], 5.0)
            with pytest.raises(httpcore2.WriteTimeout):
                stream.write(bytes(1 << 26), 5.0)
        given_up.set()
        stream.close()


def test_a_handshake_that_drips_is_left_and_costs_nothing():
    with Dripping("handshake") as server:
        with pytest.raises(TargetFailed, match="cannot be reached"):
            ask_once(server.address.replace("http:", "https:"))
        assert server.hung_up.wait(HOLD)
        assert not server.outlasted.is_set()


def test_a_name_that_is_not_resolved_in_time_is_not_waited_for(monkeypatch):
    resolve, let_go = socket.getaddrinfo, threading.Event()

    def hang(host, *rest, **options):
        if host == "slow.example":
            let_go.wait(HOLD)
            host = "127.0.0.1"
        return resolve(host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setenv("NO_PROXY", "*")
    with (
        Dripping() as server,
        pytest.raises(TargetFailed, match=r"cannot be reached .*not resolved in"),
    ):
        ask_once(server.address.replace("127.0.0.1", "slow.example"))
    let_go.set()


def test_a_proxy_that_drips_is_left(monkeypatch):
    with Dripping("head", "metadata") as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(TargetFailed, match="did not answer within"):
            ask_once("http://far.example/v2/models/mean")
        assert proxy.hung_up.wait(HOLD)
        assert not proxy.outlasted.is_set()


def test_several_requests_at_once_are_each_let_go():
    with no_thread_left(), Dripping("head") as server:
        with pytest.raises(TargetFailed, match="did not answer within"):
            ask_once(server.address, batch=8, request_bytes=2 * 2 * WIDTH * 24)
        assert not server.outlasted.is_set()


def test_what_was_cut_off_is_charged_since_it_may_have_been_answered():
    with Dripping("head") as server:
        oracle = HttpService(server.address, patience=Patience(attempts=3, first=0.01), timeout=0.3)
        charged = []
        oracle.meters.charge = charged.append
        with pytest.raises(TargetFailed, match="tried 3 times"):
            oracle.ask(np.ones((2, 2, WIDTH)))
        oracle.close()
    assert charged == [2, 2]


@pytest.mark.parametrize("where", ["metadata", "infer"])
def test_ctrl_c_ends_a_run_that_a_server_holds(where, tmp_path):
    with Dripping("head", where) as server:
        command = [
            sys.executable,
            "-m",
            "keyhole",
            "learn",
            server.address,
            "--out",
            "run",
            "--timeout",
            "600",
        ]
        running = subprocess.Popen(
            command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert server.stalled.wait(60)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in err


class Swallowing(httpcore2.NetworkBackend):
    """A network on which the first address of a name takes no connection, and says nothing."""

    def __init__(self):
        self.tried = []

    def connect_tcp(self, host, port, timeout=None, local_address=None, socket_options=None):
        self.tried.append((host, timeout))
        if len(self.tried) == 1:
            raise httpcore2.ConnectTimeout("nobody there")
        return httpcore2.MockStream([])


def test_an_address_that_swallows_everything_leaves_the_next_one_its_share(monkeypatch):
    places = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"192.0.2.{last}", 80)) for last in (1, 2)
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)
    network = Swallowing()
    with httpx2.Client(trust_env=False) as client:
        client._transport._pool._network_backend = network
        deadline = hold_to_deadline(client)
        with deadline.within(100.0):
            client._transport._pool._network_backend.connect_tcp("two.example", 80, 60.0)
    (first, waited), (second, rest) = network.tried
    assert (first, second) == ("192.0.2.1", "192.0.2.2")
    assert waited <= 50.0
    assert rest == 60.0
