"""Records: what a job returns, as one JSON object and as a few lines for a person."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import msgspec
import numpy as np

from keyhole import __version__
from keyhole.errors import clean_line
from keyhole.lab.runs.record_parts import Part, Seconds

FORMAT = 2  # of records; those of format 1 have neither this number nor their kind


class Envelope(Part, frozen=True, kw_only=True, tag_field="record"):
    """What every record says first; its kind stands before it as `record`.

    Args:
        record_format: the number of the format.
        version: of the package that wrote it; nothing where an old record does not say.
        seed: of every random choice.
        sentence: what came, in words.
    """

    record_format: int = FORMAT
    version: str = __version__
    seed: int | None = None
    sentence: str = ""

    @property
    def kind(self) -> str:
        """The command it is a record of."""
        return str(type(self).__struct_config__.tag)


class RunRecord(Envelope, frozen=True, kw_only=True):
    """A record of a run that may have a directory of its own.

    Args:
        run: the directory.
        seconds: how long it took.
        python: the version of Python that ran it.
        numpy: the version of numpy that ran it.
        command: the line that repeats it, where its fields do not say so.
    """

    run: str | None = None
    seconds: Seconds | None = None
    python: str = msgspec.field(default_factory=platform.python_version)
    numpy: str = np.__version__
    command: str | None = None


R_co = TypeVar("R_co", bound=Envelope, covariant=True)
S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Record(Generic[R_co]):
    """What a job returns.

    Args:
        data: the record itself.
        code: the exit code it stands for.
        lines: the same for a person, as (name, value) rows under the sentence.
    """

    data: R_co
    code: int = 0
    lines: tuple[tuple[str, str], ...] = field(default=())

    def json(self) -> bytes:
        """One line of JSON; non-finite numbers are null."""
        return encode_record(self.data)

    def text(self) -> str:
        """The sentence, then aligned rows; what would steer a terminal is spelt out."""
        width = max((len(name) for name, _ in self.lines), default=0)
        rows = [f"  {name:<{width}}  {value}" for name, value in self.lines]
        return "\n".join(map(clean_line, [self.data.sentence, *rows]))


def encode_record(record: Envelope) -> bytes:
    """A record as one line of JSON; non-finite numbers are null."""
    # One line, so that records can be appended to a file and read line by line.
    return encode_json(record)


def encode_json(value: object) -> bytes:
    """Plain data and arrays, records among them, as JSON."""
    return msgspec.json.encode(value, enc_hook=_encode_array)


def take_fields(source: object, kind: type[S]) -> S:
    """A part of a record, from the attributes of the same names."""
    return kind(**{name: getattr(source, name) for name in kind.__struct_fields__})


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return cast(Any, value.tolist())
    raise TypeError(f"{type(value).__name__} has no place in a record")
