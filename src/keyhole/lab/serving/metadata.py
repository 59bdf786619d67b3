"""What a served model says of itself, and what of the protocol it does not do."""

from __future__ import annotations

import msgspec

from keyhole import __version__
from keyhole.errors import InvalidInput
from keyhole.oracles.http import wire

INPUT, OUTPUT, VERSION = "tokens", "answers", "1"
# Wishes of a client that change what an answer is: passed over, they would be answered wrongly.
_UNMET = {
    "classification": "classes are not counted here: answers are numbers. Leave class_count away.",
    "shared_memory_region": "memory is not shared here. Send the tensor in the request.",
}


class ServerMetadata(msgspec.Struct, frozen=True):
    """What the protocol asks of a server."""

    name: str = "keyhole"
    version: str = __version__
    extensions: tuple[str, ...] = ("binary_tensor_data",)


class TensorMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that is taken or given; -1 is any size."""

    name: str
    datatype: str = "FP64"
    shape: list[int]


class ModelMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What the protocol asks of a model."""

    name: str
    versions: tuple[str, ...] = (VERSION,)
    platform: str = "keyhole"
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


def describe_model(name: str, width: int, outputs: int | None) -> ModelMetadata:
    """The metadata of a served model."""
    taken = TensorMetadata(name=INPUT, shape=[-1, -1, width])
    given = TensorMetadata(name=OUTPUT, shape=[-1, outputs or -1])
    return ModelMetadata(name=name, inputs=[taken], outputs=[given])


def check_wishes(message: wire.Question) -> None:
    """Raise where a question wants what is not done here.

    Raises:
        InvalidInput: another output, classes in place of numbers, or memory that is shared.
    """
    if unknown := [wanted.name for wanted in message.outputs if wanted.name != OUTPUT]:
        raise InvalidInput(f"the only output is {OUTPUT!r}; {unknown[0][:80]!r} is not there.")
    for part in (*message.inputs, *message.outputs):
        for name in _UNMET.keys() & (part.parameters or {}).keys():
            raise InvalidInput(_UNMET[name])
