"""Timeline: when each processor computes, sends and waits in a step, and how its memory fills meanwhile.

It does not know whether the timeline was simulated or measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from castile.launch.pictures.drawing import EDGE, GRID, Box, clipped, legend, length, line, path, rect, svg, text, ticks
from castile.launch.reports import report
from castile.planner.step.program import COMPUTED_AGAIN
from castile.planner.strategy import runs_of
from castile.runtime import memory
from castile.runtime.levels import level_name
from castile.runtime.machine import Machine
from castile.runtime.task import NUM_LANES, Kind, Lane, TaskGraph
from castile.runtime.timeline import PICOSECONDS, Timeline

WIDTH, LEFT, RIGHT, TOP = 1200.0, 150.0, 64.0, 92.0
# Rows of kernels are higher than those of transfers; the memory's curve is as high as several.
KERNELS, TRANSFERS, GAP, MEMORY = 18.0, 9.0, 6.0, 90.0
SIZE, SMALL = 11, 8
# Of processors that differ so many are shown.
MOST_SHOWN = 12
# So many pixels stand for a time in which nothing is drawn.
BREAK = 120.0
# Tasks so many pixels long are drawn by themselves; shorter ones as what most of a column of half a pixel is.
LEAST, COLUMN = 3.0, 0.5
# What is done, in words and colour: passes by their letters, then what else there is.
PASSES = {"F": ("forward", "#1f77b4"), "B": ("to inputs", "#d62728"), "W": ("to parameters", "#2ca02c")}
UPDATES, AGAIN, COPIES = ("updates", "#9467bd"), ("forward again", "#7fb3dd"), ("copies and sums", "#7f7f7f")
# In the names of tasks that are no pass of a node, but there for a parameter.
UPDATE = "/"
# In those of passes that were done before.
DONE_AGAIN = re.compile(rf"\.{COMPUTED_AGAIN}(@\d+)?\[")
# Transfers, by the level of links that they cross, the nearest first.
LINKS = ("#e6b422", "#e07b00", "#8c4a00", "#5a2d00")


class _Row(NamedTuple):
    """What a lane does: tasks in the order in which they begin, from when to when, each of which kind."""

    lane: Lane
    task: np.ndarray
    start: np.ndarray
    end: np.ndarray
    kind: np.ndarray

    @property
    def height(self) -> float:
        return KERNELS if self.lane == Lane.COMPUTE else TRANSFERS


class _Group(NamedTuple):
    """Processors that do the same at the same times."""

    procs: tuple[int, ...]
    rows: tuple[_Row, ...]
    top: float

    @property
    def bottom(self) -> float:
        return self.top + max(KERNELS, sum(row.height for row in self.rows))


class Undrawn(NamedTuple):
    """What is not drawn of a step, and the longest time in which nothing is.

    since, until   in picoseconds; a break stands for it where it would take more room
    words          what is left out
    computes[P]    for which share of the whole step each of the machine's processors computes
    """

    since: int
    until: int
    words: str
    computes: np.ndarray


def picture(
    title: str,
    graph: TaskGraph,
    timelines: Mapping[str, Timeline],
    machine: Machine,
    role: np.ndarray | None = None,
    undrawn: Undrawn | None = None,
) -> str:
    """The SVG text: a row for each lane at work, processors that do the same once; below, what fills the fullest one.

    timelines  of the graph's tasks by name, one below the other; the first, of all tasks, says when memory is held
    role       the processor of the graph that does the same as each of the machine's; each is itself by default
    undrawn    what is not drawn; by default all is
    """
    of_role = _members(np.arange(graph.num_procs) if role is None else role, graph.num_procs)
    levels = [level.name for level in machine.levels]
    kinds = [*PASSES.values(), UPDATES, AGAIN, COPIES, *zip(levels, LINKS)]
    first, kind_of = next(iter(timelines.values())), _kinds(graph, levels)
    chart = _Chart(graph, max(int(timeline.end.max(initial=1)) for timeline in timelines.values()), kinds, undrawn)
    drawn, used, low = [], set[int](), TOP
    for name, timeline in timelines.items():
        if len(timelines) > 1:
            drawn.append(text(8, low + SIZE, f"{name}: {report.duration(timeline.seconds)}", SIZE))
            low += SIZE + GAP
        alike = _groups(graph, timeline, kind_of, low)
        groups = [group._replace(procs=_all(group.procs, of_role)) for group in alike]
        num_left = sum(map(len, of_role)) - sum(len(group.procs) for group in groups)
        drawn += [element for group in groups for element in chart.group(group, timeline)]
        used |= {int(kind) for group in groups for row in group.rows for kind in np.unique(row.kind)}
        low = groups[-1].bottom + GAP if groups else low
        if num_left:
            drawn.append(text(8, low + SIZE, f"and {report.counted(num_left, 'processor')} more", SIZE))
            low += SIZE + GAP
    top = low + 34
    elements = [
        *legend(Box(LEFT, 36, WIDTH - RIGHT, TOP), [kinds[kind] for kind in sorted(used)]),
        *chart.axis(low, top + MEMORY),
        *drawn,
        *chart.memory(first, top, machine, [procs[0] for procs in of_role]),
        *chart.left_out((TOP - 6, low), (top, top + MEMORY + 1)),
    ]
    return svg(WIDTH, top + MEMORY + 16, title, elements)


def _kinds(graph: TaskGraph, levels: Sequence[str]) -> np.ndarray:
    """int64[T]: the number of what each task does."""
    of_pass = {letter: number for number, letter in enumerate(PASSES)}
    updates, again, copies = range(len(PASSES), len(PASSES) + 3)
    of_key = np.array(
        [
            copies + 1 + min(levels.index(level_name(key.link)), len(LINKS) - 1) if key.link
            else of_pass.get(key.work.rpartition(".")[2], copies)
            for key in graph.cost_keys
        ],
        dtype=np.int64,
    )  # fmt: skip
    kind = of_key[graph.cost]
    for task in np.flatnonzero(graph.kind == Kind.COMPUTE).tolist():
        name = graph.tasks[task].name
        if UPDATE in name:
            kind[task] = updates
        elif DONE_AGAIN.search(name):
            kind[task] = again
    return kind


def _members(role: np.ndarray, num_roles: int) -> list[tuple[int, ...]]:
    """The processors of each role."""
    return [tuple(np.flatnonzero(role == number).tolist()) for number in range(num_roles)]


def _all(roles: Sequence[int], of_role: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The processors of these roles."""
    return tuple(sorted(chain.from_iterable(of_role[role] for role in roles)))


def _groups(graph: TaskGraph, timeline: Timeline, kind: np.ndarray, top: float) -> list[_Group]:
    """The first processors that differ, each with all that do the same."""
    place = np.full(graph.num_tasks, -1)
    place[timeline.task] = np.arange(len(timeline.task))
    owner = np.repeat(np.arange(graph.num_tasks), np.diff(graph.lane_ptr))
    ran = place[owner] >= 0
    task, lane = owner[ran], graph.lanes[ran]
    start, end = timeline.start[place[task]], timeline.end[place[task]]
    order = np.lexsort((start, lane))
    cuts = np.searchsorted(lane[order], np.arange(NUM_LANES * graph.num_procs + 1))
    alike: dict[bytes, list[int]] = {}
    rows: dict[int, tuple[_Row, ...]] = {}
    for proc in range(graph.num_procs):
        mine = []
        for number in range(NUM_LANES):
            here = order[cuts[proc * NUM_LANES + number] : cuts[proc * NUM_LANES + number + 1]]
            if len(here):
                mine.append(_Row(Lane(number), task[here], start[here], end[here], kind[task[here]]))
        rows[proc] = tuple(mine)
        contents = [array.tobytes() for row in mine for array in (np.array([row.lane]), row.start, row.end, row.kind)]
        alike.setdefault(b"|".join(contents), []).append(proc)
    groups = []
    for procs in list(alike.values())[:MOST_SHOWN]:
        group = _Group(tuple(procs), rows[procs[0]], top)
        groups.append(group)
        top = group.bottom + GAP
    return groups


class _Chart:
    """Where times lie across, and what is drawn there."""

    def __init__(
        self, graph: TaskGraph, last: int, kinds: Sequence[tuple[str, str]], undrawn: Undrawn | None = None
    ) -> None:
        self.graph, self.last, self.kinds, self.undrawn = graph, max(1, last), kinds, undrawn
        left, right = LEFT, WIDTH - RIGHT
        self.scale = (right - left) / self.last
        # Times, and where they lie: in proportion between each and the next.
        self.moments, self.places = [0, self.last], [left, right]
        # From when till when a break stands for what is between, nothing of which is drawn.
        self.gap = (0, 0)
        if undrawn is not None and (undrawn.until - undrawn.since) * self.scale > BREAK:
            self.gap = since, until = undrawn.since, undrawn.until
            self.scale = (right - left - BREAK) / max(1, self.last - until + since)
            place = left + since * self.scale
            self.moments[1:1], self.places[1:1] = [since, until], [place, place + BREAK]
        columns = np.linspace(left, right, round((right - left) / COLUMN) + 1)
        self.columns = np.interp(columns, self.places, self.moments)

    def x(self, moment: float) -> float:
        return float(np.interp(moment, self.moments, self.places))

    def axis(self, low: float, bottom: float) -> Iterator[str]:
        """Times in milliseconds, those of long steps in seconds, through all rows and the memory below."""
        unit, size = ("ms", PICOSECONDS / 1e3) if self.last < 10 * PICOSECONDS else ("s", float(PICOSECONDS))
        since, until = self.gap
        _, step, *_ = ticks((self.last - until + since) / size, 10)
        for tick in np.arange(int(self.last / size / step * (1 + 1e-9)) + 1) * step:
            if since < tick * size < until:
                continue
            x = self.x(tick * size)
            yield line(x, TOP - 6, x, bottom, GRID)
            yield text(x, TOP - 10, f"{tick:g}", SIZE, "middle")
        yield text(8, TOP - 10, "processor", SIZE)
        yield text(LEFT - 16, TOP - 10, unit, SIZE, "end")
        yield text(WIDTH - 4, TOP - 26, "computing", SIZE, "end")
        yield line(LEFT, low, WIDTH - RIGHT, low, EDGE)

    def group(self, group: _Group, timeline: Timeline) -> Iterator[str]:
        """The rows of processors that do the same, their names on the left, how much they compute on the right."""
        top, name = group.top, runs_of(group.procs)
        if not group.rows:
            yield text(8, top + KERNELS / 2 + SMALL / 2, clipped(f"{name} idle", SIZE, LEFT - 20), SIZE)
        for number, row in enumerate(group.rows):
            words, base = row.lane.name.lower(), top + row.height - (row.height - SMALL) / 2 - 1
            yield text(LEFT - 6, base, words, SMALL, "end")
            if not number:
                yield text(8, base + 1, clipped(name, SIZE, LEFT - 20 - length(words, SMALL)), SIZE)
            if row.lane == Lane.COMPUTE:
                drawn = float((row.end - row.start).sum()) / max(1, int(timeline.end.max()))
                share = drawn if self.undrawn is None else float(self.undrawn.computes[group.procs[0]])
                yield text(WIDTH - 4, base + 1, report.percent(share), SIZE, "end")
            yield from self._row(row, top + 0.5, top + row.height - 0.5)
            top += row.height

    def left_out(self, *spans: tuple[float, float]) -> Iterator[str]:
        """Over what is drawn from one height to another: nothing, for the time that is left out, and what that is."""
        if self.undrawn is None or not any(self.gap):
            return
        left, right = map(self.x, self.gap)
        words = clipped(self.undrawn.words, SIZE, BREAK - 8)
        for top, bottom in spans:
            yield rect(Box(left, top, right, bottom), "white")
            yield line(left, top, left, bottom, EDGE, dashes="4 3")
            yield line(right, top, right, bottom, EDGE, dashes="4 3")
        yield text((left + right) / 2, sum(spans[0]) / 2, words, SIZE, "middle")

    def _row(self, row: _Row, top: float, bottom: float) -> Iterator[str]:
        long = (row.end - row.start) * self.scale >= LEAST
        yield from self._short(_Row(row.lane, *(array[~long] for array in row[1:])), top, bottom)
        for task, start, end, kind in zip(*(array[long].tolist() for array in row[1:])):
            title = f"{self.graph.tasks[task].name}, {report.duration((end - start) / PICOSECONDS)}"
            # A hair of white tells it from the next.
            yield rect(Box(self.x(start), top, self.x(end) - 0.3, bottom), self.kinds[kind][1], title)

    def _short(self, row: _Row, top: float, bottom: float) -> Iterator[str]:
        """Short tasks: columns that they fill by half or more, in the colour of what fills most of each."""
        if not len(row.task):
            return
        filled = np.stack([_filled(row, kind, self.columns) for kind in range(len(self.kinds))])
        most = np.where(2 * filled.sum(axis=0) >= np.diff(self.columns), filled.argmax(axis=0), -1)
        cuts = np.flatnonzero(np.diff(most, prepend=-2, append=-2))
        for begin, end in zip(cuts[:-1].tolist(), cuts[1:].tolist()):
            if most[begin] < 0:
                continue
            among = slice(*np.searchsorted(row.start, self.columns[[begin, end]]))
            words, colour = self.kinds[most[begin]]
            title = f"{report.counted(len(row.task[among]), 'task')}, most of it {words}"
            yield rect(Box(self.x(self.columns[begin]), top, self.x(self.columns[end]), bottom), colour, title)

    def memory(self, timeline: Timeline, top: float, machine: Machine, names: Sequence[int]) -> Iterator[str]:
        """What lives on the processor that is fullest for what it has, over time; names: by which the machine has them.
        """
        every = memory.courses(self.graph, timeline)
        capacity = machine.capacity[list(names)].tolist()
        shares = [alive.max() / most for (_, alive), most in zip(every, capacity, strict=True)]
        proc = int(np.argmax(shares))
        moments, alive = every[proc]
        peak = int(alive.max())
        name = f"memory of processor {names[proc]}: {memory.written(peak)} at most, of {memory.written(capacity[proc])}"
        yield text(LEFT, top - 8, name, SIZE)
        bottom, scale = top + MEMORY, MEMORY / max(1, peak)
        first = np.clip(np.searchsorted(self.columns, moments, "right") - 1, 0, len(self.columns) - 2)
        # The most of a column, and what was there before it.
        most = np.zeros(len(self.columns) - 1)
        last = alive[np.searchsorted(moments, self.columns[:-1], "right") - 1]
        np.maximum.at(most, first, alive)
        most = np.maximum(most, last)
        cuts = np.flatnonzero(np.diff(most, prepend=-1))
        xs = [self.x(self.columns[cut]) for cut in cuts] + [self.x(self.last)]
        steps = [(x, bottom - most[cut] * scale) for cut, *ends in zip(cuts, xs, xs[1:]) for x in ends]
        yield path([(LEFT, bottom), *steps, (xs[-1], bottom)], EDGE, "#d8e2ee")
        yield text(LEFT - 6, top + SMALL, memory.written(peak), SMALL, "end")


def _filled(row: _Row, kind: int, columns: np.ndarray) -> np.ndarray:
    """For how long tasks of a kind run in each column; those of a lane come one after another."""
    mine = row.kind == kind
    if not mine.any():
        return np.zeros(len(columns) - 1)
    start, end = row.start[mine], row.end[mine]
    before = np.cumsum(end - start)
    moments = np.stack([start, end], axis=1).ravel()
    spent = np.stack([before - (end - start), before], axis=1).ravel()
    return np.diff(np.interp(columns, moments, spent, left=0.0))
