"""Pictures of a recovered model: heads, a network, a one-layer Transformer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from keyhole._arrays import Indices, Matrix, Vector
from keyhole.claims import Verdict
from keyhole.drawing.describing import Axes
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
from keyhole.drawing.log_marks import describe_log_marks
from keyhole.drawing.svg import draw_chart
from keyhole.lab.pages.parts.head_switches import draw_half_circle
from keyhole.lab.pages.parts.recovered_matrices import describe_standing, draw_recovered_matrices
from keyhole.lab.runs.recovery_records import RecoveryRecord
from keyhole.models import Gated, Head, MultiHead, OneLayer, ReluNet, load
from keyhole.models.registry import load_model_part
from keyhole.models.transformer import Network

_HEADS = 8  # heads that are shown
_READOUT = Axes("output", "token coordinate i")
_NORMALS = Axes("hidden unit", "token coordinate i")


def draw_portrait(data: RecoveryRecord, directory: Path) -> Markup:
    """Pictures of the model of a run; nothing where there is none."""
    path = directory / "model.safetensors"
    model = load(path) if data.model is not None and path.is_file() else None
    draw = load_model_part(model, "portrait")
    return draw_recovered_matrices(data, directory) if draw is None else draw(data, model)


def draw_one_layer_portrait(data: RecoveryRecord, model: OneLayer) -> Markup:
    """The attention, then the network."""
    return join_markup(
        _draw_front_attention(data, model.head), draw_network_portrait(data, model.net)
    )


def draw_heads_portrait(data: RecoveryRecord, model: MultiHead) -> Markup:
    """One row per head, W and V, and the sizes of all heads."""
    count = len(model.W)
    title = (
        f"{count:,} head{'s' * (count != 1)} of width {model.width:,}, {describe_standing(data)};"
        " their order means nothing"
    )
    if not count:
        return format_section(title, element("p", "There is nothing to draw."))
    rows = [
        _draw_head_row(k, W, V)
        for k, (W, V) in enumerate(zip(model.W[:_HEADS], model.V, strict=False), start=1)
    ]
    if model.U is not None:
        size = format_number(float(np.linalg.norm(model.U)))
        words = f"U, past all heads, of norm {size}"
        rows.append(draw_signed_heatmap(words, model.U.T, name="U", axes=_READOUT))
    if count > _HEADS:
        note = f"The first {_HEADS} of {count:,} heads are drawn; sizes are of all."
        rows.append(element("p", note))
    sizes = [
        _draw_log_sizes(
            data,
            f"size of {name} of head",
            f"|{name}|, log scale",
            [float(np.linalg.norm(x)) for x in part],
            across="head",
        )
        for name, part in (("W", model.W), ("V", model.V))
    ]
    spectra = _draw_spectra(data, "of all heads", [np.asarray(W) for W in model.W])
    heads = format_section(title, *rows, join_pictures(*sizes, spectra))
    return join_markup(heads, draw_half_circle(data))


def _draw_head_row(k: int, W: Matrix, V: Matrix) -> Markup:
    size_W, size_V = (format_number(float(np.linalg.norm(part))) for part in (W, V))
    return join_pictures(
        draw_signed_heatmap(f"W of head {k}, of norm {size_W}", W),
        draw_signed_heatmap(f"V of head {k}, of norm {size_V}", V.T, name="V", axes=_READOUT),
    )


def _draw_front_attention(data: RecoveryRecord, head: Head) -> Markup:
    W = np.asarray(head.W)
    title = (
        f"The attention before the network: W, {len(W):,} x {len(W):,}, {describe_standing(data)}"
    )
    return format_section(
        title, join_pictures(draw_signed_heatmap("W", W), _draw_spectra(data, "of W", [W]))
    )


def draw_network_portrait(data: RecoveryRecord, net: Network) -> Markup:
    """Hidden units by the size of their jump: jumps of slope, offsets from the origin, normals."""
    if isinstance(net, Gated):
        return _draw_gated_portrait(data, net)
    # Smooth units turn about the hyperplanes at which ReLU units with their weights bend.
    form = replace(net, activation="relu").normal_form() if isinstance(net, ReluNet) else net
    count = len(form.t)
    title = (
        f"A network of {count:,} hidden unit{'s' * (count != 1)}, {describe_standing(data)}; their"
        " order means nothing"
    )
    if not count:
        return format_section(title, element("p", "It is affine: there is no bend to draw."))
    jumps = np.linalg.norm(form.D, axis=1)
    # Answers do not determine the order of units; sorted ones can be compared.
    order = np.argsort(-jumps, kind="stable")
    figures = (
        _draw_log_sizes(
            data,
            "jump of slope at unit",
            "jump of slope |D|, log scale",
            jumps[order],
            across="hidden unit",
        ),
        _draw_log_sizes(
            data,
            "distance from the origin of unit",
            "distance from 0, |t|, log scale",
            np.abs(form.t[order]),
            across="hidden unit",
        ),
        _draw_unit_bars(data, order),
        draw_signed_heatmap(
            "normals n of the hidden units", form.n[order], name="n", axes=_NORMALS
        ),
    )
    note = "Units are numbered by their jump of slope, largest first."
    return format_section(title, join_pictures(*figures), element("p", note))


def _draw_gated_portrait(data: RecoveryRecord, net: Gated) -> Markup:
    """Gates and factors of the hidden units, by the size of what they add."""
    title = (
        f"A gated network of {net.hidden:,} hidden unit{'s' * (net.hidden != 1)},"
        f" {describe_standing(data)}; their order means nothing"
    )
    parts = (net.A.T, net.B.T, net.C)
    size = np.prod([np.linalg.norm(part, axis=0) for part in parts], axis=0)
    order = np.argsort(-size, kind="stable")
    figures = (
        _draw_log_sizes(
            data,
            "size of unit",
            "size of a unit |A||B||C|, log scale",
            size[order],
            across="hidden unit",
        ),
        _draw_unit_bars(data, order),
        draw_signed_heatmap("gates A", net.A[order], name="A", axes=_NORMALS),
        draw_signed_heatmap("factors B", net.B[order], name="B", axes=_NORMALS),
    )
    note = "Units are numbered by their size, largest first; a factor between B and C is free."
    return format_section(title, join_pictures(*figures), element("p", note))


def _draw_unit_bars(data: RecoveryRecord, order: Indices) -> Markup:
    """How well each unit is known, where that was estimated: those of the model, largest first."""
    if data.units is None:
        return Markup()
    bars = np.asarray(data.units.bars, dtype=np.float64)
    # Pairs that carry a linear part are no units of their own.
    return _draw_log_sizes(
        data,
        "error bar of the normal of unit",
        "standard error of n, log scale",
        bars[order[order < len(bars)]],
        across="hidden unit",
    )


def _draw_log_sizes(
    data: RecoveryRecord, name: str, said: str, values: Vector | list[float], *, across: str
) -> Markup:
    """Sizes on a log scale, one mark each."""
    sizes = np.asarray(values, dtype=np.float64)
    if not sizes.any():
        return Markup()
    kind = "bad" if data.verdict == Verdict.CLASS_REFUTED.name else "ours"
    note = f"from {format_number(float(sizes.min()))} to {format_number(float(sizes.max()))}"
    chart = describe_log_marks(f"{said}, {note}", name, said, {kind: sizes}, across=across)
    return frame_figure(draw_chart(chart), caption_picture(said.removesuffix(", log scale"), note))


def _draw_spectra(data: RecoveryRecord, whose: str, several: list[Matrix]) -> Markup:
    """Singular values, those of all matrices together, largest first."""
    # A fit that failed may hold infinities, which have no singular values.
    fine = [W for W in several if np.isfinite(W).all()]
    values = sorted(
        (float(value) for W in fine for value in np.linalg.svd(W, compute_uv=False)), reverse=True
    )
    return _draw_log_sizes(
        data,
        f"singular value {whose}",
        f"singular values {whose}, log scale",
        values,
        across="index, largest first",
    )
