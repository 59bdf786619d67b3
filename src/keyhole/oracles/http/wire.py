"""Messages of the Open Inference Protocol V2: tensors as JSON, or as raw bytes behind a JSON head.

With the binary tensor extension a body is the JSON head, then the bytes of every tensor that has a
`binary_data_size`, little-endian and in order; the header Inference-Header-Content-Length says
where the head ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, TypeVar

import msgspec
import numpy as np

from keyhole._arrays import Array, Matrix, Sequences, Stack, Vector
from keyhole.errors import InvalidInput

HEAD_LENGTH = "Inference-Header-Content-Length"
JSON_TYPE = "application/json"
BINARY_TYPE = "application/octet-stream"
FLOATS = {"FP64": "<f8", "FP32": "<f4", "FP16": "<f2"}
WHOLE = {
    "INT64": "<i8",
    "INT32": "<i4",
    "INT16": "<i2",
    "INT8": "i1",
    "UINT64": "<u8",
    "UINT32": "<u4",
    "UINT16": "<u2",
    "UINT8": "u1",
    "BOOL": "?",
}
# Lists within lists: a body may nest them as deep as it likes, and is not followed further.
_DEEPEST = 8


class Tensor(msgspec.Struct):
    """One tensor of a message; its numbers are in `data`, or follow the head."""

    name: str
    shape: list[int] = []
    datatype: str = "FP64"
    data: list[Any] | msgspec.UnsetType | None = msgspec.UNSET
    parameters: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def bytes_behind(self) -> int | None:
        """How many bytes follow the head for this tensor, where it says so."""
        size = (self.parameters or {}).get("binary_data_size")
        return size if isinstance(size, int) and not isinstance(size, bool) else None


class Wanted(msgspec.Struct, omit_defaults=True):
    """An output a question names."""

    name: str
    parameters: dict[str, Any] | None = None

    @property
    def binary(self) -> bool:
        """Whether its bytes are to follow the head."""
        return (self.parameters or {}).get("binary_data") is True


class Question(msgspec.Struct, omit_defaults=True):
    """A batch, and how its answers are wanted."""

    inputs: list[Tensor]
    outputs: list[Wanted] = []
    parameters: dict[str, Any] | None = None
    id: str | None = None

    @property
    def binary(self) -> bool:
        """Whether answers are wanted as bytes behind the head."""
        return (self.parameters or {}).get("binary_data_output") is True or any(
            o.binary for o in self.outputs
        )


class Reply(msgspec.Struct, omit_defaults=True):
    """Answers to a batch."""

    outputs: list[Tensor]
    model_name: str | None = None
    id: Any = None


class Metadata(msgspec.Struct):
    """What a server says of a model."""

    name: str | None = None
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []


class Refusal(msgspec.Struct):
    """Why a server does not answer."""

    error: Any = None
    detail: Any = None


class Service(msgspec.Struct):
    """What a server says of itself."""

    extensions: list[str] = []


T = TypeVar("T")


def parse_count(text: str) -> int | None:
    """The whole number that a header holds; None where it holds none, or one of twelve digits."""
    # A header is another's text: Python takes superscripts for digits, and long numbers for ever.
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else None


def parse_message(body: bytes, kind: type[T]) -> T:
    """A JSON message.

    Raises:
        InvalidInput: it is none.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"not a message of the V2 protocol: {error}") from error


def write_question(
    X: Sequences,
    name: str,
    datatype: str,
    *,
    binary: bool,
    wanted: str | None,
    number: str | None = None,
) -> tuple[bytes, dict[str, str]]:
    """The body and headers that ask a batch; servers give the number back with its answers."""
    tensor = Tensor(name, list(X.shape), datatype)
    outputs = [] if wanted is None else [Wanted(wanted, {"binary_data": True} if binary else None)]
    told = {"binary_data_output": True} if binary else None
    message = Question([tensor], outputs, told, number)
    return _write_message(message, tensor, np.asarray(X, dtype=FLOATS[datatype]), binary)


def write_reply(
    Y: Matrix, name: str, *, model: str, number: str | None, binary: bool
) -> tuple[bytes, dict[str, str]]:
    """The body and headers that answer a batch."""
    tensor = Tensor(name, list(Y.shape))
    return _write_message(Reply([tensor], model, number), tensor, Y, binary)


def _write_message(
    message: Question | Reply, tensor: Tensor, numbers: Any, binary: bool
) -> tuple[bytes, dict[str, str]]:
    if not binary:
        tensor.data = numbers.ravel().tolist()
        return msgspec.json.encode(message), {"Content-Type": JSON_TYPE}
    raw = numbers.tobytes()
    tensor.parameters = {"binary_data_size": len(raw)}
    head = msgspec.json.encode(message)
    return head + raw, {"Content-Type": BINARY_TYPE, HEAD_LENGTH: str(len(head))}


def open_message(body: bytes, headers: Mapping[str, str], kind: type[T]) -> tuple[T, bytes]:
    """A message, and the bytes behind its head.

    Raises:
        InvalidInput: it is none.
    """
    length = headers.get(HEAD_LENGTH) or headers.get(HEAD_LENGTH.lower())
    # Without the header a body is JSON from end to end.
    if length is None:
        return parse_message(body, kind), b""
    end = parse_count(length)
    if end is None or not 0 < end <= len(body):
        raise InvalidInput(f"{HEAD_LENGTH} is {length[:20]!r} in a message of {len(body)} bytes.")
    return parse_message(body[:end], kind), body[end:]


def find_tensor(tensors: list[Tensor], name: str | None) -> int:
    """Which tensor is called `name`, or is the only one.

    Raises:
        InvalidInput: there is no such tensor.
    """
    found = [i for i, tensor in enumerate(tensors) if name in (None, tensor.name)]
    if len(found) != 1:
        wanted = repr(name) if name else ""
        there = ", ".join(tensor.name for tensor in tensors)[:200] or "none"
        raise InvalidInput(f"one tensor {wanted} is wanted; there are: {there}.")
    return found[0]


def numbers_of(tensors: list[Tensor], name: str | None, behind: bytes) -> Vector:
    """All numbers of the tensor called `name`, or of the only one, as float64; null is NaN.

    Raises:
        InvalidInput: there is no such tensor, or it does not hold numbers.
    """
    place = find_tensor(tensors, name)
    tensor = tensors[place]
    size = tensor.bytes_behind
    if size is None:
        return _decode_list(tensor)
    start = sum(max(before.bytes_behind or 0, 0) for before in tensors[:place])
    return _decode_raw(tensor, behind[start : start + size], size)


def _decode_raw(tensor: Tensor, raw: bytes, size: int) -> Vector:
    known = FLOATS | WHOLE | {"BF16": "<u2"}
    if tensor.datatype not in known:
        raise InvalidInput(
            f"datatype {tensor.datatype[:20]!r} does not hold numbers; {', '.join(known)} do."
        )
    dtype = np.dtype(known[tensor.datatype])
    if size < 0 or size != len(raw) or size % dtype.itemsize:
        raise InvalidInput(
            f"a tensor of {tensor.datatype} says it has {size} bytes; {len(raw)} followed the head."
        )
    values = np.frombuffer(raw, dtype)
    # bfloat16 is the upper half of a float32.
    if tensor.datatype == "BF16":
        values = (values.astype("<u4") << 16).view("<f4")
    with np.errstate(invalid="ignore"):
        return values.astype(np.float64)


def _decode_list(tensor: Tensor) -> Vector:
    """Numbers of a JSON list, nested or flat, in order; null is NaN.

    Raises:
        InvalidInput: something in it is no number.
    """
    data = tensor.data
    if not isinstance(data, list):
        raise InvalidInput("the tensor has neither `data` nor a `binary_data_size`.")
    for _ in range(_DEEPEST):
        kinds = set(map(type, data))
        if kinds != {list}:
            break
        data = list(chain.from_iterable(data))
    kinds = set(map(type, data))
    if not kinds <= {int, float, type(None), bool if tensor.datatype == "BOOL" else float}:
        raise InvalidInput(
            "`data` must be a list of numbers; it holds"
            f" {', '.join(sorted(k.__name__ for k in kinds))}."
        )
    try:
        return np.array(data, dtype=np.float64)
    except OverflowError as error:
        raise InvalidInput("a whole number in `data` is too large for a float64.") from error


def read_questions(message: Question, behind: bytes, width: int) -> Stack:
    """The batch a message asks, checked as by a server that trusts nothing.

    Raises:
        InvalidInput: it is no batch of finite sequences of that width.
    """
    numbers = numbers_of(message.inputs, None, behind)
    tensor = message.inputs[0]
    if tensor.datatype not in FLOATS:
        raise InvalidInput(
            f"the datatype must be one of {', '.join(FLOATS)}; got {tensor.datatype[:20]!r}."
        )
    shape = tensor.shape
    if len(shape) != 3 or shape[2] != width or min(shape) < 1:
        raise InvalidInput(
            f"the shape must be [batch, length, {width}], none of them 0; got {str(shape)[:80]}."
        )
    if shape[0] * shape[1] * shape[2] != len(numbers):
        raise InvalidInput(f"the shape {str(shape)[:80]} does not fit {len(numbers)} numbers.")
    if not np.isfinite(numbers).all():
        raise InvalidInput("every number must be finite; null, NaN and infinity are none.")
    X: Array = numbers.reshape(shape)
    return X
