"""Everything that can become of an answer between a server and its client, by name.

Each is a fault of `support.fault_proxy`. Those of TRANSPORT change how an answer arrives,
whatever it is; those of MESSAGES (JSON), BINARY (bytes), METADATA (of a model) and SERVER (of the
server) change what it says.
"""

import gzip
import json
import os
import zlib
from itertools import chain, count, repeat

from support.fault_proxy import KEEP, RESET

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
JSON = b"Content-Type: application/json\r\n"


def send(*steps):
    """Steps that do not look at the reply."""
    return lambda _: steps


def spoil(change):
    """A whole answer whose body was changed."""
    return lambda reply: (reply.write(change(reply.body)), KEEP)


def refuse(status, body=b'{"error": "not now"}', **headers):
    def fault(reply):
        return reply.write(body, status, **headers), KEEP

    # Whoever refuses a request for what it is has not passed it on.
    fault.unasked = 400 <= status < 500
    return fault


def label(**headers):
    """The answer as it is, with other headers."""
    return lambda reply: (reply.write(**headers), KEEP)


def head_with(lines):
    """The answer behind further lines of its head."""
    return lambda reply: (OK + lines + b"Content-Length: %d\r\n\r\n" % len(reply.body), reply.body)


def drip(before, drop, seconds=0.02):
    """Some bytes, then the same few again and again, for ever."""

    def steps(_):
        yield before
        for _ in count():
            yield drop
            yield seconds

    return steps


def flood(before, drop):
    """As `drip`, as fast as it is taken."""
    return lambda _: chain([before], repeat(drop))


def halve(reply):
    return reply.body[: len(reply.body) // 2]


STATUSES = {
    f"status {status}": refuse(status)
    for status in (
        *(201, 202, 203, 204, 205, 206, 207, 226),
        *(300, 301, 302, 303, 304, 305, 307, 308),
        *(400, 401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 413, 414, 415, 416, 417),
        *(418, 421, 422, 423, 424, 425, 426, 428, 429, 431, 451, 499),
        *(500, 501, 502, 503, 504, 505, 506, 507, 508, 510, 511, 520, 599, 600, 999),
    )
}
WAITS = {
    f"{status} and Retry-After {wait!r:.30}": refuse(status, retry_after=wait)
    for status in (429, 503)
    for wait in (
        *("0", "1", "-1", "0.5", "1e3", "nan", "inf", "\u00b2", "3600", "9" * 400, ""),
        *("Wed, 21 Oct 2015 07:28:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "Mon, 99 Foo 99 9:9:9"),
    )
}
REDIRECTS = {
    "a redirect to itself": refuse(302, location="/v2/models/head"),
    "a redirect to a file": refuse(301, location="file:///etc/passwd"),
    "a redirect of nonsense": refuse(307, location="http://[::1"),
    "a redirect without a place": refuse(308),
}
BREAKS = {
    "closed without a word": send(),
    "reset without a word": send(RESET),
    "half a status line": send(b"HTTP/1."),
    "half a head": send(OK + b"Content-Le"),
    "a head alone": lambda reply: (reply.write(b"", content_length=str(len(reply.body))),),
    "reset after the head": lambda reply: (
        reply.write(b"", content_length=str(len(reply.body))),
        RESET,
    ),
    "half a body": lambda reply: (reply.write(halve(reply), content_length=len(reply.body)),),
    "half a body, then a reset": lambda reply: (
        reply.write(halve(reply), content_length=len(reply.body)),
        RESET,
    ),
    "half a body, then silence": lambda reply: (
        reply.write(halve(reply), content_length=len(reply.body)),
        60.0,
    ),
    "all but one byte": lambda reply: (
        reply.write(reply.body[:-1], content_length=len(reply.body)),
    ),
    "the answer, then a reset": lambda reply: (reply.write(), RESET),
    "the answer, then a close that was not announced": lambda reply: (reply.write(),),
    "kept open though a close was announced": label(connection="close"),
    "the answer twice": lambda reply: (reply.write() + reply.write(), KEEP),
    "the answer and rubbish behind it": lambda reply: (reply.write() + b"\x00" * 100, KEEP),
    "silence": send(60.0),
    "a head, then silence": send(OK, 60.0),
    "a pause that is borne": lambda reply: (0.05, reply.write(), KEEP),
    "a pause in the middle that is borne": lambda reply: (
        reply.write()[:40],
        0.05,
        reply.write()[40:],
        KEEP,
    ),
    "byte by byte, and in time": lambda reply: (
        *(reply.write()[i : i + 1] for i in range(len(reply.write()))),
        KEEP,
    ),
}
DRIPS = {
    "a head that drips": drip(OK + b"X-Slow: ", b"a"),
    "heads that drip": drip(OK, b"X-Slow: a\r\n"),
    "a body that drips": drip(OK + b"Content-Length: 100000\r\n\r\n", b" "),
    "a body without a length that drips": drip(OK + b"Connection: close\r\n\r\n", b" "),
    "chunks that drip": drip(CHUNKED, b"1\r\n \r\n"),
    "the size of a chunk that drips": drip(CHUNKED, b"0"),
    "an extension of a chunk that drips": drip(CHUNKED + b"1;", b"a"),
    "trailers that drip": drip(CHUNKED + b"0\r\nX: ", b"a"),
    "early hints that drip": drip(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "continue, again and again": drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "blank lines that drip": drip(b"", b"\r\n"),
}
FLOODS = {
    "a flood of continue": flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "a flood of early hints": flood(b"", b"HTTP/1.1 103 E\r\nLink: <a>\r\n\r\n" * 100),
    "a flood of headers": flood(OK, b"X-Many: aaaaaaaaaaaaaaaa\r\n" * 100),
    "a header without end": flood(OK + b"X-Long: ", b"a" * 4096),
    "a status line without end": flood(b"HTTP/1.1 200 ", b"a" * 4096),
    "a body without end": flood(OK + b"Connection: close\r\n\r\n", b" " * 65536),
    "chunks without end": flood(CHUNKED, b"10000\r\n" + b" " * 65536 + b"\r\n"),
    "an extension without end": flood(CHUNKED + b"1;", b"a" * 4096),
    "trailers without end": flood(CHUNKED + b"0\r\n", b"X-Many: a\r\n" * 100),
    "blank lines without end": flood(b"", b"\r\n" * 1000),
}
HEADS = {
    "no status line": lambda reply: (reply.body,),
    "another protocol": send(b"SSH-2.0-OpenSSH_9.6\r\n", 60.0),
    "a greeting of mail": send(b"220 mail.example ESMTP\r\n", 60.0),
    "TLS": send(b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03" + bytes(range(120))),
    "an alert of TLS": send(b"\x15\x03\x01\x00\x02\x02\x46"),
    "HTTP/2": send(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + bytes(18)),
    "random bytes": lambda _: (os.urandom(5000),),
    "version 1.0": lambda reply: (b"HTTP/1.0 200 OK\r\n\r\n" + reply.body,),
    "version 9.9": lambda reply: (b"HTTP/9.9 200 OK\r\n\r\n" + reply.body,),
    "no version": lambda reply: (b"HTTP 200 OK\r\n\r\n" + reply.body,),
    "a status of letters": send(b"HTTP/1.1 abc OK\r\n\r\n"),
    "a status of one digit": send(b"HTTP/1.1 2 OK\r\n\r\n"),
    "a status below 100": send(b"HTTP/1.1 099 OK\r\n\r\n"),
    "a negative status": send(b"HTTP/1.1 -200 OK\r\n\r\n"),
    "a switch of protocols": send(b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n", 60.0),
    "a reason with controls": lambda reply: (reply.write(reason="\x1b[31mOK"), KEEP),
    "a reason with a bell": lambda reply: (reply.write(status=500, reason="\x07\x9b31m"), KEEP),
    "a line without a colon": head_with(b"nonsense\r\n"),
    "a name with a blank": head_with(b"Bad Name: 1\r\n"),
    "a name with controls": head_with(b"X-\x1b[31m: 1\r\n"),
    "a value with a zero byte": head_with(b"X-Zero: a\x00b\r\n"),
    "a value with controls": head_with(b"X-Red: \x1b[31m\r\n"),
    "a folded line": head_with(b"X-Folded: a\r\n b\r\n"),
    "line feeds alone": lambda reply: (
        b"HTTP/1.1 200 OK\nContent-Length: %d\n\n" % len(reply.body) + reply.body,
    ),
    "a head of a megabyte": head_with(b"X-Long: " + b"a" * (1 << 20) + b"\r\n"),
    "ten thousand headers": head_with(b"X-Many: a\r\n" * 10_000),
    "no length at all": label(content_length=None),
    "two lengths that agree": lambda reply: head_with(b"Content-Length: %d\r\n" % len(reply.body))(
        reply
    ),
    "two lengths that do not": head_with(b"Content-Length: 7\r\n"),
    "a length that is negative": label(content_length="-1"),
    "a length of letters": label(content_length="many"),
    "a length of another script": label(content_length="\u00b2"),
    "a length without end": label(content_length="9" * 5000),
    "a length too large": lambda reply: (reply.write(content_length=len(reply.body) + 9),),
    "a length too large, kept open": lambda reply: (
        reply.write(content_length=len(reply.body) + 9),
        60.0,
    ),
    "a length too small": lambda reply: (reply.write(content_length=len(reply.body) - 9), KEEP),
    "a length of zero": label(content_length="0"),
    "a length of 2^62": lambda reply: (reply.write(content_length=1 << 62),),
    "a length and chunks": lambda reply: (
        reply.write(_chunk(reply.body), transfer_encoding="chunked"),
        KEEP,
    ),
    "chunks that are none": lambda reply: (
        reply.write(content_length=None, transfer_encoding="chunked"),
    ),
    "an unknown transfer": lambda reply: (
        reply.write(content_length=None, transfer_encoding="smoke"),
    ),
    "cookies": label(set_cookie="a=b; Path=/; Expires=never\u00b2"),
    "hints of a kind that is none": label(content_type="\u00b2/\x01; charset=nowhere"),
    "a charset that is none": label(content_type="application/json; charset=utf-99"),
}


def _chunk(body, size=b"%x"):
    return size % len(body) + b"\r\n" + body + b"\r\n0\r\n\r\n"


CHUNKS = {
    "good chunks": lambda reply: (CHUNKED + _chunk(reply.body), KEEP),
    "one byte a chunk": lambda reply: (
        CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in reply.body) + b"0\r\n\r\n",
        KEEP,
    ),
    "no last chunk": lambda reply: (CHUNKED + _chunk(reply.body)[:-5],),
    "no last chunk, kept open": lambda reply: (CHUNKED + _chunk(reply.body)[:-5], 60.0),
    "half a chunk": lambda reply: (CHUNKED + _chunk(reply.body)[:20],),
    "half a chunk, then a reset": lambda reply: (CHUNKED + _chunk(reply.body)[:20], RESET),
    "a size of letters": lambda reply: (CHUNKED + b"xyz\r\n" + reply.body,),
    "a negative size": lambda reply: (CHUNKED + b"-5\r\n" + reply.body,),
    "a size of 2^64": lambda reply: (CHUNKED + b"1" + b"0" * 16 + b"\r\n" + reply.body,),
    "a size of 2^60": lambda reply: (CHUNKED + b"1" + b"0" * 15 + b"\r\n" + reply.body,),
    "a size too small": lambda reply: (CHUNKED + b"3\r\n" + reply.body + b"\r\n0\r\n\r\n",),
    "no line behind a chunk": lambda reply: (
        CHUNKED + _chunk(reply.body).replace(b"}\r\n0", b"}0"),
    ),
    "an extension": lambda reply: (CHUNKED + _chunk(reply.body, b'%x;a="b"'), KEEP),
    "trailers": lambda reply: (CHUNKED + _chunk(reply.body)[:-2] + b"X-Late: 1\r\n\r\n", KEEP),
    "a trailer of nonsense": lambda reply: (CHUNKED + _chunk(reply.body)[:-2] + b"late\r\n\r\n",),
}


PACKED = {
    "gzip, though nobody asked": lambda reply: (
        reply.write(gzip.compress(reply.body), content_encoding="gzip"),
        KEEP,
    ),
    "deflate, though nobody asked": lambda reply: (
        reply.write(zlib.compress(reply.body), content_encoding="deflate"),
        KEEP,
    ),
    "gzip that is none": label(content_encoding="gzip"),
    "deflate that is none": label(content_encoding="deflate"),
    "brotli that is none": label(content_encoding="br"),
    "zstd that is none": label(content_encoding="zstd"),
    "a packing nobody knows": label(content_encoding="smoke"),
    "a packing in a hundred layers": label(content_encoding=", ".join(["gzip"] * 100)),
    "half of gzip": lambda reply: (
        reply.write(gzip.compress(reply.body)[:-12], content_encoding="gzip"),
        KEEP,
    ),
    "gzip of gzip, said once": lambda reply: (
        reply.write(gzip.compress(gzip.compress(reply.body)), content_encoding="gzip"),
        KEEP,
    ),
    "a bomb of gzip": lambda reply: (
        reply.write(_BOMB, content_encoding="gzip"),
        KEEP,
    ),
    "a bomb of gzip twice": lambda reply: (
        reply.write(gzip.compress(_BOMB), content_encoding="gzip, gzip"),
        KEEP,
    ),
    "gzip that was not said": spoil(gzip.compress),
}
_BOMB = gzip.compress(b" " * (1 << 27), 1)

TEXTS = {
    "nothing": b"",
    "blanks": b" " * 100,
    "null": b"null",
    "true": b"true",
    "a number": b"1",
    "a word": b'"outputs"',
    "a list": b"[]",
    "an object of nothing": b"{}",
    "a page": b"<!doctype html><title>Sign in</title><script>alert(1)</script>",
    "XML": b"<?xml version='1.0'?><outputs/>",
    "zero bytes": bytes(1000),
    "no text": b"\xff\xfe\x00{",
    "UTF-16": '{"outputs": []}'.encode("utf-16"),
    "single quotes": b"{'outputs': []}",
    "deep lists": b"[" * 100_000,
    "deep lists that end": b"[" * 50_000 + b"]" * 50_000,
    "deep objects": b'{"outputs":' * 50_000,
    "deep outputs": b'{"outputs": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "a number without end": b'{"outputs": ' + b"9" * 200_000 + b"}",
    "outputs that are null": b'{"outputs": null}',
    "outputs that are none": b'{"outputs": []}',
    "outputs that are a word": b'{"outputs": "answers"}',
    "outputs of null": b'{"outputs": [null]}',
    "an output of nothing": b'{"outputs": [{}]}',
    "an error that is called an answer": b'{"error": "out of memory \\u001b[31m"}',
    "a name without end": b'{"outputs": [{"name": "' + b"a" * 1_000_000 + b'", "data": []}]}',
}


def edit(change):
    """An answer whose JSON was changed by a function of its object."""

    def fault(reply):
        said = json.loads(reply.body)
        changed = change(said)
        return reply.write(json.dumps(said if changed is None else changed).encode()), KEEP

    return fault


def put(**fields):
    """Other fields of the tensor of answers."""
    return edit(lambda said: said["outputs"][0].update(fields))


def put_data(change):
    """Other numbers."""

    def replace_numbers(said):
        tensor = said["outputs"][0]
        tensor["data"] = change(tensor["data"])

    return edit(replace_numbers)


def write_number(text):
    """The first number in other letters, which no writer of JSON may write."""

    def change(body):
        before, _, rest = body.partition(b'"data":[')
        return before + b'"data":[' + text + b"," + rest.partition(b",")[2]

    return spoil(change)


def nest(value, depth):
    for _ in range(depth):
        value = [value]
    return value


MESSAGES = {f"a body: {name}": spoil(lambda _, text=text: text) for name, text in TEXTS.items()}
MESSAGES |= {
    f"a number written {text[:12].decode()}": write_number(text)
    for text in (
        *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"1e-999", b"0x10", b"1_000"),
        *(b"01", b"+1", b".5", b"1.", b"9" * 400, b"1" + b"0" * 5000, b'"1"', b"true", b"null"),
        *(b"[]", b"{}", b"[[[1]]]", b"", b"1e308", b"'1'"),
    )
}
MESSAGES |= {
    "a mark of order before it": spoil(lambda body: b"\xef\xbb\xbf" + body),
    "rubbish behind it": spoil(lambda body: body + b"}"),
    "half of it": spoil(lambda body: body[: len(body) // 2]),
    "one bit of a brace": spoil(lambda body: b"z" + body[1:]),
    "two answers in one": spoil(lambda body: body + body),
    "keys twice": spoil(lambda body: body[:-1] + b', "outputs": []}'),
    "keys twice in a tensor": spoil(lambda body: body.replace(b'"data":', b'"data":[],"data":')),
    "no outputs": edit(lambda said: {"model_name": "head"}),
    "a second output": edit(lambda said: said["outputs"].append({"name": "b", "data": [1.0]})),
    "the output twice": edit(lambda said: said["outputs"].append(said["outputs"][0])),
    "ten thousand outputs": edit(lambda said: {"outputs": [{"name": "o"}] * 10_000}),
    "another name": put(name="other"),
    "a name with controls": put(name="\x1b[2J\x1b]0;owned\x07\u202e"),
    "a name that is a number": put(name=3),
    "no data": put(data=None),
    "data that is a word": put(data="1, 2"),
    "data that is an object": put(data={"0": 1.0}),
    "data of words": put_data(lambda data: [str(number) for number in data]),
    "data of truths": put_data(lambda data: [True] * len(data)),
    "data of nulls": put_data(lambda data: [None] * len(data)),
    "data of lists of words": put_data(lambda data: [["a"]] * len(data)),
    "lists and numbers mixed": put_data(lambda data: [[data[0]], *data[1:]]),
    "nested rows": put_data(lambda data: [[number] for number in data]),
    "nested too deep": put_data(lambda data: nest(data, 500)),
    "one number too few": put_data(lambda data: data[:-1]),
    "one number too many": put_data(lambda data: [*data, 1.0]),
    "no numbers": put_data(lambda data: []),
    "twice as many numbers": put_data(lambda data: [*data, *data]),
    "a million numbers": put_data(lambda data: [0.5] * 1_000_003),
    "zeros": put_data(lambda data: [0.0] * len(data)),
    "numbers of the wrong order": put_data(lambda data: data[::-1]),
    "numbers a little off": put_data(lambda data: [number + 1e-5 for number in data]),
    "one number far off": put_data(lambda data: [data[0] + 1e6, *data[1:]]),
    "huge numbers": put_data(lambda data: [1e308] * len(data)),
    "whole numbers of 300 digits": put_data(lambda data: [10**300] * len(data)),
    "a shape that does not fit": put(shape=[3, 3, 3]),
    "a shape that is negative": put(shape=[-1, -1]),
    "a shape of 2^62": put(shape=[1 << 62, 1 << 62]),
    "a shape of words": put(shape=["a"]),
    "a shape that is null": put(shape=None),
    "a shape of a thousand axes": put(shape=[1] * 1000),
    "a shape beyond 64 bits": put(shape=[10**30]),
    "no datatype": put(datatype=None),
    "a datatype that is none": put(datatype="FP128"),
    "a datatype with controls": put(datatype="\x1b[31mFP64\r\n"),
    "a datatype without end": put(datatype="F" * 100_000),
    "a narrower datatype": put(datatype="FP32"),
    "half a datatype": put(datatype="FP16"),
    "bytes": put(datatype="BYTES"),
    "truths": put(datatype="BOOL"),
    "parameters that are a list": put(parameters=[1]),
    "a size of bytes that are not there": put(parameters={"binary_data_size": 64}),
    "a negative size of bytes": put(parameters={"binary_data_size": -8}),
    "a size of bytes that is a word": put(parameters={"binary_data_size": "64"}),
    "a size of bytes that is a fraction": put(parameters={"binary_data_size": 8.5}),
    "a size of bytes of 2^70": put(parameters={"binary_data_size": 1 << 70}),
    "another model": edit(lambda said: said.update(model_name="\x1b[31m", id=7)),
    "a model that is a list": edit(lambda said: said.update(model_name=[])),
    "an error beside the answer": edit(lambda said: said.update(error="boom")),
    "parameters without end": edit(lambda said: said.update(parameters={"a": "b" * 1_000_000})),
}


def cut_binary(change):
    """A change of (head, bytes behind it) of an answer in bytes."""

    def fault(reply):
        end = int(reply.headers["inference-header-content-length"])
        head, behind, size = change(reply.body[:end], reply.body[end:])
        said = {"inference_header_content_length": len(head) if size is None else size}
        return reply.write(head + behind, **said), KEEP

    return fault


def resize(size):
    """The head says that so many bytes follow for its tensor."""

    def change(head, behind):
        said = json.loads(head)
        said["outputs"][0]["parameters"]["binary_data_size"] = size
        return json.dumps(said).encode(), behind, None

    return cut_binary(change)


def retype(datatype):
    def change(head, behind):
        said = json.loads(head)
        said["outputs"][0]["datatype"] = datatype
        return json.dumps(said).encode(), behind, None

    return cut_binary(change)


BINARY = {
    f"a head of {size!r:.20} bytes": cut_binary(
        lambda head, behind, size=size: (head, behind, size)
    )
    for size in ("0", "1", "-1", "\u00b2", "many", "999999", "9" * 400, "1e2", "")
}
BINARY |= {
    f"bytes said to be {size!r:.20}": resize(size)
    for size in (0, 1, 7, 8, -8, 1 << 40, 1 << 70, "8", None, 8.5, True, [8])
}
BINARY |= {
    f"bytes of {datatype!r:.20}": retype(datatype)
    for datatype in ("FP32", "FP16", "BF16", "INT8", "BOOL", "BYTES", "\x1b[31m", "", "UINT64")
}
BINARY |= {
    "no length of the head": label(inference_header_content_length=None),
    "half the bytes": cut_binary(lambda head, behind: (head, behind[: len(behind) // 2], None)),
    "no bytes": cut_binary(lambda head, behind: (head, b"", None)),
    "three bytes more": cut_binary(lambda head, behind: (head, behind + b"abc", None)),
    "numbers that are none": cut_binary(lambda head, behind: (head, b"\xff" * len(behind), None)),
    "bytes turned round": cut_binary(lambda head, behind: (head, behind[::-1], None)),
    "a head that is none": cut_binary(lambda head, behind: (b"x" * len(head), behind, None)),
    "a tensor before it that lies": cut_binary(
        lambda head, behind: (
            head.replace(
                b'"outputs":[',
                b'"outputs":[{"name":"a","parameters":{"binary_data_size":1000000}},',
            ),
            behind,
            None,
        )
    ),
}


def tell(**fields):
    """Other fields of what the server says of the model."""
    return edit(lambda said: said.update(fields))


def tell_input(**fields):
    return edit(lambda said: said["inputs"][0].update(fields))


def tell_output(**fields):
    return edit(lambda said: said["outputs"][0].update(fields))


METADATA = {
    f"{axis} of {size!r:.20}": say(shape=[-1, -1, size][start:])
    for axis, say, start in (("a width", tell_input, 0), ("outputs", tell_output, 1))
    for size in (0, -7, 1, 9, 1 << 31, 1 << 62, 1 << 70, 2.5, "2", None, True, [2])
}
METADATA |= {
    "no inputs": tell(inputs=[]),
    "inputs that are null": tell(inputs=None),
    "two inputs": edit(lambda said: said["inputs"].append({"name": "\x1b[31mother\u202e"})),
    "ten thousand inputs": edit(lambda said: said.update(inputs=said["inputs"] * 10_000)),
    "an input of another name": tell_input(name="\x1b[2J\x07"),
    "an input without a name": tell_input(name=None),
    "an input named without end": tell_input(name="a" * 1_000_000),
    "an input of words": tell_input(datatype="BYTES"),
    "an input of controls": tell_input(datatype="\x1b[31m\r\nFP64"),
    "an input of FP32": tell_input(datatype="FP32"),
    "an input of two axes": tell_input(shape=[-1, 2]),
    "an input of a thousand axes": tell_input(shape=[-1] * 1000),
    "an input of no axes": tell_input(shape=[]),
    "an input whose shape is a word": tell_input(shape="\x1b[31m"),
    "no outputs": tell(outputs=[]),
    "two outputs": edit(lambda said: said["outputs"].append({"name": "b"})),
    "an output of another name": tell_output(name="\x1b[2J"),
    "an output of three axes": tell_output(shape=[-1, -1, 2]),
    "an output of words": tell_output(datatype="BYTES"),
    "an output of controls": tell_output(datatype="\x9b31m" * 1000),
    "an output of FP16": tell_output(datatype="FP16"),
    "a name that is a list": tell(name=[1]),
    "a name with controls": tell(name="\x1b]0;owned\x07"),
    "versions that are none": tell(versions={"a": [None]}),
}
SERVER = {
    "extensions that are a word": tell(extensions="binary_tensor_data"),
    "extensions of null": tell(extensions=[None]),
    "no extensions": tell(extensions=None),
    "an extension that is not there": tell(extensions=["binary_tensor_data"]),
    "half of it": spoil(lambda body: body[: len(body) // 2]),
    "keys twice": spoil(lambda body: body[:-1] + b', "inputs": [], "outputs": []}'),
}
SERVER |= {f"a text: {name}": spoil(lambda _, text=text: text) for name, text in TEXTS.items()}
METADATA |= SERVER

TRANSPORT = {
    **STATUSES,
    **WAITS,
    **REDIRECTS,
    **BREAKS,
    **DRIPS,
    **FLOODS,
    **HEADS,
    **CHUNKS,
    **PACKED,
}

# What no client can notice in one answer: numbers that are numbers, and not those of the model.
FALSE = {
    *("zeros", "numbers of the wrong order", "numbers a little off", "one number far off"),
    *("huge numbers", "whole numbers of 300 digits", "bytes turned round", "an input of FP32"),
    *("a number written 1e-999", "a number written 1e308", "a number written 1e999"),
}
PLACES = (("/infer", TRANSPORT, ""), ("/infer", MESSAGES, "?binary=false"), ("/infer", BINARY, ""))
PLACES += (("/models/head", TRANSPORT | METADATA, ""), ("/v2", TRANSPORT | SERVER, ""))
# Every fault at every place it applies to, each time or once: (name, fault, place, query, which).
CASES = [
    (name, fault, place, query, which)
    for place, table, query in PLACES
    for name, fault in table.items()
    for which in ("always", "once")
]
