"""The page of a training: learning curves, attention beside the ideal, every seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keyhole._arrays import Matrix
from keyhole.drawing.heatmaps import Axes, draw_attention_heatmap
from keyhole.drawing.html import (
    draw_svg,
    escape_text,
    format_command,
    format_number,
    format_section,
    format_table,
    frame_figure,
)
from keyhole.lab.pages.shell import wrap_page
from keyhole.models.files import read_tensors

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 330, 64, 560, 12, 280
_AXES = Axes("asking token i", "attended token j")
_LEAST = 1e-8  # an error that is drawn


def draw_training_run(data: Mapping[str, Any], directory: Path) -> str:
    """The page again, with the pictures of attention that the last checkpoint holds."""
    path = directory / f"checkpoint-{data['seed']}.safetensors"
    held = read_tensors(path)[1] if path.is_file() else {}
    # Names are picture.STEP; the ideal stands under -1.
    pictures = {int(name[8:]): array for name, array in held.items() if name.startswith("picture.")}
    return draw_training_page(data, pictures)


def draw_training_page(data: Mapping[str, Any], pictures: Mapping[int, Matrix]) -> str:
    """A self-contained page.

    Args:
        data: the record.
        pictures: attention weights of the first seed by step, the ideal under -1.
    """
    parts = [
        f"<h1>{escape_text(data['sentence'])}</h1>",
        _draw_learning_curves(data),
        _draw_trained_attention(data, pictures),
        _list_seeds(data),
    ]
    return wrap_page(
        "train", "".join([*parts, _list_predictors(data), _show_training_command(data)])
    )


def _draw_learning_curves(data: Mapping[str, Any]) -> str:
    """Errors of every seed against steps on a log scale, simple predictors dashed."""
    steps = data["curve"]["steps"]
    rows = data["curve"]["errors"]
    if len(steps) < 2:
        return ""
    lines = {name: value for name, value in data["lines"].items() if value > 0}
    every = [max(e, _LEAST) for row in rows for e in row if e is not None and math.isfinite(e)]
    values = [*every, *lines.values()]
    # Whole decades; a largest value of exactly 1 gets one above it too.
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    marks = _draw_training_axes(steps[-1], low, high)
    for k, row in enumerate(rows):
        marks += _draw_seed_curve(
            steps,
            row,
            low,
            high,
            f"seed {data['seed'] + k}: error {format_number(data['errors'][k])}",
        )
    marks += _draw_predictors(lines, low, high)
    said = f"{data['measure']} on {200} sequences kept apart, log scale; one line per seed"
    svg = draw_svg(marks, size={"viewBox": f"0 0 {_WIDTH} {_HEIGHT}"}, label="learning curves")
    caption = f"<b>learning curves</b>: {escape_text(said)}"
    return format_section("How the error falls", frame_figure(svg, caption, width="100%"))


def _place_step(step: float, last: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * step / max(1, last)


def _place_training_error(error: float, low: float, high: float) -> float:
    return _TOP + (_BOTTOM - _TOP) * (high - math.log10(max(error, _LEAST))) / max(1, high - low)


def _draw_training_axes(last: int, low: int, high: int) -> str:
    parts = ""
    for power in range(low, high + 1):
        y = _place_training_error(10.0**power, low, high)
        parts += f'<line class="rule" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        parts += (
            f'<text class="quiet" x="{_LEFT - 6}" y="{y + 4:.1f}"'
            f' text-anchor="end">{format_number(10.0**power)}</text>'
        )
    for step, anchor in ((0, "start"), (last // 2, "middle"), (last, "end")):
        x = _place_step(step, last)
        parts += (
            f'<text class="quiet" x="{x:.1f}" y="{_BOTTOM + 18}"'
            f' text-anchor="{anchor}">{step:,}</text>'
        )
    return (
        parts + f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_BOTTOM + 38}" text-anchor="middle">step of'
        " training</text>"
    )


def _draw_seed_curve(
    steps: Sequence[int], errors: Sequence[float | None], low: int, high: int, said: str
) -> str:
    points = [
        f"{_place_step(step, steps[-1]):.1f} {_place_training_error(error, low, high):.1f}"
        for step, error in zip(steps, errors, strict=False)
        if error is not None and math.isfinite(error)
    ]
    if not points:
        return ""
    return (
        f'<g><title>{escape_text(said)}</title><path class="line ours"'
        f' d="M{"L".join(points)}"/></g>'
    )


def _draw_predictors(lines: Mapping[str, float], low: int, high: int) -> str:
    """Simple predictors with their names, moved apart where they would touch."""
    drawn = ""
    last = -math.inf
    for name, value in sorted(lines.items(), key=lambda pair: -pair[1]):
        y = _place_training_error(value, low, high)
        # Names that would touch are moved down; their lines stay.
        last = max(y, last + 14)
        drawn += f'<path class="dashed" d="M{_LEFT} {y:.1f}H{_RIGHT}"/>'
        drawn += (
            f'<text class="quiet" x="{_RIGHT + 6}"'
            f' y="{last + 4:.1f}">{escape_text(name_predictor(name))} {format_number(value)}</text>'
        )
    return drawn


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


def _draw_trained_attention(data: Mapping[str, Any], pictures: Mapping[int, Matrix]) -> str:
    """Attention of the first seed during training, beside what it should be."""
    if not pictures:
        return ""
    figures = [
        draw_attention_heatmap(f"step {step:,}", A, axes=_AXES)
        for step, A in sorted(pictures.items())
        if step >= 0
    ]
    figures += [draw_attention_heatmap("ideal", pictures[-1], axes=_AXES)] if -1 in pictures else []
    aligned = data["curve"]["alignment"]
    said = f"Attention of seed {data['seed']} on one input"
    # Only tasks that name positions say where attention should go.
    if aligned:
        first, last = (format_number(share) for share in (aligned[0], aligned[-1]))
        said += f"; the share on the tokens named goes from {first} to {last}, median over seeds"
    return format_section(said, f'<div class="pictures">{"".join(figures)}</div>')


def _list_seeds(data: Mapping[str, Any]) -> str:
    best = data["curve"]["best_steps"]
    paths = data.get("models") or [""] * len(best)
    rows = [
        (str(data["seed"] + k), format_number(error), f"{best[k]:,}", paths[k])
        for k, error in enumerate(data["errors"])
    ]
    return format_section(
        "Every seed", format_table(rows, ("seed", data["measure"], "best at step", "model"), (1, 2))
    )


def _list_predictors(data: Mapping[str, Any]) -> str:
    rows = [(name_predictor(name), format_number(value)) for name, value in data["lines"].items()]
    return format_section(
        "What simple predictors reach", format_table(rows, ("predictor", "error"), (1,))
    )


def _show_training_command(data: Mapping[str, Any]) -> str:
    names = (("version", "keyhole"), ("torch", "torch"), ("numpy", "numpy"), ("python", "Python"))
    versions = ", ".join(f"{name} {data[key]}" for key, name in names if key in data)
    sizes = ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in data["model_sizes"].items()
    )
    body = f"{format_command(data['command'], sizes)}<p>{escape_text(versions)}</p>"
    return format_section("How to reproduce", body)
