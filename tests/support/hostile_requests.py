"""Requests as strangers send them, over bare sockets: none is what a library would let through."""

import json
import re
import select
import socket
import struct
from collections import Counter
from pathlib import Path

import numpy as np

from support.mangling import mangle

METHODS = (b"POST", b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT", b"post")
METHODS += (b"", b"\x00", b"P" * 5000, b"PRI", "P\u00d6ST".encode())
PATHS = (b"/", b"*", b"", b"//", b"/../../etc/passwd", b"/%2e%2e/%2e%2e/etc/passwd", b"/v2/models")
PATHS += (b"/v2/models/head/versions/2", b"/v2/models/" + b"a" * 9000, b"/%00", b"/\xff\xfe", b"/%")
PATHS += (b"/static/..%2f..%2fcli.py", b"/report/%2e%2e/x", b"/api/runs/%2fetc", b"/api/jobs/%00")
PATHS += (b"http://elsewhere.example/v2", b"/api/jobs/none?after=-1", b"/?" + b"a=b&" * 3000)
LINES = (b"Content-Length: -1", b"Content-Length: 99999999999999999999", b"Content-Length: \xb2")
LINES += (b"Content-Length: 5\r\nContent-Length: 6", b"Transfer-Encoding: chunked", b"Expect: 417")
LINES += (
    b"Transfer-Encoding: smoke",
    b"Content-Encoding: gzip",
    b"Content-Encoding: br",
    b"nothing",
)
LINES += (b"Inference-Header-Content-Length: -1", b"Inference-Header-Content-Length: 1e9")
LINES += (b"Inference-Header-Content-Length: 7", b"Host: elsewhere.example", b"X: \x1b[31m\x00")
LINES += (b"Origin: http://elsewhere.example", b"X: " + b"a" * 70_000, b"X: y\r\n" * 3000 + b"Z: 1")
LINES += (b"Cookie: " + b"a=b; " * 500, b"Upgrade: websocket\r\nConnection: Upgrade", b" folded: 1")
LINES += (
    b"Authorization: Bearer \xff",
    b"Connection: close",
    b"Range: bytes=0-",
)


def write_request(method, path, host, lines, body):
    head = [b"%s %s HTTP/1.1" % (method, path), b"Host: " + host, *lines]
    return b"\r\n".join([*head, b"Content-Length: %d" % len(body), b"", body])


def spoil_request(good, host, lines, rng):
    """A request that is good but for one thing, and which that was."""
    method, path, body = good
    kind = rng.choice(("body", "body", "body", "method", "path", "line", "bytes", "rubbish"))
    if kind == "body":
        body = mangle(body or b"{}", rng)
    elif kind == "method":
        method = METHODS[rng.integers(len(METHODS))]
    elif kind == "path":
        path = PATHS[rng.integers(len(PATHS))]
    elif kind == "line":
        lines = [*lines, LINES[rng.integers(len(LINES))]]
    elif kind == "rubbish":
        return rng.bytes(int(rng.integers(1, 3000))) + b"\r\n\r\n"
    sent = write_request(method, path, host, lines, body)
    return mangle(sent, rng) if kind == "bytes" else sent


def ask_once(port, sent):
    """The status that comes back and its body; None where the server hung up."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
            line.sendall(sent)
            # A server that still waits for something is told that no more comes.
            if not select.select([line], [], [], 0.05)[0]:
                line.shutdown(socket.SHUT_WR)
            return _read_answer(line, sent.startswith(b"HEAD"))
    except ConnectionError:
        return None, b""


def _read_answer(line, bodiless):
    got = b""
    while not _is_whole(got, bodiless) and (part := line.recv(1 << 16)):
        # An interim answer is none.
        got = re.sub(rb"^HTTP/1\.1 100 \r\n\r\n", b"", got + part)
    status = re.match(rb"HTTP/1\.1 (\d{3}) ", got)
    return (int(status[1]) if status else None), got.partition(b"\r\n\r\n")[2]


def _is_whole(got, bodiless):
    head, end, body = got.partition(b"\r\n\r\n")
    size = re.search(rb"content-length: (\d+)", head)
    # The answer to HEAD says how long a body would be, and has none: its status alone is looked at.
    return bool(end) and size is not None and len(body) >= (0 if bodiless else int(size[1]))


def ask_much(port, goods, lines, count, rng):
    """How often each status came back, and whatever should not have."""
    host = b"127.0.0.1:%d" % port
    counts, bad = Counter(), []
    for _ in range(count):
        sent = spoil_request(goods[rng.integers(len(goods))], host, lines, rng)
        status, body = ask_once(port, sent)
        counts["hung up" if status is None else f"status {status}"] += 1
        if status is not None and (status >= 500 or b"Traceback" in body):
            bad.append((status, body[:300], sent[:300]))
    return counts, bad


def count_resources(pid):
    """Megabytes of memory and open descriptors of a process."""
    held = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(held[1]) / 1024, len(list(Path(f"/proc/{pid}/fd").iterdir()))


def write_questions(width):
    """Good questions to a served model: in JSON, in bytes, and about it."""
    X = np.linspace(-1, 1, 2 * 3 * width).reshape(2, 3, width)
    tensor = {"name": "tokens", "shape": list(X.shape), "datatype": "FP64"}
    plain = json.dumps({"inputs": [tensor | {"data": X.ravel().tolist()}], "id": "7"}).encode()
    wanted = [{"name": "answers", "parameters": {"binary_data": True}}]
    asked = {"inputs": [tensor | {"data": [1.0] * X.size}], "outputs": wanted}
    place = b"/v2/models/head"
    posts = [(b"POST", place + b"/infer", body) for body in (plain, json.dumps(asked).encode())]
    paths = (place, place + b"/ready", b"/v2", b"/", b"/openapi.json", b"/v2/health/live")
    return [*posts, *posts, *((b"GET", path, b"") for path in paths)]


WISHES = (
    ("/api/compute", {"kind": "match2", "fields": {"modulus": 12, "tokens": [1, 5], "query": 1}}),
    ("/api/compute", {"kind": "match3", "fields": {"modulus": 31, "tokens": [4, 9, 18]}}),
    ("/api/compute", {"kind": "sparse-average", "fields": {"length": 8, "q": 2, "seed": 5}}),
    ("/api/limits", {"task": "sparse-average", "length": 12, "q": 2, "width": 2, "embed": 4}),
    ("/api/limits", {"task": "match2", "length": 4, "modulus": 3, "bits": 8, "heads": 1}),
    ("/api/jobs", {"kind": "nothing", "fields": {"width": 4, "seed": 1}}),
    ("/api/jobs/none/cancel", {}),
)


def write_wishes():
    """Good requests to the explorer."""
    posts = [(b"POST", path.encode(), json.dumps(wish).encode()) for path, wish in WISHES]
    paths = (
        b"/",
        b"/static/explorer.js",
        b"/api/runs",
        b"/api/runs/x",
        b"/report/x",
        b"/api/jobs/x",
    )
    return [*posts, *((b"GET", path, b"") for path in paths)]


def hang_up_rudely(port):
    """A connection that is reset in the middle of a request."""
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(b"POST /v2/models/head/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Len")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
