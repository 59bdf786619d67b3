"""The page of a bound says of its picture what the picture has."""

import pytest

from keyhole.cli import _run_command_line

# What is asked; whether any size is provably too small, and whether any is known to be enough.
PLANES = [
    ("match3 --length 64 --modulus 64 --embed 4 --bits 8", True, False),
    ("match2 --length 8 --modulus 12 --embed 5 --bits 8", False, False),
    ("sparse-average --length 24 --q 3 --embed 7 --bits 16", True, True),
]


@pytest.mark.parametrize(("words", "grey", "green"), PLANES)
def test_the_caption_of_sizes_names_the_colours_that_are_there(words, grey, green, tmp_path):
    _run_command_line(["bound", *words.split(), "--out", str(tmp_path / "run")])
    page = (tmp_path / "run" / "report.html").read_text()
    assert ("In the grey part" in page, "In the green part" in page) == (grey, green)
