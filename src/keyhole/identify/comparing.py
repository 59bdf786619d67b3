"""Distance, canonical form and twins of a model, whichever its kind is."""

from __future__ import annotations

from typing import Any, overload

from keyhole._arrays import Rng
from keyhole.errors import InvalidInput
from keyhole.identify.twins import Twin
from keyhole.models import AttentionLayer, Head, MultiHead
from keyhole.models.registry import list_kinds_with, load_model_part


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


@overload
def canonical(model: Head | MultiHead) -> MultiHead: ...


@overload
def canonical(model: AttentionLayer) -> AttentionLayer: ...


def canonical(model: Any) -> Any:
    """The form that models of one kind with one function share.

    Args:
        model: heads, or an attention layer; of networks `normal_form().canonical()` is theirs.

    Raises:
        InvalidInput: none is known for the kind.
    """
    return _load_known_part(model, "canonical", "a canonical form is")(model)


def twins(model: Any, *, rng: Rng) -> tuple[Twin, ...]:
    """Distinct parameters with one function, for each symmetry of `model`; BSHK26/7.1.

    Args:
        model: heads, or an attention layer.
        rng: draws what is free.

    Raises:
        InvalidInput: none are known for the kind.
    """
    return _load_known_part(model, "twins", "twins are")(model, rng=rng)


def _load_known_part(model: Any, part: str, called: str) -> Any:
    found = load_model_part(model, part)
    if found is None:
        raise InvalidInput(
            f"{called} known for a {', a '.join(list_kinds_with(part))}; got a"
            f" {type(model).__name__}."
        )
    return found
