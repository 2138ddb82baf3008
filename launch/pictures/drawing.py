"""Drawing: the elements of SVG pictures as text, and what is needed to keep words apart and axes readable.

It does not know what is drawn.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

# The width of a letter over its height, at the most.
LETTER = 0.6
# The size of names beside dots and of legends.
SMALL = 11
# What there is no character for in XML, however it is written (XML 1.0, production 2).
UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
GRID, EDGE = "#e0e0e0", "#808080"


class Box(NamedTuple):
    """A part of a picture that something takes."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        is_beside = self.right < other.left or other.right < self.left
        return not (is_beside or self.bottom < other.top or other.bottom < self.top)


def svg(width: float, height: float, title: str, elements: Iterable[str]) -> str:
    """The text of a picture on white, so many pixels wide and high, with its title on top."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="white"/>',
        text(width / 2, 24, clipped(title, 15, width - 16), 15, "middle"),
        *elements,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def text(x: float, y: float, words: str, size: int, anchor: str = "start") -> str:
    """Words that begin, end or have their middle at x, on the line y."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{_written(words)}</text>'


def line(x: float, y: float, to_x: float, to_y: float, colour: str, width: float = 1.0, dashes: str = "") -> str:
    places = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<line {places} stroke="{colour}" stroke-width="{width}"{dashed}/>'


def rect(box: Box, colour: str, title: str = "") -> str:
    """A filled box; `title` is shown to who points at it."""
    size = f'width="{box.right - box.left:.2f}" height="{box.bottom - box.top:.2f}"'
    return _titled(f'<rect x="{box.left:.2f}" y="{box.top:.2f}" {size} fill="{colour}"', "rect", title)


def circle(x: float, y: float, radius: float, colour: str, title: str = "") -> str:
    """A dot through which others can be seen; `title` is shown to who points at it."""
    place = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"'
    return _titled(f'<circle {place} fill="{colour}" fill-opacity="0.6"', "circle", title)


def path(points: Iterable[tuple[float, float]], colour: str, fill: str = "none") -> str:
    """A line through points."""
    through = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{through}" stroke="{colour}" fill="{fill}"/>'


def _titled(begun: str, kind: str, title: str) -> str:
    return f"{begun}><title>{_written(title)}</title></{kind}>" if title else f"{begun}/>"


def _written(words: str) -> str:
    return html.escape(UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", words), quote=False)


def length(words: str, size: int) -> float:
    """The pixels that words take at the most."""
    return LETTER * size * len(words)


def clipped(words: str, size: int, width: float) -> str:
    """As many of the words as have room."""
    room = max(1, int(width / (LETTER * size)))
    return words if len(words) <= room else f"{words[: room - 1]}\u2026"


class Dot(NamedTuple):
    """A circle with a name, or with none."""

    x: float
    y: float
    radius: float
    name: str = ""


def names(dots: Sequence[Dot], inside: Box, taken: Iterable[Box] = ()) -> Iterator[str]:
    """The name of each dot beside it, those of the first before others'; none where it would lie on something."""
    occupied = [*taken, *(Box(x - r, y - r, x + r, y + r) for x, y, r, _ in dots)]
    for dot in dots:
        free = (box for box in _label_boxes(dot, inside) if not any(box.meets(other) for other in occupied))
        if dot.name and (box := next(free, None)):
            occupied.append(box)
            yield text(box.left, box.bottom, dot.name, SMALL)


def _label_boxes(dot: Dot, inside: Box) -> Iterator[Box]:
    """Where a name can stand at a dot: to its right or left, level with it, above or below."""
    width = length(dot.name, SMALL)
    for left in (dot.x + dot.radius + 3, dot.x - dot.radius - 3 - width):
        above, below = dot.y - dot.radius, dot.y + dot.radius + SMALL
        for bottom in (dot.y + SMALL / 2, above, below, above - SMALL - 1, below + SMALL + 1):
            # Where it is written: what lies apart by less than a tenth may be written on each other.
            x, y = round(left, 1), round(bottom, 1)
            box = Box(x, y - SMALL, x + width, y)
            if x > inside.left and box.right < inside.right and box.top > inside.top and y < inside.bottom:
                yield box


def ticks(most: float, count: int = 8) -> Iterator[float]:
    """Round numbers from 0 to `most`, at most `count` steps apart: multiples of 1, 2 or 5 times a power of ten."""
    least = most / count
    power = 10.0 ** math.floor(math.log10(least))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= least * (1 - 1e-9))
    for number in range(int(most / step * (1 + 1e-9)) + 1):
        yield number * step


def legend(box: Box, entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    """(words, colour) one beside the other from the left of the box, on as many lines as it takes."""
    x, y = box.left, box.top + SMALL
    for words, colour in entries:
        width = SMALL + 4 + length(words, SMALL) + 12
        if x > box.left and x + width > box.right:
            x, y = box.left, y + SMALL + 7
        yield rect(Box(x, y - SMALL + 1, x + SMALL, y + 1), colour)
        yield text(x + SMALL + 4, y, words, SMALL)
        x += width
