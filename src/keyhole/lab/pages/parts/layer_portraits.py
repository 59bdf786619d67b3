"""Pictures of a recovered attention layer: how far back its heads look, and what tells them."""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix
from keyhole.drawing.describing import Axes, Axis, Chart, Line, Point
from keyhole.drawing.heatmaps import draw_signed_heatmap
from keyhole.drawing.html import (
    Markup,
    caption_picture,
    element,
    format_number,
    format_section,
    frame_figure,
    join_markup,
    join_pictures,
)
from keyhole.drawing.svg import draw_chart
from keyhole.lab.pages.parts.recovered_matrices import describe_standing
from keyhole.lab.runs.recovery_records import RecoveryRecord
from keyhole.models import AttentionLayer

_HEADS = 8  # heads that are shown
_FAR = 32  # displacements that are shown
_SEQUENCES = 64  # whose weights are averaged
_SCORES = Axes("key coordinate", "query coordinate")
_VALUES = Axes("output", "token coordinate i")


def draw_layer_portrait(data: RecoveryRecord, layer: AttentionLayer) -> Markup:
    """Weights by displacement, tables or slopes as curves, and the maps of every head."""
    count = layer.heads
    title = (
        f"A layer of {count:,} head{'s' * (count != 1)} of size {layer.rank:,},"
        f" {describe_standing(data)}; their order means nothing"
    )
    rows = [_draw_head_maps(layer, h) for h in range(min(count, _HEADS))]
    note = element("p", _describe_shown(layer))
    return format_section(title, note, _draw_looks(layer), draw_position_curves(layer), *rows)


def average_attention(layer: AttentionLayer) -> Matrix:
    """Mean weight of the token at each displacement (heads x displacements)."""
    length = min(_FAR, layer.longest or _FAR)
    # The same tokens for every layer: two portraits can be compared.
    X = np.random.default_rng(0).normal(size=(_SEQUENCES, length, layer.width))
    return layer.attend(X).mean(axis=0)[:, ::-1]


def _draw_looks(layer: AttentionLayer) -> Markup:
    """How far back every head looks."""
    about = f"How far back heads look: mean weights over {_SEQUENCES} random sequences"
    return _draw_curves(about, "mean weight of the token", average_attention(layer))


def _draw_curves(about: str, said: str, values: Matrix) -> Markup:
    """One picture per head over displacements, all on one scale: curves in one would tangle."""
    shown = values[:_HEADS]
    reach = float(shown.max() - shown.min()) or 1.0
    low, high = float(shown.min()) - 0.05 * reach, float(shown.max()) + 0.05 * reach
    pictures = [
        frame_figure(
            draw_chart(
                Chart(
                    f"{about}, head {h + 1}",
                    Axis("displacement; 0 is the last token"),
                    Axis(said, low=low, high=high),
                    [Line("", "ours", [_mark(h, k, value) for k, value in enumerate(row)])],
                    width=250.0,
                    height=150.0,
                )
            ),
            caption_picture(f"head {h + 1}", f"{said} by displacement"),
            width="21rem",
        )
        for h, row in enumerate(shown)
    ]
    return join_markup(element("p", about), join_pictures(*pictures))


def list_position_scores(layer: AttentionLayer) -> Matrix | None:
    """What displacement alone adds to scores, 0 at displacement 0; None where it adds nothing."""
    if layer.table is None:
        return None
    if layer.wiring.positions == "alibi":
        return -layer.table * np.arange(float(_FAR))
    shown = layer.table[:, :_FAR]
    return shown - shown[:, :1]


def draw_position_curves(layer: AttentionLayer) -> Markup:
    """Tables and slopes as curves, absolute positions in colours; nothing where there are none."""
    if layer.positions is not None:
        title = f"what is added to the tokens of {len(layer.positions):,} positions"
        axes = Axes("position", "token coordinate i")
        return draw_signed_heatmap(title, layer.positions, name="p", axes=axes)
    added = list_position_scores(layer)
    if added is None:
        return Markup()
    kind = "Slopes" if layer.wiring.positions == "alibi" else "Tables"
    about = f"{kind} of the heads: what displacement adds to a score, 0 at displacement 0"
    return _draw_curves(about, "added to the score", added)


def _mark(h: int, displacement: int, score: float) -> Point:
    return Point(
        displacement,
        float(score),
        f"head {h + 1}, displacement {displacement}: {format_number(float(score))}",
    )


def _draw_head_maps(layer: AttentionLayer, h: int) -> Markup:
    """What scores and values of a head are made of, free of what answers do not determine."""
    g = layer.find_group(h)
    W = layer.Wk[g].T @ layer.Wq[h] / np.sqrt(layer.rank)
    V = layer.Wo[h] @ layer.Wv[g]
    sizes = [format_number(float(np.linalg.norm(part))) for part in (W, V)]
    return join_pictures(
        draw_signed_heatmap(f"scores of head {h + 1}, of norm {sizes[0]}", W, axes=_SCORES),
        draw_signed_heatmap(
            f"values of head {h + 1}, of norm {sizes[1]}", V, name="V", axes=_VALUES
        ),
    )


def _describe_shown(layer: AttentionLayer) -> str:
    """What stands before the heads, and what is not drawn."""
    told = ", ".join(
        name if value is True else f"{name} {_tell_value(value)}"
        for name, value in layer.wiring.told.items()
        # A map of keys and values for every head is what a layer without groups has.
        if value is not False and not (name == "groups" and value == layer.heads)
    )
    turned = " Scores are those at displacement 0." if layer.wiring.positions == "rope" else ""
    left = f" The first {_HEADS} heads are drawn." if layer.heads > _HEADS else ""
    return f"Wiring: {told}.{turned}{left}"


def _tell_value(value: object) -> str:
    return format_number(value) if isinstance(value, float) else str(value)
