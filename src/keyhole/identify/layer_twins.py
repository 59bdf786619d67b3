"""Twins of attention layers as they are built, with the proof."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from keyhole._arrays import Array, Matrix, Rng, as_generator, rms
from keyhole.identify.heads import relative_distance
from keyhole.identify.twins import Symmetry, Twin, certify_twin, measure_twin_gap
from keyhole.models import AttentionLayer
from keyhole.models.layers.layer_maps import OPTIONAL
from keyhole.models.layers.turning import count_turned

_LONGEST = 16  # tokens of sequences that twins are asked
Candidate = tuple[AttentionLayer, Symmetry, str]


def twin_layer(model: AttentionLayer, *, rng: Rng) -> tuple[Twin, ...]:
    """Distinct parameters with one function, one for each symmetry; keyhole/layer-symmetries.

    `canonical` is the same for all of them but in the last digits.
    """
    rng = as_generator(rng)
    longest = min(model.longest or _LONGEST, _LONGEST)
    found: list[Twin] = []
    for twin, symmetry, changed in _list_candidates(model, rng):
        gap = measure_twin_gap(model, twin, rng, longest)
        apart = _measure_parameter_distance(model, twin)
        certificate = certify_twin("keyhole/layer-symmetries", apart, gap)
        found.append(Twin(twin, symmetry, changed, certificate))
    return tuple(found)


def _list_candidates(layer: AttentionLayer, rng: np.random.Generator) -> Iterator[Candidate]:
    if layer.groups > 1:
        moved = "head" if layer.groups == layer.heads else "group of heads"
        told = f"Every {moved} moved one place, the last to the front."
        yield _reorder_groups(layer), Symmetry.ORDER, told
    yield _change_values(layer, rng), Symmetry.VALUES, "Wv became C Wv and Wo became Wo C^-1."
    if not layer.wiring.qk_norm:
        yield from _change_scores(layer, rng)
        yield from _add_equal_scores(layer, rng)
    yield from _change_norm(layer, rng)
    yield from _move_places(layer, rng)


def _reorder_groups(layer: AttentionLayer) -> AttentionLayer:
    moved = np.roll(np.arange(layer.groups), 1)
    by_head = np.arange(layer.heads).reshape(layer.groups, -1)[moved].ravel()
    shared = {name: getattr(layer, name) for name in ("Wk", "Wv", "bk", "bv")}
    own = {name: getattr(layer, name) for name in ("Wq", "Wo", "bq", "table", "sinks")}
    parts = {name: part[moved] for name, part in shared.items() if part is not None}
    parts |= {name: part[by_head] for name, part in own.items() if part is not None}
    return replace(layer, **parts)


def _draw_gauge(size: int, count: int, rng: np.random.Generator) -> Array:
    """Orthogonal, so well conditioned, and times 2, so that no change of basis undoes it."""
    return np.linalg.qr(rng.normal(size=(count, size, size)))[0] * 2.0


def _change_values(layer: AttentionLayer, rng: np.random.Generator) -> AttentionLayer:
    C = _draw_gauge(layer.Wv.shape[1], layer.groups, rng)
    back = np.repeat(np.linalg.inv(C), layer.heads // layer.groups, axis=0)
    return replace(layer, Wv=C @ layer.Wv, bv=_map_bias(C, layer.bv), Wo=layer.Wo @ back)


def _map_bias(C: Array, b: Matrix | None) -> Matrix | None:
    return None if b is None else (C @ b[..., None])[..., 0]


def _change_scores(layer: AttentionLayer, rng: np.random.Generator) -> Iterator[Candidate]:
    """Queries and keys of what is not turned, and of turned pairs."""
    turned = 0
    if layer.wiring.positions == "rope":
        turned = count_turned(layer.rank, layer.wiring.rotary_share or 1.0)
        G = np.array([_draw_turns(layer.rank, turned // 2, rng) for _ in range(layer.groups)])
        told = "Keys of every turned pair were multiplied by a complex c, queries by 1/conj(c)."
        yield _apply_gauge(layer, G), Symmetry.PAIRS, told
    if turned < layer.rank:
        G = np.tile(np.eye(layer.rank), (layer.groups, 1, 1))
        G[:, turned:, turned:] = _draw_gauge(layer.rank - turned, layer.groups, rng)
        yield _apply_gauge(layer, G), Symmetry.SCORES, "Wk became G Wk and Wq became G^-T Wq."


def _draw_turns(rank: int, pairs: int, rng: np.random.Generator) -> Matrix:
    """The real matrix that multiplies every pair (f, f + pairs) by a complex number of size 2."""
    G = np.eye(rank)
    for f, angle in enumerate(rng.uniform(0.0, 2.0 * np.pi, size=pairs)):
        a, b = 2.0 * np.cos(angle), 2.0 * np.sin(angle)
        G[np.ix_([f, f + pairs], [f, f + pairs])] = [[a, -b], [b, a]]
    return G


def _apply_gauge(layer: AttentionLayer, G: Array) -> AttentionLayer:
    """Keys behind G and queries behind its inverse transpose, group by group."""
    inverse = np.asarray(np.linalg.inv(G), dtype=np.float64)
    back = np.repeat(inverse.swapaxes(1, 2), layer.heads // layer.groups, axis=0)
    return replace(
        layer,
        Wk=G @ layer.Wk,
        bk=_map_bias(G, layer.bk),
        Wq=back @ layer.Wq,
        bq=_map_bias(back, layer.bq),
    )


def _add_equal_scores(layer: AttentionLayer, rng: np.random.Generator) -> Iterator[Candidate]:
    """A constant to every table, or a bias to keys that are not turned."""
    if layer.table is not None and layer.wiring.positions == "table":
        added = rng.normal(size=(layer.heads, 1))
        sinks = None if layer.sinks is None else layer.sinks + added[:, 0]
        twin = replace(layer, table=layer.table + added, sinks=sinks)
        yield twin, Symmetry.EQUAL_SCORES, "A constant was added to the table of every head."
    # Caps see the size of a score, sinks what it is compared with, and turns make it unequal.
    seen = layer.wiring.softcap is not None or layer.sinks is not None
    if not seen and layer.wiring.positions not in ("rope", "table"):
        bias = np.zeros(layer.Wk.shape[:2]) if layer.bk is None else layer.bk
        twin = replace(layer, bk=bias + rng.normal(size=bias.shape))
        yield twin, Symmetry.EQUAL_SCORES, "A random bias was added to all keys."


def _change_norm(layer: AttentionLayer, rng: np.random.Generator) -> Iterator[Candidate]:
    if layer.wiring.norm == "none":
        return
    gain = rng.uniform(0.5, 2.0, size=layer.width)
    told = "Gain and shift of the norm became others, and the maps behind it made up for them."
    yield _replace_norm(layer, gain), Symmetry.NORM, told
    if layer.wiring.norm == "layer" and layer.gain is None:
        size = rms(layer.Wv) or 1.0
        added = size * rng.normal(size=layer.Wv.shape[:2])
        bias = layer.bv
        if layer.shift is not None:
            bias = (0.0 if bias is None else bias) - added * layer.shift.sum()
        twin = replace(layer, Wv=layer.Wv + added[..., None], bv=bias)
        yield twin, Symmetry.MEAN, "A constant was added to every row of Wv."


def _replace_norm(layer: AttentionLayer, gain: Array) -> AttentionLayer:
    """The layer with this gain and no shift."""
    parts: dict[str, Array] = {}
    for name in ("q", "k", "v"):
        W, b = getattr(layer, f"W{name}"), getattr(layer, f"b{name}")
        own = np.ones(layer.width) if layer.gain is None else layer.gain
        parts[f"W{name}"] = W * (own / gain)
        if layer.shift is not None:
            parts[f"b{name}"] = W @ layer.shift + (0.0 if b is None else b)
    return replace(layer, **parts, gain=gain, shift=None)


def _move_places(layer: AttentionLayer, rng: np.random.Generator) -> Iterator[Candidate]:
    """Position vectors moved where no answer shows it."""
    vectors, norm = layer.positions, layer.wiring.norm
    if vectors is None or norm == "rms":
        return
    size = rms(vectors) or 1.0
    if norm == "none":
        told = "One vector was added to all positions, and taken off again by the biases."
        moved = size * rng.normal(size=layer.width)
        twin = replace(_offset_biases(layer, moved), positions=vectors + moved)
        yield twin, Symmetry.PLACES, told
        return
    told = "Equal entries were added to positions."
    each = 1 if layer.wiring.residual else len(vectors)
    added = size * rng.normal(size=(each, 1))
    constant = layer.bo
    if layer.wiring.residual:
        constant = (np.zeros(layer.outputs) if constant is None else constant) - added[0, 0]
    yield replace(layer, positions=vectors + added, bo=constant), Symmetry.PLACES, told


def _offset_biases(layer: AttentionLayer, t: Array) -> AttentionLayer:
    """Biases that take t off every token again."""
    parts: dict[str, Array] = {}
    for name in ("q", "k", "v"):
        W, b = getattr(layer, f"W{name}"), getattr(layer, f"b{name}")
        parts[f"b{name}"] = (0.0 if b is None else b) - W @ t
    if layer.wiring.residual:
        parts["bo"] = (0.0 if layer.bo is None else layer.bo) - t
    return replace(layer, **parts)


def _measure_parameter_distance(a: AttentionLayer, b: AttentionLayer) -> float:
    """Relative distance of the parameters as they stand, those that are absent counting as 0."""
    apart: list[float] = []
    for name in ("Wq", "Wk", "Wv", "Wo", *OPTIONAL):
        x, y = getattr(a, name), getattr(b, name)
        if x is None and y is None:
            continue
        present = x if y is None else y
        # A gain that is absent is 1, everything else 0.
        rest = np.ones_like(present) if name == "gain" else np.zeros_like(present)
        apart.append(relative_distance(rest if x is None else x, rest if y is None else y))
    return max(apart)
