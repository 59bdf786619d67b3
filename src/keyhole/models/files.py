"""Models as safetensors files of a kind and a format, checked on the way in, never pickled."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from keyhole._arrays import Array
from keyhole._files import find_file, refuse_damage, write_atomically
from keyhole.errors import InvalidInput
from keyhole.models.registry import KINDS, find_model_kind

# Raised when older readers would misread a file.
FORMAT = "1"


def save(
    model: Any, path: str | os.PathLike[str], *, bars: Mapping[str, Array] | None = None
) -> None:
    """Write `model` to `path` as safetensors; the file is complete or not there.

    Args:
        model: a head, a sum of heads, a unit of self-attention or of higher order, a network with
            one hidden layer, a head and a network, or a baseline.
        path: where to write.
        bars: error bars by tensor name, stored as NAME.bar.

    Raises:
        InvalidInput: the model is of no kind that can be saved, or the place cannot be written to.
    """
    kind = find_model_kind(model)
    if kind is None:
        raise InvalidInput(
            f"only {', '.join(KINDS)} models can be saved; got {type(model).__name__}."
        )
    words, tensors = kind.describe(model)
    beside = {f"{name}.bar": bar for name, bar in (bars or {}).items()}
    write_tensors(Path(path), {**words, "kind": kind.name}, {**tensors, **beside})


def write_tensors(path: Path, metadata: Mapping[str, str], tensors: Mapping[str, Array]) -> None:
    """Write metadata and arrays as safetensors; the file is complete or not there."""
    from safetensors.numpy import save as encode

    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    write_atomically(path, _sort_header(encode(contiguous, {**metadata, "format": FORMAT})))


def _sort_header(content: bytes) -> bytes:
    """The same file with its header in sorted order, so that equal models are equal files."""
    size = int.from_bytes(content[:8], "little")
    parts = json.loads(content[8 : 8 + size])
    header = json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()
    return content[:8] + header.ljust(size) + content[8 + size :]


def load(path: str | os.PathLike[str]) -> Any:
    """Read a model file back, checked; the kind in it says which model it is.

    Raises:
        InvalidInput: the file is missing, is not safetensors, or is not one of ours.
    """
    metadata, tensors = read_tensors(Path(path))
    kind = KINDS.get(metadata.get("kind", ""))
    if kind is None or metadata.get("format") != FORMAT:
        raise InvalidInput(
            f"{path} must name a kind ({', '.join(KINDS)}) and format {FORMAT} in its metadata; "
            f"got {str(metadata)[:200]}."
        )
    # Error bars lie beside the weights, and are no part of the model.
    weights = {name: array for name, array in tensors.items() if not name.endswith(".bar")}
    with refuse_damage(path, f"{kind.name} file"):
        return kind.restore(metadata, weights)


def load_bars(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Error bars stored beside the weights, by tensor name."""
    _, tensors = read_tensors(Path(path))
    return {
        name.removesuffix(".bar"): bar for name, bar in tensors.items() if name.endswith(".bar")
    }


def read_metadata(path: Path) -> dict[str, str]:
    """What a safetensors file says of itself; its arrays are not read.

    Raises:
        InvalidInput: the file is missing or not readable.
    """
    return _read_file(path, arrays=False)[0]


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Array]]:
    """Metadata and arrays of a safetensors file.

    Raises:
        InvalidInput: the file is missing or not readable.
    """
    return _read_file(path, arrays=True)


def _read_file(path: Path, *, arrays: bool) -> tuple[dict[str, str], dict[str, Array]]:
    from safetensors import safe_open

    find_file(path, f"no model file at {path}. Check the path, or make one with `keyhole sample`.")
    with refuse_damage(path, "safetensors file"):
        with cast(Any, safe_open(str(path), framework="np")) as file:
            metadata: dict[str, str] = dict(file.metadata() or {})
            names: list[str] = list(file.keys()) if arrays else []
            tensors = {name: np.asarray(file.get_tensor(name), dtype=np.float64) for name in names}
        return metadata, tensors
