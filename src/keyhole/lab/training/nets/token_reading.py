"""How nets read tokens: plain numbers as they are, whole numbers as codes; many seeds at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from keyhole._arrays import Array, Matrix, Stack
from keyhole.constructions.shared.coded_tokens import CodedTokens
from keyhole.errors import InvalidInput
from keyhole.tasks.base import Columns

CODES = ("one-hot", "orthonormal", "random", "learned", "resampled")
Weights = dict[str, Tensor]  # by name, one entry per seed on the first axis
Numbers = Mapping[str, Array]  # the same of one seed


@dataclass(frozen=True, slots=True)
class TokenReading:
    """How a net reads tokens.

    Args:
        columns: which columns are plain and which coded.
        kind: one-hot, orthonormal, random (of length 1, drawn once), learned, or resampled (drawn
            for every sequence).
        width: numbers of a code.
    """

    columns: Columns
    kind: str
    width: int

    def __post_init__(self) -> None:
        values = self.columns.values
        if self.kind not in CODES:
            raise InvalidInput(f"--codes are {', '.join(CODES)}; got {self.kind!r}.")
        if self.kind == "orthonormal" and self.width < values:
            raise InvalidInput(
                f"{values} orthonormal codes need --code-width {values} or more; got {self.width}. "
                "Use --codes random, learned or resampled for fewer."
            )
        if self.kind == "one-hot" and self.width != values:
            raise InvalidInput(
                f"one-hot codes of {values} values have width {values}; got --code-width"
                f" {self.width}."
            )
        if self.width < 1:
            raise InvalidInput(f"--code-width is a whole number >= 1; got {self.width}.")

    @property
    def features(self) -> int:
        """Numbers of a token once it is read."""
        return self.columns.plain + self.columns.coded * self.width

    @property
    def fixed(self) -> frozenset[str]:
        """Weights that are not trained."""
        return frozenset() if self.kind == "learned" else frozenset({"codes"})

    @property
    def settled(self) -> bool:
        """Whether a token is read alike in every step and sequence."""
        return self.kind in ("one-hot", "orthonormal", "random")

    def read_already(self) -> TokenReading:
        """How tokens are read that have been read: as they are."""
        return replace(self, columns=replace(self.columns, plain=self.features, coded=0))

    def codes(self, values: int, *, rng: np.random.Generator) -> Matrix:
        """Codes of so many values."""
        if self.kind == "one-hot":
            return np.eye(values)
        drawn = rng.normal(size=(values, self.width))
        if self.kind == "orthonormal":
            # A Gaussian matrix made orthonormal is a uniform basis.
            return np.linalg.qr(drawn.T)[0].T
        return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)

    def redrawn(self, size: int, values: int, *, rng: np.random.Generator) -> Stack:
        """Codes for each of so many sequences."""
        drawn = rng.normal(size=(size, values, self.width))
        return drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)

    def initial(self, rng: np.random.Generator) -> dict[str, Array]:
        """The codes of one seed."""
        return {"codes": self.codes(self.columns.values, rng=rng)}

    def read(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Plain columns, and the codes of the others (seeds, batch, length, coded, width).

        Args:
            w: weights.
            X: tokens, seeds x batch x length x width.
            codes: codes of every sequence where these are resampled, seeds x batch x values x
                width.
        """
        plain = self.columns.plain
        named = X[..., plain:].round().long()
        if codes is not None:
            found = _look_up_rows(codes.flatten(0, 1), named.flatten(0, 1))
            return X[..., :plain], found.reshape(*named.shape, self.width)
        return X[..., :plain], _look_up_rows(w["codes"], named)

    def tokens(self, w: Weights, X: Tensor, codes: Tensor | None = None) -> Tensor:
        """What a net is given: seeds x batch x length x features."""
        if not self.columns.coded:
            return X
        plain, coded = self.read(w, X, codes)
        return torch.cat([plain, coded.flatten(-2)], dim=-1)

    def project(self, w: Weights, X: Tensor, P: Tensor, codes: Tensor | None = None) -> Tensor:
        """Tokens times a matrix per seed (seeds x features x columns)."""
        if self.kind != "one-hot" or not self.columns.coded:
            return apply_affine_map(self.tokens(w, X, codes), P)
        # A one-hot code times P is a row of P: no product is needed.
        plain, values = self.columns.plain, self.columns.values
        named = X[..., plain:].round().long() + values * torch.arange(self.columns.coded)
        rows = _look_up_rows(P[:, plain:], named).sum(dim=-2)
        return rows + apply_affine_map(X[..., :plain], P[:, :plain]) if plain else rows

    def project_each(
        self, w: Weights, X: Tensor, parts: list[Tensor], codes: Tensor | None = None
    ) -> list[Tensor]:
        """Tokens times several matrices per seed, in one product."""
        together = self.project(w, X, torch.cat(parts, dim=-1), codes)
        return list(torch.split(together, [part.shape[-1] for part in parts], dim=-1))

    def exported(
        self, w: Numbers, *, flagged: bool = False, mixing: Array | None = None
    ) -> CodedTokens:
        """The same as a token map."""
        return CodedTokens(
            w["codes"],
            self.columns.plain,
            self.columns.coded,
            int(flagged),
            mixing,
            w.get("places"),
        )


def apply_affine_map(X: Tensor, P: Tensor, b: Tensor | None = None) -> Tensor:
    """Seeds x batch x length x width times seeds x width x columns, plus seeds x columns."""
    flat = X.flatten(1, 2)
    rows = torch.bmm(flat, P) if b is None else torch.baddbmm(b[:, None], flat, P)
    return rows.reshape(*X.shape[:3], -1)


def tensor_of(array: Any) -> Tensor:
    """An array as a tensor of the same type."""
    return cast(Any, torch).from_numpy(np.ascontiguousarray(array))


def _look_up_rows(rows: Tensor, named: Tensor) -> Tensor:
    """Rows of a table per seed by number; -1 is a row of zeros."""
    seeds, values, width = rows.shape
    # A row of zeros behind each table, for -1: no position.
    padded = functional.pad(rows, (0, 0, 0, 1)).reshape(-1, width)
    first = (values + 1) * torch.arange(seeds).reshape(-1, *[1] * (named.ndim - 1))
    # Much faster than rows[named], forwards and backwards.
    return functional.embedding(torch.where(named < 0, values, named) + first, padded)
