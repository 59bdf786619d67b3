"""Every command that README and the pages show: it is understood, and in the slow run it is run."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from keyhole.cli import app
from support.paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "docs" / "guides").glob("*.md"))
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What waits for a browser, a server, a scheduler or an installation, and what takes hours.
ELSEWHERE = re.compile(
    r"^(make|pip|python3? |\. |marimo|curl|export |KEYHOLE_TOKEN|keyhole (serve|ui))|://|--cluster|"
    r"appendix-d|match3-(easy|strict)|position-codes|sample-complexity|softmax-against|\bRUN\b|\.\.\."
)


def list_commands(page):
    """Lines of `keyhole`, those that end in a backslash joined, without comments."""
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("keyhole ") and "..." not in line:
                yield shlex.split(line.partition(" | ")[0], comments=True)[1:]


COMMANDS = {
    f"{page.stem}: {' '.join(words)}"[:90]: words for page in PAGES for words in list_commands(page)
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_on_a_page_is_understood(name):
    app.parse_args(COMMANDS[name], exit_on_error=False, print_error=False)


def test_there_are_commands_on_the_pages():
    assert len(COMMANDS) > 60


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if any(list_commands(page))])
def test_every_command_on_a_page_runs(page, tmp_path):
    """A page from its top to its end, in one directory; no command ends in misuse or a bug."""
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    lines = "\n".join(BLOCK.findall(page.read_text(encoding="utf-8"))).replace("\\\n", " ")
    kept = [line for line in lines.splitlines() if not ELSEWHERE.search(line)]
    shim = [
        "keyhole() {",
        f'  {sys.executable} -m keyhole "$@" > out.txt 2> err.txt; code=$?',
        # A page may make a file twice, and leaves mine.py to its reader.
        "  grep -qE 'exists. Use|already holds a run|cannot import mine ' err.txt && code=0",
        '  case $code in 0|3) ;; *) echo "$code: keyhole $*"; cat err.txt ;; esac',
        "}",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(tmp_path)])}
    done = subprocess.run(
        ["bash", "-c", "\n".join([*shim, *kept])],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert (done.stdout, done.stderr) == ("", "")
