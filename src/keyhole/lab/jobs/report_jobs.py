"""Jobs that show what there is."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

from keyhole.lab.jobs.job_parts import LATER, Job


@dataclass(frozen=True)
class ReportJob(Job):
    """The report of a run again, or one page that compares several.

    Args:
        runs: directories of runs.
        figures: also write the main plots as SVG and PDF, for papers.
        index: a directory whose runs, and those in them, get one page that links to all.
        out: where to write; the run itself when there is one, runs/TIME-report when there are
            several.
    """

    runs: tuple[str, ...] = ()
    _: KW_ONLY
    figures: bool = False
    index: str | None = field(default=None, metadata=LATER)
    out: str | None = None


@dataclass(frozen=True)
class UiJob(Job):
    """The explorer: one page in a browser, served to this machine only.

    Args:
        target: what the page may ask: a .safetensors or .onnx file, package.module:callable, or
            http(s)://HOST:PORT/v2/models/NAME.
        width: size of a token, where the target does not say.
        outputs: numbers per answer, where the target does not say.
        layer: one layer of a torch or ONNX model.
        truth: a saved model to compare with what is found; a saved model is its own.
        port: port to listen on; 0 takes a free one.
        runs: directory of runs and sweeps to show, and to keep recoveries in.
        open: open the page in the browser of this machine.
    """

    target: str | None = field(default=None, metadata=LATER)
    _: KW_ONLY
    width: int | None = field(default=None, metadata=LATER)
    outputs: int | None = field(default=None, metadata=LATER)
    layer: str | None = field(default=None, metadata=LATER)
    truth: str | None = field(default=None, metadata=LATER)
    port: int = 8765
    runs: str = "runs"
    open: bool = False
