"""Models as torch modules, read at the last token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keyhole.errors import InvalidInput
from keyhole.lab.onnx.torch_heads import TorchHeads, TorchOneLayer
from keyhole.lab.onnx.torch_networks import (
    TorchNetwork,
    TorchNorm,
    TorchNormalForm,
    divide_by_spread,
    hold_arrays,
)
from keyhole.models.attention import Head, MultiHead, SelfAttention
from keyhole.models.blocks.transformer_block import TransformerBlock
from keyhole.models.last_token.gated import Gated
from keyhole.models.layers.attention_layer import AttentionLayer
from keyhole.models.layers.layer_maps import OPTIONAL
from keyhole.models.layers.turning import list_frequencies
from keyhole.models.relu import AbsAffine, ReluNet
from keyhole.models.transformer import OneLayer

try:
    import torch as _torch
except ImportError as missing:
    raise ImportError("a torch module needs torch: pip install 'keyhole[torch]'.") from missing

torch: Any = _torch  # its types are partial


def export_torch(model: Any) -> Any:
    """A model as a `torch.nn.Module`: (batch, length, width) to (batch, outputs).

    It is in float64. Its parameters have the names of the model's file (`Wq`, `norm1.gain`, ..), so
    that `load_state_dict` takes the tensors of another such file; gradients flow through it.

    Args:
        model: a head or several, a `SelfAttention` (read at its last token), a network, a one-layer
            Transformer, an `AttentionLayer` of any wiring, or a `TransformerBlock`.

    Raises:
        InvalidInput: the model is of another kind.
    """
    model = model.read_last() if isinstance(model, SelfAttention) else model
    for kinds, module in _MODULES:
        if isinstance(model, kinds):
            return module(model)
    raise InvalidInput(
        f"a {type(model).__name__} is not written as a torch module; heads, networks, one-layer"
        " Transformers, attention layers and blocks are. keyhole.export_onnx writes attention of"
        " higher order, fully connected and recurrent networks too."
    )


class TorchAttention(torch.nn.Module):
    """The function of an `AttentionLayer`, whose wiring it keeps."""

    def __init__(self, layer: AttentionLayer) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.wiring = layer.wiring
        self.width, self.outputs = layer.width, layer.outputs
        self.rank, self.groups, self.longest = layer.rank, layer.groups, layer.longest
        hold_arrays(self, layer, ["Wq", "Wk", "Wv", "Wo", *OPTIONAL])

    def forward(self, tokens: Any) -> Any:
        """Answers at the last token.

        Raises:
            InvalidInput: the sequences are longer than the layer has positions.
        """
        length = tokens.shape[1]
        if self.longest is not None and length > self.longest:
            raise InvalidInput(
                f"this layer knows {self.longest} positions; got sequences of {length} tokens."
            )
        placed = tokens if self.positions is None else tokens + self.positions[:length]
        n = self._norm_tokens(placed)
        values = self._project_groups(n, self.Wv, self.bv)
        mixed = (self._attend(n) @ values).flatten(1, 2)
        answers = torch.einsum("bhr,hor->bo", mixed, self.Wo)
        if self.wiring.residual:
            answers = answers + placed[:, -1]
        return answers if self.bo is None else answers + self.bo

    def _norm_tokens(self, x: Any) -> Any:
        """Tokens as queries, keys and values read them."""
        if self.wiring.norm == "none":
            return x
        centred = x - x.mean(dim=-1, keepdim=True) if self.wiring.norm == "layer" else x
        n = divide_by_spread(centred, self.wiring.eps or 0.0)
        n = n if self.gain is None else n * self.gain
        return n if self.shift is None else n + self.shift

    def _norm_heads(self, vectors: Any, gain: Any) -> Any:
        if not self.wiring.qk_norm:
            return vectors
        normed = divide_by_spread(vectors, self.wiring.eps or 0.0)
        return normed if gain is None else normed * gain

    def _project_groups(self, n: Any, W: Any, b: Any) -> Any:
        """Keys or values: batch x groups x length x rank."""
        vectors = torch.einsum("bnd,grd->bgnr", n, W)
        return vectors if b is None else vectors + b[:, None]

    def _list_queries(self, n: Any) -> Any:
        """Queries of the last token: batch x groups x heads of a group x rank."""
        q = torch.einsum("bd,hrd->bhr", n[:, -1], self.Wq)
        q = q if self.bq is None else q + self.bq
        return self._norm_heads(q, self.q_gain).unflatten(1, (self.groups, -1))

    def _list_keys(self, n: Any, displaced: Any) -> Any:
        """Keys, turned as seen from the last position."""
        keys = self._norm_heads(self._project_groups(n, self.Wk, self.bk), self.k_gain)
        if self.wiring.positions != "rope":
            return keys
        base, share = self.wiring.rope_base or 1.0, self.wiring.rotary_share or 1.0
        theta = torch.as_tensor(list_frequencies(self.rank, base, share)).to(keys)
        angles = -displaced[:, None].to(keys) * theta
        pairs = len(theta)
        a, b, rest = keys.split([pairs, pairs, self.rank - 2 * pairs], dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)

    def _attend(self, n: Any) -> Any:
        """Weights of the tokens: batch x groups x heads of a group x length."""
        displaced = torch.arange(n.shape[1] - 1, -1, -1, device=n.device)
        keys = self._list_keys(n, displaced)
        scores = self._list_queries(n) @ keys.transpose(-1, -2) / self.rank**0.5
        cap = self.wiring.softcap
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        scores = self._bias_scores(scores, displaced)
        if self.wiring.window is not None:
            scores = scores.masked_fill(displaced >= self.wiring.window, -torch.inf)
        if self.sinks is None:
            return scores.softmax(dim=-1)
        sinks = self.sinks.unflatten(0, (self.groups, -1)).expand(scores.shape[:-1])
        return torch.cat([scores, sinks[..., None]], dim=-1).softmax(dim=-1)[..., :-1]

    def _bias_scores(self, scores: Any, displaced: Any) -> Any:
        """Scores with what displacement adds."""
        if self.table is None:
            return scores
        table = self.table.unflatten(0, (self.groups, -1))
        if self.wiring.positions == "alibi":
            return scores - table * displaced.to(scores)
        return scores + table[..., displaced]


class TorchBlock(torch.nn.Module):
    """The function of a `TransformerBlock`."""

    def __init__(self, block: TransformerBlock) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.style = block.style
        self.width = self.outputs = block.width
        self.attention = TorchAttention(block.attention)
        self.network = TorchNetwork(block.network)
        self.norm1, self.norm2 = TorchNorm(block.norm1), TorchNorm(block.norm2)

    def forward(self, tokens: Any) -> Any:
        """Answers at the last token."""
        last = tokens[:, -1]
        if self.style == "pre":
            r = last + self.attention(self.norm1(tokens))
            return r + self.network(self.norm2(r))
        y = self.norm1(last + self.attention(tokens))
        return self.norm2(y + self.network(y))


_MODULES: tuple[tuple[tuple[type, ...], Callable[[Any], Any]], ...] = (
    ((Head, MultiHead), TorchHeads),
    ((ReluNet, Gated), TorchNetwork),
    ((AbsAffine,), TorchNormalForm),
    ((OneLayer,), TorchOneLayer),
    ((AttentionLayer,), TorchAttention),
    ((TransformerBlock,), TorchBlock),
)
