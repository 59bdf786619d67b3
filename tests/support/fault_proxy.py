"""A proxy between a client and a model server that spoils answers on their way.

A fault is a function of the reply that came from the server to the steps that the client sees:
bytes are sent, numbers are seconds waited, RESET breaks the connection off, KEEP leaves it open for
the next request. Where the steps end without one of the two, the connection is closed. A fault that
is `unasked` stands before the server, which is not asked.
"""

import http.client
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass

RESET, KEEP = "reset", "keep"


@dataclass(frozen=True)
class Reply:
    """What the server answered."""

    status: int
    headers: dict
    body: bytes

    def write(self, body=None, status=None, reason="OK", **headers):
        """The bytes of this answer, with other parts where they are given; None drops a header."""
        body = self.body if body is None else body
        said = self.headers | {"content-length": str(len(body))}
        said |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{name}: {value}" for name, value in said.items() if value is not None]
        head = "\r\n".join([f"HTTP/1.1 {status or self.status} {reason}", *lines])
        return head.encode("latin-1") + b"\r\n\r\n" + body


REFUSED = Reply(400, {"content-type": "application/json"}, b"")


def pass_on(reply):
    """No fault at all."""
    yield reply.write()
    yield KEEP


class Proxy:
    """Passes requests on to `port`, and spoils the answers to some of them.

    Args:
        port: of the server, on this machine.
        fault: what is done to answers.
        where: the end of the path whose answers are spoilt.
        which: the numbers of those requests, counted from 1.
    """

    def __init__(self, port, fault=pass_on, where="/infer", which=range(1, 1 << 30)):
        self.upstream, self.fault, self.where, self.which = port, fault, where, which
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        self.met, self.requests = 0, 0
        self.lock, self.over = threading.Lock(), threading.Event()

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.over.set()
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                line, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line):
        line.settimeout(20)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with line, suppress(OSError, ValueError):
            while (request := _read_request(line)) is not None:
                if not self._answer(line, *request):
                    return

    def _answer(self, line, method, path, headers, body):
        """Send what the fault makes of the answer; whether the connection is kept."""
        fault = self._choose_fault(path)
        unasked = getattr(fault, "unasked", False)
        reply = REFUSED if unasked else self._ask(method, path, headers, body)
        for step in fault(reply):
            if self.over.is_set():
                return False
            if step == KEEP:
                return True
            if step == RESET:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            if isinstance(step, bytes):
                line.sendall(step)
            elif _wait_for_hang_up(line, step):
                return False
        return False

    def _choose_fault(self, path):
        with self.lock:
            self.requests += 1
            if not path.endswith(self.where):
                return pass_on
            self.met += 1
            return self.fault if self.met in self.which else pass_on

    def _ask(self, method, path, headers, body):
        upstream = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=20)
        upstream.request(method, path, body, headers | {"host": f"127.0.0.1:{self.upstream}"})
        answer = upstream.getresponse()
        said = {name.lower(): value for name, value in answer.getheaders()}
        reply = Reply(answer.status, said, answer.read())
        upstream.close()
        return reply


def _read_request(line):
    got = b""
    while b"\r\n\r\n" not in got:
        part = line.recv(1 << 16)
        if not part:
            return None
        got += part
    head, _, body = got.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split()
    headers = dict(one.lower().split(": ", 1) for one in rest)
    while len(body) < int(headers.get("content-length", "0")):
        body += line.recv(1 << 16)
    return method, path, headers, body


def _wait_for_hang_up(line, seconds):
    """Wait so long, or until the client has gone: whether it has."""
    line.settimeout(seconds)
    try:
        return line.recv(1) == b""
    except TimeoutError:
        return False
    finally:
        line.settimeout(20)
