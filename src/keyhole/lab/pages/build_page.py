"""The page of built weights: who attends to whom, the frontier of sizes, and the certificate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from keyhole._arrays import Array, Matrix, softmax
from keyhole.claims import THEOREMS
from keyhole.constructions import load
from keyhole.drawing.describing import Axes, Axis, Bar, Chart, Level, Line, Point, name_rows
from keyhole.drawing.heatmaps import draw_attention_heatmap, draw_signed_heatmap
from keyhole.drawing.html import (
    Markup,
    caption_picture,
    element,
    format_command,
    format_note,
    format_number,
    format_section,
    format_table,
    frame_figure,
    join_markup,
    join_pictures,
)
from keyhole.drawing.svg import draw_chart
from keyhole.lab.pages.parts.shown_attention import Shown
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.runs.record_parts import CertificateRecord
from keyhole.lab.runs.rows import describe_basis, describe_frontier_point
from keyhole.lab.runs.summaries import describe_question, describe_versions, restore_command
from keyhole.lab.runs.task_records import BuildRecord
from keyhole.models.attention import SelfAttention
from keyhole.models.files import read_tensors
from keyhole.models.stack import Block, Transformer
from keyhole.models.tensor import TensorAttention
from keyhole.tasks import load_part

_AXES = Axes("asking token i", "attended token j")
# Larger tables of scores would take longer than a picture is worth.
_TABLE = 2**21  # scores of a picture at most


def draw_build_page(data: BuildRecord, directory: Path) -> str:
    """A self-contained page, from the record, the weights and the input beside it.

    Args:
        data: the record.
        directory: where model.safetensors and example.safetensors are.
    """
    parts = [
        element("h1", data.sentence),
        format_note(describe_question(data)),
        draw_attention_pictures(data.task, directory),
        _draw_frontier(data),
    ]
    if trip := data.round_trip:
        said = element("p", trip.sentence)
        parts.append(format_section("What its answers give away", said))
    parts += [_list_constructions(data), _show_build_certificate(data), _show_build_command(data)]
    return wrap_page("build", join_markup(*parts))


def draw_attention_pictures(task: str, directory: Path, *, tables: bool = True) -> Markup:
    """What the last layer does on one input, as the picture of its task and as tables."""
    model = load(directory / "model.safetensors")
    path = directory / "example.safetensors"
    if not isinstance(model, Transformer) or not path.is_file():
        return Markup()
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
        return Markup()
    scores = _score_tokens(layer, tokens)
    draw = load_part(task, "picture")
    own = Markup() if draw is None else draw(Shown(block, X[0], scores, order))
    return join_markup(own, _draw_attention_maps(block, scores, order)) if tables else own


def _draw_attention_maps(block: Block, scores: Matrix, order: int) -> Markup:
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
    return format_section(said, join_pictures(*figures))


def _score_tokens(layer: SelfAttention | TensorAttention, tokens: Array) -> Matrix:
    if isinstance(layer, TensorAttention):
        return layer.scores(tokens)[0]
    return (tokens[0] @ layer.Q[0]) @ (tokens[0] @ layer.K[0]).T


def _lower_scores(scores: Matrix) -> Matrix:
    return scores - scores.max(axis=1, keepdims=True)


def describe_frontier(data: BuildRecord) -> Chart:
    """Key width against bits on log scales: what was built, what is provably too small."""
    points = data.frontier.points
    limit = data.frontier.limit_bits
    marks = [
        Line(
            point.construction,
            "built",
            [
                Point(
                    point.embed,
                    point.bits,
                    f"{point.construction}: m = {point.embed}, p = {point.bits}",
                )
            ],
        )
        for point in points
    ]
    said = "squares were built and checked"
    if limit is not None:
        said += (
            f"; below the dashed line H (2m + v) p is less than {limit:.1f} bits, too few for any"
            " weights"
        )
    most = 2.0 * max(point.bits for point in points)
    return Chart(
        said,
        Axis("key width m, log scale", log=True, base=2),
        Axis("bits p of a number, log scale", log=True, base=2, low=1.0, high=most),
        [*_trace_size_limit(data, most), *marks],
    )


def _trace_size_limit(data: BuildRecord, most: float) -> Iterator[Line]:
    """The line H (2m + v) p = limit: bits that any weights need."""
    limit, size = data.frontier.limit_bits, data.size
    if limit is None or size is None:
        return
    widths = [point.embed for point in data.frontier.points]
    low, high = min(1.0, *widths), 2.0 * max(widths)
    steps = [low * (high / low) ** (k / 60) for k in range(61)]
    line = [(m, limit / (size.heads * (2 * m + size.value_width))) for m in steps]
    shown = [Point(m, p) for m, p in line if 1.0 <= p <= most]
    yield Line("", "limit", shown, marked=False)


def _draw_frontier(data: BuildRecord) -> Markup:
    chart = describe_frontier(data)
    caption = caption_picture("m against p", chart.about)
    return format_section(
        title_frontier(data), frame_figure(draw_chart(chart), caption, width="100%")
    )


def title_frontier(data: BuildRecord) -> str:
    """The smallest size that is known, in words."""
    best = data.frontier.points[0]
    return f"The smallest known: m = {best.embed}, p = {best.bits}"


def describe_margins(held: CertificateRecord) -> Chart:
    """Every inequality of a certificate: how much of its limit was used."""
    used = [
        (c.name, abs((c.measured or 0.0) / c.limit))
        for part in (held.conclusion, held.assumptions)
        for c in reversed(part)
        # A limit of zero or of infinity has no share that was used.
        if c.limit and 0 < c.limit < 1e300
    ]
    shares = [share for _, share in used]
    # Four decades at most: an inequality that is nearly unused is as good as unused.
    low = 10.0 ** math.floor(math.log10(max(1e-4, min([0.1, *(s for s in shares if s)]))))
    return Chart(
        "measured over its limit",
        Axis("measured over its limit; the dashed line is the limit", log=True, low=low, high=3.0),
        name_rows([name for name, _ in used]),
        levels=[Level("", 1.0, upright=True)],
        bars=[
            Bar(k, low, max(share, low), "built", 0.6, format_number(share))
            for k, share in enumerate(shares)
        ],
        width=400.0,
        height=28.0 * len(used),
    )


def _list_constructions(data: BuildRecord) -> Markup:
    rows = [(p.construction, describe_frontier_point(p)) for p in data.frontier.points]
    rows += list(data.refused.items())
    return format_section(
        "Every construction that was tried", format_table(rows, ("construction", "what came of it"))
    )


def _show_build_certificate(data: BuildRecord) -> Markup:
    held = data.certificate
    if held is None:
        return Markup()
    parts = (("assumption", held.assumptions), ("conclusion", held.conclusion))
    rows = [
        (
            c.name,
            kind,
            format_number(c.measured),
            format_number(c.limit),
            "holds" if c.holds else "fails",
        )
        for kind, part in parts
        for c in part
    ]
    columns = ("measured", "part", "is", "at most", "")
    statement = element("p", THEOREMS[held.theorem].statement)
    title = f"Certificate {held.theorem}: {held.outcome.lower()}{describe_basis(held)}"
    return format_section(title, statement, format_table(rows, columns, (2, 3)))


def _show_build_command(data: BuildRecord) -> Markup:
    return format_section(
        "How to reproduce", format_command(restore_command(data), describe_versions(data))
    )
