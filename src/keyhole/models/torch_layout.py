r"""A self-attention layer as the weights of `torch.nn.MultiheadAttention`, in plain arrays.

torch splits one width E among H heads of dimension e = E / H, divides scores by the root of e,
joins the heads' outputs and projects them:

$$\mathrm{out}(X) = \big[\mathrm{softmax}(X W_q^h (X W_k^h)^\top / \sqrt{e})\, X W_v^h\big]_h W_o.$$

Our heads are summed and have no such division. So e is large enough for keys and values of every
head, the root of e is multiplied into the queries, each head's value goes through its own e
columns, and $W_o$ adds the heads up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Sequences, Stack, check_sequences
from keyhole.models.attention import SelfAttention


@dataclass(frozen=True, eq=False, slots=True)
class TorchLayout:
    """Weights of `torch.nn.MultiheadAttention(width, heads, bias=False, batch_first=True)`.

    Args:
        in_proj_weight: queries, keys and values of all heads, 3 width x width.
        out_proj_weight: the output projection, width x width.
        heads: number of heads.
        inputs: numbers of a token before padding.
        outputs: numbers of an answer that mean something; the rest is padding.
    """

    in_proj_weight: Matrix
    out_proj_weight: Matrix
    heads: int
    inputs: int
    outputs: int

    @property
    def width(self) -> int:
        """embed_dim of the module."""
        return len(self.out_proj_weight)

    def pad(self, X: Sequences) -> Stack:
        """Tokens as the module takes them: zeros behind."""
        check_sequences(X, self.inputs)
        return np.pad(X, ((0, 0), (0, 0), (0, self.width - self.inputs)))


def torch_multihead(layer: SelfAttention) -> TorchLayout:
    """The layer in torch's layout, whose first `outputs` answers to padded tokens are its own."""
    heads, inputs, embed = layer.Q.shape
    # The width must hold tokens and answers, and be the heads' dimensions together.
    size = max(embed, layer.outputs, -(-inputs // heads))
    width = heads * size
    Q, K, V = (_stack_heads(P, size, width) for P in (layer.Q * np.sqrt(size), layer.K, layer.V))
    out = np.zeros((width, width))
    for h in range(heads):
        out[: layer.outputs, h * size : h * size + layer.outputs] = np.eye(layer.outputs)
    return TorchLayout(np.concatenate([Q, K, V]), out, heads, inputs, layer.outputs)


def _stack_heads(P: Stack, size: int, width: int) -> Array:
    """Matrices of all heads, padded, as rows of one: torch multiplies by the transpose."""
    heads, inputs, columns = P.shape
    padded = np.zeros((heads, size, width))
    padded[:, :columns, :inputs] = P.swapaxes(1, 2)
    return padded.reshape(width, width)
