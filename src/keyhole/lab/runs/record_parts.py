"""Parts that records share: costs, agreement on fresh queries, certificates, sizes, times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

# JSON has no infinity and no NaN: a number that is not finite is read back as nothing.
Number = float | None
Numbers = Sequence[Number]
# What a person can give an option, or a task a size.
Given = bool | int | float | str | list[str] | None
# A value that stands in one cell of a table.
Cell = bool | int | float | str | list[Any] | None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a record, by named fields."""


class Seconds(Part, frozen=True, kw_only=True, omit_defaults=True):
    """How long it took, and how much of that the target did."""

    total: float
    oracle: Number = None


class Queries(Part, frozen=True, kw_only=True):
    """What was asked: sequences in all, their tokens, and sequences by phase."""

    total: int
    tokens: int | None = None
    by_phase: dict[str, int] = {}


class FreshError(Part, frozen=True, kw_only=True):
    """Agreement on sequences the model was not fitted on; `relative` is to the token values."""

    max: Number
    relative: Number
    sequences: int


class CounterexampleRecord(Part, frozen=True, kw_only=True):
    """A sequence on which target and model differ, and both answers."""

    tokens: list[Numbers]
    answer: Numbers
    predicted: Numbers
    gap: Number


class JumpsRecord(Part, frozen=True, kw_only=True):
    """Steps of the answers on a half circle."""

    angles: Numbers
    sizes: list[Numbers]
    start: Numbers


class CheckRecord(Part, frozen=True, kw_only=True):
    """One inequality, `measured <= limit`."""

    name: str
    measured: Number
    limit: Number
    holds: bool


class CertificateRecord(Part, frozen=True, kw_only=True):
    """A theorem confronted with one case; `basis` names what its word rests on."""

    theorem: str
    outcome: str
    basis: str | None = None
    sampled: str | None = None
    assumptions: list[CheckRecord] = []
    conclusion: list[CheckRecord] = []


class RoundTrip(Part, frozen=True, kw_only=True):
    """Weights hidden, recovered and scored on their task again."""

    verdict: str | None
    sentence: str
    queries: int | None = None
    error_before: Number = None
    error_after: Number = None
    distance: Number = None
