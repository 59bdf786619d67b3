"""What a certificate takes from the run itself: its verdict, and its agreement on fresh queries.

Both are marked as judged: where the truth is held, `learners.confronting` puts it in their place.
How much was asked is an assumption of every recovery theorem: a run that had to ask again has left
the course that the theorem counts, and is promised nothing.
"""

from __future__ import annotations

import math

from keyhole.claims import Check, Verdict
from keyhole.learners.base import Fresh
from keyhole.learners.verifying.examination import EXACT


def assume_class(name: str, verdict: Verdict) -> Check:
    """That the target is of the class, which in the field only a verified model vouches for."""
    return Check(name, float(not verdict.verified), 0.0, judged=True)


def conclude_agreement(fresh: Fresh | None, limit: float = EXACT) -> Check:
    """That fresh queries agree; a run that asked none concludes nothing."""
    worst = math.inf if fresh is None else fresh.relative
    return Check("worst relative disagreement on fresh queries", worst, limit, judged=True)
