"""Baselines as named tensors and metadata, for their files, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping

from keyhole._arrays import Array
from keyhole.errors import InvalidInput
from keyhole.models.baselines import Cell, Mlp, Recurrent

_CELL = ("Wx", "Wh", "bx", "bh")


def describe_baseline(model: Mlp | Recurrent) -> tuple[dict[str, str], dict[str, Array]]:
    """Metadata and tensors of a baseline, for its file."""
    codes = {} if model.codes is None else {"codes": model.codes}
    about = {"z": json.dumps(list(model.z))}
    if isinstance(model, Mlp):
        layers = {"W": model.W, "b": model.b}
        named = {f"{name}{k}": a for name, parts in layers.items() for k, a in enumerate(parts)}
        tensors = {f"mlp.{name}": part for name, part in (named | codes).items()}
        return about | {"kind": "mlp", "length": str(model.length), "activation": "relu"}, tensors
    named = {
        f"{k}.{name}": getattr(cell, name) for k, cell in enumerate(model.cells) for name in _CELL
    }
    named |= codes | {"Wo": model.Wo, "bo": model.bo}
    tensors = {f"rnn.{name}": part for name, part in named.items()}
    rounding = {"state_bits": str(model.state_bits), "state_range": repr(float(model.state_range))}
    # Files of one pass are the same bytes as before passes existed.
    about |= {"passes": str(model.passes)} if model.passes > 1 else {}
    return about | rounding | {"kind": "rnn", "cell": model.cell}, tensors


def restore_baseline(metadata: Mapping[str, str], tensors: Mapping[str, Array]) -> Mlp | Recurrent:
    """A baseline from its file.

    Raises:
        InvalidInput: something is missing, or makes no sense.
    """
    kind = metadata["kind"]
    parts = {name.removeprefix(f"{kind}."): part for name, part in tensors.items()}
    try:
        z = tuple(int(k) for k in json.loads(metadata["z"]))
        codes = parts.pop("codes", None)
        if kind == "mlp":
            layers = len(parts) // 2
            W, b = (tuple(parts[f"{name}{k}"] for k in range(layers)) for name in ("W", "b"))
            return Mlp(W, b, int(metadata["length"]), z, codes)
        layers = (len(parts) - 2) // len(_CELL)
        cells = tuple(Cell(*(parts[f"{k}.{name}"] for name in _CELL)) for k in range(layers))
        rounding = int(metadata["state_bits"]), float(metadata["state_range"])
        passes = int(metadata.get("passes", "1"))
        return Recurrent(
            metadata["cell"], cells, parts["Wo"], parts["bo"], z, codes, *rounding, passes
        )
    except (KeyError, ValueError, TypeError) as error:
        raise InvalidInput(
            f"a {kind} file lacks something, or holds what makes no sense: {error}."
        ) from error
