"""The picture of a task, as the registry of tasks names it: its attention on one input."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from keyhole._arrays import Matrix, softmax
from keyhole.constructions.matching.waves import Angles
from keyhole.constructions.sparse_averages.set_queries import SetQueries
from keyhole.drawing.html import Markup
from keyhole.lab.pages.parts.task_pictures import (
    TokenAsked,
    draw_keys_and_face,
    draw_match_circle,
    draw_pair_slices,
)
from keyhole.models.stack import Block


class Shown(NamedTuple):
    """The last layer of built weights on one input.

    Args:
        block: the layer with its token map.
        X: the input that it reads.
        scores: of every token, the blank one included.
        order: order of attention; 2 is standard.
    """

    block: Block
    X: Matrix
    scores: Matrix
    order: int


def draw_average_picture(shown: Shown) -> Markup:
    """Keys, and the face that the first token's set is."""
    phi = shown.block.map
    if not isinstance(phi, SetQueries):
        return Markup()
    return draw_keys_and_face(
        phi, [int(i) for i in shown.X[0, phi.dimension : phi.dimension + phi.q]]
    )


def draw_match_picture(shown: Shown) -> Markup:
    """The circle of pairs, or slices and triangles of third order."""
    phi = shown.block.map
    if not isinstance(phi, Angles) or shown.order > 3:
        return Markup()
    rows = _list_asking_tokens(shown)
    blank = shown.block.blank is not None
    # The token that leaves the blank one least shows the match that the circle is about.
    if shown.order == 2 and blank:
        return draw_match_circle(phi.modulus, min(rows, key=lambda row: float(row.weights[0])))
    if shown.order == 2:
        return Markup()
    return draw_pair_slices(_choose_asking_tokens(rows, blank), phi.modulus)


def _list_asking_tokens(shown: Shown) -> list[TokenAsked]:
    """Every token with its scores and weights, named by its number."""
    blank = shown.block.blank is not None
    values = shown.X[:, 0]
    names = ["blank ∅"] * blank + [f"{i + 1}: {x:g}" for i, x in enumerate(values)]
    weights = softmax(shown.scores)
    table = [len(names)] * (shown.order - 1)
    return [
        TokenAsked(i, values, names, shown.scores[i + blank], weights[i + blank].reshape(*table))
        for i in range(len(values))
    ]


def _choose_asking_tokens(rows: list[TokenAsked], blank: bool) -> list[TokenAsked]:
    """The token whose pairs stand out most, and one that the blank token answers."""
    # The blank pair above one half: the answer is no match.
    alone = [row for row in rows if blank and np.asarray(row.weights)[0, 0] > 0.5]
    others = {row.token for row in alone}
    paired = [row for row in rows if row.token not in others]
    best = sorted(paired, key=lambda row: -float(np.asarray(row.weights).max()))
    return best[:1] + alone[:1]
