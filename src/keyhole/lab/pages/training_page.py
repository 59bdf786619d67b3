"""The page of a training: learning curves, attention beside the ideal, every seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from keyhole._arrays import Matrix
from keyhole.drawing.describing import Axes, Axis, Chart, Level, Line, Point
from keyhole.drawing.heatmaps import draw_attention_heatmap
from keyhole.drawing.html import (
    Markup,
    caption_picture,
    element,
    format_command,
    format_number,
    format_section,
    format_table,
    frame_figure,
    join_markup,
    join_pictures,
)
from keyhole.drawing.svg import draw_chart
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.runs.summaries import describe_versions
from keyhole.lab.runs.task_records import TrainRecord
from keyhole.models.files import read_tensors

_AXES = Axes("asking token i", "attended token j")
_LEAST = 1e-8  # an error that is drawn


def draw_training_run(data: TrainRecord, directory: Path) -> str:
    """The page again, with the pictures of attention that the last checkpoint holds."""
    path = directory / f"checkpoint-{data.seed}.safetensors"
    held = read_tensors(path)[1] if path.is_file() else {}
    # Names are picture.STEP; the ideal stands under -1.
    pictures = {int(name[8:]): array for name, array in held.items() if name.startswith("picture.")}
    return draw_training_page(data, pictures)


def draw_training_page(data: TrainRecord, pictures: Mapping[int, Matrix]) -> str:
    """A self-contained page.

    Args:
        data: the record.
        pictures: attention weights of the first seed by step, the ideal under -1.
    """
    parts = (
        element("h1", data.sentence),
        _draw_learning_curves(data),
        _draw_trained_attention(data, pictures),
        _list_seeds(data),
        _list_predictors(data),
        _show_training_command(data),
    )
    return wrap_page("train", join_markup(*parts))


def describe_training(data: TrainRecord) -> Chart | None:
    """Errors of every seed against steps on a log scale, simple predictors dashed."""
    steps = data.curve.steps
    # Constructed weights have one check and no curve.
    if len(steps) < 2:
        return None
    lines = [
        _trace_seed(
            f"seed {(data.seed or 0) + k}: error {format_number(data.errors[k])}",
            [
                Point(step, max(error, _LEAST))
                for step, error in zip(steps, row, strict=False)
                if error is not None and math.isfinite(error)
            ],
        )
        for k, row in enumerate(data.curve.errors)
    ]
    levels = [
        Level(f"{name_predictor(name)} {format_number(value)}", value)
        for name, value in data.lines.items()
        if value is not None
    ]
    return Chart(
        f"{data.measure} on 200 sequences kept apart, log scale; one line per seed",
        Axis("step of training", low=0.0),
        Axis(data.measure, log=True),
        lines,
        levels,
    )


def _trace_seed(said: str, points: list[Point]) -> Line:
    return Line("", "ours", points, marked=False, said=said)


def _draw_learning_curves(data: TrainRecord) -> Markup:
    chart = describe_training(data)
    if chart is None:
        return Markup()
    caption = caption_picture("learning curves", chart.about)
    figure = frame_figure(draw_chart(chart), caption, width="100%")
    return format_section("How the error falls", figure)


_NAMES = {
    "zero": "answering zero",
    "mean_of_all": "mean of all z",
    "causal_floor": "floor of one causal reading",
    "linear_optimum": "best linear attention",
    "majority": "more frequent label",
    "distinct_count": "how many tokens differ",
    "pairwise": "matches that a pair shows",
}


def name_predictor(line: str) -> str:
    """A simple predictor in words."""
    return _NAMES.get(line, line.replace("_", " "))


def _draw_trained_attention(data: TrainRecord, pictures: Mapping[int, Matrix]) -> Markup:
    """Attention of the first seed during training, beside what it should be."""
    if not pictures:
        return Markup()
    figures = [
        draw_attention_heatmap(f"step {step:,}", A, axes=_AXES)
        for step, A in sorted(pictures.items())
        if step >= 0
    ]
    figures += [draw_attention_heatmap("ideal", pictures[-1], axes=_AXES)] if -1 in pictures else []
    aligned = data.curve.alignment
    said = f"Attention of seed {data.seed} on one input"
    # Only tasks that name positions say where attention should go.
    if aligned:
        first, last = (format_number(share) for share in (aligned[0], aligned[-1]))
        said += f"; the share on the tokens named goes from {first} to {last}, median over seeds"
    return format_section(said, join_pictures(*figures))


def _list_seeds(data: TrainRecord) -> Markup:
    best = data.curve.best_steps
    paths = data.models or [""] * len(best)
    rows = [
        (str((data.seed or 0) + k), format_number(error), f"{best[k]:,}", paths[k])
        for k, error in enumerate(data.errors)
    ]
    return format_section(
        "Every seed", format_table(rows, ("seed", data.measure, "best at step", "model"), (1, 2))
    )


def _list_predictors(data: TrainRecord) -> Markup:
    rows = [(name_predictor(name), format_number(value)) for name, value in data.lines.items()]
    return format_section(
        "What simple predictors reach", format_table(rows, ("predictor", "error"), (1,))
    )


def _show_training_command(data: TrainRecord) -> Markup:
    versions = describe_versions(data) + (f", torch {data.torch}" if data.torch else "")
    sizes = ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in data.model_sizes.items()
    )
    command = format_command(data.command or "", sizes)
    return format_section("How to reproduce", command, element("p", versions))
