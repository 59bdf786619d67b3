"""`keyhole serve` answers requests that name it, and posts of no other page."""

import http.client
import json
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import numpy as np
import pytest

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import ServeJob
from keyhole.lab.running import run_job
from keyhole.lab.serving.server import Black, Server
from keyhole.models import Head
from keyhole.oracles import Local
from keyhole.oracles.http.service import HttpService

WIDTH = 3
HEAD = Head.random(WIDTH, rng=np.random.default_rng(3))
X = np.ones((2, 2, WIDTH))
TENSOR = {"name": "t", "shape": list(X.shape), "datatype": "FP64", "data": X.ravel().tolist()}
QUESTION = json.dumps({"inputs": [TENSOR]})


class Served:
    """A server, and requests to it as anybody may write them."""

    def __init__(self, black, server, address):
        self.black, self.server, self.address = black, server, address
        self.port = urlsplit(address).port

    def ask(self, method="POST", path="/v2/models/head/infer", **headers):
        sent = {name: str(value).format(port=self.port) for name, value in headers.items()}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as line:
            line.request(method, path, QUESTION if method == "POST" else None, sent)
            answer = line.getresponse()
            return answer.status, json.loads(answer.read())


@contextmanager
def serving(host="127.0.0.1", token=None, **options):
    black = Black(Local(HEAD), "head", token=token)
    server = Server(black, host, 0, **options)
    with server.beside() as address:
        yield Served(black, server, address)


@pytest.fixture(scope="module")
def served():
    with serving() as made:
        yield made


@pytest.fixture(scope="module")
def wide_open():
    with serving("0.0.0.0", known_as=("model.example",)) as made:  # noqa: S104
        yield made


FOREIGN = [
    "example.org",
    "example.org:{port}",
    "127.0.0.1:1",
    "",
    "localhost.evil:{port}",
    "[::2]:{port}",
    "a@b",
]


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("path", ["/v2", "/v2/health/live", "/v2/models/head", "/openapi.json"])
def test_a_foreign_host_is_told_nothing(served, host, path):
    status, said = served.ask("GET", path, Host=host)
    assert status == 403
    assert "does not go by" in said["error"]


@pytest.mark.parametrize("host", FOREIGN)
def test_a_foreign_host_asks_nothing(served, host):
    queries, refused = served.black.queries, served.black.refused
    assert served.ask(Host=host)[0] == 403
    assert (served.black.queries, served.black.refused) == (queries, refused + 1)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:{port}", "localhost:{port}", "LocalHost:{port}", "[::1]:{port}"]
)
def test_its_own_names_are_answered_without_an_origin(served, host):
    status, said = served.ask(Host=host)
    assert status == 200
    np.testing.assert_array_equal(said["outputs"][0]["data"], HEAD(X).ravel())


@pytest.mark.parametrize(
    "origin", ["http://example.org", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1", ""]
)
def test_posts_of_other_pages_ask_nothing(served, origin):
    queries = served.black.queries
    status, said = served.ask(Origin=origin)
    assert (status, served.black.queries) == (403, queries)
    assert "other pages" in said["error"]


@pytest.mark.parametrize("origin", ["http://127.0.0.1:{port}", "http://localhost:{port}"])
def test_a_page_of_its_own_may_post(served, origin):
    assert served.ask(Origin=origin)[0] == 200


def test_a_foreign_origin_may_load_what_it_cannot_read(served):
    assert served.ask("GET", "/v2", Origin="http://example.org")[0] == 200


@pytest.mark.parametrize(
    "host", ["127.0.0.1:{port}", "192.0.2.7:9999", "[2001:db8::1]", "localhost:9", "model.example"]
)
def test_beyond_the_loopback_every_number_and_each_name_given_is_answered(wide_open, host):
    assert wide_open.ask(Host=host)[0] == 200
    assert wide_open.ask(Host=host, Origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "model.example.evil:{port}", "192.0.2.7.evil"])
def test_beyond_the_loopback_other_names_are_refused_with_the_way_out(wide_open, host):
    status, said = wide_open.ask(Host=host)
    assert status == 403
    assert "--known-as" in said["error"]


def test_beyond_the_loopback_posts_of_other_pages_ask_nothing(wide_open):
    assert wide_open.ask(Host="192.0.2.7:80", Origin="http://192.0.2.8:80")[0] == 403
    assert wide_open.ask(Host="model.example", Origin="http://evil.example")[0] == 403


def test_a_token_does_not_excuse_a_foreign_host_nor_a_name_a_missing_token():
    with serving(token="secret") as served:  # noqa: S106
        shown = {"Authorization": "Bearer secret"}
        assert served.ask(Host="example.org", **shown)[0] == 403
        assert served.ask(Origin="http://example.org", **shown)[0] == 403
        assert served.ask()[0] == 401
        assert served.ask(**shown)[0] == 200


@pytest.mark.parametrize("binary", ["true", "false"])
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_our_own_client_is_at_home(served, name, binary):
    oracle = HttpService(f"http://{name}:{served.port}/v2/models/head?binary={binary}")
    np.testing.assert_array_equal(oracle.ask(X.copy()), HEAD(X))
    oracle.close()


@pytest.mark.parametrize("name", ["http://model.example", "model.example:80", "a b", "", "x/y"])
def test_a_name_that_can_be_no_host_is_misuse(name, head):
    with pytest.raises(InvalidInput, match="--known-as is the name of a host"):
        run_job(ServeJob("head.safetensors", known_as=(name,)))


@pytest.fixture
def head(tmp_path, monkeypatch):
    from keyhole.models import save

    save(HEAD, tmp_path / "head.safetensors")
    monkeypatch.chdir(tmp_path)
