"""What an audit comes to: its sentence, what an owner is advised to do, and the gate of CI."""

from __future__ import annotations

from collections.abc import Sequence

from keyhole.drawing.html import format_number
from keyhole.lab.runs.recovery_records import AttemptRecord, GateRecord, PolicyRecord
from keyhole.lab.targets.policies import LITTLE

_NAMED = 3  # policies that a sentence names

Rows = Sequence[PolicyRecord]


def is_attempt_verified(attempt: AttemptRecord) -> bool:
    """Whether an attempt ended with a model that its examination bears out."""
    return attempt.verdict in ("EXACT", "WITHIN_TOLERANCE")


def describe_outcome(rows: Rows, error_of: str, untried: Sequence[str] = ()) -> str:
    """The outcome of an audit in words; the first row is the target as it stands."""
    first = rows[0].attempts[0]
    if not is_attempt_verified(first):
        return (
            f"The target was not learned as it stands ({first.verdict} after"
            f" {first.queries:,} queries), so no policy was tried: there is no model to hold what"
            f" leaks against. {first.sentence}"
        )
    # The target as it stands is no policy: it is what policies are held against.
    tried = rows[1:]
    keep = [row.policy for row in tried if row.protects]
    leak = [row.policy for row in tried if row.protects is False]
    said = f"As it stands the target is given away by {first.queries:,} queries."
    said += f" {_count_leaks(len(leak), len(tried))}"
    if keep:
        said += f"; {_list_names(keep)} {'protect' if len(keep) > 1 else 'protects'} it"
    said += "."
    if beyond := len(tried) - len(keep) - len(leak):
        said += (
            f" This extractor failed behind {beyond} more, which does not show that they protect."
        )
    if error_of != "W":
        said += " Judged by the error of answers, since the target is not a single head."
    if untried:
        said += f" Not tried within the budget: {_list_names(untried)}."
    return said


def _count_leaks(leak: int, tried: int) -> str:
    if leak == 0:
        return "No output policy that was tried is known to give it away"
    return f"{leak} of {tried} output policies {'does' if leak == 1 else 'do'} not protect it"


def recommend_policy(rows: Rows) -> str:
    """What an owner is advised to do, from what the attempts reached."""
    tried = rows[1:]
    if not tried:
        return "Nothing is recommended: no policy was tried."
    keep = [row for row in tried if row.protects]
    useless = [row.policy for row in tried if _keeps_nothing(row)]
    if keep:
        first, *others = keep
        said = f"Recommended: {first.policy}, which left an extractor with {_tell_reached(first)}."
        told = [f"{row.policy} ({_tell_reached(row)})" for row in others]
        said += f" Also protecting: {_list_names(told)}." if told else ""
    else:
        best = max(tried, key=lambda row: row.nearest.error or 0.0)
        said = (
            "Recommended: none of these policies alone. The largest error was left by"
            f" {best.policy}: {_tell_reached(best)}. Bound tokens, round answers and count what"
            " each client asks."
        )
    return f"{said} Do not count on {_list_names(useless)}." if useless else said


def hold_gate(row: PolicyRecord, fail_above: float | None) -> GateRecord | None:
    """Whether every copy of the target as it stands has an error above a limit.

    An extractor that failed, or ran out of queries or time, shows no protection: then none passes.
    """
    if fail_above is None:
        return None
    held = [a.function_error if a.error is None else a.error for a in row.attempts]
    known = [error for error in held if error is not None]
    nearest = min(known, default=None)
    shown = all(map(is_attempt_verified, row.attempts))
    passes = shown and nearest is not None and nearest > fail_above
    return GateRecord(fail_above=fail_above, error=nearest, passes=passes)


def _keeps_nothing(row: PolicyRecord) -> bool:
    error = row.nearest.error
    return error is not None and error <= LITTLE


def _tell_reached(row: PolicyRecord) -> str:
    last = row.nearest
    reached = "no model" if last.error is None else f"an error of {format_number(last.error)}"
    return f"{reached} after {last.queries:,} queries"


def _list_names(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    shown = [*names[:_NAMED], *([f"{len(names) - _NAMED} more"] if len(names) > _NAMED else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
