"""Notebooks that marimo runs, and the sizes of pictures in a page."""

import socket
import subprocess
import sys
import time
from contextlib import contextmanager

SIZES = """() => [...document.querySelectorAll("svg.keyhole, figure.keyhole")].map(e => {
  const box = e.getBoundingClientRect(); return [box.width, box.height];
})"""


@contextmanager
def serve_notebook(path):
    """The address of a notebook that marimo runs, until it is stopped."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    told = ["--headless", "--no-token", "--host", "127.0.0.1", "--port", str(port)]
    command = [sys.executable, "-m", "marimo", "run", str(path), *told]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, cwd=path.parent, **quiet)
    try:
        wait_for(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def wait_for(port):
    """Return when something answers at a port."""
    for _ in range(600):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("marimo does not answer")
