"""Models as safetensors files of a kind and a format, checked on the way in, never pickled."""

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
from keyhole.models.baseline_files import describe_baseline, restore_baseline
from keyhole.models.baselines import Mlp, Recurrent
from keyhole.models.relu import AbsAffine, ReluNet
from keyhole.models.tensor import TensorAttention
from keyhole.models.transformer import OneLayer

# Raised when older readers would misread a file.
FORMAT = "1"
Saved = (
    Head
    | MultiHead
    | SelfAttention
    | TensorAttention
    | ReluNet
    | AbsAffine
    | OneLayer
    | Mlp
    | Recurrent
)


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one kind of model is written as named tensors and read back."""

    type: type[Saved]
    required: frozenset[str]
    optional: frozenset[str]
    write: Callable[[Any], dict[str, Array | None]]
    read: Callable[[Mapping[str, Any]], Saved]
    settings: tuple[str, ...] = ()  # words kept in the metadata


def _pick_fields(*names: str) -> Callable[[Any], dict[str, Array | None]]:
    return lambda model: {name: getattr(model, name) for name in names}


def _write_head(head: Head) -> dict[str, Array | None]:
    W = {"A": head.W.A, "B": head.W.B} if isinstance(head.W, Factored) else {"W": head.W}
    return {**W, **_pick_fields("V", "h", "c", "U")(head)}


def _read_head(tensors: Mapping[str, Array]) -> Head:
    if "W" in tensors:
        return Head(**tensors)
    rest = {name: array for name, array in tensors.items() if name not in ("A", "B")}
    return Head(W=Factored(tensors["A"], tensors["B"]), **rest)


def _write_tensor(unit: TensorAttention) -> dict[str, Array | None]:
    keys, values = (
        {f"{letter}{t}": a for t, a in enumerate(arrays, 1)}
        for letter, arrays in (("K", unit.K), ("V", unit.V))
    )
    return {"Q": unit.Q, **keys, **values}


def _read_tensor(tensors: Mapping[str, Array]) -> TensorAttention:
    count = len(tensors) // 2
    if missing := {f"{letter}{t}" for letter in "KV" for t in range(1, count + 1)} - set(tensors):
        raise InvalidInput(
            f"a tensor file numbers its K and V from 1 without a gap; missing {sorted(missing)}."
        )
    K, V = ([tensors[f"{letter}{t}"] for t in range(1, count + 1)] for letter in "KV")
    return TensorAttention(tensors["Q"], tuple(K), tuple(V))


_KINDS = {
    "head": _Kind(Head, frozenset("WV"), frozenset("hcU"), _write_head, _read_head),
    "multihead": _Kind(
        MultiHead,
        frozenset("WV"),
        frozenset("hc"),
        _pick_fields("W", "V", "h", "c"),
        lambda t: MultiHead(**t),
    ),
    "unit": _Kind(
        SelfAttention,
        frozenset("QKV"),
        frozenset(),
        _pick_fields("Q", "K", "V"),
        lambda t: SelfAttention(**t),
    ),
    "tensor": _Kind(
        TensorAttention,
        frozenset({"Q", "K1", "V1"}),
        frozenset(f"{letter}{t}" for letter in "KV" for t in range(2, 10)),
        _write_tensor,
        _read_tensor,
    ),
    "relu": _Kind(
        ReluNet,
        frozenset({"W1", "b1", "W2", "b2"}),
        frozenset(),
        _pick_fields("W1", "b1", "W2", "b2"),
        lambda t: ReluNet(**t),
        ("activation",),
    ),
    "absaffine": _Kind(
        AbsAffine,
        frozenset("ntDPq"),
        frozenset(),
        _pick_fields("n", "t", "D", "P", "q"),
        lambda t: AbsAffine(**t),
    ),
}
_NAMES = (*_KINDS, "onelayer", "mlp", "rnn")


def save(
    model: Saved, path: str | os.PathLike[str], *, bars: Mapping[str, Array] | None = None
) -> None:
    """Write `model` to `path` as safetensors; the file is complete or not there.

    Args:
        model: a head, a sum of heads, a unit of self-attention or of higher order, a network with
            one hidden layer, a head and a network, or a baseline.
        path: where to write.
        bars: error bars by tensor name, stored as NAME.bar.
    """
    metadata, tensors = _describe_model(model)
    write_tensors(
        Path(path), metadata, tensors | {f"{name}.bar": bar for name, bar in (bars or {}).items()}
    )


def write_tensors(path: Path, metadata: Mapping[str, str], tensors: Mapping[str, Array]) -> None:
    """Write metadata and arrays as safetensors; the file is complete or not there."""
    from safetensors.numpy import save as encode

    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    write_atomically(path, _sort_header(encode(contiguous, {**metadata, "format": FORMAT})))


def _describe_model(model: Saved) -> tuple[dict[str, str], dict[str, Array]]:
    """Metadata and tensors of a model; a one-layer Transformer's are named head.* and net.*."""
    if isinstance(model, Mlp | Recurrent):
        return describe_baseline(model)
    if isinstance(model, OneLayer):
        _, head = _describe_model(model.head)
        about, net = _describe_model(model.net)
        tensors = {f"head.{name}": a for name, a in head.items()}
        tensors |= {f"net.{name}": a for name, a in net.items()}
        residual = {"kind": "onelayer", "residual": "true" if model.residual else "false"}
        return about | residual | {"net_kind": about["kind"]}, tensors
    kind = next((name for name, kind in _KINDS.items() if isinstance(model, kind.type)), None)
    if kind is None:
        raise InvalidInput(
            f"only {', '.join(_NAMES)} models can be saved; got {type(model).__name__}."
        )
    metadata = {"kind": kind} | {name: getattr(model, name) for name in _KINDS[kind].settings}
    return metadata, {name: a for name, a in _KINDS[kind].write(model).items() if a is not None}


def _sort_header(content: bytes) -> bytes:
    """The same file with its header in sorted order, so that equal models are equal files."""
    size = int.from_bytes(content[:8], "little")
    parts = json.loads(content[8 : 8 + size])
    header = json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()
    return content[:8] + header.ljust(size) + content[8 + size :]


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, never sees half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InvalidInput(
            f"cannot write {path}: {error.strerror}. Choose another place."
        ) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            # Renaming is atomic, but only bytes on disk survive a power cut.
            os.fsync(file.fileno())
        # Temporary files are private; what replaces the target should be readable as any file.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise InvalidInput(
            f"cannot write {path}: {error.strerror}. Choose another place."
        ) from error
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str]) -> Any:
    """Read a model file back, checked; the kind in it says which model it is.

    Raises:
        InvalidInput: the file is missing, is not safetensors, or is not one of ours.
    """
    metadata, tensors = read_tensors(Path(path))
    if metadata.get("kind") not in _NAMES or metadata.get("format") != FORMAT:
        raise InvalidInput(
            f"{path} must name a kind ({', '.join(_NAMES)}) and format {FORMAT} in its metadata; "
            f"got {str(metadata)[:200]}."
        )
    # Error bars lie beside the weights, and are no part of the model.
    weights = {name: array for name, array in tensors.items() if not name.endswith(".bar")}
    try:
        if metadata["kind"] in ("mlp", "rnn"):
            return restore_baseline(metadata, weights)
        if metadata["kind"] == "onelayer":
            return _restore_one_layer(metadata, weights)
        return _restore_model(metadata, weights)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error


def _restore_model(metadata: Mapping[str, str], weights: Mapping[str, Array]) -> Any:
    """A model of the kind the metadata name."""
    kind = _KINDS[metadata["kind"]]
    _check_names(metadata["kind"], kind, set(weights))
    return kind.read(
        {**weights, **{name: metadata[name] for name in kind.settings if name in metadata}}
    )


def _restore_one_layer(metadata: Mapping[str, str], weights: Mapping[str, Array]) -> OneLayer:
    """A one-layer Transformer from the parts head.* and net.*."""
    kind = metadata.get("net_kind")
    residual = metadata.get("residual")
    if kind not in ("relu", "absaffine") or residual not in ("true", "false"):
        raise InvalidInput(
            "a onelayer file says net_kind (relu or absaffine) and residual (true or false) in its"
            f" metadata; got {kind!r} and {residual!r}."
        )
    parts = {part: _take_part(weights, part) for part in ("head", "net")}
    known = {f"{part}.{name}" for part, named in parts.items() for name in named}
    if extra := set(weights) - known:
        raise InvalidInput(f"a onelayer file holds head.* and net.*; unknown {sorted(extra)}.")
    net = _restore_model({**metadata, "kind": kind}, parts["net"])
    return OneLayer(_restore_model({"kind": "head"}, parts["head"]), net, residual == "true")


def _take_part(weights: Mapping[str, Array], part: str) -> dict[str, Array]:
    return {
        name.removeprefix(f"{part}."): a
        for name, a in weights.items()
        if name.startswith(f"{part}.")
    }


def load_bars(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Error bars stored beside the weights, by tensor name."""
    _, tensors = read_tensors(Path(path))
    return {
        name.removesuffix(".bar"): bar for name, bar in tensors.items() if name.endswith(".bar")
    }


def _check_names(name: str, kind: _Kind, got: set[str]) -> None:
    # A head of low rank is stored as its factors.
    factored = kind.type is Head and "A" in got
    needed = (kind.required - {"W"}) | {"A", "B"} if factored else kind.required
    missing = needed - got
    extra = got - needed - kind.optional
    if missing or extra:
        raise InvalidInput(
            f"a {name} file holds {sorted(needed)} and may hold {sorted(kind.optional)}; "
            f"missing {sorted(missing)}, unknown {sorted(extra)}."
        )


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
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise InvalidInput(
            f"no model file at {path}. Check the path, or make one with `keyhole sample`."
        )
    try:
        with cast(Any, safe_open(str(path), framework="np")) as file:
            metadata: dict[str, str] = dict(file.metadata() or {})
            names: list[str] = list(file.keys()) if arrays else []
            tensors = {name: np.asarray(file.get_tensor(name), dtype=np.float64) for name in names}
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise InvalidInput(f"{path} is not a readable safetensors file ({error}).") from error
    return metadata, tensors
