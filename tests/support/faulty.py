"""A model server on the standard library alone: V2 in JSON, with faults on order and honest
accounts.
"""

import json
import socket
import struct
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from support import targets

WIDTH = 4
rng = np.random.default_rng(11)
W, V = rng.normal(size=(WIDTH, WIDTH)), rng.normal(size=(WIDTH, 2))


def attend(X):
    """The head of this service."""
    return targets.attend(X, W, V)


class Faulty:
    """Answers as a head does, but for the requests whose number is in `faults`.

    `answered` are the sequences a client has to pay for: those of every request that got this far.
    """

    def __init__(self, faults=None, largest=1 << 30, token=None):
        self.faults, self.largest, self.token = dict(faults or {}), largest, token
        self.requests, self.answered, self.seen, self.times = 0, 0, [], []
        self.server, self.lock, self.connections = None, threading.Lock(), []

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}/v2/models/head"

    @contextmanager
    def running(self, port=0):
        owner = self

        class Handler(_Handler):
            service = owner

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        thread = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            self.server.server_close()
            for connection in self.connections:
                _reset(connection)
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    service = None

    def setup(self):
        super().setup()
        self.service.connections.append(self.connection)

    def log_message(self, *_):
        pass

    def handle(self):
        with suppress(OSError, ValueError):
            super().handle()

    def reply(self, status, body, **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if (
            self.service.token
            and self.headers.get("Authorization") != f"Bearer {self.service.token}"
        ):
            return self.reply(401, {"error": "who are you?"})
        if self.path == "/v2":
            return self.reply(200, {"name": "faulty", "version": "1", "extensions": []})
        inputs = [{"name": "x", "datatype": "FP64", "shape": [-1, -1, WIDTH]}]
        outputs = [{"name": "y", "datatype": "FP64", "shape": [-1, 2]}]
        if self.path == "/v2/models/head":
            return self.reply(200, {"name": "head", "inputs": inputs, "outputs": outputs})
        return self.reply(404, {"error": "no such model"})

    def do_POST(self):
        service, body = self.service, self.rfile.read(int(self.headers["Content-Length"]))
        with service.lock:
            service.requests += 1
            fault = service.faults.get(service.requests)
        if len(body) > service.largest:
            return self.reply(413, {"error": "too large"})
        if fault in (429, 400, 404):
            return self.reply(fault, {"error": "not now"}, Retry_After="0")
        tensor = json.loads(body)["inputs"][0]
        X = np.array(tensor["data"]).reshape(tensor["shape"])
        with service.lock:
            service.answered += len(X)
            service.seen += [hash(x.tobytes()) for x in X] if fault is None else []
            service.times.append((time.monotonic(), len(X)))
        return self.answer(X, fault)

    def answer(self, X, fault):
        data = attend(X).ravel().tolist()
        if fault in (500, 502, 503, 504):
            return self.reply(fault, {"error": "boom\x1b[31m"})
        if fault == "slow":
            time.sleep(1.0)
        if fault == "shape":
            data = data[:-1]
        if fault == "null":
            data[0] = None
        if fault == "nothing":
            data = []
        said = {"outputs": [{"name": "y", "datatype": "FP64", "shape": [len(X), 2], "data": data}]}
        whole = json.dumps(said).encode()
        if fault == "truncated":
            return self.reply(200, whole[: len(whole) // 2])
        if fault == "page":
            return self.reply(
                200, b"<html>Welcome to the wireless network</html>", Content_Type="text/html"
            )
        if fault == "silent":
            return self.hang_up()
        if fault == "reset":
            self.send_response(200)
            self.send_header("Content-Length", str(len(whole)))
            self.end_headers()
            self.wfile.write(whole[: len(whole) // 2])
            return self.hang_up()
        return self.reply(200, whole)

    def hang_up(self):
        self.wfile.flush()
        _reset(self.connection)
        self.close_connection = True


def _reset(connection):
    """Break a connection off, as when a machine goes down."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
