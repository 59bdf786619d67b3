"""Jobs that show what other jobs left behind."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from keyhole.lab.jobs.stating import Keyed


@dataclass(frozen=True)
class ReportJob(Keyed):
    """The report of a run again, or one page that compares several.

    Args:
        runs: directories of runs.
        figures: also write the main plots as SVG and PDF, for papers.
        out: where to write; the run itself when there is one, runs/TIME-report when there are several.
    """

    runs: tuple[str, ...]
    _: KW_ONLY
    figures: bool = False
    out: str | None = None
