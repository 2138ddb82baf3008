"""Roofline: what kinds of tasks reach, over their operations a byte, under what a processor can (Williams et al. 2009).

It does not know how anything was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from castile.launch.pictures.drawing import GRID, Box, Dot, circle, length, line, names, svg, text

WIDTH, HEIGHT, MARGIN = 860.0, 520.0, 64.0
PASSES = {"F": "#1f77b4", "B": "#d62728", "W": "#2ca02c"}
WORDS = {"F": "forward", "B": "to inputs", "W": "to parameters"}
OTHER = "#7f7f7f"
# The area of a dot is the share of the step's time; the smallest can still be pointed at.
LEAST_RADIUS, MOST_RADIUS = 3.0, 18.0
# Kinds of tasks that take so much of the step have their names beside their dots, where there is room.
LEAST_NAMED = 0.05
# Beside the roof, as wide as it is drawn: boxes of so many pixels each.
STEP = 4.0

Facts = Mapping[str, Any]


def picture(facts: Facts) -> str:
    """The SVG text: a dot for each kind of task that computes; its last line counts the others."""
    peak, rate = facts["processor"]["flops_per_second"], facts["processor"]["bytes_per_second"]
    computing = (key for key in facts["keys"] if key["flops_per_second"] > 0 and key["bytes_per_second"] > 0)
    dots = sorted(computing, key=lambda key: -key["step_share"])
    plane = _Plane(peak, rate, dots)
    left = len(facts["keys"]) - len(dots)
    title = f"{facts['model']}, {facts['batch_samples']} samples a step, on {facts['machine']}"
    legend, roof = _legend_at(plane)
    elements = [
        *_axes(plane),
        *_roof(plane),
        *(_dot(plane, key) for key in dots),
        *_names(plane, dots, legend),
        *_legend(legend, roof),
        text(8, HEIGHT - 6, "larger dots take more of the step; above the slope operands are in caches", 10, "start"),
        text(WIDTH - 8, HEIGHT - 6, f"{left} of {len(facts['keys'])} kinds of tasks do no arithmetic", 10, "end"),
    ]
    return svg(WIDTH, HEIGHT, title, elements)


class _Plane:
    """Where a number of operations a byte, and of operations a second, lie on the picture; both logarithmic."""

    def __init__(self, peak: float, rate: float, dots: Sequence[Facts]) -> None:
        self.peak, self.rate = peak, rate
        xs = [_intensity(key) for key in dots] + [peak / rate]
        ys = [key["flops_per_second"] for key in dots] + [peak]
        self.x = (math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs) * 2)))
        self.y = (math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys) * 1.2)))

    def at(self, intensity: float, flops: float) -> tuple[float, float]:
        across = (math.log10(intensity) - self.x[0]) / (self.x[1] - self.x[0])
        up = (math.log10(flops) - self.y[0]) / (self.y[1] - self.y[0])
        return MARGIN + across * (WIDTH - 2 * MARGIN), HEIGHT - MARGIN - up * (HEIGHT - 2 * MARGIN)

    def roof(self, x: float) -> float:
        """How far down the picture the roof is at a pixel across it."""
        power = self.x[0] + (x - MARGIN) / (WIDTH - 2 * MARGIN) * (self.x[1] - self.x[0])
        return self.at(10.0**power, min(self.peak, 10.0**power * self.rate))[1]


def _intensity(key: Facts) -> float:
    return float(key["flops_per_second"] / key["bytes_per_second"])


def _axes(plane: _Plane) -> Iterator[str]:
    for power in range(plane.x[0], plane.x[1] + 1):
        x, bottom = plane.at(10.0**power, 10.0 ** plane.y[0])
        yield line(x, bottom, x, MARGIN, GRID)
        yield text(x, bottom + 18, f"{10.0**power:g}", 11, "middle")
    for power in range(plane.y[0], plane.y[1] + 1):
        left, y = plane.at(10.0 ** plane.x[0], 10.0**power)
        yield line(left, y, WIDTH - MARGIN, y, GRID)
        yield text(left - 6, y + 4, f"{10.0 ** (power - 9):g}", 11, "end")
    yield text(WIDTH / 2, HEIGHT - 22, "operations a byte", 12, "middle")
    yield text(8, MARGIN - 14, "GFLOP/s", 12, "start")


def _roof(plane: _Plane) -> Iterator[str]:
    """Bandwidth times operations a byte, up to the peak."""
    ridge = plane.peak / plane.rate
    lowest = max(10.0 ** plane.x[0], 10.0 ** plane.y[0] / plane.rate)
    ends = ((lowest, lowest * plane.rate), (ridge, plane.peak), (10.0 ** plane.x[1], plane.peak))
    for (x, y), (to_x, to_y) in pairwise([plane.at(*end) for end in ends]):
        yield line(x, y, to_x, to_y, "black", 1.5)


def _dot(plane: _Plane, key: Facts) -> str:
    x, y = plane.at(_intensity(key), key["flops_per_second"])
    title = (f"{key['op']}.{key['pass']} {key['shapes']}: {key['seconds'] * 1e6:.1f} us, "
            f"{key['roofline_share']:.0%} of the roofline, {key['step_share']:.1%} of the step")  # fmt: skip
    return circle(x, y, _radius(key), _colour(key), title)


def _radius(key: Facts) -> float:
    return max(LEAST_RADIUS, MOST_RADIUS * math.sqrt(key["step_share"]))


def _names(plane: _Plane, dots: Sequence[Facts], legend: Box) -> Iterator[str]:
    """Names of the kinds that take most of the step."""
    places = [Dot(*plane.at(_intensity(key), key["flops_per_second"]), _radius(key), _name(key)) for key in dots]
    return names(places, Box(MARGIN, 0, WIDTH - MARGIN, HEIGHT - MARGIN), [legend, *_along(plane)])


def _along(plane: _Plane) -> list[Box]:
    """What the roof takes."""
    lefts = [MARGIN + STEP * number for number in range(math.ceil((WIDTH - 2 * MARGIN) / STEP))]
    ends = [(left, plane.roof(left), plane.roof(left + STEP)) for left in lefts]
    return [Box(left, min(ys) - 1, left + STEP, max(ys) + 1) for left, *ys in ends]


def _name(key: Facts) -> str:
    share = key["step_share"]
    return f"{key['op']} {WORDS.get(key['pass'], '')} {share:.0%}" if share >= LEAST_NAMED else ""


def _colour(key: Facts) -> str:
    return PASSES.get(key["pass"], OTHER)


def _legend_at(plane: _Plane) -> tuple[Box, str]:
    """Where the legend lies, and what the roof is in words: above the roof, or below it where that passes there."""
    rate = f"{plane.peak / 1e12:.4g} TFLOP/s" if plane.peak >= 1e13 else f"{plane.peak / 1e9:.4g} GFLOP/s"
    words = f"{rate}, {plane.rate / 1e9:.4g} GB/s of memory"
    width, height = 26 + length(words, 12), 20.0 + 18 * (len(WORDS) + 1)
    above = Box(MARGIN, MARGIN, MARGIN + width, MARGIN + height)
    if not any(above.meets(box) for box in _along(plane)):
        return above, words
    return Box(WIDTH - MARGIN - width, HEIGHT - MARGIN - height, WIDTH - MARGIN, HEIGHT - MARGIN), words


def _legend(box: Box, roof: str) -> Iterator[str]:
    """What colours and the line mean."""
    left, y = box.left, box.top + 16
    for name, colour in [*((WORDS[p], c) for p, c in PASSES.items()), ("others", OTHER)]:
        yield circle(left + 14, y - 4, 5, colour)
        yield text(left + 26, y, name, 12, "start")
        y += 18
    yield line(left + 6, y - 4, left + 22, y - 4, "black", 1.5)
    yield text(left + 26, y, roof, 12, "start")
