"""What a person hands over, as an oracle: an oracle itself, a torch module, any other callable."""

from __future__ import annotations

import sys
from typing import Any

from keyhole.oracles.base import Oracle
from keyhole.oracles.local import Local


def oracle_of(
    found: Any, size: int | None = None, count: int | None = None, *, last: bool = False
) -> Oracle:
    """An oracle as it is; a torch module or any other callable behind the oracle that asks it.

    Args:
        found: what was handed over.
        size: width of a token, where it was told.
        count: numbers of an answer, where they were told.
        last: read a sequence that a torch module answers at its last position.

    Raises:
        InvalidInput: it is a class of modules, or its width is not known.
    """
    if isinstance(found, Oracle):
        return found
    # Nothing can be a torch module unless torch is loaded.
    torch = sys.modules.get("torch")
    if torch is None or not _is_kind(found, torch.nn.Module):
        return Local(found, size, count)
    if isinstance(found, torch.nn.MultiheadAttention):
        from keyhole.oracles.torch_parts import torch_layer

        return torch_layer(found)
    from keyhole.oracles.torch_module import TorchModule

    return TorchModule(found, size, count, last=last)


def _is_kind(found: Any, kind: type) -> bool:
    """Whether it is of that kind, or a class of it."""
    return isinstance(found, kind) or (isinstance(found, type) and issubclass(found, kind))
