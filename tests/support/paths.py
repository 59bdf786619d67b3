"""Where things lie, so that a test may move."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
DATA = TESTS / "data"
TARGETS = TESTS / "support" / "targets.py"
