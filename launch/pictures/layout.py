"""Layout: which processor has which part of each node of a plan, along which axes these are cut, and what they take.

It does not know how the plan was found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import prod
from typing import NamedTuple

from castile.launch.pictures.drawing import EDGE, GRID, Box, clipped, legend, line, rect, svg, text, ticks
from castile.launch.reports import report
from castile.planner.alternatives import pattern
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.graph import Node
from castile.planner.strategy import Config, Strategy, in_words
from castile.runtime.levels import Level
from castile.runtime.timeline import PICOSECONDS

WIDTH, LEFT, RIGHT, TOP = 1255.0, 280.0, 415.0, 92.0
ROW, SIZE = 17.0, 11
# At the right: what a node's Config is, and a bar for what its kernels take.
WORDS, BAR = 230.0, 100.0
# Of rows so many are shown, those that take most; of processors as many as can be told apart.
MOST_ROWS, MOST_COLUMNS = 40, 280
# What the axes of a node are, by colour; later parts along them are paler, the last ones the palest.
KINDS = {
    "samples": (31, 119, 180),
    "attributes": (44, 160, 44),
    "parameters": (224, 123, 0),
    "contracted: results are partial sums": (148, 103, 189),
    "not cut": (150, 150, 150),
}
SAMPLES, ATTRIBUTES, PARAMETERS, CONTRACTED, WHOLE = KINDS
PALEST = 0.75


class _Row(NamedTuple):
    """Nodes that lie alike: those whose names differ in numbers only, and others beside them.

    name      of the first kind of nodes, and of the last
    kinds     what the axes are that are cut
    configs   that cut them so: one, or several that lie on other processors each
    seconds   that their kernels take where that is longest
    """

    name: str
    last: str
    axes: tuple[str, ...]
    kinds: tuple[str, ...]
    configs: tuple[Config, ...]
    num_nodes: int
    seconds: float

    @property
    def label(self) -> str:
        name = self.name if self.last == self.name else f"{self.name} to {self.last}"
        return name if self.num_nodes == 1 else f"{name}, {self.num_nodes} nodes"


def picture(title: str, evaluator: Evaluator, plan: Strategy) -> str:
    """The SVG text: a row for each kind of node, a column for each processor, colours for the axes that are cut."""
    rows, left = _rows(evaluator, plan)
    machine = evaluator.lowering.machine
    grid = _Grid(machine.num_procs, TOP + ROW * len(rows))
    longest = max((row.seconds for row in rows), default=0.0)
    total = sum(row.seconds for row in (*rows, *left))
    elements = [
        *legend(Box(8, 36, WIDTH - 8, TOP), [(words, _shade(words, 0, 1)) for words in KINDS]),
        *grid.frame(machine.levels),
        text(WIDTH - 8, TOP - 10, "kernels", SIZE, "end"),
    ]
    for number, row in enumerate(rows):
        top = TOP + ROW * number
        elements += [text(8, top + SIZE + 1, clipped(row.label, SIZE, LEFT - 16), SIZE)]
        elements += grid.row(row, top)
        elements += _figures(row, top, longest, total)
    if left:
        share = report.percent(sum(row.seconds for row in left) / total)
        count = report.counted(sum(row.num_nodes for row in left), "node")
        elements += [text(8, grid.bottom + ROW, f"and {count} more, which take {share} of all kernels' time", SIZE)]
    return svg(WIDTH, grid.bottom + 2 * ROW, title, elements)


def _samples(evaluator: Evaluator) -> set[str]:
    """The names of sample axes."""
    graph = evaluator.lowering.graph
    return {graph.tensors[name].axes[0] for name in graph.inputs if graph.tensors[name].axes}


def _rows(evaluator: Evaluator, plan: Strategy) -> tuple[list[_Row], list[_Row]]:
    """The rows in the order of the graph: those that take most, and the others.

    Where there are too many, neighbours of one Config are one row; where these are still too many, as those of a
    pipeline's stages, nodes that are cut alike wherever they lie.
    """
    names, samples = evaluator.lowering.names, _samples(evaluator)
    alike: dict[tuple[str, Config], list[str]] = {}
    for name, config in plan.configs.items():
        alike.setdefault((pattern(name), config), []).append(name)
    every = []
    for (word, config), of in alike.items():
        node = names.nodes.get(of[0]) or names.optional[of[0]]
        axes = tuple(axis for axis in node.alignment.axes if config.degree(axis) > 1)
        # What is no node of the graph is there for a parameter.
        kinds = tuple(kind_of(node, axis, samples) if of[0] in names.nodes else PARAMETERS for axis in axes)
        seconds = sum(int(evaluator.work(name, config).max()) for name in of) / PICOSECONDS
        word = word if len(of) > 1 else of[0]
        every.append(_Row(word, word, axes, kinds, (config,), len(of), seconds))
    rows = every
    if len(rows) > MOST_ROWS and len(rows := _merged(every)) > MOST_ROWS:
        rows = _merged(_wherever(every))
    most = sorted(range(len(rows)), key=lambda number: -rows[number].seconds)[:MOST_ROWS]
    return [rows[n] for n in sorted(most)], [rows[n] for n in sorted(set(range(len(rows))) - set(most))]


def _merged(rows: Sequence[_Row]) -> list[_Row]:
    """Neighbours that lie alike as one row."""
    return [_joined(list(alike)) for _, alike in groupby(rows, lambda row: (row.kinds, row.configs))]


def _wherever(rows: Sequence[_Row]) -> list[_Row]:
    """Those whose names differ in numbers only and that are cut alike as one row, where the first of them is."""
    alike: dict[tuple[str, tuple[str, ...], str], list[_Row]] = {}
    for row in rows:
        alike.setdefault((pattern(row.name), row.kinds, row.configs[0].cuts), []).append(row)
    found = []
    for (word, _, _), of in alike.items():
        word = word if len(of) > 1 else of[0].name
        configs = tuple(dict.fromkeys(row.configs[0] for row in of))
        found.append(_joined(of)._replace(name=word, last=word, configs=configs))
    return found


def _joined(rows: Sequence[_Row]) -> _Row:
    count, seconds = sum(row.num_nodes for row in rows), sum(row.seconds for row in rows)
    return rows[0]._replace(last=rows[-1].last, num_nodes=count, seconds=seconds)


def kind_of(node: Node, axis: str, samples: set[str]) -> str:
    """What an axis is of a node: its samples, attributes, parameters (Jia et al., 2019), or what is summed over."""
    a = node.alignment
    bearing = [operand for operand in a.operands if axis in operand.axes]
    if axis in samples and not any(operand.param for operand in bearing):
        return SAMPLES
    if not any(axis in result.axes for result in a.results):
        return CONTRACTED
    return PARAMETERS if any(operand.param for operand in bearing) else ATTRIBUTES


def _shade(kind: str, index: int, count: int) -> str:
    """The colour of a part along an axis of a kind."""
    white = PALEST * index / max(1, count - 1)
    return "#" + "".join(f"{round(value + (255 - value) * white):02x}" for value in KINDS[kind])


def _figures(row: _Row, top: float, longest: float, total: float) -> Iterator[str]:
    """The Config in words, and what the kernels take beside the longest."""
    base, left = top + SIZE + 1, WIDTH - RIGHT + 8
    yield text(left, base, clipped(in_words(row.configs), SIZE, WORDS), SIZE)
    left += WORDS + 8
    if longest:
        yield rect(Box(left, top + 3, left + BAR * row.seconds / longest, top + ROW - 4), "#9aa7b5")
        yield text(WIDTH - 8, base, report.percent(row.seconds / total), SIZE, "end")


class _Grid:
    """A column for each processor, or for several in a row where there are many."""

    def __init__(self, num_procs: int, bottom: float) -> None:
        self.num_procs, self.bottom = num_procs, bottom
        self.stride = -(-num_procs // MOST_COLUMNS)
        self.width = (WIDTH - LEFT - RIGHT) / num_procs

    def x(self, proc: float) -> float:
        return LEFT + proc * self.width

    def frame(self, levels: Sequence[Level]) -> Iterator[str]:
        """Numbers of processors, and lines where others are farther away than those on this side."""
        for tick in ticks(self.num_procs - 1, 8) if self.num_procs > 1 else (0,):
            if tick == int(tick):
                yield text(self.x(tick + 0.5), TOP - 8, f"{tick:.0f}", SIZE, "middle")
        yield text(LEFT - 16, TOP - 8, "processor", SIZE, "end")
        for level in levels:
            if 1 < level.group < self.num_procs and level.group * self.width > 4:
                for proc in range(level.group, self.num_procs, level.group):
                    yield line(self.x(proc), TOP - 4, self.x(proc), self.bottom + 2, EDGE)
        yield line(LEFT, self.bottom + 2, WIDTH - RIGHT, self.bottom + 2, GRID)

    def row(self, row: _Row, top: float) -> Iterator[str]:
        """A stripe for each axis that is cut, in the shade of the part that each processor has; of several parts each
        has its share of the processor's column.
        """
        degrees = [row.configs[0].degree(axis) for axis in row.axes] or [1]
        held: dict[int, set[int]] = {}
        for config in row.configs:
            for number, proc in enumerate(config.procs):
                held.setdefault(proc, set()).add(number // config.replicas)
        height = (ROW - 3) / len(degrees)
        for number, (kind, count) in enumerate(zip(row.kinds or (WHOLE,), degrees, strict=True)):
            title = f"{row.label}: {f'{row.axes[number]} cut in {count}, {kind}' if row.axes else WHOLE}"
            low, high = top + number * height, top + (number + 1) * height
            below = prod(degrees[number + 1 :])
            shares = [
                (proc + self.stride * n / len(along), proc + self.stride * (n + 1) / len(along), index)
                for proc in range(0, self.num_procs, self.stride)
                for along in [sorted({part // below % count for part in held.get(proc, ())})]
                for n, index in enumerate(along)
            ]
            while shares:
                begin, end, index = shares.pop(0)
                while shares and shares[0][0] == end and shares[0][2] == index:
                    end = shares.pop(0)[1]
                left, right = self.x(begin), self.x(min(end, self.num_procs))
                place = f", part {index}" if row.axes else ""
                yield rect(Box(left, low, right, high), _shade(kind, index, count), title + place)
