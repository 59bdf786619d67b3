"""Boxes of words, and places where they touch nothing."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from keyhole.errors import spell_controls

LETTER = 12.0  # height of letters
LINE = 14.0  # height of a line of words
# Widths of the widest common sans, DejaVu, in heights of a letter: others are narrower.
_NARROW, _NORMAL, _BROAD, _WIDE = 0.42, 0.66, 0.86, 1.02
_WIDTHS = {
    **dict.fromkeys(" ijltfrIJ.,:;'|!-/\\()[]", _NARROW),
    **dict.fromkeys('abcdeghknopqsuvxyz0123456789$_*?{}`"', _NORMAL),
    **dict.fromkeys("ABCDEFGHKLNOPQRSTUVXYZ+=<>~^#&w−", _BROAD),
}
_CUT = "…"


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle; heights grow downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def touches(self, other: Box, gap: float = 0.0) -> bool:
        """Whether less than `gap` lies between both."""
        apart = self.right + gap <= other.left or other.right + gap <= self.left
        return not (apart or self.bottom + gap <= other.top or other.bottom + gap <= self.top)

    def holds(self, other: Box) -> bool:
        """Whether the other lies inside."""
        across = self.left <= other.left and other.right <= self.right
        return across and self.top <= other.top and other.bottom <= self.bottom

    def reach(self, x: float, y: float) -> tuple[float, float]:
        """The place of the box that is nearest to a place."""
        return min(max(x, self.left), self.right), min(max(y, self.top), self.bottom)


def clean_words(words: str) -> str:
    """Words on one line, as they are written: blanks single, controls spelt out."""
    return spell_controls(" ".join(words.split()))


def measure_words(words: str) -> float:
    """How wide words are, at most."""
    return LETTER * sum(_measure_letter(letter) for letter in words)


def _measure_letter(letter: str) -> float:
    if letter in _WIDTHS:
        return _WIDTHS[letter]
    # Ideographs and emoji fill a square, and fonts at hand for them are a little larger.
    return 1.3 if unicodedata.east_asian_width(letter) in "WF" else _WIDE


def shorten_words(words: str, width: float) -> str:
    """Clean words that fit a width, with dots where they were cut."""
    words = clean_words(words)
    if measure_words(words) <= width:
        return words
    left = width - measure_words(_CUT)
    kept = 0
    for letter in words:
        left -= LETTER * _measure_letter(letter)
        if left < 0:
            break
        kept += 1
    return words[:kept] + _CUT


def wrap_words(words: str, width: float) -> list[str]:
    """Words in lines that fit a width."""
    lines: list[str] = []
    for word in clean_words(words).split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and measure_words(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(shorten_words(word, width))
    return lines


def box_words(x: float, y: float, words: str, anchor: str = "start") -> Box:
    """The box of words whose middle height is y, begun, centred or ended at x."""
    width = measure_words(words)
    left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * width
    return Box(left, y - LINE / 2, left + width, y + LINE / 2)


def find_free_boxes(
    candidates: Iterable[Box], taken: Sequence[Box], frame: Box, *, gap: float = 2.0
) -> Iterator[Box]:
    """Candidates inside the frame that touch nothing, in their order."""
    for box in candidates:
        if frame.holds(box) and not any(box.touches(other, gap) for other in taken):
            yield box


def place_box(
    candidates: Iterable[Box], taken: Sequence[Box], frame: Box, *, gap: float = 2.0
) -> Box | None:
    """The first candidate inside the frame that touches nothing; None where there is none."""
    return next(find_free_boxes(candidates, taken, frame, gap=gap), None)


def join_boxes(boxes: Iterable[Box]) -> Box:
    """The box around several."""
    sides = [(box.left, box.top, box.right, box.bottom) for box in boxes]
    left, top, right, bottom = zip(*sides, strict=True)
    return Box(min(left), min(top), max(right), max(bottom))


def box_path(points: Sequence[tuple[float, float]], step: float = 6.0) -> list[Box]:
    """A line as a chain of small boxes, which words can keep off."""
    boxes: list[Box] = []
    for (a, b), (c, d) in pairwise(points):
        count = max(1, math.ceil(math.hypot(c - a, d - b) / step))
        for k in range(count):
            one, two = k / count, (k + 1) / count
            xs = sorted((a + (c - a) * one, a + (c - a) * two))
            ys = sorted((b + (d - b) * one, b + (d - b) * two))
            boxes.append(Box(xs[0] - 1, ys[0] - 1, xs[1] + 1, ys[1] + 1))
    return boxes


# Beside a mark: right, left, above, below, then the corners, then farther off.
_SIDES = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1))
_AWAY = (8.0, 18.0, 32.0, 48.0, 66.0, 90.0)


def surround_place(x: float, y: float, words: str) -> Iterable[Box]:
    """Boxes of words around a place, the nearest first."""
    width = measure_words(words)
    for away in _AWAY:
        for across, up in _SIDES:
            # Above and below words are centred on the mark, beside it they begin or end there.
            left = x + {1: away, -1: -away - width, 0: -width / 2}[across]
            middle = y + up * (away + LINE / 2)
            yield Box(left, middle - LINE / 2, left + width, middle + LINE / 2)


def stack_heights(x: float, y: float, words: str, floor: float) -> Iterable[Box]:
    """Boxes of words at x, at the height y and then ever farther above and below it.

    Above there is no end, so that a place is always found; none is below `floor`.
    """
    away = 0.0
    while True:
        for height in (y - away, y + away):
            if height <= floor or not away:
                yield box_words(x, height, words)
        away += 2.0
