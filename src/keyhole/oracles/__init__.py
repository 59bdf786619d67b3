"""Black boxes that answer batches of sequences, and wrappers that each add one behaviour."""

from keyhole.oracles.base import Entry, Imperfection, Ledger, Oracle, asked_again, declared
from keyhole.oracles.local import Local
from keyhole.oracles.opening import oracle_of
from keyhole.oracles.transcript import Recorded
from keyhole.oracles.wrappers import (
    Bounded,
    Budgeted,
    Cast,
    Chunked,
    Counted,
    Declared,
    Disturbed,
    Noisy,
    Rounded,
    Signs,
    Watched,
    watching,
)

__all__ = [
    "Bounded",
    "Budgeted",
    "Cast",
    "Chunked",
    "Counted",
    "Declared",
    "Disturbed",
    "Entry",
    "Imperfection",
    "Ledger",
    "Local",
    "Noisy",
    "Oracle",
    "Recorded",
    "Rounded",
    "Signs",
    "Watched",
    "asked_again",
    "declared",
    "oracle_of",
    "watching",
]
