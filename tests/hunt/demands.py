"""What a hunt demands of verdicts, kind by kind, beside the shortfalls that are known."""

from collections import defaultdict
from collections.abc import Mapping

from hunt.base import Truth
from hunt.judge import Fault, Row
from hunt.shortfalls import SHORTFALLS, Shortfall
from hunt.tables import count_faults
from hunt.targets import KINDS

OPEN_SHARE = 0.03
# A shortfall that so many targets would show with this chance is gone if none does.
SURELY = 0.998


def name_group(name: str) -> str:
    """Kinds are judged one by one, changes of models over all models they are made to."""
    return name.rpartition(", ")[0] if KINDS[name].truth is Truth.DEVIATION else name


GROUPS = {name_group(name): kind for name, kind in KINDS.items()}
Known = Mapping[tuple[str, Fault], Shortfall]


def list_complaints(rows: list[Row], known: Known = SHORTFALLS) -> list[str]:
    """Every demand that the rows do not meet, and every known shortfall that is gone."""
    groups = defaultdict(list)
    for row in rows:
        groups[name_group(row.kind)].append(row)
    told = [line for name, group in groups.items() for line in judge_group(name, group, known)]
    return told + judge_openness(groups, known)


def judge_group(name: str, rows: list[Row], known: Known):
    counts = count_faults(rows)
    for fault in Fault:
        shortfall = known.get((name, fault))
        if shortfall is None and counts[fault] > allow_faults(name, fault, len(rows)):
            yield f"{name}: {counts[fault]} of {len(rows)} {fault.name}"
        elif shortfall is not None and counts[fault] == 0 and shows_surely(shortfall, len(rows)):
            yield f"{name} is not {fault.name} in any of {len(rows)}: no shortfall any more"


def allow_faults(name: str, fault: Fault, count: int) -> int:
    """How many of so many targets may have the fault."""
    kind = GROUPS[name]
    # Needles are counted, and open verdicts are judged over all kinds together.
    if fault is Fault.UNVERIFIED or (fault is Fault.WRONG and kind.truth is Truth.NEEDLE):
        return count
    if fault is Fault.WRONG and kind.misses:
        return max(1, int(kind.misses * count))
    return 0


def shows_surely(shortfall: Shortfall, count: int) -> bool:
    return 1.0 - (1.0 - shortfall.share) ** count > SURELY


def judge_openness(groups: Mapping[str, list[Row]], known: Known) -> list[str]:
    """Of our classes few may stay open, kinds that nobody solves yet left out."""
    rows = [
        row
        for name, group in groups.items()
        if GROUPS[name].truth is Truth.OURS and (name, Fault.UNVERIFIED) not in known
        for row in group
    ]
    count = count_faults(rows)[Fault.UNVERIFIED]
    fits = count == 0 or count < OPEN_SHARE * len(rows)
    return [] if fits else [f"{count} of {len(rows)} targets of our classes UNVERIFIED"]
