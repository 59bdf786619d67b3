"""The points of the V2 protocol that clients of others rely on."""

import gzip
import http.client
import json
import zlib
from contextlib import closing
from urllib.parse import urlsplit

import numpy as np
import pytest

from keyhole.lab.serving.server import Limits
from support.served_head import HEAD, WIDTH, post, question, serving

PACKERS = {"gzip": gzip.compress, "deflate": zlib.compress}


def get(address, path):
    """Status and answer of a GET below the address of a model."""
    parts = urlsplit(address)
    with closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)) as line:
        line.request("GET", f"{parts.path}{path}")
        answer = line.getresponse()
        return answer.status, json.loads(answer.read())


def test_the_version_that_is_listed_is_there_and_no_other(rng):
    X = rng.normal(size=(3, 2, WIDTH))
    with serving() as (address, _):
        _, told = get(address, "")
        assert told["versions"] == ["1"]
        assert get(address, "/versions/1") == (200, told)
        assert get(address, "/versions/1/ready") == (200, {"ready": True})
        assert get(address, "/versions/2")[0] == 404
        status, answer = post(f"{address}/versions/1", question(X))
    assert status == 200
    np.testing.assert_allclose(answer["outputs"][0]["data"], HEAD(X).ravel())


@pytest.mark.parametrize("name", PACKERS)
def test_packed_bodies_are_answered_as_plain_ones(name, rng):
    X = rng.normal(size=(3, 2, WIDTH))
    with serving() as (address, _):
        packed = PACKERS[name](question(X).encode())
        status, answer = post(address, packed, Content_Encoding=name)
    assert status == 200
    np.testing.assert_allclose(answer["outputs"][0]["data"], HEAD(X).ravel())


@pytest.mark.parametrize("name", PACKERS)
def test_a_small_body_that_unpacks_to_a_large_one_is_refused(name):
    bomb = PACKERS[name](b" " * (1 << 24))
    assert len(bomb) < 1 << 16
    with serving(limits=Limits(request_bytes=1 << 16)) as (address, _):
        status, answer = post(address, bomb, Content_Encoding=name)
    assert status == 413
    assert "once it is unpacked" in answer["error"]


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [(b"plain", "gzip", 400), (gzip.compress(b"{}", mtime=0)[:-3], "gzip", 400), (b"x", "br", 415)],
)
def test_a_body_that_cannot_be_unpacked_is_refused_in_a_sentence(body, encoding, status):
    with serving() as (address, _):
        got, answer = post(address, body, Content_Encoding=encoding)
    assert got == status
    assert answer["error"].endswith(".")


@pytest.mark.parametrize(
    ("wish", "word"),
    [({"classification": 1}, "class_count"), ({"shared_memory_region": "a"}, "shared")],
)
def test_a_wish_that_would_change_the_answer_is_refused_and_not_passed_over(wish, word, rng):
    asked = json.loads(question(rng.normal(size=(1, 2, WIDTH))))
    asked["outputs"] = [{"name": "answers", "parameters": wish}]
    with serving() as (address, black):
        status, answer = post(address, json.dumps(asked))
        assert black.queries == 0
    assert status == 400
    assert word in answer["error"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("packed", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("datatype", ["FP64", "FP32"])
def test_the_client_of_triton_is_answered(datatype, binary, packed, rng):
    triton = pytest.importorskip(
        "tritonclient.http", reason="pip install 'tritonclient[http]'", exc_type=ImportError
    )
    X = rng.normal(size=(5, 3, WIDTH)).astype({"FP64": "f8", "FP32": "f4"}[datatype])
    asked = triton.InferInput("tokens", list(X.shape), datatype)
    asked.set_data_from_numpy(X, binary_data=binary)
    wanted = triton.InferRequestedOutput("answers", binary_data=binary)
    with (
        serving() as (address, _),
        closing(triton.InferenceServerClient(urlsplit(address).netloc)) as client,
    ):
        assert client.is_server_live()
        assert client.is_model_ready("head", "1")
        assert client.get_model_metadata("head")["inputs"][0]["shape"] == [-1, -1, WIDTH]
        options = {"outputs": [wanted], "request_compression_algorithm": packed}
        now = client.infer("head", [asked], **options).as_numpy("answers")
        later = client.async_infer("head", [asked], **options).get_result().as_numpy("answers")
        with pytest.raises(Exception, match="class_count"):
            client.infer(
                "head", [asked], outputs=[triton.InferRequestedOutput("answers", class_count=1)]
            )
    np.testing.assert_allclose(now, HEAD(X.astype(float)))
    np.testing.assert_array_equal(now, later)
