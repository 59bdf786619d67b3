"""Random attention layers of any wiring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from keyhole._arrays import Array, Rng, as_generator
from keyhole.errors import InvalidInput
from keyhole.models.layers.attention_layer import AttentionLayer
from keyhole.models.layers.turning import count_turned
from keyhole.models.layers.wiring import Wiring

_BIAS = 0.3  # standard deviation of biases and of positions
_UNEVEN = 0.2  # how far gains lie from 1


def random_layer(
    width: int,
    *,
    heads: int,
    rank: int | None = None,
    outputs: int | None = None,
    wiring: Wiring | None = None,
    biases: bool = False,
    displacements: int = 64,
    scale: float = 1.0,
    rng: Rng,
) -> AttentionLayer:
    """A layer whose maps have entries of size 1/sqrt(inputs): scores are about `scale`.

    Args:
        width: size of a token.
        heads: number of heads.
        rank: size of a head; width / heads when absent.
        outputs: numbers per answer; as many as a token has when absent.
        wiring: what stands before the heads, and how they tell positions apart.
        biases: give queries, keys, values and answers biases, and a LayerNorm a shift.
        displacements: entries of a table of scores, or number of absolute positions.
        scale: size of the scores.
        rng: a generator or a seed.

    Raises:
        InvalidInput: sizes do not fit together.
    """
    rng = as_generator(rng)
    wiring = wiring or Wiring()
    r = max(1, width // heads) if rank is None else rank
    o = width if outputs is None else outputs
    G = heads if wiring.groups is None else wiring.groups
    if min(width, heads, r, o, displacements) < 1:
        raise InvalidInput("width, heads, rank, outputs and displacements are at least 1.")
    if wiring.positions == "rope":
        count_turned(r, wiring.rotary_share or 1.0)

    def draw(*shape: int) -> Array:
        return rng.normal(size=shape) / np.sqrt(shape[-1])

    layer = AttentionLayer(
        Wq=scale * draw(heads, r, width),
        Wk=draw(G, r, width),
        Wv=draw(G, r, width),
        # The sum over heads counts as inputs too.
        Wo=draw(heads, o, r) / np.sqrt(heads),
        wiring=replace(wiring, positions="none", sinks=False, groups=G),
    )
    parts = _draw_positions(wiring, layer, displacements, rng) | _draw_norm(
        wiring, layer, biases, rng
    )
    if biases:
        sizes = {"bq": (heads, r), "bk": (G, r), "bv": (G, r), "bo": (o,)}
        parts |= {name: _BIAS * rng.normal(size=size) for name, size in sizes.items()}
    return replace(layer, wiring=replace(wiring, groups=G), **parts)


def _draw_positions(
    wiring: Wiring, layer: AttentionLayer, displacements: int, rng: np.random.Generator
) -> dict[str, Array]:
    """What tells positions apart, and sinks."""
    drawn: dict[str, Callable[[], dict[str, Array]]] = {
        "table": lambda: {"table": rng.normal(size=(layer.heads, displacements))},
        "alibi": lambda: {"table": _draw_slopes(layer.heads, rng)},
        "absolute": lambda: {"positions": _BIAS * rng.normal(size=(displacements, layer.width))},
    }
    parts = drawn.get(wiring.positions or "none", dict[str, Array])()
    return parts | ({"sinks": rng.normal(size=layer.heads)} if wiring.sinks else {})


def _draw_slopes(heads: int, rng: np.random.Generator) -> Array:
    """Slopes about those of ALiBi, 2^(-8h/H)."""
    usual = 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)
    return (usual * np.exp(_UNEVEN * rng.normal(size=heads)))[:, None]


def _draw_norm(
    wiring: Wiring, layer: AttentionLayer, biases: bool, rng: np.random.Generator
) -> dict[str, Array]:
    """Gains of norms, and the shift of a LayerNorm."""
    parts = dict[str, Array]()
    if wiring.norm not in (None, "none"):
        parts["gain"] = 1.0 + _UNEVEN * rng.normal(size=layer.width)
    if wiring.norm == "layer" and biases:
        parts["shift"] = _UNEVEN * rng.normal(size=layer.width)
    if wiring.qk_norm:
        for name in ("q_gain", "k_gain"):
            parts[name] = 1.0 + _UNEVEN * rng.normal(size=layer.rank)
    return parts
