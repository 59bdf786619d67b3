"""Records of the commands that make, show and repeat things, and of kinds that are not known."""

from __future__ import annotations

import msgspec

from keyhole.lab.runs.record_parts import (
    Cell,
    CertificateRecord,
    Given,
    Number,
    Numbers,
    Part,
    Queries,
    Seconds,
)
from keyhole.lab.runs.records import Envelope, RunRecord


class SampleRecord(Envelope, frozen=True, kw_only=True, tag="sample"):
    """A random model file; what the model is stands under `kind` in JSON."""

    model_kind: str = msgspec.field(name="kind")
    model: str
    width: int
    outputs: int


class ReportedRun(Part, frozen=True, kw_only=True):
    """A run that a report is of, with its summary."""

    run: str
    kind: str
    sentence: str
    verdict: str | None
    asked: str
    summary: list[tuple[str, str]]


class ReportRecord(Envelope, frozen=True, kw_only=True, tag="report"):
    """Where a report was written, and of what."""

    runs: list[ReportedRun]
    report: str
    figures: list[str]


class ServeReady(Envelope, frozen=True, kw_only=True, tag="serve"):
    """Where a model is served, as soon as it is."""

    ready: bool
    address: str
    name: str
    width: int
    outputs: int | None
    pid: int


class ServeRecord(Envelope, frozen=True, kw_only=True, tag="serve"):
    """What was served, once it is stopped."""

    address: str
    name: str
    policy: list[str]
    requests: int
    queries: int
    refused: int
    seconds: Seconds


class UiReady(Envelope, frozen=True, kw_only=True, tag="ui"):
    """Where the explorer is, as soon as it is there."""

    status: str
    address: str
    runs: str


class UiRecord(Envelope, frozen=True, kw_only=True, tag="ui"):
    """What the explorer served, once it is stopped."""

    address: str
    seconds: float


class TrialRecord(Envelope, frozen=True, kw_only=True, tag="trial"):
    """A hidden model, recovered and compared with the truth."""

    status: str
    verdict: str
    model_class: str | None = msgspec.field(name="class")
    width: int | None
    outputs: int | None
    heads: int | None
    rank: int | None
    queries: Queries
    degrees_of_freedom: int | None
    asked: int
    ratio: Number
    error: Number
    policies: dict[str, Given]
    certificate: CertificateRecord | None = None


class TransitionRecord(Envelope, frozen=True, kw_only=True, tag="transition"):
    """How many random matrices came back from so many measurements."""

    measurements: int
    degrees_of_freedom: int
    success: float
    errors: Numbers


class JobCounts(Part, frozen=True, kw_only=True):
    """What became of the jobs of a sweep."""

    total: int
    done: int
    failed: int
    run_now: int = 0


class FailedJob(Part, frozen=True, kw_only=True):
    """A job that failed, and why."""

    key: str
    reason: str | None


class Landing(Part, frozen=True, kw_only=True):
    """An expectation in words, what was measured, and whether that lies in the range."""

    sentence: str
    measured: Number
    met: bool


class Figure(Part, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How the rows of a sweep are drawn: columns by name, and words.

    Args:
        x: the column across.
        y: the column up.
        kind: lines, or a map of cells.
        x_name: what x is called.
        y_name: what y is called.
        series: the column that tells lines apart.
        series_names: what its values are called.
        lines: columns that are known beforehand, by name.
        log: the axes, x, y or xy, with a log scale.
        limit: a level of y to draw.
        limit_name: what it is called.
        value: the column of the cells of a map.
        value_name: what that is called.
        value_equals: the share of values that are this is drawn.
        value_at_most: the share of values up to this is drawn.
        boundary: the line of theory on a map.
        boundary_name: what it is called.
        boundaries: more lines of theory on a map, by name.
        panels: the column that tells pictures apart, which are drawn one below the other.
        panel_names: what its values are called.
        failed_above: a value of y above this is a failure, and failures are counted.
        failed_below: likewise below this.
        upright: a value of x to draw.
        upright_name: what it is called.
        title: the finding.
        caption: words below.
    """

    x: str
    y: str
    kind: str = "lines"
    x_name: str | None = None
    y_name: str | None = None
    series: str | None = None
    series_names: dict[str, str] = {}
    lines: dict[str, str] = {}
    log: str = ""
    limit: float | None = None
    limit_name: str | None = None
    value: str | None = None
    value_name: str | None = None
    value_equals: Given = None
    value_at_most: float | None = None
    boundary: list[tuple[float, float]] = []
    boundary_name: str | None = None
    boundaries: dict[str, list[tuple[float, float]]] = {}
    panels: str | None = None
    panel_names: dict[str, str] = {}
    failed_above: float | None = None
    failed_below: float | None = None
    upright: float | None = None
    upright_name: str | None = None
    title: str | None = None
    caption: str | None = None


class SweepRecord(RunRecord, frozen=True, kw_only=True, tag="sweep"):
    """What became of the jobs of a sweep, and where they landed."""

    name: str
    about: str
    jobs: JobCounts
    failures: list[FailedJob]
    expectations: list[Landing]
    store: str
    exports: list[str] = []
    file: str
    figure: Figure | None = None


class OtherRecord(Envelope, frozen=True, kw_only=True, tag="other"):
    """A record of a kind that is not known here: its fields, flat."""

    fields: dict[str, Cell]
