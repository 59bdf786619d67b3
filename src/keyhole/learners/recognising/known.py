"""A target with what was recognised of it, so that no learner asks that again."""

from __future__ import annotations

from dataclasses import dataclass

from keyhole.learners.findings import Recognition
from keyhole.oracles import Oracle
from keyhole.oracles.base import walk_wrapped
from keyhole.oracles.wrappers import Wrapper


@dataclass(slots=True)
class Recognised(Wrapper):
    """Passes everything on, and holds what the first questions told."""

    recognition: Recognition


def read_recognition(oracle: Oracle) -> Recognition | None:
    """What was recognised of a target before, None where that was not asked."""
    for part in walk_wrapped(oracle):
        if isinstance(part, Recognised):
            return part.recognition
    return None
