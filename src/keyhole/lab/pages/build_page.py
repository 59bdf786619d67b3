"""The page of built weights: who attends to whom, the frontier of sizes, and the certificate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keyhole._arrays import Array, Matrix, softmax
from keyhole.claims import THEOREMS
from keyhole.constructions import load
from keyhole.drawing.heatmaps import Axes, draw_attention_heatmap, draw_signed_heatmap
from keyhole.drawing.html import (
    draw_svg,
    escape_text,
    format_command,
    format_number,
    format_section,
    format_table,
    frame_figure,
    make_scrollable,
)
from keyhole.lab.pages.parts.shown_attention import Shown
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.runs.summaries import describe_question, describe_versions, restore_command
from keyhole.models.attention import SelfAttention
from keyhole.models.files import read_tensors
from keyhole.models.stack import Block, Transformer
from keyhole.models.tensor import TensorAttention
from keyhole.tasks import load_part

_AXES = Axes("asking token i", "attended token j")
# Larger tables of scores would take longer than a picture is worth.
_TABLE = 2**21  # scores of a picture at most
_SQUARE = "m-4 -4h8v8h-8z"
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 600, 30, 250


def draw_build_page(data: Mapping[str, Any], directory: Path) -> str:
    """A self-contained page, from the record, the weights and the input beside it.

    Args:
        data: the record.
        directory: where model.safetensors and example.safetensors are.
    """
    head = (
        f"<h1>{escape_text(data['sentence'])}</h1>"
        f"<p class='limit'>{escape_text(describe_question('build', data))}</p>"
    )
    parts = [head, draw_attention_pictures(data["task"], directory), _draw_frontier(data)]
    if trip := data.get("round_trip"):
        said = f"<p>{escape_text(trip['sentence'])}</p>"
        parts.append(format_section("What its answers give away", said))
    parts += [_list_constructions(data), _show_build_certificate(data), _show_build_command(data)]
    return wrap_page("build", "".join(parts))


def draw_attention_pictures(task: str, directory: Path, *, tables: bool = True) -> str:
    """What the last layer does on one input, as the picture of its task and as tables."""
    model = load(directory / "model.safetensors")
    path = directory / "example.safetensors"
    if not isinstance(model, Transformer) or not path.is_file():
        return ""
    # The input was kept with the run, so that the page can be drawn again alike.
    X = read_tensors(path)[1]["X"]
    # The last layer is the one whose attention shows the task.
    for block in model.blocks[:-1]:
        X = block(X)
    block = model.blocks[-1]
    tokens = block.tokens(X)
    layer = block.layer
    order = layer.order if isinstance(layer, TensorAttention) else 2
    if tokens.shape[1] ** order > _TABLE or not isinstance(layer, SelfAttention | TensorAttention):
        return ""
    scores = _score_tokens(layer, tokens)
    draw = load_part(task, "picture")
    own = "" if draw is None else draw(Shown(block, X[0], scores, order))
    return own + _draw_attention_maps(block, scores, order) if tables else own


def _draw_attention_maps(block: Block, scores: Matrix, order: int) -> str:
    """Scores and weights as tables, those of pairs added up."""
    # Rows of pairs are summed over the second partner to fit a square.
    weights = softmax(scores).reshape(len(scores), len(scores), -1).sum(axis=-1)
    figures = [draw_attention_heatmap("attention weights", weights, axes=_AXES)]
    if order == 2:
        figures.insert(
            0,
            draw_signed_heatmap(
                "scores, the largest of each row 0", _lower_scores(scores), name="score", axes=_AXES
            ),
        )
    said = "Attention on one input" + (
        "; token 0 is the blank one" if block.blank is not None else ""
    )
    said += "; weights of pairs are added up over the second partner" if order > 2 else ""
    return format_section(said, f'<div class="pictures">{"".join(figures)}</div>')


def _score_tokens(layer: SelfAttention | TensorAttention, tokens: Array) -> Matrix:
    if isinstance(layer, TensorAttention):
        return layer.scores(tokens)[0]
    return (tokens[0] @ layer.Q[0]) @ (tokens[0] @ layer.K[0]).T


def _lower_scores(scores: Matrix) -> Matrix:
    return scores - scores.max(axis=1, keepdims=True)


def _draw_frontier(data: Mapping[str, Any]) -> str:
    """Key width against bits on log scales: what was built, what is provably too small."""
    points = data["frontier"]["points"]
    limit = data["frontier"]["limit_bits"]
    v = data["size"]["value_width"]
    heads = data["size"]["heads"]
    widths = [p["embed"] for p in points]
    low, high = min(1.0, *widths), 2.0 * max(widths)
    top = 2.0 * max(p["bits"] for p in points)
    marks = _draw_frontier_ticks(low, high, top)
    for point in points:
        x = _place_key_width(point["embed"], low, high)
        y = _place_number_bits(point["bits"], top)
        about = f"{point['construction']}: m = {point['embed']}, p = {point['bits']}"
        marks += (
            f'<g><title>{escape_text(about)}</title><path class="built" d="M{x:.1f}'
            f' {y:.1f}{_SQUARE}"/>'
        )
        marks += (
            f'<text x="{x + 9:.1f}" y="{y + 4:.1f}">{escape_text(point["construction"])}</text></g>'
        )
    said = "squares were built and checked"
    # The line H (2m + v) p = limit: bits that any weights need.
    if limit is not None:
        steps = [low * (high / low) ** (k / 60) for k in range(61)]
        line = [(m, limit / (heads * (2 * m + v))) for m in steps]
        shown = [
            f"{_place_key_width(m, low, high):.1f},{_place_number_bits(p, top):.1f}"
            for m, p in line
            if 1.0 <= p <= top
        ]
        marks += (
            f'<polyline class="dashed" fill="none" points="{" ".join(shown)}"/>' if shown else ""
        )
        said += (
            f"; below the dashed line H (2m + v) p is less than {limit:.1f} bits, too few for any"
            " weights"
        )
    size = {"viewBox": "0 0 760 290", "style": "min-width:34rem"}
    svg = make_scrollable(draw_svg(marks, size=size, label="sizes that were built"), "sizes")
    figure = frame_figure(svg, f"<b>m against p</b>: {escape_text(said)}", width="100%")
    best = points[0]
    return format_section(f"The smallest known: m = {best['embed']}, p = {best['bits']}", figure)


def _place_key_width(m: float, low: float, high: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * math.log(m / low) / math.log(high / low)


def _place_number_bits(p: float, top: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * math.log(p) / math.log(top)


def _draw_frontier_ticks(low: float, high: float, top: float) -> str:
    """Rules at powers of two of the bits, and of the key width below."""
    parts = f'<text class="quiet" x="{_LEFT}" y="14">bits p of a number, log scale</text>'
    for power in range(int(math.log2(top)) + 1):
        y = _place_number_bits(2.0**power, top)
        parts += f'<line class="rule" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        parts += (
            f'<text class="quiet" x="{_LEFT - 6}" y="{y + 4:.1f}"'
            f' text-anchor="end">{2**power}</text>'
        )
    for power in range(math.ceil(math.log2(low)), int(math.log2(high)) + 1):
        x = _place_key_width(2.0**power, low, high)
        parts += (
            f'<text class="quiet" x="{x:.1f}" y="{_BOTTOM + 16}"'
            f' text-anchor="middle">{2**power:,}</text>'
        )
    at = (_LEFT + _RIGHT) / 2
    return (
        f'{parts}<text class="quiet" x="{at}" y="{_BOTTOM + 34}" text-anchor="middle">key width m,'
        " log scale</text>"
    )


def _list_constructions(data: Mapping[str, Any]) -> str:
    rows = [
        (p["construction"], f"m = {p['embed']}, p = {p['bits']}")
        for p in data["frontier"]["points"]
    ]
    rows += list(data["refused"].items())
    return format_section(
        "Every construction that was tried", format_table(rows, ("construction", "what came of it"))
    )


def _show_build_certificate(data: Mapping[str, Any]) -> str:
    held = data["certificate"]
    parts = (("assumption", "assumptions"), ("conclusion", "conclusion"))
    rows = [
        (
            c["name"],
            kind,
            format_number(c["measured"]),
            format_number(c["limit"]),
            "holds" if c["holds"] else "fails",
        )
        for kind, part in parts
        for c in held[part]
    ]
    columns = ("measured", "part", "is", "at most", "")
    statement = f"<p>{escape_text(THEOREMS[held['theorem']].statement)}</p>"
    sampled = f", sampled ({held['sampled']})" if held.get("sampled") else ""
    title = f"Certificate {held['theorem']}: {held['outcome'].lower()}{sampled}"
    return format_section(title, statement + format_table(rows, columns, (2, 3)))


def _show_build_command(data: Mapping[str, Any]) -> str:
    return format_section(
        "How to reproduce", format_command(restore_command("build", data), describe_versions(data))
    )
