"""The pages beside the papers: every command runs, and its output has the words to look for."""

import re
import shlex
import subprocess
import sys

import pytest

from support.paths import ROOT

PAGE = (ROOT / "docs" / "guides" / "beside-the-papers.md").read_text("utf-8")
PARTS = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]


def read_commands(part):
    return [
        line
        for block in re.findall(r"^```sh\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]


def read_words(part):
    looked = re.search(r"^\*\*Look for\*\*(.*?)^\*\*What differs", part, re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`]+)`", looked.group(1))


def test_every_section_has_a_claim_a_command_words_to_look_for_and_what_differs():
    assert len(PARTS) >= 11
    for part in PARTS:
        assert "**Claim" in part
        assert all(line.startswith("keyhole ") for line in read_commands(part))
        assert read_commands(part)
        assert read_words(part)


@pytest.mark.slow
def test_every_command_beside_the_papers_says_what_the_page_says(tmp_path):
    missing = []
    for part in PARTS:
        told = ""
        for line in read_commands(part):
            command = [sys.executable, "-m", *shlex.split(line)]
            done = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, (line, done.stderr)
            told += done.stdout
        missing += [(part.splitlines()[0], word) for word in read_words(part) if word not in told]
    assert missing == []
