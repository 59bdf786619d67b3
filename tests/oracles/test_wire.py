"""Messages of the V2 protocol, against bytes written by hand."""

import json
import struct

import numpy as np
import pytest

from keyhole.errors import InvalidInput
from keyhole.oracles.http import wire


def test_a_question_in_json_is_what_the_protocol_says():
    body, headers = wire.write_question(
        np.array([[[0.1, -2.0]]]), "x", "FP64", binary=False, wanted="y"
    )
    assert headers == {"Content-Type": "application/json"}
    tensor = {"name": "x", "shape": [1, 1, 2], "datatype": "FP64", "data": [0.1, -2.0]}
    assert json.loads(body) == {"inputs": [tensor], "outputs": [{"name": "y"}]}


def test_a_question_in_bytes_is_a_head_and_little_endian_numbers():
    body, headers = wire.write_question(
        np.array([[[0.5, -2.0]]]), "x", "FP32", binary=True, wanted=None
    )
    end = int(headers["Inference-Header-Content-Length"])
    tensor = {
        "name": "x",
        "shape": [1, 1, 2],
        "datatype": "FP32",
        "parameters": {"binary_data_size": 8},
    }
    assert json.loads(body[:end]) == {
        "inputs": [tensor],
        "parameters": {"binary_data_output": True},
    }
    assert struct.unpack("<2f", body[end:]) == (0.5, -2.0)


def read(outputs, name=None, behind=b""):
    head = json.dumps({"outputs": outputs}).encode()
    headers = {"inference-header-content-length": str(len(head))} if behind else {}
    message, rest = wire.open_message(head + behind, headers, wire.Reply)
    return wire.numbers_of(message.outputs, name, rest).tolist()


@pytest.mark.parametrize(
    ("datatype", "raw"),
    [
        ("FP64", struct.pack("<2d", 1.5, -2.0)),
        ("FP32", struct.pack("<2f", 1.5, -2.0)),
        ("FP16", struct.pack("<2e", 1.5, -2.0)),
        ("BF16", struct.pack("<f", 1.5)[2:] + struct.pack("<f", -2.0)[2:]),
    ],
)
def test_numbers_behind_a_head_are_read_in_every_format(datatype, raw):
    first = {"name": "a", "shape": [1], "datatype": "INT8", "parameters": {"binary_data_size": 1}}
    tensor = {
        "name": "y",
        "shape": [2],
        "datatype": datatype,
        "parameters": {"binary_data_size": len(raw)},
    }
    assert read([first, tensor], "y", b"\x07" + raw) == [1.5, -2.0]


def test_labels_may_be_truth_values():
    assert read([{"name": "y", "shape": [2], "datatype": "BOOL", "data": [True, False]}]) == [
        1.0,
        0.0,
    ]


def test_null_is_read_as_no_number():
    assert np.isnan(read([{"name": "y", "shape": [2], "datatype": "FP64", "data": [None, 1]}])[0])


@pytest.mark.parametrize(
    ("outputs", "name", "behind", "sentence"),
    [
        ([], None, b"", "there are: none"),
        ([{"name": "a"}, {"name": "b"}], None, b"", "there are: a, b"),
        ([{"name": "a"}], "b", b"", "one tensor 'b' is wanted"),
        ([{"name": "a"}], "a", b"", "neither `data` nor"),
        ([{"name": "a", "data": ["1"]}], "a", b"", "it holds str"),
        ([{"name": "a", "data": [[1], 2]}], "a", b"", "it holds int, list"),
        ([{"name": "a", "data": [10**400]}], "a", b"", "too large"),
        (
            [{"name": "a", "datatype": "BYTES", "parameters": {"binary_data_size": 2}}],
            "a",
            b"ab",
            "does not hold numbers",
        ),
        (
            [{"name": "a", "parameters": {"binary_data_size": 16}}],
            "a",
            b"12345678",
            "says it has 16 bytes; 8 followed",
        ),
    ],
)
def test_what_is_no_tensor_of_numbers_is_refused(outputs, name, behind, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        read(outputs, name, behind)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff", b'{"outputs": 3}', b"[" * 100_000])
def test_what_is_no_message_is_refused(body):
    with pytest.raises(InvalidInput, match="not a message of the V2 protocol"):
        wire.open_message(body, {}, wire.Reply)
