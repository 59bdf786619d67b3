"""Pictures of built attention on one input: circles, slices, triangles, keys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.constructions.sparse_averages.set_queries import SetQueries
from keyhole.drawing.colours import colour_of
from keyhole.drawing.describing import Area, Axis, Chart, Level, Line, Point
from keyhole.drawing.html import (
    Markup,
    caption_picture,
    format_note,
    format_number,
    format_section,
    frame_figure,
    join_pictures,
)
from keyhole.drawing.labels import Box, box_words, place_box, shorten_words
from keyhole.drawing.shapes import (
    Dot,
    Drawing,
    Patch,
    Shape,
    Stroke,
    Words,
    frame_shapes,
    make_rectangle,
)
from keyhole.drawing.svg import draw_chart, paint_drawing

_RADIUS, _CENTRE = 118.0, (170.0, 172.0)
_TOP_PAIRS = 3
_MOST = 24  # tokens that are drawn one by one
_AROUND = Box(0.0, 0.0, 390.0, 350.0)  # where numbers of the circle have room


class TokenAsked(NamedTuple):
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


def draw_match_circle(modulus: int, asked: TokenAsked) -> Markup:
    """Tokens on a circle by their angle, the partner's lit; scores and weights as bars."""
    if len(asked.values) > _MOST:
        return Markup()
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
    shapes = [*_draw_ring(modulus, asked, partner), *_draw_score_bars(asked)]
    picture = paint_drawing(frame_shapes(shapes, title, Box(0.0, 0.0, 930.0, 350.0)))
    note = (
        "Tokens stand at the angle 2π x / M. ● asks; the dashed line points to the angle of −x,"
        " where a partner would stand (○). Scores are the cosine of the angle between a token and"
        " that place, times a sharpness; the blank token scores between the best and the second"
        " best, so that it wins where no partner is."
    )
    caption = caption_picture("Match2 circle", note)
    return format_section(title, frame_figure(picture, caption, width="100%"))


def _place_on_circle(value: float, modulus: int, radius: float = _RADIUS) -> tuple[float, float]:
    turn = 2 * math.pi * value / modulus
    return _CENTRE[0] + radius * math.cos(turn), _CENTRE[1] - radius * math.sin(turn)


def _draw_ring(modulus: int, asked: TokenAsked, partner: float) -> Iterator[Shape]:
    turns = [_place_on_circle(k * modulus / 90, modulus) for k in range(91)]
    yield Stroke(turns, "rule")
    place = _place_on_circle(partner, modulus)
    yield Stroke([_CENTRE, place], "dashed")
    yield Dot(*place, "truth", "the place of −x", size=11)
    angle = Words(_CENTRE[0], 340.0, f"angle 2π x / {modulus}", "quiet", "middle")
    yield angle
    taken = [angle.box]
    # Tokens of one value share a place: it is drawn once, with all their names.
    for value in sorted({float(v) % modulus for v in asked.values}):
        here = [i + 1 for i, v in enumerate(asked.values) if float(v) % modulus == value]
        kind, size = ("ours", 7) if asked.token + 1 in here else ("limit", 5)
        said = f"token {', '.join(map(str, here))}: x = {value:g}"
        yield Dot(*_place_on_circle(value, modulus), kind, said, size)
        # Numbers of close neighbours stand one behind the other.
        places = (_place_on_circle(value, modulus, _RADIUS + 22 + 16 * k) for k in range(4))
        boxes = (box_words(*at, f"{value:g}", "middle") for at in places)
        if (box := place_box(boxes, taken, _AROUND)) is not None:
            taken.append(box)
            yield Words(box.left, (box.top + box.bottom) / 2, f"{value:g}")


def _draw_score_bars(asked: TokenAsked) -> Iterator[Shape]:
    """Scores below the largest, and attention weights, one row per attended token."""
    low = min(float(asked.scores.min() - asked.scores.max()), -1e-9)
    yield Words(400.0, 16.0, "attended token", "quiet")
    yield Words(530.0, 16.0, "score, the largest 0", "quiet")
    yield Words(740.0, 16.0, "attention weight, 0 to 1", "quiet")
    for k, name in enumerate(asked.names):
        y = 40.0 + 22 * k
        score = float(asked.scores[k] - asked.scores.max())
        weight = float(asked.weights[k])
        yield Words(400.0, y + 7, shorten_words(name, 110.0))
        bar = make_rectangle(Box(720 - 190 * score / low, y, 720.0, y + 14))
        yield Patch(bar, "ours", 0.35, f"score {format_number(score)}")
        bar = make_rectangle(Box(740.0, y, 740 + 160 * weight, y + 14))
        yield Patch(bar, "ours", said=f"weight {format_number(weight)}")
        # What would be written as 0.00 is left to the bar.
        if weight >= 0.005:
            yield Words(746 + 160 * weight, y + 7, f"{weight:.2f}")
    for x in (720.0, 740.0):
        yield Stroke([(x, 32.0), (x, 40.0 + 22 * len(asked.names))], "rule")


def draw_pair_slices(several: Sequence[TokenAsked], modulus: int | None) -> Markup:
    """Third-order attention as tables over pairs, the top pairs as triangles."""
    if not several or len(several[0].names) > _MOST:
        return Markup()
    parts = (frame_figure(paint_drawing(_draw_one_slice(one)), width="26rem") for one in several)
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
    return format_section(title, join_pictures(*parts), format_note(note))


def _draw_one_slice(asked: TokenAsked) -> Drawing:
    weights = np.asarray(asked.weights)
    count = len(weights)
    cell = 150.0 / count
    own = format_number(float(asked.values[asked.token]))
    shapes: list[Shape] = [Words(60.0, 10.0, f"token {asked.token + 1} asks, x = {own}")]
    for i in range(count):
        for j in range(count):
            weight = float(weights[i, j])
            said = f"({asked.names[i]}, {asked.names[j]}): weight {format_number(weight)}"
            left, top = 60 + cell * j, 26 + cell * i
            corners = make_rectangle(Box(left, top, left + cell, top + cell))
            shapes.append(Patch(corners, said=said, colour=colour_of(weight)))
    shapes += [*_draw_partner_sums(weights, cell), *_draw_token_row(asked, weights)]
    about = f"pairs that token {asked.token + 1} attends to"
    return frame_shapes(shapes, about, Box(0.0, 0.0, 416.0, 340.0))


def _draw_partner_sums(weights: Matrix, cell: float) -> Iterator[Shape]:
    """Sums over the second partner on the right, over the first below."""
    yield Words(46.0, 101.0, "first partner j1", "quiet", "middle", upright=True)
    yield Words(60.0, 220.0, "second partner j2; bars: sums", "quiet")
    for k, (right, below) in enumerate(zip(weights.sum(axis=1), weights.sum(axis=0), strict=True)):
        top, left = 26 + cell * k, 60 + cell * k
        yield Patch(make_rectangle(Box(216.0, top, 216 + 40 * right, top + 0.8 * cell)), "ours")
        yield Patch(make_rectangle(Box(left, 180.0, left + 0.8 * cell, 180 + 28 * below)), "ours")


def _draw_token_row(asked: TokenAsked, weights: Matrix) -> Iterator[Shape]:
    """The tokens in a row, the asking one above it, its heaviest pairs as triangles."""
    count = len(asked.names)
    step = 376.0 / count
    places = [20 + step * (k + 0.5) for k in range(count)]
    # A blank token, where there is one, stands first in the row.
    apex = places[asked.token + count - len(asked.values)]
    for said, share, i, j in _list_top_pairs(asked, weights):
        corners = [(apex, 246.0), (places[i], 296.0), (places[j], 296.0)]
        yield Patch(corners, "ours", round(0.35 * share, 2), said, edge=0.5 + 2 * share)
    taken: list[Box] = []
    for x, name in zip(places, asked.names, strict=True):
        yield Dot(x, 296.0, "limit", name, size=3)
        words = Words(x, 312.0, name.split(" ")[-1], anchor="middle")
        # Of many tokens those are named whose numbers do not touch; hovering tells all.
        if not any(words.box.touches(box, 2.0) for box in taken):
            taken.append(words.box)
            yield words
    yield Dot(apex, 246.0, "ours", size=5)
    yield Words(20.0, 330.0, "tokens by their numbers x; ∅ is the blank one", "quiet")


def _list_top_pairs(asked: TokenAsked, weights: Matrix) -> Iterator[tuple[str, float, int, int]]:
    """The heaviest pairs: in words, their share, and both partners."""
    # (i, j) and (j, i) are one triangle: their weights are added.
    order = np.argsort(-np.triu(weights + weights.T - np.diag(np.diag(weights))), axis=None)
    for flat in order[:_TOP_PAIRS]:
        i, j = divmod(int(flat), len(weights))
        share = float(weights[i, j] + (weights[j, i] if i != j else 0.0))
        # Fainter triangles would not be seen, only clutter the row.
        if share > 0.02:
            yield f"{asked.names[i]} and {asked.names[j]}: {share:.2f}", share, i, j


# The query w of a set has equal scores on it and lower ones off it, so that the set is a face of
# the keys: seen along any direction across w, its keys lie on one level line and all others below
# it, by the margin at least.
def draw_keys_and_face(phi: SetQueries, members: Sequence[int]) -> Markup:
    """Keys as points, height the score of one set's query: the set is the top face."""
    chosen = sorted({int(i) for i in members if i >= 0})
    if not chosen or len(chosen) == phi.length:
        return Markup()
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
    chart = _describe_keys(title, side, heights, chosen, (top, below))
    note = (
        f"Each point is the key of a position, of {phi.keys.shape[1]} numbers. Height is its"
        " product with the unit query of the set; across is the direction in which keys spread"
        " most. ● the set, ○ the others; the shaded band is the margin, which the sharpness of"
        " attention is divided by."
    )
    caption = caption_picture("Keys and face", note)
    return format_section(title, frame_figure(draw_chart(chart), caption, width="100%"))


def _describe_keys(
    title: str, side: Vector, heights: Vector, chosen: Sequence[int], band: tuple[float, float]
) -> Chart:
    """Keys by their score, the set on its face, the margin shaded."""
    top, below = band
    left, right = float(side.min()), float(side.max())
    points = [
        Point(
            a,
            b,
            f"position {k + 1}: score {format_number(b)} of the unit query",
            label=f"{k + 1}" if len(side) <= _MOST else "",
        )
        for k, (a, b) in enumerate(zip(map(float, side), map(float, heights), strict=True))
    ]
    inside = [point for k, point in enumerate(points) if k in chosen]
    others = [point for k, point in enumerate(points) if k not in chosen]
    return Chart(
        title,
        Axis("direction in which keys spread most", ticks=()),
        Axis("score of the unit query"),
        [
            Line("face", "built", [Point(left, top), Point(right, top)], marked=False),
            Line("", "truth", others, joined=False),
            Line("", "ours", inside, joined=False),
        ],
        [Level("margin", below)],
        areas=[Area([(left, below), (right, below), (right, top), (left, top)], "built", 0.15)],
    )
