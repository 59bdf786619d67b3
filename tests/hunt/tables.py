"""Rows of a hunt as text."""

import json
from collections import Counter, defaultdict
from dataclasses import asdict
from statistics import median

from hunt.judge import Fault, Row

VERDICTS = {
    "EXACT": "EX",
    "WITHIN_TOLERANCE": "WT",
    "CLASS_REFUTED": "CR",
    "NOT_IDENTIFIABLE": "NI",
    "UNVERIFIED": "UN",
    "BUDGET_SPENT": "BS",
}
HEADINGS = [*VERDICTS.values(), "err", *Fault, "median", "worst", "seconds"]


def group_rows(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows by kind, in the order kinds came."""
    groups = defaultdict(list)
    for row in rows:
        groups[row.kind].append(row)
    return dict(groups)


def count_faults(rows: list[Row]) -> Counter:
    return Counter(fault for row in rows for fault in row.faults)


def write_rows(rows: list[Row]) -> str:
    return json.dumps([asdict(row) for row in rows])


def read_rows(text: str) -> list[Row]:
    return [
        Row(**{**row, "faults": tuple(Fault(fault) for fault in row["faults"])})
        for row in json.loads(text)
    ]


def format_row(row: Row) -> str:
    faults = ", ".join(fault.name for fault in row.faults)
    return f"{row.kind} #{row.number}: {row.verdict} {row.status:.90} [{faults}] {row.queries}"


def format_table(rows: list[Row]) -> str:
    """Verdicts, faults, queries and seconds by kind, and over all."""
    groups = {**group_rows(rows), f"all {len(rows)}": rows}
    wide = max(len(name) for name in groups)
    lines = [" " * wide + "".join(f"{heading:>8}" for heading in HEADINGS)]
    lines += [f"{name:<{wide}}" + format_cells(group) for name, group in groups.items()]
    return "\n".join(lines)


def format_cells(rows: list[Row]) -> str:
    verdicts = Counter(VERDICTS.get(row.verdict, "err") for row in rows)
    faults = count_faults(rows)
    counts = [verdicts[name] for name in [*VERDICTS.values(), "err"]]
    counts += [faults[fault] for fault in Fault]
    queries = [row.queries for row in rows]
    counts += [round(median(queries)), max(queries)]
    cells = "".join(f"{count or '.':>8}" for count in counts)
    return f"{cells}{sum(row.seconds for row in rows):>8.1f}"
