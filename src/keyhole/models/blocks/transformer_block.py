"""A whole Transformer block, read at its last token."""

from __future__ import annotations

from dataclasses import dataclass, replace

from keyhole._arrays import EPS, Answers, Array, Float, PerSequence, Sequences
from keyhole.drawing.faces import Face
from keyhole.errors import InvalidInput
from keyhole.models.blocks.norm import Norm
from keyhole.models.last_token.gated import Gated
from keyhole.models.layers.attention_layer import AttentionLayer
from keyhole.models.layers.layer_yardstick import reach_layer
from keyhole.models.relu import ReluNet
from keyhole.models.yardsticks import Yardstick

STYLES = ("pre", "post")
BlockNetwork = ReluNet | Gated


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class TransformerBlock(Face):
    r"""Attention and a network, each beside a residual, with norms before them or behind.

    Pre-norm (GPT-2, Llama), a the attention and g the network:

    $$f(X) = r + g(\mathrm{norm}_2(r)), \qquad r = x_N + a(\mathrm{norm}_1(X)).$$

    Post-norm (BERT):

    $$f(X) = \mathrm{norm}_2(y + g(y)), \qquad y = \mathrm{norm}_1(x_N + a(X)).$$

    Not determined: what is not of an `AttentionLayer` and of its network; how gains and shifts are
    split between a norm before a map and that map; equal entries that a LayerNorm takes off.

    Args:
        attention: heads without a norm and a residual of their own, as many outputs as a token has
            numbers.
        network: of as many numbers to as many.
        norm1: before the attention, or behind it.
        norm2: before the network, or behind it.
        style: pre or post.
    """

    attention: AttentionLayer
    network: BlockNetwork
    norm1: Norm
    norm2: Norm
    style: str = "pre"

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise InvalidInput(f"the style of a block is pre or post; got {self.style!r}.")
        d = self.attention.width
        sizes = (self.attention.outputs, self.network.width, self.network.outputs)
        if sizes != (d, d, d):
            raise InvalidInput(
                f"in a block of width {d} attention gives, and the network takes and gives, {d}"
                f" numbers; got {', '.join(map(str, sizes))}."
            )
        wiring = self.attention.wiring
        if wiring.norm != "none" or wiring.residual:
            raise InvalidInput(
                "the attention of a block has no norm and no residual: those are the block's."
            )
        if wiring.positions == "absolute":
            raise InvalidInput(
                "absolute positions are added before the first block: add them to the tokens."
            )
        self.norm1.check_width(d)
        self.norm2.check_width(d)

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.attention.width

    @property
    def outputs(self) -> int:
        """Numbers answered per sequence."""
        return self.attention.width

    @property
    def longest(self) -> int | None:
        """The longest sequence that is answered; None where any is."""
        return self.attention.longest

    @property
    def front(self) -> AttentionLayer:
        """The attention with the residual, and with the norm where that stands before it."""
        if self.style == "post":
            return replace(self.attention, wiring=replace(self.attention.wiring, residual=True))
        norm = self.norm1
        wiring = replace(
            self.attention.wiring, norm=norm.kind, eps=self._join_eps(norm), residual=True
        )
        return replace(self.attention, wiring=wiring, gain=norm.gain, shift=norm.shift)

    def _join_eps(self, norm: Norm) -> float:
        """The eps of the norm, which normed queries and keys must share."""
        own = self.attention.wiring.eps
        if own not in (None, norm.eps):
            raise InvalidInput(
                f"queries and keys are normed with the eps of norm1, {norm.eps:g}; got {own:g}."
            )
        return norm.eps

    def __call__(self, X: Sequences) -> Answers:
        """Answers to a batch."""
        r = self.front(X)
        if self.style == "pre":
            return r + self.network.points(self.norm2(r))
        y = self.norm1(r)
        return self.norm2(y + self.network.points(y))

    def logits(self, X: Sequences) -> Float[Array, "batch heads length"]:
        """Attention scores before the softmax; minus infinity outside the window."""
        return self.front.logits(X)

    def magnitude(self, X: Sequences) -> PerSequence:
        """Largest part of an answer before parts cancel."""
        return self.yardstick(X, EPS).size

    def yardstick(self, X: Sequences, eps: float) -> Yardstick:
        """What a gap is measured by: what the parts do to one another's rounding, in turn."""
        r = self.front(X)
        into = reach_layer(self.front, X, eps)
        if self.style == "pre":
            inner = self.norm2.reach(r, into, eps)
            return (into + self.network.reach(inner, eps)).summarise()
        y = self.norm1(r)
        inner = self.norm1.reach(r, into, eps)
        h = y + self.network.points(y)
        summed = inner + self.network.reach(inner, eps)
        return self.norm2.reach(h, summed, eps, last=True).summarise()


def read_longest(model: object) -> int | None:
    """The longest sequence that a model answers; None where it answers any."""
    return model.longest if isinstance(model, AttentionLayer | TransformerBlock) else None
