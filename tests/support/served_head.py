"""A head served over HTTP in a thread, and questions put to it by hand."""

import http.client
import json
import os
import re
import subprocess
import sys
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import numpy as np

from keyhole.lab.serving.accounts import Accounts
from keyhole.lab.serving.server import Black, Limits, Server
from keyhole.lab.targets.opening import simulate_policies
from keyhole.models import Head
from keyhole.oracles import Local

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
