"""Kinds whose targets stay open though they are ours; a kind that no longer does must go."""

from collections.abc import Iterator
from dataclasses import dataclass

from hunt.judge import Fault


@dataclass(frozen=True)
class Shortfall:
    """Why a kind has a fault, and on which share of its targets it was seen."""

    share: float
    reason: str


# By reason, the kinds with the share of their targets that stay open.
OPEN: dict[str, dict[str, float]] = {}


def list_shortfalls() -> Iterator[tuple[tuple[str, Fault], Shortfall]]:
    for reason, kinds in OPEN.items():
        for name, share in kinds.items():
            yield (name, Fault.UNVERIFIED), Shortfall(share, reason)


SHORTFALLS = dict(list_shortfalls())
