"""The walk of a student who has read a paper: from installing to Theorem 5.1 with a plot.

`python tools/student_walk.py` builds the wheel, installs it into a new environment and walks in an
empty directory; `--installed` walks with the package that runs this. It prints every command with
its seconds, and fails where the theorem does not come out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DRAW = "import keyhole; keyhole.open_run('walk').plot().save('theorem-5-1.svg')"


class Walk:
    """Commands run one after the other in one directory, counted and timed."""

    def __init__(self, folder: Path) -> None:
        """Start in a directory."""
        self.folder = folder
        self.environment = dict(os.environ)
        self.steps: list[tuple[str, float]] = []

    def take(self, name: str, *command: str | Path) -> None:
        """One command, by the line that a person types."""
        start = time.perf_counter()
        done = subprocess.run(
            [str(word) for word in command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"{name} ended with {done.returncode}: {done.stdout}{done.stderr}")
        self.steps.append((name, time.perf_counter() - start))


def install(walk: Walk) -> Path:
    """A new environment with the wheel of this tree; the Python in it."""
    # What is installed is tried, not this tree.
    walk.environment.pop("PYTHONPATH", None)
    source = walk.folder / "source"
    ignored = shutil.ignore_patterns(".git", ".venv", "site", "runs", "build", "*.egg-info", ".*")
    shutil.copytree(ROOT, source, ignore=ignored)
    venv.create(walk.folder / "mine", with_pip=True)
    python = walk.folder / "mine" / "bin" / "python"
    walk.take("pip install .", python, "-m", "pip", "install", "--quiet", source)
    return python


def walk_to_theorem(walk: Walk, python: Path) -> dict[str, int]:
    """Reproduce the theorem and draw it; what was asked, by rank."""
    file = "experiments/theorem-5-1.toml"
    shutil.copytree(ROOT / "experiments", walk.folder / "experiments", dirs_exist_ok=True)
    walk.take(f"keyhole sweep {file}", python, "-m", "keyhole", "sweep", file, "--out", "walk")
    walk.take("open_run('walk').plot()", python, "-c", DRAW)
    record = json.loads((walk.folder / "walk" / "record.json").read_text(encoding="utf-8"))
    svg = (walk.folder / "theorem-5-1.svg").read_text(encoding="utf-8")
    if not all(one["met"] for one in record["expectations"]) or "rank r of W" not in svg:
        raise SystemExit(f"Theorem 5.1 did not come out: {record['sentence']}")
    return record["jobs"]


def main(arguments: list[str]) -> int:
    """Walk, and print the steps."""
    with tempfile.TemporaryDirectory() as folder:
        walk = Walk(Path(folder))
        python = Path(sys.executable) if "--installed" in arguments else install(walk)
        jobs = walk_to_theorem(walk, python)
    for name, seconds in walk.steps:
        sys.stdout.write(f"{seconds:6.1f} s  {name}\n")
    total = sum(seconds for _, seconds in walk.steps)
    sys.stdout.write(
        f"{total:6.1f} s  {len(walk.steps)} commands, {jobs['done']} heads recovered\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
