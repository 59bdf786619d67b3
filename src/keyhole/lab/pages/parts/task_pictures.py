"""Pictures of built attention on one input: circles, slices, triangles, keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.constructions.sparse_averages.set_queries import SetQueries
from keyhole.drawing.heatmaps import colour_of
from keyhole.drawing.html import (
    draw_svg,
    escape_text,
    format_number,
    format_section,
    frame_figure,
    make_scrollable,
)

_RADIUS, _CENTRE = 118.0, (170.0, 172.0)
_TOP_PAIRS = 3
_MOST = 24  # tokens that are drawn one by one


class Asked(NamedTuple):
    """One row of attention.

    Args:
        token: who asks, counted without the blank token.
        values: the numbers of the tokens.
        names: what each attended token is called, the blank one included.
        scores: its scores.
        weights: its attention weights; for third order a table over pairs.
    """

    token: int
    values: Vector
    names: Sequence[str]
    scores: Vector
    weights: Matrix | Vector


def draw_match_circle(modulus: int, asked: Asked) -> str:
    """Tokens on a circle by their angle, the partner's lit; scores and weights as bars."""
    if len(asked.values) > _MOST:
        return ""
    own = float(asked.values[asked.token]) % modulus
    partner = -own % modulus
    found = [
        i for i, x in enumerate(asked.values) if i != asked.token and float(x) % modulus == partner
    ]
    said = f"token {asked.token + 1} (x = {own:g}) looks opposite for {partner:g} modulo {modulus}"
    who = ", ".join(f"{i + 1}" for i in found)
    title = (
        f"On the circle {said}:"
        f" {f'it finds token {who}' if found else 'nobody is there, and the blank token answers'}"
    )
    # The ring needs so much, however few the tokens.
    height = max(344.0, 60.0 + 22.0 * len(asked.names))
    body = _draw_ring(modulus, asked, partner) + _draw_score_bars(asked)
    size = {"viewBox": f"0 0 960 {height:.0f}", "style": "min-width:46rem"}
    svg = draw_svg(body, size=size, label=title)
    note = (
        "Tokens stand at the angle 2π x / M. ● asks; the dashed line points to the angle of −x,"
        " where a partner would stand (○). Scores are the cosine of the angle between a token and"
        " that place, times a sharpness; the blank token scores between the best and the second"
        " best, so that it wins where no partner is."
    )
    caption = f"<b>Match2 circle</b>: {note}"
    return format_section(
        title, frame_figure(make_scrollable(svg, "Match2 circle"), caption, width="100%")
    )


def _place_on_circle(value: float, modulus: int, radius: float = _RADIUS) -> tuple[float, float]:
    turn = 2 * math.pi * value / modulus
    return _CENTRE[0] + radius * math.cos(turn), _CENTRE[1] - radius * math.sin(turn)


def _draw_ring(modulus: int, asked: Asked, partner: float) -> str:
    drawn = f'<circle cx="{_CENTRE[0]}" cy="{_CENTRE[1]}" r="{_RADIUS}" fill="none" class="rule"/>'
    x, y = _place_on_circle(partner, modulus)
    drawn += f'<path class="dashed" d="M{_CENTRE[0]} {_CENTRE[1]}L{x:.1f} {y:.1f}"/>'
    drawn += (
        f'<circle class="truth" cx="{x:.1f}" cy="{y:.1f}" r="11"><title>the place of'
        " −x</title></circle>"
    )
    # Tokens of one value share a place: it is drawn once, with all their names.
    for value in sorted({float(v) % modulus for v in asked.values}):
        here = [i + 1 for i, v in enumerate(asked.values) if float(v) % modulus == value]
        mine = asked.token + 1 in here
        x, y = _place_on_circle(value, modulus)
        a, b = _place_on_circle(value, modulus, _RADIUS + 20)
        kind, size = ("ours", 7) if mine else ("limit", 5)
        said = f"token {', '.join(map(str, here))}: x = {value:g}"
        drawn += (
            f'<g><title>{said}</title><circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}"'
            f' r="{size}"/></g>'
        )
        drawn += f'<text x="{a:.1f}" y="{b + 4:.1f}" text-anchor="middle">{value:g}</text>'
    return (
        drawn + f'<text class="quiet" x="{_CENTRE[0]}" y="336" text-anchor="middle">angle 2π x /'
        f" {modulus}</text>"
    )


def _draw_score_bars(asked: Asked) -> str:
    """Scores below the largest, and attention weights, one row per attended token."""
    low = min(float(asked.scores.min() - asked.scores.max()), -1e-9)
    drawn = '<text class="quiet" x="400" y="20">attended token</text>'
    drawn += '<text class="quiet" x="520" y="20">score, the largest 0</text>'
    drawn += '<text class="quiet" x="740" y="20">attention weight, 0 to 1</text>'
    for k, name in enumerate(asked.names):
        y = 40.0 + 22 * k
        score = float(asked.scores[k] - asked.scores.max())
        weight = float(asked.weights[k])
        drawn += (
            f'<text x="400" y="{y + 11:.1f}">{escape_text(name)}</text><g><title>score'
            f" {format_number(score)}</title>"
        )
        drawn += (
            '<rect class="phase" style="stroke:none" fill-opacity="0.35"'
            f' x="{720 - 200 * score / low:.1f}" y="{y}" '
        )
        drawn += (
            f'width="{200 * score / low:.1f}" height="14"/></g><g><title>weight'
            f" {format_number(weight)}</title>"
        )
        drawn += f'<rect class="ours" x="740" y="{y}" width="{160 * weight:.1f}" height="14"/></g>'
        # What would be written as 0.00 is left to the bar.
        if weight >= 0.005:
            drawn += f'<text x="{746 + 160 * weight:.1f}" y="{y + 11:.1f}">{weight:.2f}</text>'
    return (
        drawn + f'<path class="rule" d="M720 32V{40 + 22 * len(asked.names):.0f}M740'
        f' 32v{8 + 22 * len(asked.names)}"/>'
    )


def draw_pair_slices(several: Sequence[Asked], modulus: int | None) -> str:
    """Third-order attention as tables over pairs, the top pairs as triangles."""
    if not several or len(several[0].names) > _MOST:
        return ""
    parts = "".join(frame_figure(_draw_one_slice(one), width="26rem") for one in several)
    ring = f" modulo {modulus}" if modulus else ""
    title = (
        "Third-order attention looks at pairs: those whose numbers complete the asking token's to"
        f" 0{ring}"
    )
    note = (
        "Each square is the attention of one asking token over pairs (j1, j2), from 0 (dark) to 1"
        " (bright); bars are the sums over the other partner. Triangles join the asking token with"
        " its heaviest pairs, darker with their weight; a token may be its own partner. Where"
        " nothing completes it, both partners are the blank token."
    )
    return format_section(title, f'<div class="pictures">{parts}</div><p class="limit">{note}</p>')


def _draw_one_slice(asked: Asked) -> str:
    weights = np.asarray(asked.weights)
    count = len(weights)
    cell = 150.0 / count
    drawn = (
        f'<text x="60" y="12">token {asked.token + 1} asks, x ='
        f" {format_number(float(asked.values[asked.token]))}</text>"
    )
    for i in range(count):
        for j in range(count):
            said = (
                f"({asked.names[i]}, {asked.names[j]}): weight"
                f" {format_number(float(weights[i, j]))}"
            )
            at = (
                f'x="{60 + cell * j:.1f}" y="{26 + cell * i:.1f}" width="{cell + 0.3:.1f}"'
                f' height="{cell + 0.3:.1f}"'
            )
            drawn += (
                f'<rect style="fill:{colour_of(float(weights[i, j]))}"'
                f" {at}><title>{escape_text(said)}</title></rect>"
            )
    drawn += _draw_partner_sums(weights, cell) + _draw_token_row(asked, weights)
    size = {"viewBox": "0 0 416 330", "shape-rendering": "geometricPrecision"}
    return draw_svg(drawn, size=size, label=f"pairs that token {asked.token + 1} attends to")


def _draw_partner_sums(weights: Matrix, cell: float) -> str:
    """Sums over the second partner on the right, over the first below."""
    drawn = (
        '<text class="quiet" transform="translate(50 101) rotate(-90)" text-anchor="middle">first'
        " partner j1</text>"
    )
    drawn += '<text class="quiet" x="60" y="222">second partner j2; bars: sums</text>'
    for k, (right, below) in enumerate(zip(weights.sum(axis=1), weights.sum(axis=0), strict=True)):
        drawn += (
            f'<rect class="ours" x="216" y="{26 + cell * k:.1f}" width="{40 * right:.1f}"'
            f' height="{cell * 0.8:.1f}"/>'
        )
        drawn += (
            f'<rect class="ours" x="{60 + cell * k:.1f}" y="180" width="{cell * 0.8:.1f}"'
            f' height="{28 * below:.1f}"/>'
        )
    return drawn


def _draw_token_row(asked: Asked, weights: Matrix) -> str:
    """The tokens in a row, the asking one above it, its heaviest pairs as triangles."""
    count = len(asked.names)
    step = 376.0 / count
    places = [20 + step * (k + 0.5) for k in range(count)]
    # A blank token, where there is one, stands first in the row.
    apex = places[asked.token + count - len(asked.values)]
    # (i, j) and (j, i) are one triangle: their weights are added.
    order = np.argsort(-np.triu(weights + weights.T - np.diag(np.diag(weights))), axis=None)[
        :_TOP_PAIRS
    ]
    drawn = ""
    for flat in order:
        i, j = divmod(int(flat), count)
        share = float(weights[i, j] + (weights[j, i] if i != j else 0.0))
        # Fainter triangles would not be seen, only clutter the row.
        if share > 0.02:
            said = f"{asked.names[i]} and {asked.names[j]}: {share:.2f}"
            path = f"M{apex:.1f} 246L{places[i]:.1f} 296L{places[j]:.1f} 296Z"
            look = (
                f'class="phase" fill-opacity="{0.35 * share:.2f}"'
                f' stroke-width="{0.5 + 2 * share:.1f}"'
            )
            drawn += f'<g><title>{escape_text(said)}</title><path {look} d="{path}"/></g>'
    for x, name in zip(places, asked.names, strict=True):
        drawn += f'<circle class="limit" cx="{x:.1f}" cy="296" r="3"/>'
        drawn += (
            f'<text x="{x:.1f}" y="314"'
            f' text-anchor="middle">{escape_text(name.split(" ")[-1])}</text>'
        )
    drawn += f'<circle class="ours" cx="{apex:.1f}" cy="246" r="5"/>'
    return (
        drawn
        + '<text class="quiet" x="20" y="328">tokens by their numbers x; ∅ is the blank one</text>'
    )


# The query w of a set has equal scores on it and lower ones off it, so that the set is a face of
# the keys: seen along any direction across w, its keys lie on one level line and all others below
# it, by the margin at least.
def draw_keys_and_face(phi: SetQueries, members: Sequence[int]) -> str:
    """Keys as points, height the score of one set's query: the set is the top face."""
    chosen = sorted({int(i) for i in members if i >= 0})
    if not chosen or len(chosen) == phi.length:
        return ""
    query = phi.query(tuple(chosen))
    w = query.scaled / (np.linalg.norm(query.scaled) or 1.0)
    heights = phi.keys @ w
    across = phi.keys - np.outer(heights, w)
    # Of all directions at right angles to the query, the one in which keys spread most.
    side = across @ np.linalg.svd(across - across.mean(axis=0))[2][0]
    rest = np.delete(heights, chosen)
    top, below = float(heights[chosen].mean()), float(rest.max())
    names = ", ".join(str(i + 1) for i in chosen)
    title = (
        f"Keys of positions {names} are a face: every other key scores at least"
        f" {format_number(top - below)} less"
    )
    marks = _draw_key_points(side, heights, chosen, (top, below))
    size = {"viewBox": "0 0 640 330", "width": "640", "style": "min-width:32rem"}
    svg = draw_svg(marks, size=size, label=title)
    note = (
        f"Each point is the key of a position, of {phi.keys.shape[1]} numbers. Height is its"
        " product with the unit query of the set; across is the direction in which keys spread"
        " most. ● the set, ○ the others; the shaded band is the margin, which the sharpness of"
        " attention is divided by."
    )
    caption = f"<b>Keys and face</b>: {note}"
    return format_section(
        title, frame_figure(make_scrollable(svg, "keys and face"), caption, width="100%")
    )


def _draw_key_points(
    side: Vector, heights: Vector, chosen: Sequence[int], band: tuple[float, float]
) -> str:
    span, tall = (float(np.ptp(v)) or 1.0 for v in (side, heights))

    def x(value: float) -> float:
        return 80 + 480 * (value - float(side.min())) / span

    def y(value: float) -> float:
        return 270 - 230 * (value - float(heights.min())) / tall

    top, below = (y(value) for value in band)
    drawn = (
        f'<rect class="built" fill-opacity="0.15" x="70" y="{top:.1f}" width="500"'
        f' height="{below - top:.1f}"/>'
    )
    drawn += (
        f'<path class="line built" d="M70 {top:.1f}H570"/><path class="dashed" d="M70'
        f' {below:.1f}H570"/>'
    )
    drawn += f'<text class="built" x="576" y="{top + 4:.1f}">face</text>'
    drawn += f'<text class="quiet" x="576" y="{max(below, top + 14) + 4:.1f}">margin</text>'
    for k, (a, b) in enumerate(zip(map(float, side), map(float, heights), strict=True)):
        kind, size = ("ours", 5) if k in chosen else ("truth", 4)
        said = f"position {k + 1}: score {format_number(b)} of the unit query"
        drawn += (
            f'<g><title>{said}</title><circle class="{kind}" cx="{x(a):.1f}" cy="{y(b):.1f}"'
            f' r="{size}"/></g>'
        )
        if len(side) <= _MOST:
            drawn += f'<text x="{x(a):.1f}" y="{y(b) - 8:.1f}" text-anchor="middle">{k + 1}</text>'
    drawn += (
        '<text transform="translate(14 160) rotate(-90)" text-anchor="middle">score of the unit'
        " query</text>"
    )
    drawn += (
        f'<text class="quiet" x="66" y="{y(float(heights.max())) + 4:.1f}"'
        f' text-anchor="end">{format_number(band[0])}</text>'
    )
    drawn += (
        '<text class="quiet" x="66" y="274"'
        f' text-anchor="end">{format_number(float(heights.min()))}</text>'
    )
    return (
        drawn
        + '<text x="320" y="306" text-anchor="middle">direction in which keys spread most</text>'
    )
