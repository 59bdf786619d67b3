"""A real browser, where there is one; it reaches no host but this."""

import shutil

import pytest

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here: apt-get install chromium, then run again"
)


def launch(playwright):
    """A browser without a window."""
    return playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
