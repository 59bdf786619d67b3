"""The distance of two models of one kind, whichever it is."""

from __future__ import annotations

from typing import Any

from keyhole.errors import InvalidInput
from keyhole.models.registry import load_model_part


def compare(a: Any, b: Any) -> Any:
    """Distance of two models modulo what answers do not determine.

    Args:
        a: heads, a network, a head and a network, an attention layer, or a Transformer block.
        b: a model of a kind that is compared with that of `a`.

    Returns:
        A Distance of heads, a NetworkDistance, a UnitDistance of smooth or gated networks, a
        OneLayerDistance, a LayerDistance or a BlockDistance, each with `largest`.

    Raises:
        InvalidInput: the kinds are not compared, or widths or outputs differ.
    """
    first, second = (load_model_part(model, "distance") for model in (a, b))
    if first is None or first is not second:
        raise InvalidInput(
            f"models of one kind are compared; got {type(a).__name__} and {type(b).__name__}."
        )
    return first(a, b)
