r"""Softmax attention forwards and backwards, in the products that are fast for few columns.

With weights $W = \mathrm{softmax}(S)$, $S = Q K^\top$ and answers $A = W V$,

$$dV = W^\top dA, \qquad dS = W \circ (dA\,V^\top - \mathrm{rowsum}(dA\,V^\top \circ W)), \qquad
  dQ = dS\,K, \quad dK = dS^\top Q.$$

Values have few columns: products with few rows are twice as fast as products with few columns, so
$A^\top = V^\top W^\top$ and $dV^\top = dA^\top W$ are what is computed.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor


class _Attended(cast(Any, torch.autograd.Function)):
    """Answers of one head; keys that need no gradient are given none."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        weights = torch.bmm(queries, keys.transpose(1, 2)).softmax(dim=-1)
        ctx.save_for_backward(queries, keys, values, weights)
        mixed = torch.bmm(values.transpose(1, 2), weights.transpose(1, 2))
        return mixed.transpose(1, 2).contiguous()

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        queries, keys, values, weights = cast("list[Tensor]", ctx.saved_tensors)
        by_weight = torch.bmm(slopes, values.transpose(1, 2))
        by_score = cast(Any, torch)._softmax_backward_data(by_weight, weights, -1, weights.dtype)
        by_key = torch.bmm(by_score.transpose(1, 2), queries) if ctx.needs_input_grad[1] else None
        by_value = torch.bmm(slopes.transpose(1, 2), weights).transpose(1, 2)
        return torch.bmm(by_score, keys), by_key, by_value


def attend_by_softmax(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Softmax of queries times keys, times values; all leading axes are of their own.

    Args:
        queries: ... x length x width.
        keys: ... x length x width.
        values: ... x length x columns.
    """
    parts = (part.reshape(-1, *part.shape[-2:]) for part in (queries, keys, values))
    answers = cast(Tensor, _Attended.apply(*parts))
    return answers.reshape(*values.shape)
