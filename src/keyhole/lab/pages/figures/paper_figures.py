"""The main plots of a run as SVG and PDF, drawn from its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keyhole._arrays import Matrix
from keyhole.drawing.html import format_number
from keyhole.lab.pages.figures.figure_style import (
    COLOURS,
    LINES,
    MARKS,
    Paths,
    escape_dollars,
    make_diverging_colours,
    open_sheet,
    write_figure,
)
from keyhole.lab.pages.figures.task_figures import (
    plot_frontier,
    plot_margins,
    plot_plane,
    plot_training,
)
from keyhole.lab.pages.parts.error_curves import find_phase_bands
from keyhole.lab.pages.parts.recovered_matrices import has_verified_model, singular_values
from keyhole.lab.pages.parts.sweep_maps import measure_cells, trace_theory
from keyhole.lab.pages.sweep_page import group_values, trace_known_lines
from keyhole.lab.runs.reading import SavedRun, guard_drawing
from keyhole.lab.runs.rows import (
    count_fewest_queries,
    count_learning_queries,
    count_phase_queries,
)
from keyhole.lab.runs.store import read_rows
from keyhole.lab.runs.tables import tabulate_rows
from keyhole.lab.targets.policies import PROTECTS
from keyhole.models import Head, load

Draw = Callable[[SavedRun, Path, str], Paths]


def write_figures(run: SavedRun, directory: Path, prefix: str) -> list[Path]:
    """Write every plot a run of this kind has.

    Args:
        run: the run.
        directory: where the files go.
        prefix: what the names of the files begin with.

    Raises:
        InvalidInput: matplotlib is not installed, or the record is damaged.
    """
    return [
        path
        for draw in _DRAWN.get(run.kind, ())
        for path in guard_drawing(run, list[Path], draw(run, directory, prefix))
    ]


def _load_single_head(path: Path) -> Head | None:
    model = load(path) if path.is_file() else None
    return model if isinstance(model, Head) else None


def _plot_recovery(run: SavedRun, directory: Path, prefix: str) -> Paths:
    """True W, recovered W and their difference; recovered W alone where truth is not known."""
    # The record decides whether there is a model, not a file that may be left over.
    if run.data.get("model") is None:
        return
    found = _load_single_head(run.directory / "model.safetensors")
    if found is None or not np.asarray(found.W).any():
        return
    # Only the tour writes the truth it hid.
    truth = _load_single_head(run.directory / "truth.safetensors") if run.kind == "demo" else None
    W = np.asarray(found.W)
    word = "recovered" if has_verified_model(run.data) else "as fitted, not verified"
    columns = 2 if truth is None else 4
    title = _title_recovery(run, truth, W)
    with open_sheet(title, columns, size=(2.6, 2.7)) as (figure, axes):
        if truth is not None:
            _plot_matrix(figure, axes[0], np.asarray(truth.W), "true W")
            _plot_difference(figure, axes[2], W - np.asarray(truth.W))
        _plot_matrix(figure, axes[1 if truth is not None else 0], W, f"W {word}")
        _plot_spectrum(axes[-1], found, truth)
        yield from write_figure(figure, directory, f"{prefix}recovery")


def _title_recovery(run: SavedRun, truth: Head | None, W: Matrix) -> str:
    told = (
        f"{count_learning_queries(run.data):,} queries; the limit is"
        f" {count_fewest_queries(run.data) or 'not known'}"
    )
    if truth is None:
        return f"W of a head of width {len(W):,}, {run.data['verdict']}: {told}"
    return f"W comes back to {format_number(float(np.abs(W - np.asarray(truth.W)).max()))}: {told}"


def _plot_matrix(figure: Any, axis: Any, W: Matrix, title: str) -> None:
    most = float(np.abs(W).max()) or 1.0
    image = axis.imshow(
        W, cmap=make_diverging_colours(), vmin=-most, vmax=most, interpolation="nearest"
    )
    axis.set(title=escape_dollars(title), xlabel="query side, column j", ylabel="key side, row i")
    figure.colorbar(image, ax=axis, shrink=0.8)


def _plot_difference(figure: Any, axis: Any, E: Matrix) -> None:
    image = axis.imshow(np.log10(np.maximum(np.abs(E), 1e-17)), cmap="Oranges", vmin=-16, vmax=0)
    axis.set(title="difference, log scale", xlabel="query side, column j", ylabel="key side, row i")
    figure.colorbar(image, ax=axis, shrink=0.8, label="log10 |difference|")


def _plot_spectrum(axis: Any, found: Head, truth: Head | None) -> None:
    for kind, head in (("truth", truth), ("ours", found)):
        if head is not None and len(values := singular_values(head)):
            face = "none" if kind == "truth" else COLOURS[kind]
            size = 6 if kind == "truth" else 3
            x = np.arange(1, len(values) + 1)
            axis.semilogy(
                x, values, "o", color=COLOURS[kind], mfc=face, ms=size, label=_NAMES[kind]
            )
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set(title="singular values of W", xlabel="index", ylabel="singular value σ")
    axis.legend(frameon=False)


_NAMES = {"truth": "truth", "ours": "recovered"}


def _plot_queries(run: SavedRun, directory: Path, prefix: str) -> Paths:
    """Phases as one bar, the limit across it."""
    counts = {name: n for name, n in count_phase_queries(run.data).items() if name != "verify"}
    least = count_fewest_queries(run.data)
    if not counts:
        return
    finding = f"{sum(counts.values()):,} queries to learn"
    finding += f"; the limit is {least:,}" if least else ""
    with open_sheet(finding, size=(5.2, 1.6)) as (figure, (axis,)):
        start = 0
        for k, (name, count) in enumerate(counts.items()):
            axis.barh(0, count, left=start, color=COLOURS["ours"], alpha=(0.55, 0.3)[k % 2])
            # A narrower part of the bar has no room for its name.
            if count > sum(counts.values()) / 12:
                axis.text(
                    start + count / 2,
                    0,
                    f"{escape_dollars(name)}\n{count:,}",
                    ha="center",
                    va="center",
                )
            start += count
        if least:
            axis.axvline(least, color=COLOURS["limit"], ls="--")
            axis.text(
                least, 0.45, f"limit {least:,} ", ha="right", va="bottom", color=COLOURS["limit"]
            )
        axis.set(xlabel="queries, by phase; verification apart", yticks=[], ylim=(-0.5, 0.7))
        yield from write_figure(figure, directory, f"{prefix}queries")


def _plot_error_curve(run: SavedRun, directory: Path, prefix: str) -> Paths:
    """Error against queries, phases shaded, the limit across."""
    curve: Sequence[Mapping[str, Any]] = run.data.get("curve") or ()
    if not curve:
        return
    finding = f"The error of W falls to {format_number(curve[-1]['error'])} with the last query"
    with open_sheet(finding) as (figure, (axis,)):
        for k, band in enumerate(find_phase_bands(run.data)):
            axis.axvspan(
                band.low, band.high, color=COLOURS["ours"], alpha=(0.14, 0.06)[k % 2], lw=0
            )
        axis.semilogy(
            [c["queries"] for c in curve], [c["error"] for c in curve], "o-", color=COLOURS["ours"]
        )
        if least := count_fewest_queries(run.data):
            axis.axvline(least, color=COLOURS["limit"], ls="--")
            axis.text(
                least, curve[-1]["error"], f"limit {least:,} ", ha="right", color=COLOURS["limit"]
            )
        axis.set(xlabel="queries asked (phases shaded)", ylabel="relative error of W")
        yield from write_figure(figure, directory, f"{prefix}error-against-queries")


def _plot_sweep(run: SavedRun, directory: Path, prefix: str) -> Paths:
    figure_of: Mapping[str, Any] | None = run.data.get("figure")
    if figure_of is None:
        return
    rows = tabulate_rows(read_rows(run.directory / "store.sqlite"))
    finding = str(figure_of.get("title", run.data["name"]))
    with open_sheet(finding, size=(5.0, 3.4)) as (figure, (axis,)):
        plot = _plot_sweep_map if figure_of.get("kind") == "map" else _plot_sweep_lines
        plot(figure, axis, rows, figure_of)
        axis.set(xlabel=escape_dollars(figure_of.get("x_name", figure_of["x"])))
        axis.set(ylabel=escape_dollars(figure_of.get("y_name", figure_of["y"])))
        yield from write_figure(figure, directory, f"{prefix}sweep")


def _plot_sweep_lines(figure: Any, axis: Any, rows: Any, spec: Mapping[str, Any]) -> None:
    del figure
    for kind, (name, values) in zip(
        ("ours", "built", "peer") * 9, group_values(rows, spec).items(), strict=False
    ):
        x = list(values)
        y = np.array([np.median(ys) for ys in values.values()])
        # Matplotlib wants lengths of bars, below and above.
        spread = np.abs(np.array([[min(ys), max(ys)] for ys in values.values()]).T - y)
        style = {"color": COLOURS[kind], "marker": MARKS[kind], "ls": LINES[kind]}
        axis.errorbar(x, y, yerr=spread, elinewidth=0.8, label=escape_dollars(name), **style)
    for line in trace_known_lines(rows, spec):
        axis.plot(
            [p.x for p in line.points],
            [p.y for p in line.points],
            ls="--",
            color=COLOURS["limit"],
            label=escape_dollars(line.name),
        )
    log = spec.get("log", "")
    axis.set(xscale="log" if "x" in log else "linear", yscale="log" if "y" in log else "linear")
    if "limit" in spec:
        axis.axhline(
            spec["limit"],
            color=COLOURS["limit"],
            ls="--",
            label=escape_dollars(spec.get("limit_name", "limit")),
        )
    if any(axis.get_legend_handles_labels()[1]):
        axis.legend(frameon=False)


def _plot_sweep_map(figure: Any, axis: Any, rows: Any, spec: Mapping[str, Any]) -> None:
    held = measure_cells(rows, spec)
    if held is None:
        return
    # Cells without rows stay empty.
    Z = np.array([[held.z.get((x, y), np.nan) for x in held.x] for y in held.y])
    share = {"vmin": 0.0, "vmax": 1.0} if held.share else {}
    image = axis.imshow(Z, origin="lower", aspect="auto", cmap="viridis", **share)
    step = max(1, -(-len(held.x) // 10))
    axis.set(
        xticks=range(0, len(held.x), step), xticklabels=[format_number(x) for x in held.x[::step]]
    )
    axis.set(yticks=range(len(held.y)), yticklabels=[format_number(y) for y in held.y])
    if points := trace_theory(spec, held):
        line = np.array(points) * [len(held.x), len(held.y)] - 0.5
        # A light ground under the dashes, so that they are seen on every colour.
        axis.plot(*line.T, color="white", lw=3)
        axis.plot(
            *line.T,
            color=COLOURS["limit"],
            ls="--",
            label=escape_dollars(spec.get("boundary_name", "theory")),
        )
        axis.legend(loc="upper left", fontsize=7)
    figure.colorbar(image, ax=axis, label=escape_dollars(held.name))


def _plot_audit(run: SavedRun, directory: Path, prefix: str) -> Paths:
    """One row per policy: the errors its attempts reached."""
    rows = list(reversed(run.data["policies"]))
    finding = str(run.data["sentence"])
    with open_sheet(finding, size=(6.4, 0.25 * len(rows) + 1.2)) as (figure, (axis,)):
        for y, row in enumerate(rows):
            errors = [a["error"] for a in row["attempts"] if a["error"]]
            kind = "built" if row["protects"] else "ours"
            axis.plot(errors, [y] * len(errors), MARKS[kind], ls="-", color=COLOURS[kind])
            if not errors:
                axis.plot([1.0], [y], MARKS["bad"], color=COLOURS["bad"])
        axis.axvline(PROTECTS, color=COLOURS["limit"], ls="--")
        axis.set(
            xscale="log",
            yticks=range(len(rows)),
            yticklabels=[escape_dollars(row["policy"]) for row in rows],
        )
        axis.set(
            xlabel=(
                f"relative error of {escape_dollars(run.data['error_of'])}; right of the dashed"
                " line it is kept back"
            )
        )
        yield from write_figure(figure, directory, f"{prefix}audit")


def _plot_twins(run: SavedRun, directory: Path, prefix: str) -> Paths:
    rows = run.data["twins"]
    if not rows:
        return
    size = (5.2, 0.35 * len(rows) + 1.3)
    with open_sheet(str(run.data["sentence"]), size=size) as (figure, (axis,)):
        y = range(len(rows))
        axis.plot(
            [r["parameters_differ"] for r in rows],
            y,
            "o",
            color=COLOURS["truth"],
            mfc="none",
            label="parameters",
        )
        gaps = [max(r["answers_differ"], 1e-17) for r in rows]
        axis.plot(gaps, y, "o", color=COLOURS["ours"], label="answers")
        axis.set(xscale="log", xlabel="relative difference of model and twin", yticks=y)
        axis.set(
            yticklabels=[escape_dollars(r["symmetry"]).lower() for r in rows],
            ylim=(-0.5, len(rows) - 0.5),
        )
        axis.legend(frameon=False, loc="center")
        yield from write_figure(figure, directory, f"{prefix}twins")


_DRAWN: dict[str, tuple[Draw, ...]] = {
    "demo": (_plot_recovery, _plot_queries, _plot_error_curve),
    "learn": (_plot_recovery, _plot_queries),
    "audit": (_plot_audit,),
    "twins": (_plot_twins,),
    "build": (plot_margins, plot_frontier),
    "bound": (plot_plane,),
    "sweep": (_plot_sweep,),
    "train": (plot_training,),
}
