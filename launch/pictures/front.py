"""Front: what plans take and need, time across and memory up; those that no other beats in both are joined.

It does not know what plans these are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from castile.launch.pictures.drawing import EDGE, GRID, Box, Dot, circle, legend, line, names, svg, text, ticks
from castile.runtime.memory import written

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860.0, 520.0, 90.0, 30.0, 56.0, 60.0
SIZE, RADIUS = 11, 5.0
FRONT, KNOWN, LIMIT = "#1f77b4", "#7f7f7f", "#d62728"
COLOURS = (("plans of the front, by their numbers", FRONT), ("known plans", KNOWN))
# Axes end so much beyond the last plan; known plans that take or need more times the most of the front are left out.
BEYOND, FAR = 1.1, 2.0

Facts = Mapping[str, Any]


def picture(title: str, front: Sequence[Facts], known: Mapping[str, Facts], capacity: int) -> str:
    """The SVG text.

    front      facts of plans, as `report.facts` tells them, from the fastest to the smallest
    known      of others, by name
    capacity   of a processor, in bytes
    """
    slowest, largest = (max(row[what] for row in front) for what in ("step_seconds", "live_bytes"))
    near = {
        name: row
        for name, row in known.items()
        if row["step_seconds"] <= FAR * slowest and row["live_bytes"] <= FAR * largest
    }
    every = [*front, *near.values()]
    plane = _Plane(*(max(row[what] for row in every) * BEYOND for what in ("step_seconds", "live_bytes")))
    # a front may have twenty plans close together: there is room for their numbers, not for words
    dots = [(f"plan {number}", f"{number}", row, FRONT) for number, row in enumerate(front, 1)]
    dots += [(name, name, row, KNOWN) for name, row in near.items()]
    left = len(known) - len(near)
    elements = [
        *plane.axes(capacity),
        *_joined(plane, front),
        *(circle(*plane.at(row), RADIUS, colour, _title(name, row)) for name, _, row, colour in dots),
        *names([Dot(*plane.at(row), RADIUS, word) for _, word, row, _ in dots], plane.inside),
        *legend(Box(WIDTH / 2, HEIGHT - 18, WIDTH, HEIGHT), COLOURS),
        *([text(8, HEIGHT - 8, f"{left} known plans lie far outside", SIZE)] if left else []),
    ]
    return svg(WIDTH, HEIGHT, title, elements)


class _Plane:
    """Where seconds and bytes lie on the picture, both from 0."""

    def __init__(self, seconds: float, nbytes: float) -> None:
        self.seconds, self.nbytes = seconds, nbytes

    def place(self, seconds: float, nbytes: float) -> tuple[float, float]:
        across, up = seconds / self.seconds, nbytes / self.nbytes
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    @property
    def inside(self) -> Box:
        return Box(LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM)

    def at(self, row: Facts) -> tuple[float, float]:
        return self.place(row["step_seconds"], row["live_bytes"])

    def axes(self, capacity: int) -> Iterator[str]:
        for tick in ticks(self.seconds * 1e3, 8):
            x, y = self.place(tick / 1e3, 0)
            yield line(x, y, x, TOP, GRID)
            yield text(x, y + 18, f"{tick:g}", SIZE, "middle")
        unit = next(size for size in (2**30, 2**20, 2**10, 1) if self.nbytes >= size or size == 1)
        for tick in ticks(self.nbytes / unit, 8):
            x, y = self.place(0, tick * unit)
            yield line(x, y, WIDTH - RIGHT, y, GRID)
            yield text(x - 6, y + 4, f"{tick:g}", SIZE, "end")
        yield text(WIDTH / 2, HEIGHT - 24, "ms a step", 12, "middle")
        yield text(8, TOP - 12, f"{written(unit).partition(' ')[2]} that live at once, of the fullest processor", 12)
        if capacity <= self.nbytes:
            x, y = self.place(0, capacity)
            yield line(x, y, WIDTH - RIGHT, y, LIMIT, 1.5, "6 4")
            yield text(WIDTH - RIGHT, TOP - 12, f"dashes: {written(capacity)}, what a processor has", SIZE, "end")


def _joined(plane: _Plane, front: Sequence[Facts]) -> Iterator[str]:
    """Steps from plan to plan: at any time the least memory that a plan known here needs."""
    for (x, y), (to_x, to_y) in pairwise(plane.at(row) for row in front):
        yield line(x, y, to_x, y, EDGE)
        yield line(to_x, y, to_x, to_y, EDGE)


def _title(name: str, row: Facts) -> str:
    fits = "" if row["fits"] else ", does not fit"
    return f"{name}: {row['step_seconds'] * 1e3:.4g} ms, {written(row['live_bytes'])}{fits}"
