"""A model server on bare sockets that keeps an exchange alive without ending it."""

import contextlib
import json
import socket
import threading
import time

import numpy as np

WIDTH = 3
HOLD = 12.0  # seconds after which a client without a deadline gets its answer after all
MOMENT = 0.02


class Dripping:
    """Answers the mean of tokens; stalls in metadata or infer (`where`), in the way of `how`."""

    def __init__(self, how=None, where="infer"):
        self.how, self.where = how, where
        self.hung_up, self.stalled, self.outlasted = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/v2/models/mean"
        self.threads, self.over = [], threading.Event()

    def __enter__(self):
        self._start(self._accept)
        return self

    def __exit__(self, *_):
        self.over.set()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in self.threads:
            thread.join(10)

    def _start(self, work, *given):
        self.threads.append(threading.Thread(target=work, args=given, daemon=True))
        self.threads[-1].start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                self._start(self._serve, self.listener.accept()[0])

    def _serve(self, connection):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(HOLD)
        with connection:
            try:
                self._converse(connection)
            except OSError:
                self.hung_up.set()

    def _converse(self, connection):
        if self.how == "handshake":
            # a ServerHello that says it is long
            record = b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc\x03\x03"
            return self._drip(connection, record, b"a")
        while request := self._request(connection):
            path, body = request
            whole = json.dumps(self._said(path, body)).encode()
            if path.endswith("/infer") == (self.where == "infer") and self.how is not None:
                self._stall(connection, whole)
            else:
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(whole) + whole
                )
        return self.hung_up.set()

    def _request(self, connection):
        got = b""
        while b"\r\n\r\n" not in got:
            part = connection.recv(4096)
            if not part:
                return None
            got += part
        head, _, body = got.partition(b"\r\n\r\n")
        lengths = [
            line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
        ]
        size = int(lengths[0].split(b":")[1]) if lengths else 0
        while len(body) < size:
            body += connection.recv(1 << 16)
        return head.split()[1].decode(), body

    def _said(self, path, body):
        if path == "/v2":
            return {"name": "dripping", "extensions": []}
        if not path.endswith("/infer"):
            tensors = {"x": [-1, -1, WIDTH], "y": [-1, WIDTH]}
            x, y = ({"name": n, "datatype": "FP64", "shape": s} for n, s in tensors.items())
            return {"name": "mean", "inputs": [x], "outputs": [y]}
        tensor = json.loads(body)["inputs"][0]
        Y = np.array(tensor["data"]).reshape(tensor["shape"]).mean(axis=1)
        return {
            "outputs": [
                {
                    "name": "y",
                    "datatype": "FP64",
                    "shape": list(Y.shape),
                    "data": Y.ravel().tolist(),
                }
            ]
        }

    def _stall(self, connection, whole):
        length, chunked = b"Content-Length: %d\r\n" % len(whole), b"Transfer-Encoding: chunked\r\n"
        ok, chunk = b"HTTP/1.1 200 OK\r\n", b"%x\r\n" % len(whole) + whole + b"\r\n"
        before, drop, after = {
            "silence": (b"", b"", ok + length + b"\r\n" + whole),
            "head": (ok + b"X-Slow: ", b"a", b"\r\n" + length + b"\r\n" + whole),
            "interim": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", ok + length + b"\r\n" + whole),
            "body": (ok + b"Connection: close\r\n\r\n", b" ", whole),
            "chunks": (ok + chunked + b"\r\n", b"1\r\n \r\n", chunk + b"0\r\n\r\n"),
            "extension": (ok + chunked + b"\r\n1;", b"a", b"\r\n \r\n" + chunk + b"0\r\n\r\n"),
            "trailers": (ok + chunked + b"\r\n" + chunk + b"0\r\nX-Slow: ", b"a", b"\r\n\r\n"),
        }[self.how]
        self._drip(connection, before, drop)
        connection.sendall(after)
        if self.how == "body":  # whose end is the end of the connection
            connection.shutdown(socket.SHUT_WR)

    def _drip(self, connection, before, drop):
        """Send `before`, then `drop` again and again; a client that has gone raises an OSError."""
        connection.sendall(before)
        self.stalled.set()
        end = time.monotonic() + HOLD
        while time.monotonic() < end and not self.over.wait(MOMENT):
            connection.sendall(drop)
            _notice_hang_up(connection)
        self.outlasted.set()


def _notice_hang_up(connection):
    connection.setblocking(False)
    try:
        if connection.recv(1, socket.MSG_PEEK) == b"":
            raise ConnectionResetError
    except BlockingIOError:
        pass
    finally:
        connection.settimeout(HOLD)
