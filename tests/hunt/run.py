"""Print what `keyhole.learn` says of generated targets, by kind.

python tests/hunt/run.py --targets 2000 --seed 100
python tests/hunt/run.py --targets 60 --kind "context cut" --each
    python tests/hunt/run.py --targets 80 --truth ours
"""

import argparse
import sys
from pathlib import Path

# Run as a script, the folder of tests is not on the path as it is in a test run.
sys.path.insert(0, str(Path(__file__).parents[1]))

from threadpoolctl import threadpool_limits

from hunt.base import Truth
from hunt.judge import BUDGET, judge_target
from hunt.tables import format_row, format_table, write_rows
from hunt.targets import KINDS, list_draws


def choose_kinds(parts: list[str], truths: list[str]) -> tuple[str, ...]:
    """Kinds whose name holds one of the parts, and whose truth is among those asked for."""
    return tuple(
        name
        for name, kind in KINDS.items()
        if (not parts or any(part in name for part in parts))
        and (not truths or kind.truth in truths)
    )


def read_command() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--targets", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=int, default=BUDGET)
    parser.add_argument("--kind", action="append", default=[], help="part of a name; repeatable")
    parser.add_argument("--truth", action="append", default=[], choices=list(Truth))
    parser.add_argument("--each", action="store_true", help="a line per target that has a fault")
    parser.add_argument("--rows", type=Path, help="a file to write what came of each target to")
    chosen = parser.parse_args()
    chosen.kinds = choose_kinds(chosen.kind, chosen.truth)
    if not chosen.kinds:
        parser.error(f"no such kind; there are: {'; '.join(KINDS)}")
    return chosen


def main() -> int:
    chosen = read_command()
    rows = []
    with threadpool_limits(1):
        for name, number in list_draws(chosen.targets, chosen.kinds):
            rows.append(judge_target(name, number, seed=chosen.seed, budget=chosen.budget))
            if chosen.each and rows[-1].faults:
                sys.stdout.write(format_row(rows[-1]) + "\n")
    sys.stdout.write(format_table(rows) + "\n")
    if chosen.rows:
        chosen.rows.write_text(write_rows(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
