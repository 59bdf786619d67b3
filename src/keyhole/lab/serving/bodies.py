"""Bodies of requests as they were before they were packed."""

from __future__ import annotations

import zlib

# How zlib is told what wraps the packed bytes.
_WRAPPED = {"gzip": 31, "deflate": 15}


class Unpackable(Exception):
    """A body that is not unpacked, with the status it is refused with."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def unpack_body(body: bytes, encoding: str, most: int) -> bytes:
    """The bytes of a body, `most` of them at most: a small body may unpack to gigabytes.

    Raises:
        Unpackable: it is packed in another way, is damaged, or is too large.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in _WRAPPED:
        raise Unpackable(
            415, f"bodies are plain, {' or '.join(_WRAPPED)} here; got {encoding[:40]!r}."
        )
    packed = zlib.decompressobj(_WRAPPED[name])
    try:
        unpacked = packed.decompress(body, most + 1)
    except zlib.error as error:
        raise Unpackable(400, f"the body is not {name}: {error}.") from error
    if len(unpacked) > most:
        raise Unpackable(413, f"a request has at most {most:,} bytes here, once it is unpacked.")
    if not packed.eof or packed.unused_data:
        raise Unpackable(400, f"the body is not {name}: it breaks off, or more follows.")
    return unpacked
