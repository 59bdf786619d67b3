"""Every exception keyhole raises on purpose.

KeyholeError
├── InvalidInput            (also ValueError)  the caller's arguments cannot be used
│   └── DifferentRun                           a stored run was started with other settings
├── OracleError                                the black box did not answer as promised
│   ├── BudgetSpent                            the query allowance is used up
│   ├── BadAnswer                              wrong shape, or not finite
│   └── TargetFailed                           it raised, or could not be reached
├── RecoveryFailed                             a learner stopped without a verified model
├── DoesNotFit                                 no weights of the sizes asked for are known
├── OutOfTime                                  a recovery worked by itself for longer than it may
├── StorageFailed                              what has to be kept could not be written
└── ClusterLost                                the scheduler of a cluster is gone

Words of others (a server, a file, a library) reach a person through the message of an error, and
here they are cleaned, once: see `spell_controls`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# Controls, halves of letters, and marks that turn the direction of reading: a file or a target may
# have sent them, and a terminal would obey.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)
_LONGEST = 2000  # letters of a message
_BLANKS = re.compile(r"\s*[\t\n]\s*")


def spell_controls(text: str) -> str:
    """Text whose control characters are spelt out by their numbers; tabs and newlines stay."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def clean_line(text: str) -> str:
    """Text on one line that no terminal obeys."""
    return spell_controls(_BLANKS.sub(" ", text))


def shorten_text(text: str) -> str:
    """Text of a length that a person reads: what it quotes may be a whole file."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-500:]}"


class KeyholeError(Exception):
    """Base of every exception keyhole raises on purpose.

    Args:
        message: the sentence a person reads; what it quotes of others is cleaned here.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(shorten_text(clean_line(message)))


class InvalidInput(KeyholeError, ValueError):
    """The caller's arguments cannot be used; the message says what was needed."""


class DifferentRun(InvalidInput):
    """A stored run was started with other settings than this one."""


class OracleError(KeyholeError):
    """The black box did not answer as promised."""


class BudgetSpent(OracleError):
    """The query allowance is used up.

    Args:
        message: the sentence a person reads.
        answers: what was answered to the part of the batch that still fitted.
    """

    def __init__(self, message: str, answers: NDArray[np.float64] | None = None) -> None:
        super().__init__(message)
        self.answers = answers

    @property
    def answered(self) -> int:
        """How many sequences of the cut batch were answered."""
        return 0 if self.answers is None else len(self.answers)


class BadAnswer(OracleError):
    """An answer has the wrong shape, or is not finite."""


class TargetFailed(OracleError):
    """The target raised, or could not be reached."""


class RecoveryFailed(KeyholeError):
    """A learner stopped without a verified model; the message is its sentence."""


class DoesNotFit(KeyholeError):
    """No weights of these sizes and format are known; the message says what stands in the way."""


class OutOfTime(KeyholeError):
    """A recovery worked by itself for longer than it may; only whoever set the bound catches it."""


class StorageFailed(KeyholeError):
    """What has to be kept could not be written: the disk is full, or fails."""


class ClusterLost(KeyholeError):
    """The scheduler of a cluster cannot be reached, or went away in the middle of a sweep."""
