"""Every kind of model: its class, its file, and where higher rooms keep what they know of it.

A place is written `package.module:name`, and is imported by the room it belongs to when that room
needs it. A new kind is one entry here. What an entry leaves out is not known of the kind, and who
asks for it is told so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from keyhole._arrays import Array
from keyhole._places import import_place
from keyhole.models.attention import Head, MultiHead, SelfAttention
from keyhole.models.baselines import CELLS, Mlp, Recurrent
from keyhole.models.blocks.block_files import describe_block, restore_block
from keyhole.models.blocks.transformer_block import TransformerBlock
from keyhole.models.last_token.gated import Gated
from keyhole.models.layers.attention_layer import AttentionLayer
from keyhole.models.layers.heads_before_network import HeadsBeforeNetwork
from keyhole.models.layers.tensor_row import TensorRow
from keyhole.models.layers.token_heads import TokenHeads
from keyhole.models.named_tensors import (
    ABSAFFINE,
    GATED,
    HEAD,
    MULTIHEAD,
    RELU,
    SMOOTH,
    TENSOR,
    TENSOR_HEADS,
    TENSOR_ROW,
    UNIT,
    describe_heads_before_network,
    describe_layer,
    describe_mlp,
    describe_one_layer,
    describe_recurrent,
    describe_tokens,
    restore_heads_before_network,
    restore_layer,
    restore_mlp,
    restore_one_layer,
    restore_recurrent,
    restore_tokens,
)
from keyhole.models.relu import AbsAffine, ReluNet
from keyhole.models.tensor import TensorAttention, TensorHeads
from keyhole.models.transformer import OneLayer

_IDENTIFY = "keyhole.identify"
_RANDOM = "keyhole.lab.targets.random_models"
_PORTRAITS = "keyhole.lab.pages.parts.portraits"
_EXPORT = "keyhole.lab.onnx.export"
_SEQUENCES = "keyhole.lab.onnx.sequences"
_LAYERS = "keyhole.lab.onnx.attention_layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKind:
    """What is known of a kind of model.

    Args:
        name: what its files call it.
        model: its class.
        describe: a model as words and tensors, for its file.
        restore: words and tensors as a model.
        called: what records call it, where that is not the name of its files.
        distance: place of (a, b) -> their distance; kinds with one place are compared.
        canonical: place of (model) -> the form that models with one function share.
        twins: place of (model, rng) -> other parameters with the same function.
        sample: place of (description, rng) -> a random model.
        sampled_as: the words that ask for one, where they are not the name.
        portrait: place of (data, model) -> pictures of a recovered model.
        export: place of (graph, last, model) -> the name of its answers in an ONNX graph.
        holds: which models of its class are of this kind, where not all are.
    """

    name: str
    model: type[Any]
    describe: Callable[[Any], tuple[dict[str, str], dict[str, Array]]]
    restore: Callable[[Mapping[str, str], Mapping[str, Array]], Any]
    called: str | None = None
    distance: str | None = None
    canonical: str | None = None
    twins: str | None = None
    sample: str | None = None
    sampled_as: tuple[str, ...] | None = None
    portrait: str | None = None
    export: str | None = None
    holds: Callable[[Any], bool] = lambda model: True

    def matches(self, model: object) -> bool:
        """Whether a model is of this kind."""
        return isinstance(model, self.model) and self.holds(model)

    def load(self, part: str) -> Any:
        """What stands at the place of a part; None where the kind has none."""
        place = getattr(self, part)
        return None if place is None else import_place(place)


_KINDS = (
    ModelKind(
        name="head",
        model=Head,
        describe=HEAD.describe,
        restore=HEAD.restore,
        distance=f"{_IDENTIFY}.heads:distance",
        canonical=f"{_IDENTIFY}.heads:canonical_heads",
        twins=f"{_IDENTIFY}.twins:twin_heads",
        sample=f"{_RANDOM}:draw_head",
        export=f"{_EXPORT}:add_head",
    ),
    ModelKind(
        name="multihead",
        model=MultiHead,
        describe=MULTIHEAD.describe,
        restore=MULTIHEAD.restore,
        distance=f"{_IDENTIFY}.heads:distance",
        canonical=f"{_IDENTIFY}.heads:canonical_heads",
        twins=f"{_IDENTIFY}.twins:twin_heads",
        sample=f"{_RANDOM}:draw_heads",
        portrait=f"{_PORTRAITS}:draw_heads_portrait",
        export=f"{_EXPORT}:add_heads",
    ),
    ModelKind(name="unit", model=SelfAttention, describe=UNIT.describe, restore=UNIT.restore),
    ModelKind(
        name="tensor",
        model=TensorAttention,
        describe=TENSOR.describe,
        restore=TENSOR.restore,
        distance=f"{_IDENTIFY}.tensor_units:tensor_distance",
        sample=f"{_RANDOM}:draw_tensor",
        export=f"{_SEQUENCES}:add_tensor_attention",
    ),
    ModelKind(
        name="tensor-row",
        model=TensorRow,
        describe=TENSOR_ROW.describe,
        restore=TENSOR_ROW.restore,
        called="tensor",
        distance=f"{_IDENTIFY}.tensor_units:tensor_distance",
        portrait="keyhole.lab.pages.parts.tensor_portraits:draw_tensor_portrait",
        export=f"{_SEQUENCES}:add_tensor_row",
    ),
    ModelKind(
        name="tensor-heads",
        model=TensorHeads,
        describe=TENSOR_HEADS.describe,
        restore=TENSOR_HEADS.restore,
        export=f"{_SEQUENCES}:add_tensor_heads",
    ),
    ModelKind(
        name="relu",
        model=ReluNet,
        describe=RELU.describe,
        restore=RELU.restore,
        distance=f"{_IDENTIFY}.networks:network_distance",
        sample=f"{_RANDOM}:draw_network",
        portrait=f"{_PORTRAITS}:draw_network_portrait",
        export=f"{_EXPORT}:add_network",
        holds=lambda net: net.activation == "relu",
    ),
    ModelKind(
        name="smooth",
        model=ReluNet,
        describe=SMOOTH.describe,
        restore=SMOOTH.restore,
        distance=f"{_IDENTIFY}.smooth_networks:smooth_distance",
        sample=f"{_RANDOM}:draw_smooth_network",
        portrait=f"{_PORTRAITS}:draw_network_portrait",
        export=f"{_EXPORT}:add_network",
        holds=lambda net: net.activation != "relu",
    ),
    ModelKind(
        name="gated",
        model=Gated,
        describe=GATED.describe,
        restore=GATED.restore,
        distance=f"{_IDENTIFY}.smooth_networks:gated_distance",
        sample=f"{_RANDOM}:draw_gated_network",
        portrait=f"{_PORTRAITS}:draw_network_portrait",
        export=f"{_EXPORT}:add_gated_network",
    ),
    ModelKind(
        name="absaffine",
        model=AbsAffine,
        describe=ABSAFFINE.describe,
        restore=ABSAFFINE.restore,
        called="relu",
        distance=f"{_IDENTIFY}.networks:network_distance",
        portrait=f"{_PORTRAITS}:draw_network_portrait",
        export=f"{_EXPORT}:add_normal_form",
    ),
    ModelKind(
        name="onelayer",
        model=OneLayer,
        describe=describe_one_layer,
        restore=restore_one_layer,
        distance=f"{_IDENTIFY}.networks:one_layer_distance",
        sample=f"{_RANDOM}:draw_one_layer",
        portrait=f"{_PORTRAITS}:draw_one_layer_portrait",
        export=f"{_EXPORT}:add_one_layer",
    ),
    ModelKind(
        name="headsnet",
        model=HeadsBeforeNetwork,
        describe=describe_heads_before_network,
        restore=restore_heads_before_network,
        called="onelayer",
    ),
    ModelKind(
        name="layer",
        model=AttentionLayer,
        describe=describe_layer,
        restore=restore_layer,
        distance=f"{_IDENTIFY}.layers:layer_distance",
        canonical=f"{_IDENTIFY}.canonical_layers:canonical_layer",
        twins=f"{_IDENTIFY}.layer_twins:twin_layer",
        sample=f"{_RANDOM}:draw_layer",
        portrait="keyhole.lab.pages.parts.layer_portraits:draw_layer_portrait",
        export=f"{_LAYERS}:add_attention_layer",
    ),
    ModelKind(
        name="block",
        model=TransformerBlock,
        describe=describe_block,
        restore=restore_block,
        distance=f"{_IDENTIFY}.blocks:block_distance",
        sample=f"{_RANDOM}:draw_block",
        portrait="keyhole.lab.pages.parts.block_portraits:draw_block_portrait",
        export="keyhole.lab.onnx.blocks:add_block",
    ),
    ModelKind(
        name="tokens",
        model=TokenHeads,
        describe=describe_tokens,
        restore=restore_tokens,
        export=f"{_SEQUENCES}:add_token_heads",
    ),
    ModelKind(
        name="mlp",
        model=Mlp,
        describe=describe_mlp,
        restore=restore_mlp,
        sample=f"{_RANDOM}:draw_mlp",
        export=f"{_SEQUENCES}:add_mlp",
    ),
    ModelKind(
        name="rnn",
        model=Recurrent,
        describe=describe_recurrent,
        restore=restore_recurrent,
        sample=f"{_RANDOM}:draw_recurrent",
        sampled_as=tuple(CELLS),
        export=f"{_SEQUENCES}:add_recurrent",
    ),
)
KINDS: dict[str, ModelKind] = {kind.name: kind for kind in _KINDS}


def find_model_kind(model: object) -> ModelKind | None:
    """The kind of a model; None where it is none of these."""
    return next((kind for kind in KINDS.values() if kind.matches(model)), None)


def load_model_part(model: object, part: str) -> Any:
    """A part of the kind of a model; None where it has none."""
    kind = find_model_kind(model)
    return None if kind is None else kind.load(part)


def name_kind(model: object) -> str | None:
    """What records call the kind of a model; None where it is none of these."""
    kind = find_model_kind(model)
    return None if kind is None else kind.called or kind.name


def list_kinds_with(part: str) -> list[str]:
    """The names of all kinds that have a part."""
    return [name for name, kind in KINDS.items() if getattr(kind, part) is not None]
