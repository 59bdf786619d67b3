"""Black boxes that answer batches of sequences, and wrappers that each add one behaviour."""

from keyhole.oracles.base import Entry, Ledger, Oracle
from keyhole.oracles.local import Local
from keyhole.oracles.transcript import Recorded
from keyhole.oracles.wrappers import Budgeted, Chunked, Counted, Watched

__all__ = ["Budgeted", "Chunked", "Counted", "Entry", "Ledger", "Local", "Oracle", "Recorded", "Watched"]
