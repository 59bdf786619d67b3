"""Models as safetensors files: metadata `kind` and `format`, checked on the way in, never pickled."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from keyhole._arrays import Array
from keyhole.errors import InvalidInput
from keyhole.models.attention import Factored, Head, MultiHead, SelfAttention
from keyhole.models.relu import AbsAffine, ReluNet

FORMAT = "1"
Saved = Head | MultiHead | SelfAttention | ReluNet | AbsAffine


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one kind of model is written as named tensors and read back."""

    type: type[Saved]
    required: frozenset[str]
    optional: frozenset[str]
    write: Callable[[Any], dict[str, Array | None]]
    read: Callable[[Mapping[str, Any]], Saved]
    settings: tuple[str, ...] = ()  # words kept in the metadata


def _fields(*names: str) -> Callable[[Any], dict[str, Array | None]]:
    return lambda model: {name: getattr(model, name) for name in names}


def _write_head(head: Head) -> dict[str, Array | None]:
    W = {"A": head.W.A, "B": head.W.B} if isinstance(head.W, Factored) else {"W": head.W}
    return {**W, **_fields("V", "h", "c", "U")(head)}


def _read_head(tensors: Mapping[str, Array]) -> Head:
    if "W" in tensors:
        return Head(**tensors)
    rest = {name: array for name, array in tensors.items() if name not in ("A", "B")}
    return Head(W=Factored(tensors["A"], tensors["B"]), **rest)


_KINDS = {
    "head": _Kind(Head, frozenset("WV"), frozenset("hcU"), _write_head, _read_head),
    "multihead": _Kind(
        MultiHead, frozenset("WV"), frozenset("hc"), _fields("W", "V", "h", "c"), lambda t: MultiHead(**t)
    ),
    "unit": _Kind(SelfAttention, frozenset("QKV"), frozenset(), _fields("Q", "K", "V"), lambda t: SelfAttention(**t)),
    "relu": _Kind(
        ReluNet,
        frozenset({"W1", "b1", "W2", "b2"}),
        frozenset(),
        _fields("W1", "b1", "W2", "b2"),
        lambda t: ReluNet(**t),
        ("activation",),
    ),
    "absaffine": _Kind(
        AbsAffine, frozenset("ntDPq"), frozenset(), _fields("n", "t", "D", "P", "q"), lambda t: AbsAffine(**t)
    ),
}


def save(model: Saved, path: str | os.PathLike[str], *, bars: Mapping[str, Array] | None = None) -> None:
    """Write `model` to `path` as safetensors; the file is complete or not there.

    Args:
        model: a head, a sum of heads, a self-attention unit, or a network with one hidden layer.
        path: where to write.
        bars: error bars by tensor name, stored as NAME.bar.
    """
    from safetensors.numpy import save as encode

    kind = next((name for name, kind in _KINDS.items() if isinstance(model, kind.type)), None)
    if kind is None:
        raise InvalidInput(f"only {', '.join(_KINDS)} models can be saved; got {type(model).__name__}.")
    tensors = {name: a for name, a in _KINDS[kind].write(model).items() if a is not None}
    tensors |= {f"{name}.bar": bar for name, bar in (bars or {}).items()}
    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    metadata = {"kind": kind, "format": FORMAT} | {name: getattr(model, name) for name in _KINDS[kind].settings}
    write_atomically(Path(path), _sorted(encode(contiguous, metadata)))


def _sorted(content: bytes) -> bytes:
    """The same file with its header in sorted order, so that equal models are equal files."""
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + size]), sort_keys=True, separators=(",", ":")).encode()
    return content[:8] + header.ljust(size) + content[8 + size :]


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, never sees half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}. Choose another place.") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise InvalidInput(f"cannot write {path}: {error.strerror}. Choose another place.") from error
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str]) -> Any:
    """Read a model file back, checking its metadata, names and shapes; the kind in the file says which model it is.

    Raises:
        InvalidInput: the file is missing, is not safetensors, or is not one of ours.
    """
    metadata, tensors = _tensors(Path(path))
    kind = _KINDS.get(metadata.get("kind", ""))
    if kind is None or metadata.get("format") != FORMAT:
        raise InvalidInput(
            f"{path} must name a kind ({', '.join(_KINDS)}) and format {FORMAT} in its metadata; got {metadata}."
        )
    weights = {name: array for name, array in tensors.items() if not name.endswith(".bar")}
    _check_names(path, metadata["kind"], kind, set(weights))
    try:
        return kind.read(weights | {name: metadata[name] for name in kind.settings if name in metadata})
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error


def load_bars(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Error bars stored beside the weights, by tensor name."""
    _, tensors = _tensors(Path(path))
    return {name.removesuffix(".bar"): bar for name, bar in tensors.items() if name.endswith(".bar")}


def _check_names(path: Any, name: str, kind: _Kind, got: set[str]) -> None:
    factored = kind.type is Head and "A" in got
    needed = (kind.required - {"W"}) | {"A", "B"} if factored else kind.required
    missing, extra = needed - got, got - needed - kind.optional
    if missing or extra:
        raise InvalidInput(
            f"{path}: a {name} file holds {sorted(needed)} and may hold {sorted(kind.optional)}; "
            f"missing {sorted(missing)}, unknown {sorted(extra)}."
        )


def _tensors(path: Path) -> tuple[dict[str, str], dict[str, Array]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise InvalidInput(f"no model file at {path}. Check the path, or make one with `keyhole sample`.")
    try:
        with cast(Any, safe_open(str(path), framework="np")) as file:
            metadata: dict[str, str] = dict(file.metadata() or {})
            names: list[str] = list(file.keys())
            tensors = {name: np.asarray(file.get_tensor(name), dtype=np.float64) for name in names}
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise InvalidInput(f"{path} is not a readable safetensors file ({error}).") from error
    return metadata, tensors
