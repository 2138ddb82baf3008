"""Descent: how the best plan of each of several searches got better, proposals across and what it takes up.

It does not know what plans these are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from castile.launch.pictures.drawing import GRID, Box, circle, legend, line, path, svg, text, ticks

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860.0, 520.0, 70.0, 30.0, 56.0, 84.0
SIZE, RADIUS = 11, 3.0
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#e07b00", "#8c564b", "#17becf", "#7f7f7f")
# So much above the best of all the axis goes at the least, so that searches that are equal look so.
LEAST = 0.01


def picture(title: str, what: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """The SVG text: a line for each run, runs of one search in one colour.

    what   the figure of a run's `history` that the search makes small: step_seconds or live_bytes
    runs   each with its search, seed, num_proposals and history
    """
    best = min(run["history"][-1][what] for run in runs)
    above = [[(row["num_proposals"], row[what] / best - 1) for row in run["history"]] for run in runs]
    most = max(LEAST, *(share for rows in above for _, share in rows))
    plane = _Plane(max(2, *(run["num_proposals"] for run in runs)), most)
    names = list(dict.fromkeys(run["search"] for run in runs))
    colour = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    elements = [
        *plane.axes("less memory" if what == "live_bytes" else "quicker"),
        *(element for run, rows in zip(runs, above) for element in _drawn(plane, run, rows, colour[run["search"]])),
        *legend(Box(LEFT, HEIGHT - 36, WIDTH - RIGHT, HEIGHT), colour.items()),
    ]
    return svg(WIDTH, HEIGHT, title, elements)


class _Plane:
    """Where a number of proposals lies, each ten times as many as far from the last, and a share above the best."""

    def __init__(self, most_proposals: int, most_share: float) -> None:
        self.most_proposals, self.most_share = most_proposals, most_share

    def place(self, number: int, share: float) -> tuple[float, float]:
        across, up = math.log(max(1, number)) / math.log(self.most_proposals), share / self.most_share
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def axes(self, better: str) -> Iterator[str]:
        for power in range(int(math.log10(self.most_proposals)) + 1):
            x, y = self.place(10**power, 0)
            yield line(x, y, x, TOP, GRID)
            yield text(x, y + 18, f"{10**power:,}", SIZE, "middle")
        for tick in ticks(100 * self.most_share, 8):
            x, y = self.place(1, tick / 100)
            yield line(x, y, WIDTH - RIGHT, y, GRID)
            yield text(x - 6, y + 4, f"{tick:g} %", SIZE, "end")
        yield text(WIDTH / 2, HEIGHT - BOTTOM + 36, "proposals", 12, "middle")
        yield text(8, TOP - 12, f"above the best of all; lower is {better}", 12)


def _drawn(plane: _Plane, run: Mapping[str, Any], rows: Sequence[tuple[int, float]], colour: str) -> Iterator[str]:
    """Steps down to the best plan, on to the end of the search; dots where it got better."""
    points = [plane.place(*rows[0])]
    for (_, before), (number, share) in pairwise(rows):
        points += [plane.place(number, before), plane.place(number, share)]
    yield path([*points, plane.place(max(run["num_proposals"], rows[-1][0]), rows[-1][1])], colour)
    for number, share in rows:
        title = f"{run['search']}, seed {run['seed']}: {100 * share:.2f} % above the best after {number:,} proposals"
        yield circle(*plane.place(number, share), RADIUS, colour, title)
