"""Plots of what attention computes: margins, sizes that were built, limits, training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from keyhole._arrays import Vector
from keyhole.drawing.html import format_number
from keyhole.lab.pages.figures.figure_style import (
    COLOURS,
    MARKS,
    Paths,
    escape_dollars,
    open_sheet,
    set_doubling_axes,
    write_figure,
)
from keyhole.lab.runs.reading import SavedRun


def plot_margins(run: SavedRun, directory: Path, prefix: str) -> Paths:
    """Every inequality of the certificate: how much of its limit was used."""
    held = run.data["certificate"]
    checks = [
        c
        for part in ("conclusion", "assumptions")
        for c in reversed(held[part])
        # A limit of zero or of infinity has no share that was used.
        if 0 < (c["limit"] or 0) < 1e300
    ]
    shares = [abs((c["measured"] or 0.0) / c["limit"]) for c in checks]
    finding = (
        f"{held['theorem']} {held['outcome'].lower()}; margin {format_number(run.data['margin'])}"
    )
    with open_sheet(finding, size=(5.6, 0.3 * len(checks) + 1.1)) as (figure, (axis,)):
        # Four decades at most: an inequality that is nearly unused is as good as unused.
        low = 10.0 ** np.floor(np.log10(max(1e-4, min([0.1, *(s for s in shares if s)]))))
        axis.barh(
            range(len(checks)), [max(s, low) for s in shares], color=COLOURS["built"], alpha=0.6
        )
        axis.axvline(1.0, color=COLOURS["limit"], ls="--")
        axis.set(
            xscale="log",
            xlim=(low, 3),
            xlabel="measured over its limit; the dashed line is the limit",
        )
        axis.set(yticks=range(len(checks)), yticklabels=[escape_dollars(c["name"]) for c in checks])
        yield from write_figure(figure, directory, f"{prefix}margin")


def plot_frontier(run: SavedRun, directory: Path, prefix: str) -> Paths:
    """Key width against bits: what was built, above what is provably too small."""
    points = run.data["frontier"]["points"]
    least = run.data["frontier"]["limit_bits"]
    best = points[0]
    finding = f"The smallest known: m = {best['embed']}, p = {best['bits']}"
    with open_sheet(finding) as (figure, (axis,)):
        for one in points:
            axis.plot(one["embed"], one["bits"], MARKS["built"], color=COLOURS["built"])
            axis.annotate(
                escape_dollars(one["construction"]),
                (one["embed"], one["bits"]),
                (5, 4),
                textcoords="offset points",
            )
        if least is not None:
            widest = max(float(one["embed"]) for one in points)
            # The line H (2m + v) p = limit_bits.
            m: Vector = np.geomspace(1.0, 2.0 * widest, 60)
            p = least / (run.data["size"]["heads"] * (2 * m + run.data["size"]["value_width"]))
            axis.plot(
                m, p, ls="--", color=COLOURS["limit"], label="too few bits for any weights below"
            )
            axis.legend(frameon=False)
        set_doubling_axes(axis)
        axis.set(xlabel="key width m", ylabel="bits p of a number")
        yield from write_figure(figure, directory, f"{prefix}sizes")


def plot_plane(run: SavedRun, directory: Path, prefix: str) -> Paths:
    """Size against bits: provably too small, built, asked."""
    plane: dict[str, Any] | None = run.data.get("plane")
    if plane is None:
        return
    name = {"embed": "key width m", "value_width": "value width v"}[plane["axis"]]
    with open_sheet(str(run.data["sentence"]), size=(5.2, 3.4)) as (figure, (axis,)):
        bits = [float(row[0]) for row in plane["lower"]]
        known = [float(row[1]) for row in plane["lower"] if row[1] is not None]
        marked = [
            float(point[0])
            for point in (plane["asked"], plane["enough"])
            if point and point[0] is not None
        ]
        # No size is enough: the line leaves the picture at its right end.
        top = 2.0 * max([8.0, *known, *marked])
        least = [top if row[1] is None else float(row[1]) for row in plane["lower"]]
        axis.step(
            least, bits, where="post", ls="--", color=COLOURS["limit"], label="too small left of it"
        )
        axis.fill_betweenx(bits, 1, least, step="pre", color=COLOURS["rule"], alpha=0.5)
        for kind, word in (("built", "enough"), ("ours", "asked")):
            point = plane[word]
            if point is not None and point[0] is not None:
                axis.plot(
                    point[0], point[1] or 64, MARKS[kind], color=COLOURS[kind], label=word, ms=6
                )
        set_doubling_axes(axis)
        axis.set(xlim=(1, top), ylim=(1, 64), xlabel=name, ylabel="bits p of a number")
        axis.legend(frameon=False, loc="upper right")
        yield from write_figure(figure, directory, f"{prefix}plane")


def plot_training(run: SavedRun, directory: Path, prefix: str) -> Paths:
    """Errors of every seed against steps; simple predictors dashed."""
    curve = run.data["curve"]
    # Constructed weights have one check and no curve.
    if len(curve["steps"]) < 2:
        return
    with open_sheet(str(run.data["sentence"]), size=(5.2, 3.2)) as (figure, (axis,)):
        for row in curve["errors"]:
            axis.semilogy(curve["steps"][: len(row)], row, color=COLOURS["ours"], alpha=0.7)
        for name, value in run.data["lines"].items():
            axis.axhline(value, ls="--", lw=0.8, color=COLOURS["limit"])
            axis.annotate(
                escape_dollars(name).replace("_", " "),
                (curve["steps"][-1], value),
                ha="right",
                va="bottom",
            )
        axis.set(xlabel="step of training", ylabel=escape_dollars(run.data["measure"]))
        yield from write_figure(figure, directory, f"{prefix}training")
