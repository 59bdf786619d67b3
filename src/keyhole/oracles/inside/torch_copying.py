r"""Weights of one layer of a torch model as a model of ours.

Projections are affine, so that their answers to zero and to the unit vectors are their weights,
however they are stored. A head scores the token $x_n$ for the last one, $x_N$, by

$$s\,(K x_n + k)^\top (Q x_N + q) = x_n^\top (W x_N + h) + \text{what is the same for all } n$$

with $W = s K^\top Q$ and $h = s K^\top q$, and its value goes through its own columns of the output
projection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.errors import InvalidInput
from keyhole.models.attention import MultiHead
from keyhole.models.last_token.gated import Gated
from keyhole.models.relu import ReluNet
from keyhole.oracles.inside.described import AttentionPart
from keyhole.oracles.inside.torch_networks import Network
from keyhole.oracles.torch_found import Attention, read_matrix_sizes
from keyhole.oracles.torch_module import torch


def copy_heads(layer: Attention, part: AttentionPart) -> MultiHead:
    """The layer as a sum of heads.

    Raises:
        InvalidInput: it is wired otherwise.
    """
    if part.positions != "none" or part.softcap or part.qk_norm or part.sinks or part.cross:
        raise InvalidInput(
            f"{layer.name} is no sum of heads on its tokens alone: it has positions, caps, norms or"
            " sinks of its own, or keys of other tokens."
        )
    weights = next(layer.module.parameters())
    maps = [_read_affine(project, layer.width, weights) for project in layer.project]
    joined = layer.heads * layer.head_size if layer.heads else layer.rows[0]
    out = (np.eye(joined), np.zeros(joined))
    if layer.output is not None:
        out = _read_affine(layer.output, joined, weights)
    several = layer.rows[0] // layer.rows[1]
    heads = [_copy_head(layer, maps, out[0], h, several) for h in range(joined // layer.head_size)]
    W, V, h, c = (np.stack(arrays) for arrays in zip(*heads, strict=True))
    return MultiHead(W, V, h, c.sum(axis=0) + out[1])


def _copy_head(
    layer: Attention, maps: list[tuple[Matrix, Vector]], out: Matrix, h: int, several: int
) -> tuple[Matrix, Matrix, Vector, Vector]:
    size = layer.head_size
    own = slice(h * size, (h + 1) * size)
    # Several heads in a row share the keys and values of their group.
    shared = slice(h // several * size, (h // several + 1) * size)
    (Q, q), (K, _), (V, v) = maps
    keys = layer.scale * K[:, shared]
    columns = out[own]
    return keys @ Q[:, own].T, V[:, shared] @ columns, keys @ q[own], v[shared] @ columns


def _read_affine(project: Callable[[Any], Any], width: int, like: Any) -> tuple[Matrix, Vector]:
    """The matrix (width x outputs) and constant of an affine map of tokens."""
    tokens = torch.cat([torch.zeros(1, width), torch.eye(width)]).to(like.device, like.dtype)
    with torch.no_grad():
        answers = project(tokens).to("cpu", torch.float64).numpy()
    return answers[1:] - answers[0], answers[0]


def copy_network(net: Network) -> ReluNet | Gated:
    """The network as one of ours.

    Raises:
        InvalidInput: its activation is none of ours.
    """
    activation = net.describe().activation or "none"
    (A, a), (C, c) = (_copy_linear(part) for part in (net.gate or net.up, net.down))
    if net.gate is None:
        return ReluNet(A.T, a, C.T, c, activation)
    B, b = _copy_linear(net.up)
    return Gated(A.T, a, B.T, b, C.T, c, activation)


def _copy_linear(part: Any) -> tuple[Matrix, Vector]:
    return _read_affine(part, read_matrix_sizes(part)[0], part.weight)
