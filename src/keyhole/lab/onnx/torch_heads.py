"""Heads, and a head before a network, as torch modules."""

from __future__ import annotations

from typing import Any

from keyhole.lab.onnx.torch_networks import (
    TorchNetwork,
    TorchNormalForm,
    hold_arrays,
    torch,
)
from keyhole.models.attention import Factored, Head, MultiHead
from keyhole.models.relu import AbsAffine
from keyhole.models.transformer import OneLayer


class TorchHeads(torch.nn.Module):
    """The function of a `Head`, or of the sum of heads in a `MultiHead`."""

    def __init__(self, model: Head | MultiHead) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.width, self.outputs = model.width, model.outputs
        self.factored = isinstance(model.W, Factored)
        if isinstance(model.W, Factored):
            hold_arrays(self, model.W, ["A", "B"])
        else:
            hold_arrays(self, model, ["W"])
        hold_arrays(self, model, ["V", "h", "c", "U"])

    def forward(self, tokens: Any) -> Any:
        """Answers at the last token."""
        last = tokens[:, -1]
        looked = self._look(last) if self.h is None else self._look(last) + self.h
        values = (tokens @ looked.transpose(-1, -2)).softmax(dim=1).transpose(-1, -2) @ tokens
        V = self.V.reshape(-1, self.width, self.outputs)
        answers = torch.einsum("bhd,hdo->bo", values, V)
        answers = answers if self.U is None else answers + last @ self.U
        return answers if self.c is None else answers + self.c

    def _look(self, last: Any) -> Any:
        """W x_N of every head: batch x heads x width."""
        if self.factored:
            return ((last @ self.B) @ self.A.T)[:, None]
        return torch.einsum("hde,be->bhd", self.W.reshape(-1, self.width, self.width), last)


class TorchOneLayer(torch.nn.Module):
    """The function of a `OneLayer`."""

    def __init__(self, model: OneLayer) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.width, self.outputs = model.width, model.outputs
        self.residual = model.residual
        self.head = TorchHeads(model.head)
        kind = TorchNormalForm if isinstance(model.net, AbsAffine) else TorchNetwork
        self.net: Any = kind(model.net)  # pyright: ignore[reportArgumentType]

    def forward(self, tokens: Any) -> Any:
        """Answers at the last token."""
        inputs = self.head(tokens)
        return self.net(inputs + tokens[:, -1] if self.residual else inputs)
