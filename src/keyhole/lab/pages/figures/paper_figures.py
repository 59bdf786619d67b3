"""The main plots of a run as SVG and PDF, drawn from its record: what was recovered, what it cost, what is possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.drawing.html import number
from keyhole.lab.pages.figures.figure_style import COLOURS, LINES, MARKS, diverging, doubling, plain, sheet, written
from keyhole.lab.pages.parts.error_curves import bands_of
from keyhole.lab.pages.parts.recovered_matrices import singular_values, verified
from keyhole.lab.pages.parts.sweep_maps import cells, theory
from keyhole.lab.pages.sweep_page import grouped, known_lines
from keyhole.lab.runs.reading import Run, drawn
from keyhole.lab.runs.store import read
from keyhole.lab.runs.summaries import learning_queries, limit, phases
from keyhole.lab.runs.tables import table
from keyhole.lab.targets.policies import PROTECTS
from keyhole.models import Head, load

Paths = Iterator[Path]
Draw = Callable[[Run, Path, str], Paths]


def write_figures(run: Run, directory: Path, prefix: str) -> list[Path]:
    """Write every plot a run of this kind has.

    Args:
        run: the run.
        directory: where the files go.
        prefix: what the names of the files begin with.

    Raises:
        InvalidInput: matplotlib is not installed, or the record is damaged.
    """
    return [path for draw in _DRAWN.get(run.kind, ()) for path in drawn(run, list[Path], draw(run, directory, prefix))]


def _head(path: Path) -> Head | None:
    model = load(path) if path.is_file() else None
    return model if isinstance(model, Head) else None


def _recovery(run: Run, directory: Path, prefix: str) -> Paths:
    """True, recovered and their difference where the truth is known; the recovered W alone where not."""
    found = _head(run.directory / "model.safetensors") if run.data.get("model") is not None else None
    if found is None or not np.asarray(found.W).any():
        return
    truth = _head(run.directory / "truth.safetensors") if run.kind == "demo" else None
    W = np.asarray(found.W)
    word = "recovered" if verified(run.data) else "as fitted, not verified"
    with sheet(_found(run, truth, W), 4 if truth is not None else 2, size=(2.6, 2.7)) as (figure, axes):
        if truth is not None:
            _map(figure, axes[0], np.asarray(truth.W), "true W")
            _gap(figure, axes[2], W - np.asarray(truth.W))
        _map(figure, axes[1 if truth is not None else 0], W, f"W {word}")
        _spectrum(axes[-1], found, truth)
        yield from written(figure, directory, f"{prefix}recovery")


def _found(run: Run, truth: Head | None, W: Matrix) -> str:
    told = f"{learning_queries(run.data):,} queries; the limit is {limit(run.data) or 'not known'}"
    if truth is None:
        return f"W of a head of width {len(W):,}, {run.data['verdict']}: {told}"
    return f"W comes back to {number(float(np.abs(W - np.asarray(truth.W)).max()))}: {told}"


def _map(figure: Any, axis: Any, W: Matrix, title: str) -> None:
    most = float(np.abs(W).max()) or 1.0
    image = axis.imshow(W, cmap=diverging(), vmin=-most, vmax=most, interpolation="nearest")
    axis.set(title=plain(title), xlabel="query side, column j", ylabel="key side, row i")
    figure.colorbar(image, ax=axis, shrink=0.8)


def _gap(figure: Any, axis: Any, E: Matrix) -> None:
    image = axis.imshow(np.log10(np.maximum(np.abs(E), 1e-17)), cmap="Oranges", vmin=-16, vmax=0)
    axis.set(title="difference, log scale", xlabel="query side, column j", ylabel="key side, row i")
    figure.colorbar(image, ax=axis, shrink=0.8, label="log10 |difference|")


def _spectrum(axis: Any, found: Head, truth: Head | None) -> None:
    for kind, head in (("truth", truth), ("ours", found)):
        if head is not None and len(values := singular_values(head)):
            face = "none" if kind == "truth" else COLOURS[kind]
            size = 6 if kind == "truth" else 3
            x = np.arange(1, len(values) + 1)
            axis.semilogy(x, values, "o", color=COLOURS[kind], mfc=face, ms=size, label=_NAMES[kind])
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set(title="singular values of W", xlabel="index", ylabel="singular value σ")
    axis.legend(frameon=False)


_NAMES = {"truth": "truth", "ours": "recovered"}


def _queries(run: Run, directory: Path, prefix: str) -> Paths:
    """Phases as one bar, the limit across it."""
    counts, least = {name: n for name, n in phases(run.data).items() if name != "verify"}, limit(run.data)
    if not counts:
        return
    finding = f"{sum(counts.values()):,} queries to learn" + (f"; the limit is {least:,}" if least else "")
    with sheet(finding, size=(5.2, 1.6)) as (figure, (axis,)):
        start = 0
        for k, (name, count) in enumerate(counts.items()):
            axis.barh(0, count, left=start, color=COLOURS["ours"], alpha=(0.55, 0.3)[k % 2])
            if count > sum(counts.values()) / 12:
                axis.text(start + count / 2, 0, f"{plain(name)}\n{count:,}", ha="center", va="center")
            start += count
        if least:
            axis.axvline(least, color=COLOURS["limit"], ls="--")
            axis.text(least, 0.45, f"limit {least:,} ", ha="right", va="bottom", color=COLOURS["limit"])
        axis.set(xlabel="queries, by phase; verification apart", yticks=[], ylim=(-0.5, 0.7))
        yield from written(figure, directory, f"{prefix}queries")


def _curve(run: Run, directory: Path, prefix: str) -> Paths:
    """Error against queries, phases shaded, the limit across."""
    curve: Sequence[Mapping[str, Any]] = run.data.get("curve") or ()
    if not curve:
        return
    with sheet(f"The error of W falls to {number(curve[-1]['error'])} with the last query") as (figure, (axis,)):
        for k, band in enumerate(bands_of(run.data)):
            axis.axvspan(band.low, band.high, color=COLOURS["ours"], alpha=(0.14, 0.06)[k % 2], lw=0)
        axis.semilogy([c["queries"] for c in curve], [c["error"] for c in curve], "o-", color=COLOURS["ours"])
        if least := limit(run.data):
            axis.axvline(least, color=COLOURS["limit"], ls="--")
            axis.text(least, curve[-1]["error"], f"limit {least:,} ", ha="right", color=COLOURS["limit"])
        axis.set(xlabel="queries asked (phases shaded)", ylabel="relative error of W")
        yield from written(figure, directory, f"{prefix}error-against-queries")


def _sweep(run: Run, directory: Path, prefix: str) -> Paths:
    figure_of: Mapping[str, Any] | None = run.data.get("figure")
    if figure_of is None:
        return
    rows = table(read(run.directory / "store.sqlite"))
    finding = str(figure_of.get("title", run.data["name"]))
    with sheet(finding, size=(5.0, 3.4)) as (figure, (axis,)):
        (_sweep_map if figure_of.get("kind") == "map" else _sweep_lines)(figure, axis, rows, figure_of)
        axis.set(xlabel=plain(figure_of.get("x_name", figure_of["x"])))
        axis.set(ylabel=plain(figure_of.get("y_name", figure_of["y"])))
        yield from written(figure, directory, f"{prefix}sweep")


def _sweep_lines(figure: Any, axis: Any, rows: Any, spec: Mapping[str, Any]) -> None:
    del figure
    for kind, (name, values) in zip(("ours", "built", "peer") * 9, grouped(rows, spec).items(), strict=False):
        x = list(values)
        y = np.array([np.median(ys) for ys in values.values()])
        spread = np.abs(np.array([[min(ys), max(ys)] for ys in values.values()]).T - y)
        style = {"color": COLOURS[kind], "marker": MARKS[kind], "ls": LINES[kind]}
        axis.errorbar(x, y, yerr=spread, elinewidth=0.8, label=plain(name), **style)
    for line in known_lines(rows, spec):
        axis.plot(
            [p.x for p in line.points],
            [p.y for p in line.points],
            ls="--",
            color=COLOURS["limit"],
            label=plain(line.name),
        )
    log = spec.get("log", "")
    axis.set(xscale="log" if "x" in log else "linear", yscale="log" if "y" in log else "linear")
    if "limit" in spec:
        axis.axhline(spec["limit"], color=COLOURS["limit"], ls="--", label=plain(spec.get("limit_name", "limit")))
    if any(axis.get_legend_handles_labels()[1]):
        axis.legend(frameon=False)


def _sweep_map(figure: Any, axis: Any, rows: Any, spec: Mapping[str, Any]) -> None:
    held = cells(rows, spec)
    if held is None:
        return
    Z = np.array([[held.z.get((x, y), np.nan) for x in held.x] for y in held.y])
    share = {"vmin": 0.0, "vmax": 1.0} if held.share else {}
    image = axis.imshow(Z, origin="lower", aspect="auto", cmap="viridis", **share)
    step = max(1, -(-len(held.x) // 10))
    axis.set(xticks=range(0, len(held.x), step), xticklabels=[number(x) for x in held.x[::step]])
    axis.set(yticks=range(len(held.y)), yticklabels=[number(y) for y in held.y])
    if points := theory(spec, held):
        line = np.array(points) * [len(held.x), len(held.y)] - 0.5
        axis.plot(*line.T, color="white", lw=3)
        axis.plot(*line.T, color=COLOURS["limit"], ls="--", label=plain(spec.get("boundary_name", "theory")))
        axis.legend(loc="upper left", fontsize=7)
    figure.colorbar(image, ax=axis, label=plain(held.name))


def _audit(run: Run, directory: Path, prefix: str) -> Paths:
    """One row per policy: the errors its attempts reached."""
    rows = list(reversed(run.data["policies"]))
    finding = str(run.data["sentence"])
    with sheet(finding, size=(6.4, 0.25 * len(rows) + 1.2)) as (figure, (axis,)):
        for y, row in enumerate(rows):
            errors = [a["error"] for a in row["attempts"] if a["error"]]
            kind = "built" if row["protects"] else "ours"
            axis.plot(errors, [y] * len(errors), MARKS[kind], ls="-", color=COLOURS[kind])
            if not errors:
                axis.plot([1.0], [y], MARKS["bad"], color=COLOURS["bad"])
        axis.axvline(PROTECTS, color=COLOURS["limit"], ls="--")
        axis.set(xscale="log", yticks=range(len(rows)), yticklabels=[plain(row["policy"]) for row in rows])
        axis.set(xlabel=f"relative error of {plain(run.data['error_of'])}; right of the dashed line it is kept back")
        yield from written(figure, directory, f"{prefix}audit")


def _margin(run: Run, directory: Path, prefix: str) -> Paths:
    """Every inequality of the certificate: how much of its limit was used."""
    held = run.data["certificate"]
    checks = [
        c for part in ("conclusion", "assumptions") for c in reversed(held[part]) if 0 < (c["limit"] or 0) < 1e300
    ]
    shares = [abs((c["measured"] or 0.0) / c["limit"]) for c in checks]
    finding = f"{held['theorem']} {held['outcome'].lower()}; margin {number(run.data['margin'])}"
    with sheet(finding, size=(5.6, 0.3 * len(checks) + 1.1)) as (figure, (axis,)):
        low = 10.0 ** np.floor(np.log10(max(1e-4, min([0.1, *(s for s in shares if s)]))))
        axis.barh(range(len(checks)), [max(s, low) for s in shares], color=COLOURS["built"], alpha=0.6)
        axis.axvline(1.0, color=COLOURS["limit"], ls="--")
        axis.set(xscale="log", xlim=(low, 3), xlabel="measured over its limit; the dashed line is the limit")
        axis.set(yticks=range(len(checks)), yticklabels=[plain(c["name"]) for c in checks])
        yield from written(figure, directory, f"{prefix}margin")


def _frontier(run: Run, directory: Path, prefix: str) -> Paths:
    points, least = run.data["frontier"]["points"], run.data["frontier"]["limit_bits"]
    best = points[0]
    with sheet(f"The smallest known: m = {best['embed']}, p = {best['bits']}") as (figure, (axis,)):
        for one in points:
            axis.plot(one["embed"], one["bits"], MARKS["built"], color=COLOURS["built"])
            axis.annotate(plain(one["construction"]), (one["embed"], one["bits"]), (5, 4), textcoords="offset points")
        if least is not None:
            widest = max(float(one["embed"]) for one in points)
            m: Vector = np.geomspace(1.0, 2.0 * widest, 60)
            p = least / (run.data["size"]["heads"] * (2 * m + run.data["size"]["value_width"]))
            axis.plot(m, p, ls="--", color=COLOURS["limit"], label="too few bits for any weights below")
            axis.legend(frameon=False)
        doubling(axis)
        axis.set(xlabel="key width m", ylabel="bits p of a number")
        yield from written(figure, directory, f"{prefix}sizes")


def _plane(run: Run, directory: Path, prefix: str) -> Paths:
    """Size against bits: provably too small, built, asked."""
    plane: dict[str, Any] | None = run.data.get("plane")
    if plane is None:
        return
    name = {"embed": "key width m", "value_width": "value width v"}[plane["axis"]]
    with sheet(str(run.data["sentence"]), size=(5.2, 3.4)) as (figure, (axis,)):
        bits = [float(row[0]) for row in plane["lower"]]
        known = [float(row[1]) for row in plane["lower"] if row[1] is not None]
        marked = [float(point[0]) for point in (plane["asked"], plane["enough"]) if point and point[0] is not None]
        top = 2.0 * max([8.0, *known, *marked])
        least = [top if row[1] is None else float(row[1]) for row in plane["lower"]]
        axis.step(least, bits, where="post", ls="--", color=COLOURS["limit"], label="too small left of it")
        axis.fill_betweenx(bits, 1, least, step="pre", color="#d9d9d4", alpha=0.5)
        for kind, word in (("built", "enough"), ("ours", "asked")):
            point = plane[word]
            if point is not None and point[0] is not None:
                axis.plot(point[0], point[1] or 64, MARKS[kind], color=COLOURS[kind], label=word, ms=6)
        doubling(axis)
        axis.set(xlim=(1, top), ylim=(1, 64), xlabel=name, ylabel="bits p of a number")
        axis.legend(frameon=False, loc="upper right")
        yield from written(figure, directory, f"{prefix}plane")


def _twins(run: Run, directory: Path, prefix: str) -> Paths:
    rows = run.data["twins"]
    if not rows:
        return
    with sheet(str(run.data["sentence"]), size=(5.2, 0.35 * len(rows) + 1.3)) as (figure, (axis,)):
        y = range(len(rows))
        axis.plot(
            [r["parameters_differ"] for r in rows], y, "o", color=COLOURS["truth"], mfc="none", label="parameters"
        )
        gaps = [max(r["answers_differ"], 1e-17) for r in rows]
        axis.plot(gaps, y, "o", color=COLOURS["ours"], label="answers")
        axis.set(xscale="log", xlabel="relative difference of model and twin", yticks=y)
        axis.set(yticklabels=[plain(r["symmetry"]).lower() for r in rows], ylim=(-0.5, len(rows) - 0.5))
        axis.legend(frameon=False, loc="center")
        yield from written(figure, directory, f"{prefix}twins")


def _training(run: Run, directory: Path, prefix: str) -> Paths:
    """Errors of every seed against steps; simple predictors dashed."""
    curve = run.data["curve"]
    if len(curve["steps"]) < 2:
        return
    with sheet(str(run.data["sentence"]), size=(5.2, 3.2)) as (figure, (axis,)):
        for row in curve["errors"]:
            axis.semilogy(curve["steps"][: len(row)], row, color=COLOURS["ours"], alpha=0.7)
        for name, value in run.data["lines"].items():
            axis.axhline(value, ls="--", lw=0.8, color=COLOURS["limit"])
            axis.annotate(plain(name).replace("_", " "), (curve["steps"][-1], value), ha="right", va="bottom")
        axis.set(xlabel="step of training", ylabel=plain(run.data["measure"]))
        yield from written(figure, directory, f"{prefix}training")


_DRAWN: dict[str, tuple[Draw, ...]] = {
    "demo": (_recovery, _queries, _curve),
    "learn": (_recovery, _queries),
    "audit": (_audit,),
    "twins": (_twins,),
    "build": (_margin, _frontier),
    "bound": (_plane,),
    "sweep": (_sweep,),
    "train": (_training,),
}
