"""What a drawing consists of: words, strokes, patches and dots at places of the sheet.

Heights grow downwards. Whatever paints them, SVG or matplotlib, puts them at the same places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keyhole.drawing.labels import Box, box_words, join_boxes, measure_words

# Shape as well as colour says what a mark means, for those who do not see colours.
SHAPE = {
    "ours": "circle",
    "built": "square",
    "peer": "triangle",
    "limit": "circle",
    "bad": "cross",
    "truth": "ring",
}


@dataclass(frozen=True, slots=True)
class Words:
    """A text.

    Args:
        x: where it begins, is centred or ends, by its anchor.
        y: its middle height.
        words: the text.
        kind: its colour by meaning; ink when empty.
        anchor: start, middle or end.
        upright: whether it reads from below to above, around its place.
        said: what hovering says, such as the text in full where it was cut.
    """

    x: float
    y: float
    words: str
    kind: str = ""
    anchor: str = "start"
    upright: bool = False
    said: str = ""

    @property
    def box(self) -> Box:
        """The part of the sheet it needs, at most."""
        if not self.upright:
            return box_words(self.x, self.y, self.words, self.anchor)
        half = measure_words(self.words) / 2
        return Box(self.x - 7, self.y - half, self.x + 7, self.y + half)


@dataclass(frozen=True, slots=True)
class Stroke:
    """A line through places; `kind` names its look in the palette."""

    points: Sequence[tuple[float, float]]
    kind: str
    said: str = ""
    colour: str | None = None
    width: float | None = None


@dataclass(frozen=True, slots=True)
class Patch:
    """A filled polygon, by meaning and shade, or in a colour of its own."""

    points: Sequence[tuple[float, float]]
    kind: str = ""
    shade: float = 1.0
    said: str = ""
    colour: str | None = None
    edge: float = 0.0


@dataclass(frozen=True, slots=True)
class Dot:
    """A mark, whose shape says its meaning; round ones may have any size."""

    x: float
    y: float
    kind: str
    said: str = ""
    size: float = 4.0


Shape = Words | Stroke | Patch | Dot


@dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes on a sheet.

    Args:
        shapes: in the order in which they are painted.
        frame: the sheet.
        about: what it shows, for those who do not see it.
    """

    shapes: Sequence[Shape]
    frame: Box
    about: str


def make_rectangle(box: Box) -> list[tuple[float, float]]:
    """The corners of a box."""
    return [
        (box.left, box.top),
        (box.right, box.top),
        (box.right, box.bottom),
        (box.left, box.bottom),
    ]


def frame_shapes(shapes: Sequence[Shape], about: str, least: Box, air: float = 4.0) -> Drawing:
    """A drawing whose sheet is large enough for every shape."""
    boxes = [least, *(_bound_shape(one, air) for one in shapes)]
    return Drawing(shapes, join_boxes(boxes), about)


def _bound_shape(shape: Shape, air: float) -> Box:
    if isinstance(shape, Words):
        box = shape.box
        return Box(box.left - air, box.top - 1, box.right + air, box.bottom + 1)
    if isinstance(shape, Dot):
        reach = shape.size + 1
        return Box(shape.x - reach, shape.y - reach, shape.x + reach, shape.y + reach)
    xs, ys = zip(*shape.points, strict=True)
    return Box(min(xs), min(ys), max(xs), max(ys))
