"""Every exception keyhole raises on purpose.

KeyholeError
├── InvalidInput            (also ValueError)  the caller's arguments cannot be used
│   └── DifferentRun                           a stored run was started with other settings
├── OracleError                                the black box did not answer as promised
│   ├── BudgetSpent                            the query allowance is used up
│   ├── BadAnswer                              wrong shape, or not finite
│   └── TargetFailed                           it raised, or could not be reached
├── RecoveryFailed                             a learner stopped without a verified model
└── DoesNotFit                                 no weights of the sizes asked for are known
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class KeyholeError(Exception):
    """Base of every exception keyhole raises on purpose."""


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
