"""A target with what was recognised of it, so that no learner asks that again."""

from __future__ import annotations

from dataclasses import dataclass

from keyhole._arrays import Answers, Sequences
from keyhole.learners.findings import Recognition
from keyhole.oracles import Oracle
from keyhole.oracles.base import walk_wrapped


@dataclass(frozen=True, eq=False, slots=True)
class Recognised:
    """Passes everything on, and holds what the first questions told."""

    inner: Oracle
    recognition: Recognition

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.inner.width

    @property
    def outputs(self) -> int | None:
        """Numbers per answer."""
        return self.inner.outputs

    def ask(self, X: Sequences) -> Answers:
        """Answers to a batch."""
        return self.inner.ask(X)


def read_recognition(oracle: Oracle) -> Recognition | None:
    """What was recognised of a target before, None where that was not asked."""
    for part in walk_wrapped(oracle):
        if isinstance(part, Recognised):
            return part.recognition
    return None
