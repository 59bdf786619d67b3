"""Random blocks as language models are built."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Rng, as_generator
from keyhole.errors import InvalidInput
from keyhole.models.blocks.norm import Norm
from keyhole.models.blocks.transformer_block import BlockNetwork, TransformerBlock
from keyhole.models.last_token.gated import Gated
from keyhole.models.layers.random_layers import random_layer
from keyhole.models.layers.wiring import Wiring
from keyhole.models.relu import ReluNet

_UNEVEN = 0.2  # how far gains lie from 1, and shifts from 0
_BIAS = 0.3  # standard deviation of biases of hidden units


@dataclass(frozen=True, slots=True)
class BlockStyle:
    """How the blocks of a family are built.

    Args:
        style: pre or post: where its norms stand.
        norm: rms or layer.
        eps: of both norms.
        activation: of the network.
        gated: whether the network is.
        positions: how its heads tell positions apart.
        biases: whether its maps have biases.
    """

    style: str
    norm: str
    eps: float
    activation: str
    gated: bool
    positions: str
    biases: bool


BLOCK_STYLES = {
    "gpt2": BlockStyle("pre", "layer", 1e-5, "gelu", False, "none", True),
    "bert": BlockStyle("post", "layer", 1e-12, "gelu", False, "none", True),
    "llama": BlockStyle("pre", "rms", 1e-5, "silu", True, "rope", False),
}


def random_block(
    width: int,
    *,
    style: str = "gpt2",
    heads: int = 2,
    groups: int | None = None,
    hidden: int | None = None,
    eps: float | None = None,
    scale: float = 1.0,
    rng: Rng,
) -> TransformerBlock:
    """A block whose maps have entries of size 1/sqrt(inputs), its norms uneven gains.

    Args:
        width: size of a token.
        style: gpt2 (pre-norm, LayerNorm, GELU), bert (the same, post-norm) or llama (pre-norm,
            RMSNorm, rotary positions, SwiGLU).
        heads: number of heads, each of size width / heads rounded down.
        groups: number of key and value maps; one per head when absent.
        hidden: hidden units; four times the width when absent.
        eps: of both norms; as the family has it when absent.
        scale: size of the scores.
        rng: a generator or a seed.

    Raises:
        InvalidInput: the style is unknown, or sizes do not fit together.
    """
    if style not in BLOCK_STYLES:
        raise InvalidInput(f"a style is one of {', '.join(BLOCK_STYLES)}; got {style!r}.")
    rng = as_generator(rng)
    built = BLOCK_STYLES[style] if eps is None else replace(BLOCK_STYLES[style], eps=eps)
    if not 1 <= heads <= width:
        raise InvalidInput(f"a block of width {width} has 1 to {width} heads; got {heads}.")
    attention = random_layer(
        width,
        heads=heads,
        wiring=Wiring(positions=built.positions, groups=groups),
        biases=built.biases,
        scale=scale,
        rng=rng,
    )
    k = 4 * width if hidden is None else hidden
    network = _draw_network(built, width, k, rng)
    norms = [_draw_norm(built, width, rng) for _ in range(2)]
    return TransformerBlock(attention, network, *norms, style=built.style)


def _draw_network(
    built: BlockStyle, width: int, hidden: int, rng: np.random.Generator
) -> BlockNetwork:
    if built.gated:
        net = Gated.random(
            width, hidden=hidden, outputs=width, activation=built.activation, rng=rng
        )
        none = np.zeros(hidden)
        return replace(net, a=none, b=none, c=np.zeros(width))
    drawn = ReluNet.random(
        width, hidden=hidden, outputs=width, activation=built.activation, rng=rng
    )
    return replace(drawn, b1=_BIAS * drawn.b1, b2=_BIAS * drawn.b2)


def _draw_norm(built: BlockStyle, width: int, rng: np.random.Generator) -> Norm:
    gain = 1.0 + _UNEVEN * rng.normal(size=width)
    shift = _UNEVEN * rng.normal(size=width) if built.norm == "layer" else None
    return Norm(built.norm, built.eps, gain, shift)
