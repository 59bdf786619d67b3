"""Whole Transformer blocks: how far two are apart modulo what answers do not determine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Array, Matrix
from keyhole.errors import InvalidInput
from keyhole.identify.heads import relative_distance
from keyhole.identify.layers import LayerDistance, layer_distance, layer_freedom
from keyhole.identify.smooth_networks import (
    UnitDistance,
    Units,
    match_units,
    take_gated_units,
    take_smooth_units,
)
from keyhole.models import AttentionLayer, Gated, Norm, ReluNet, TransformerBlock, Wiring
from keyhole.models.relu import choose_generic_direction


def block_freedom(wiring: Wiring, width: int, *, heads: int, rank: int, hidden: int) -> int:
    """Numbers that answers of a pre-norm block of plain units determine.

    Those of its attention as a layer with biases, k(D + 1 + d) + d of its network, D what its norm
    leaves of a token; equal entries of the two constants of a LayerNorm are one number.

    Args:
        wiring: of the attention, its norm included.
        width: size of a token.
        heads: number of heads.
        rank: size of a head.
        hidden: number of units.
    """
    centred = wiring.norm == "layer"
    layer = layer_freedom(wiring, width, heads=heads, rank=rank, outputs=width, biased=True)
    return layer + hidden * (2 * width + 1 - centred) + width - centred


def gated_block_freedom(wiring: Wiring, width: int, *, heads: int, rank: int, hidden: int) -> int:
    """Numbers that answers of a pre-norm block of gated units without biases determine.

    Those of its attention as a layer, and 3d - 1 of a unit: one factor is free between what gates
    are multiplied by and outputs.

    Args:
        wiring: of the attention, its norm included.
        width: size of a token.
        heads: number of heads.
        rank: size of a head.
        hidden: number of units.
    """
    layer = layer_freedom(wiring, width, heads=heads, rank=rank, outputs=width)
    return layer + hidden * (3 * width - 1)


def post_block_freedom(width: int, *, heads: int, rank: int, hidden: int) -> int:
    """Numbers that answers of a post-norm block with LayerNorms determine.

    With D what a norm leaves of a token: r(D + d - r) of a head's values and r(2d + 1 - r) of its
    scores; D of the constant before the first norm; k(2D + 1) of units, D of their constant and d
    of the gain past them, but for one factor; 2d of the last norm.

    Args:
        width: size of a token.
        heads: number of heads.
        rank: size of a head.
        hidden: number of units.
    """
    d, D, r = width, width - 1, min(rank, width - 1)
    attention = heads * (r * (D + d - r) + rank * (2 * d + 1 - rank)) + D
    return attention + hidden * (2 * D + 1) + D + d - 1 + 2 * d


@dataclass(frozen=True, slots=True)
class BlockDistance:
    """How far two Transformer blocks are apart.

    Args:
        attention: distance of the attention with the norm before it, where one stands there.
        network: distance of the maps from what a norm leaves of a token to what it becomes: the
            network, and behind a norm also its residual.
        norms: distance of what is left of the norms: eps, and gain and shift of a last one.
    """

    attention: LayerDistance
    network: UnitDistance
    norms: float

    @property
    def largest(self) -> float:
        """The worst of the parts; infinite when numbers of heads or units differ."""
        return max(self.attention.largest, self.network.largest, self.norms)


def block_distance(a: TransformerBlock, b: TransformerBlock) -> BlockDistance:
    r"""Distance of two blocks of one build modulo what answers do not determine.

    Gain and shift of a norm are folded into the maps that follow it. Equal entries that a LayerNorm
    takes off are left out, or moved into the last constant where a residual shows them. What a last
    norm is given is determined up to a factor, whose sign its gain has too.

    Raises:
        InvalidInput: sizes, norms, wirings or activations differ.
    """
    _check_one_build(a, b)
    first, second = _move_constants(a), _move_constants(b)
    maps = [_read_token_map(block) for block in (first, second)]
    return BlockDistance(
        layer_distance(_read_front(first), _read_front(second)),
        match_units(maps[0].units, maps[1].units),
        max(relative_distance(x, y) for x, y in zip(maps[0].norms, maps[1].norms, strict=True)),
    )


@dataclass(frozen=True, eq=False, slots=True)
class _UnitMap:
    """What a token becomes behind a norm, and what is left of the norms; free of their gauge."""

    units: Units
    norms: tuple[Array, ...]


def _describe_build(block: TransformerBlock) -> tuple[object, ...]:
    net = block.network
    kinds = (block.norm1.kind, block.norm2.kind)
    return block.style, *kinds, type(net).__name__, net.activation, block.width


def _check_one_build(a: TransformerBlock, b: TransformerBlock) -> None:
    first, second = _describe_build(a), _describe_build(b)
    if first != second:
        raise InvalidInput(
            "blocks to compare must have one style, norms, network, activation and width; got"
            f" {first} and {second}."
        )


def _move_constants(block: TransformerBlock) -> TransformerBlock:
    """Equal entries of the attention's constant moved past a LayerNorm before the network."""
    if block.style == "post" or block.norm2.kind != "layer":
        return block
    layer = block.front
    none = np.zeros(layer.Wv.shape[:2])
    shift = np.zeros(layer.width) if layer.shift is None else layer.shift
    values = layer.Wv @ shift + (none if layer.bv is None else layer.bv)
    each = values[[layer.find_group(h) for h in range(layer.heads)]]
    bo = np.zeros(layer.width) if layer.bo is None else layer.bo
    equal = float((np.einsum("hor,hr->o", layer.Wo, each) + bo).mean())
    attention = replace(block.attention, bo=bo - equal)
    return replace(block, attention=attention, network=_add_constant(block.network, equal))


def _add_constant(net: ReluNet | Gated, added: float) -> ReluNet | Gated:
    return (
        replace(net, c=net.c + added) if isinstance(net, Gated) else replace(net, b2=net.b2 + added)
    )


def _read_front(block: TransformerBlock) -> AttentionLayer:
    """The attention as far as it shows; a LayerNorm behind it takes equal entries off."""
    front = block.front
    if block.style == "pre" or block.norm1.kind != "layer":
        return front
    bo = None if front.bo is None else front.bo - front.bo.mean()
    return replace(front, Wo=front.Wo - front.Wo.mean(axis=1, keepdims=True), bo=bo)


def _centre(M: Matrix, norm: Norm) -> Matrix:
    """Rows as a LayerNorm before them sees them."""
    return M - M.mean(axis=1, keepdims=True) if norm.kind == "layer" else M


def _fold_inputs(net: ReluNet | Gated, norm: Norm) -> ReluNet | Gated:
    """The network on what a norm leaves of a token before gain and shift."""
    gain, shift = norm.spell_out(net.width)
    if isinstance(net, Gated):
        moved = {"A": _centre(net.A * gain, norm), "a": net.a + net.A @ shift}
        return replace(net, B=_centre(net.B * gain, norm), b=net.b + net.B @ shift, **moved)
    return replace(net, W1=_centre(net.W1 * gain, norm), b1=net.b1 + net.W1 @ shift)


def _centre_outputs(net: ReluNet | Gated, norm: Norm) -> ReluNet | Gated:
    if norm.kind != "layer":
        return net
    if isinstance(net, Gated):
        return replace(net, C=net.C - net.C.mean(axis=0), c=net.c - net.c.mean())
    return replace(net, W2=net.W2 - net.W2.mean(axis=0), b2=net.b2 - net.b2.mean())


def _list_units(net: ReluNet | Gated) -> Units:
    if isinstance(net, Gated):
        return take_gated_units(net)
    if net.activation != "relu":
        return take_smooth_units(net)
    form = net.normal_form().canonical()
    return Units(np.column_stack([form.n, -form.t]), form.D, np.column_stack([form.P, form.q]))


def _read_token_map(block: TransformerBlock) -> _UnitMap:
    if block.style == "pre":
        units = _list_units(_fold_inputs(block.network, block.norm2))
        return _UnitMap(units, (np.array([block.norm2.eps]),))
    first, last = block.norm1, block.norm2
    units = _list_units(_centre_outputs(_fold_inputs(block.network, first), last))
    return _scale_map(_add_residual(units, first, last, block.width), block)


def _add_residual(units: Units, first: Norm, last: Norm, width: int) -> Units:
    """Units with the residual past the network, which is the norm's gain and shift."""
    gain, shift = first.spell_out(width)
    past = np.column_stack([_centre(np.diag(gain), first), shift])
    if last.kind == "layer":
        past = past - past.mean(axis=0)
    if units.affine.shape[1] == 1:
        # Gated units leave a constant alone.
        units = replace(units, affine=np.column_stack([np.zeros((width, width)), units.affine]))
    return replace(units, affine=units.affine + past)


def _scale_map(units: Units, block: TransformerBlock) -> _UnitMap:
    """A map before a last norm with an affine part of length 1, and a gain on one side."""
    d = block.width
    gain, shift = block.norm2.spell_out(d)
    length = float(np.linalg.norm(units.affine)) or 1.0
    side = -1.0 if gain @ choose_generic_direction(d) < 0 else 1.0
    outer = units.outer.copy()
    outer[:, -d:] *= side / length
    scaled = Units(units.inner, outer, units.affine * (side / length))
    # An eps beside variances of about 1.
    eps = np.array([1.0, block.norm1.eps, block.norm2.eps / length**2])
    return _UnitMap(scaled, (eps, side * gain, shift))
