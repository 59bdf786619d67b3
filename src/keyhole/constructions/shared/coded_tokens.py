"""Token maps of trained models: positions or values read as codes, and a network between layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import (
    Array,
    Matrix,
    Sequences,
    Stack,
    Vector,
    check_finite,
    check_sequences,
    check_shape,
    freeze_array,
)
from keyhole.errors import InvalidInput
from keyhole.models.baselines import encode_tokens

SQUASHES = ("none", "sigmoid")


@dataclass(frozen=True, eq=False, slots=True)
class CodedTokens:
    r"""Reads the first columns as they are, and each other one, a whole number, as its code.

    $$\phi(x) = (x_{1..p} ; \mathrm{code}(x_{p+1}) ; \mathrm{code}(x_{p+2}) ; \dots)\,E
    + \mathrm{place}_i$$

    Args:
        codes: one row per value; a value of -1 is read as zeros.
        plain: p, how many columns are read as they are.
        coded: how many columns are read as codes.
        flagged: 1 to append a 1 and a 0, which tell tokens from a blank one.
        mixing: E, where there is one.
        places: one row per position of the sequence, added, where there are.
    """

    codes: Matrix
    plain: int
    coded: int
    flagged: int = 0
    mixing: Matrix | None = None
    places: Matrix | None = None

    def __post_init__(self) -> None:
        for name in ("codes", "mixing", "places"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, freeze_array(getattr(self, name)))
                check_shape(name, getattr(self, name), (None, None))
                check_finite(name, getattr(self, name))
        if self.plain < 0 or self.coded < 0 or self.flagged not in (0, 1) or not len(self.codes):
            raise InvalidInput(
                "coded tokens have plain and coded columns, a code for each value, and flagged 0"
                " or 1."
            )
        if self.mixing is not None:
            check_shape(
                "mixing", self.mixing, (self.plain + self.coded * self.codes.shape[1], None)
            )
        # Flags tell tokens from a blank, which has no place.
        if self.flagged and self.places is not None:
            raise InvalidInput("coded tokens are flagged or have places, not both.")

    @property
    def name(self) -> str:
        """By which files know it."""
        return "coded-tokens"

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """How many columns are read in which way."""
        return {"plain": self.plain, "coded": self.coded, "flagged": self.flagged}

    @property
    def tensors(self) -> Mapping[str, Array]:
        """Its arrays."""
        named = {"codes": self.codes, "mixing": self.mixing, "places": self.places}
        return {name: array for name, array in named.items() if array is not None}

    def __call__(self, X: Sequences) -> Stack:
        """The mapped tokens."""
        check_sequences(X, self.plain + self.coded)
        if not (X[..., self.plain :] < len(self.codes) - 0.5).all():
            raise InvalidInput(
                f"columns that are read as codes hold whole numbers below {len(self.codes)}."
            )
        x = encode_tokens(X, tuple(range(self.plain)), self.codes)
        x = x if self.mixing is None else x @ self.mixing
        if self.places is not None:
            check_shape("an input", X, (None, len(self.places), None))
            return x + self.places
        return np.concatenate([x, _build_flags(x)], axis=-1) if self.flagged else x


def _build_flags(x: Stack) -> Stack:
    return np.broadcast_to([1.0, 0.0], (*x.shape[:2], 2))


@dataclass(frozen=True, eq=False, slots=True)
class Perceptron:
    r"""A network with one hidden layer beside the token, and perhaps a read-out behind both.

    $$\phi(h) = \sigma\big((h + \mathrm{relu}(h W_1 + b_1) W_2 + b_2) W_o + b_o\big)$$

    Args:
        W1: width x hidden.
        b1: hidden.
        W2: hidden x width.
        b2: width.
        Wo: width x outputs, where there is a read-out.
        bo: outputs.
        squash: sigmoid, or none, behind the read-out.
    """

    W1: Matrix
    b1: Vector
    W2: Matrix
    b2: Vector
    Wo: Matrix | None = None
    bo: Vector | None = None
    squash: str = "none"

    def __post_init__(self) -> None:
        for name in ("W1", "b1", "W2", "b2", "Wo", "bo"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, freeze_array(getattr(self, name)))
                check_finite(name, getattr(self, name))
        check_shape("W1", self.W1, (None, None))
        width, hidden = self.W1.shape
        shapes = {"b1": (hidden,), "W2": (hidden, width), "b2": (width,), "Wo": (width, None)}
        for name, shape in shapes.items():
            if getattr(self, name) is not None:
                check_shape(name, getattr(self, name), shape)
        if (self.Wo is None) != (self.bo is None) or self.squash not in SQUASHES:
            raise InvalidInput(f"a read-out has Wo and bo, and squash is {' or '.join(SQUASHES)}.")

    @property
    def name(self) -> str:
        """By which files know it."""
        return "perceptron"

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """What stands behind the read-out."""
        return {"squash": self.squash}

    @property
    def tensors(self) -> Mapping[str, Array]:
        """Its arrays."""
        named: dict[str, Any] = {
            name: getattr(self, name) for name in ("W1", "b1", "W2", "b2", "Wo", "bo")
        }
        return {name: array for name, array in named.items() if array is not None}

    def __call__(self, X: Sequences) -> Stack:
        """The mapped tokens."""
        check_sequences(X, len(self.W1))
        h = X + np.maximum(X @ self.W1 + self.b1, 0.0) @ self.W2 + self.b2
        if self.Wo is None or self.bo is None:
            return h
        h = h @ self.Wo + self.bo
        return h if self.squash == "none" else 0.5 * (1.0 + np.tanh(0.5 * h))
