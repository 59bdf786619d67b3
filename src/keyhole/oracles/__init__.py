"""Black boxes that answer batches of sequences, and wrappers that each add one behaviour.

Enters: callables, files, services, torch modules. Leaves: an Oracle, counted and bounded.
`opening` picks the oracle for what a person hands over.
"""

from keyhole.oracles.base import (
    Entry,
    Imperfection,
    Ledger,
    Oracle,
    count_asked_again,
    read_imperfection,
    walk_wrapped,
)
from keyhole.oracles.limits import Advised, Bounded, Examining, Sized
from keyhole.oracles.local import Local
from keyhole.oracles.opening import oracle_of
from keyhole.oracles.transcript import Recorded
from keyhole.oracles.wrappers import (
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
    hear_answers,
    watch_batches,
)

__all__ = [
    "Advised",
    "Bounded",
    "Budgeted",
    "Cast",
    "Chunked",
    "Counted",
    "Declared",
    "Disturbed",
    "Entry",
    "Examining",
    "Imperfection",
    "Ledger",
    "Local",
    "Noisy",
    "Oracle",
    "Recorded",
    "Rounded",
    "Signs",
    "Sized",
    "Watched",
    "count_asked_again",
    "hear_answers",
    "oracle_of",
    "read_imperfection",
    "walk_wrapped",
    "watch_batches",
]
