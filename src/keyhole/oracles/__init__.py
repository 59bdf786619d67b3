"""Black boxes that answer batches of sequences, and wrappers that each add one behaviour."""

from keyhole.oracles.base import Entry, Imperfection, Ledger, Oracle
from keyhole.oracles.local import Local
from keyhole.oracles.transcript import Recorded
from keyhole.oracles.wrappers import Budgeted, Chunked, Counted, Declared, Watched

__all__ = [
    "Budgeted",
    "Chunked",
    "Counted",
    "Declared",
    "Entry",
    "Imperfection",
    "Ledger",
    "Local",
    "Oracle",
    "Recorded",
    "Watched",
]
