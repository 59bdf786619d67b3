"""What was asked of a model, told by kind of question."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from keyhole.learners.base import Examined, KindSeen
from keyhole.learners.verifying.question_kinds import AGAIN, KINDS, PERMUTED


class Asked(NamedTuple):
    """A fresh question: its kind and length, the gap and the relative gap of its answer."""

    kind: str
    length: int
    gap: float
    relative: float


def list_examined(rows: Sequence[Asked]) -> Examined:
    """Kinds with their counts and worst gaps; permuted copies and repeats are not independent."""
    by_kind: defaultdict[str, list[Asked]] = defaultdict(list)
    for row in rows:
        by_kind[row.kind].append(row)
    seen = tuple(
        KindSeen(
            name=name,
            count=len(group),
            worst=max(row.gap for row in group),
            relative=max(row.relative for row in group),
        )
        for name, group in by_kind.items()
    )
    return Examined(
        kinds=seen,
        sequences=len(rows),
        independent=sum(row.kind not in (PERMUTED, AGAIN) for row in rows),
        longest=max((row.length for row in rows), default=0),
        not_asked=tuple(name for name in (*KINDS, PERMUTED) if name not in by_kind),
    )
