"""What is inside a torch model, and one layer of it as an oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keyhole._arrays import FORMATS
from keyhole.errors import InvalidInput
from keyhole.oracles.base import Imperfection
from keyhole.oracles.inside.described import AttentionPart, Inside, Part
from keyhole.oracles.inside.naming import suggest_layers
from keyhole.oracles.inside.torch_arithmetic import watch_arithmetic
from keyhole.oracles.inside.torch_copying import copy_heads, copy_network
from keyhole.oracles.inside.torch_networks import Network, list_networks, list_norms
from keyhole.oracles.inside.torch_supplying import (
    Supplied,
    find_layer_call,
    make_trial_tokens,
)
from keyhole.oracles.inside.torch_wiring import describe_attention
from keyhole.oracles.torch_found import Attention, list_attention, listed
from keyhole.oracles.torch_module import TorchModule, torch


def make_torch_model(made: Any, where: str) -> Any:
    """The module itself, or the one that a class or a function without arguments makes.

    Raises:
        InvalidInput: it is no module, and makes none.
    """
    if not isinstance(made, torch.nn.Module) and callable(made):
        try:
            made = made()
        # Code of others raises anything.
        except Exception as error:
            raise InvalidInput(
                f"{where} is no torch module, and calling it without arguments raised"
                f" {type(error).__name__}: {error}. Name a torch.nn.Module, or a function without"
                " arguments that makes one."
            ) from error
    if not isinstance(made, torch.nn.Module):
        raise InvalidInput(
            f"{where} gives a {type(made).__name__}, not a torch.nn.Module. Name a module, or a"
            " function without arguments that makes one."
        )
    return made


def look_inside_torch(model: Any) -> Inside:
    """Attention layers, networks and norms of a torch module, in its order."""
    order = {name: place for place, (name, _) in enumerate(model.named_modules())}
    named: list[tuple[str, Part]] = [
        (layer.name, _describe_watched(model, layer)) for layer in list_attention(model)
    ]
    named += [(net.name, net.describe()) for net in list_networks(model)]
    named += list_norms(model)
    # A stable sort: what stands at one place keeps attention first.
    named.sort(key=lambda pair: order[pair[0]])
    return Inside("torch", tuple(part for _, part in named))


def _describe_watched(model: Any, layer: Attention) -> AttentionPart:
    """The description of a layer, with what of it is computed in a narrower type."""
    part = describe_attention(model, layer)
    if part.cross:
        return part
    try:
        narrow = watch_arithmetic(Supplied(model, layer), model, make_trial_tokens(layer))
    # Modules of others raise anything, and one that cannot be called by itself is described still.
    except Exception:
        return part
    return part if narrow is None else replace(part, arithmetic=narrow.words)


def ask_torch_layer(model: Any, name: str) -> TorchModule:
    """One attention layer or network of a torch model as an oracle, read at its last position.

    Raises:
        InvalidInput: there is none of that name, it is no self-attention, or it cannot be called.
    """
    part = find_torch_layer(model, name)
    if isinstance(part, Network):
        sizes = part.describe()
        return TorchModule(part.answer, sizes.width, sizes.outputs, within=part.gather_modules())
    told = describe_attention(model, part)
    if told.cross:
        raise InvalidInput(
            f"{name} is cross-attention: its keys and values come from other tokens than its"
            " queries. keyhole recovers self-attention; wrap it in a callable that fixes one side."
        )
    call = find_layer_call(model, part)
    # Other layers may be of other types; only a run of the whole model needs all of it.
    own = isinstance(call, Supplied)
    modules = [part.module, part.output] if part.beside else [part.module]
    within = torch.nn.ModuleList(modules) if own else model
    dtype = told.dtype if told.dtype in FORMATS else None
    narrow = watch_arithmetic(call, model, make_trial_tokens(part))
    left = Imperfection() if narrow is None else narrow.imperfection
    return TorchModule(call, part.width, told.outputs, dtype, within=within, inside=left)


def read_torch_weights(model: Any, name: str) -> Any:
    """The weights of one layer as a model of ours.

    Raises:
        InvalidInput: there is no such layer, or no model of ours computes it.
    """
    part = find_torch_layer(model, name)
    if isinstance(part, Network):
        return copy_network(part)
    return copy_heads(part, describe_attention(model, part))


def find_torch_layer(model: Any, name: str) -> Attention | Network:
    """The attention layer or network of that name, or the only attention layer below it.

    Raises:
        InvalidInput: there is none, or there are several; near names are told.
    """
    layers = {layer.name: layer for layer in list_attention(model)}
    networks = {net.name: net for net in list_networks(model)}
    if found := layers.get(name) or networks.get(name):
        return found
    below = [layer for key, layer in layers.items() if key.startswith(f"{name}.") or not name]
    if len(below) == 1:
        return below[0]
    if below:
        raise InvalidInput(
            f"{name or 'the model'} holds {len(below)} attention layers; --layer names one:"
            f" {listed([layer.name for layer in below])}."
        )
    raise InvalidInput(suggest_layers(name, [*layers, *networks]))
