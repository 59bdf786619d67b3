"""Names where they touch no other name, no mark and, if possible, no line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from keyhole.drawing.labels import (
    LINE,
    Box,
    box_path,
    box_words,
    clean_words,
    find_free_boxes,
    join_boxes,
    measure_words,
    place_box,
    shorten_words,
    stack_heights,
    surround_place,
)
from keyhole.drawing.shapes import Shape, Stroke, Words

_EVERYWHERE = Box(-math.inf, -math.inf, math.inf, math.inf)
_LONGEST = 330.0  # width of a name
_NEAR = 14.0  # a name farther from its mark than this is joined to it


class Namer:
    """Puts names around and inside a picture of some width and height.

    A name that must be read (of a line, a level, a mark) always finds a place: the sheet grows.
    One that hovering tells too (of a band, a bar, an area) is left out where there is no room.
    """

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self.shapes: list[Shape] = []
        self._taken: list[Box] = []
        self._lines: list[Box] = []

    def keep_off(self, boxes: Sequence[Box]) -> None:
        """Boxes that no name may touch."""
        self._taken += boxes

    def avoid(self, boxes: Sequence[Box]) -> None:
        """Boxes that a name touches only where it finds no other place."""
        self._lines += boxes

    def name_end(self, y: float, name: str, kind: str) -> None:
        """A name right of the picture, as near to a height as others leave room."""
        cut = shorten_words(name, _LONGEST)
        if not cut:
            return
        beside = [box for box in self._taken if box.right > self.width]
        places = stack_heights(self.width + 8.0, y, cut, self.height)
        self._put(place_box(places, beside, _EVERYWHERE), name, cut, kind)

    def name_upright(self, x: float, name: str) -> None:
        """A name beside an upright line, else above it."""
        cut = shorten_words(name, _LONGEST)
        if not cut:
            return
        frame = Box(0.0, 0.0, self.width, self.height)
        box = place_box(_stand_beside(x, cut, self.height), self._taken + self._lines, frame)
        if box is None:
            # Above the picture there is always room.
            left = min(max(0.0, x - measure_words(cut) / 2), self.width)
            above = stack_heights(left, -LINE / 2 - 2.0, cut, -LINE / 2 - 2.0)
            box = place_box(above, self._taken, _EVERYWHERE)
        self._put(box, name, cut, "quiet")

    def name_mark(self, x: float, y: float, name: str, kind: str) -> None:
        """A name beside its mark; farther off it is joined to it by a thin line."""
        cut = shorten_words(name, _LONGEST)
        if not cut:
            return
        box = self._find_near(x, y, cut)
        if box is None:
            column = stack_heights(self.width + 8.0, y, cut, self.height)
            beside = [other for other in self._taken if other.right > self.width]
            box = place_box(column, beside, _EVERYWHERE)
        if box is not None and math.dist((x, y), box.reach(x, y)) > _NEAR:
            leader = [(x, y), box.reach(x, y)]
            self.shapes.append(Stroke(leader, "rule"))
            self.avoid(box_path(leader))
        self._put(box, name, cut, kind)

    def _find_near(self, x: float, y: float, words: str) -> Box | None:
        """A box around a mark: off lines if possible, and with a free way to the mark."""
        near = list(surround_place(x, y, words))
        around = join_boxes(near)
        frame = Box(0.0, -LINE, self.width + 2 * _LONGEST, self.height)
        taken, lines = (
            [box for box in boxes if box.touches(around, 2.0)]
            for boxes in (self._taken, self._lines)
        )
        return next(
            (
                box
                for avoided in (taken + lines, taken)
                for box in find_free_boxes(near, avoided, frame)
                if self._can_join(x, y, box)
            ),
            None,
        )

    def _can_join(self, x: float, y: float, box: Box) -> bool:
        """Whether the way from a mark to its name crosses no other name."""
        way = box_path([(x, y), box.reach(x, y)])
        names = [one.box for one in self.shapes if isinstance(one, Words)]
        return not any(step.touches(other) for step in way for other in names)

    def name_inside(self, box: Box, name: str) -> None:
        """A name in the middle of a box that is wide enough."""
        name = clean_words(name)
        middle = ((box.left + box.right) / 2, (box.top + box.bottom) / 2)
        self._put_where_free([box_words(*middle, name, "middle")], box, name, "")

    def name_area(self, corners: Sequence[tuple[float, float]], name: str) -> None:
        """A name inside a shaded area, near its lower left corner."""
        name = clean_words(name)
        left, bottom = min(x for x, _ in corners), max(y for _, y in corners)
        frame = Box(0.0, 0.0, self.width, self.height)
        heights = (bottom - 12.0 - 16.0 * k for k in range(4))
        self._put_where_free(
            [box_words(left + 8.0, y, name) for y in heights], frame, name, "quiet"
        )

    def name_band(self, left: float, right: float, name: str) -> None:
        """A name in a shaded range of x, as low as there is room."""
        name = clean_words(name)
        middle = (left + right) / 2
        frame = Box(left, 0.0, right, self.height)
        heights = [self.height - 12.0 - 16.0 * k for k in range(int(self.height // 16) - 1)]
        places = [box_words(middle, y, name, "middle") for y in heights]
        self._put_where_free(places, frame, name, "quiet")

    def _put_where_free(self, places: Sequence[Box], frame: Box, name: str, kind: str) -> None:
        self._put(place_box(places, self._taken + self._lines, frame), name, name, kind)

    def _put(self, box: Box | None, name: str, cut: str, kind: str) -> None:
        if box is None or not cut:
            return
        self._taken.append(box)
        said = name if cut != name else ""
        self.shapes.append(Words(box.left, (box.top + box.bottom) / 2, cut, kind, said=said))


def _stand_beside(x: float, words: str, height: float) -> Iterator[Box]:
    """Boxes beside an upright line, from below upwards."""
    for k in range(int(height // LINE)):
        y = height - LINE * (k + 0.75)
        yield box_words(x + 6.0, y, words)
        yield box_words(x - 6.0, y, words, "end")
