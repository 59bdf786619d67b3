"""Any callable in this process as an oracle."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

from keyhole._arrays import Answers, Sequences
from keyhole.errors import InvalidInput, KeyholeError, TargetFailed
from keyhole.models import read_longest
from keyhole.oracles.base import LARGEST, Imperfection, check_answers

# Words by which libraries complain of a wrong width; they share no exception type.
_ABOUT_SHAPES = re.compile(r"shape|dimension|broadcast|mismatch|width|size|operand", re.IGNORECASE)


def _is_countable(value: Any) -> bool:
    return isinstance(value, SupportsIndex) and 1 <= operator.index(value) <= LARGEST


@dataclass(slots=True)
class Local:
    """A callable on (batch, length, width) arrays that answers (batch,) or (batch, outputs).

    Args:
        answer: the callable; the array it is handed is its own, to keep or change. A layer of ours
            that knows a number of positions is asked no longer sequences.
        size: width of a token; the callable's `width` attribute when absent.
        count: numbers per answer; the callable's `outputs` attribute when absent, else its first
            answer.
    """

    answer: Callable[[Any], Any]
    size: int | None = None
    count: int | None = None
    _width: int = field(init=False)
    _outputs: int | None = field(init=False)

    def __post_init__(self) -> None:
        width: Any = self.size if self.size is not None else getattr(self.answer, "width", None)
        if not _is_countable(width):
            raise InvalidInput(
                f"the width of a token must be a whole number >= 1; got {width!r}. The largest is"
                f" {LARGEST}. "
                "Give it (--width on the command line), or give the callable a `width` attribute."
            )
        outputs: Any = self.count
        if outputs is None:
            outputs = getattr(self.answer, "outputs", None)
        if outputs is not None and not _is_countable(outputs):
            raise InvalidInput(
                f"outputs must be a whole number >= 1; got {outputs!r}. The largest is {LARGEST}."
            )
        self._width = int(width)
        self._outputs = None if outputs is None else int(outputs)

    @property
    def width(self) -> int:
        """Size of a token."""
        return self._width

    @property
    def outputs(self) -> int | None:
        """Numbers per answer; None before the first answer where nobody said."""
        return self._outputs

    @property
    def imperfection(self) -> Imperfection:
        """The longest sequence that a layer or block of ours answers, where there is one."""
        longest = read_longest(self.answer)
        return Imperfection() if longest is None else Imperfection(lengths=(1, longest))

    def ask(self, X: Sequences) -> Answers:
        """Call the callable once on the whole batch."""
        try:
            raw = self.answer(X)
        # A target may be an oracle of ours, whose errors already say what to do.
        except KeyholeError:
            raise
        # A target that ends the process would end the run with an exit code of its own.
        except (Exception, SystemExit) as error:
            raise self._explain_failure(X, error) from error
        answers = check_answers(raw, batch=len(X), outputs=self._outputs)
        self._outputs = answers.shape[1]
        return answers

    def _explain_failure(self, X: Sequences, error: BaseException) -> KeyholeError:
        said = f"the target raised {type(error).__name__}: {error}"
        # Before the first answer a complaint about shapes is most likely about --width.
        if self._outputs is None and _ABOUT_SHAPES.search(str(error)):
            return InvalidInput(
                f"{said}, when first asked a batch of shape {X.shape}. Is --width {self.width}"
                " right?"
            )
        return TargetFailed(f"{said}, when asked a batch of shape {X.shape}.")
