"""Dependence analysis: from the boxes that tasks touch, in program order, to the edges between tasks and the bytes that
move (as in Legion: Bauer et al., SC 2012).

`version` analyses one version of one region between its producers and its readers; `scan` orders tasks that touch the
same buffers. It does not know operators, strategies or clocks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import inf
from operator import attrgetter

import numpy as np

from castile.runtime import collectives, placement, transfer
from castile.runtime.machine import Level, Machine
from castile.runtime.region import Box, contiguous, uncovered, whole
from castile.runtime.task import CostKey
from castile.runtime.transfer import Links, Pattern, Piece, Source

NO_KINDS = np.zeros(0, dtype=np.int8)
Touch = tuple[Sequence[int], Sequence[int]]  # the buffers that a task reads, and those that it writes
# attrgetter is fast: large plans have many pieces
_PROC, _BOX = attrgetter("proc"), attrgetter("box")


def scan(touches: Iterable[Touch], made: Sequence[int] = ()) -> np.ndarray:
    """Edges (before, after), unique and sorted, between tasks in program order that touch the same buffers.

    A reader waits for the last writer; a writer waits for the readers since, or for the last writer if there are none.
    A task that adds to a buffer reads and writes it.

    touches   the buffers that each task reads and writes
    made      the buffer of each task before those of `touches`, which only write or add to one
    """
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    before: list[int] = []
    counts: list[int] = []
    for task, buffer in enumerate(made):
        last = writer.get(buffer)
        if last is not None:
            before.append(last)
        counts.append(last is not None)
        writer[buffer] = task
    for task, (reads, writes) in enumerate(touches, len(made)):
        known = len(before)
        before += [writer[buffer] for buffer in reads if buffer in writer]
        for buffer in writes:
            before += readers.get(buffer) or ([writer[buffer]] if buffer in writer else [])
            writer[buffer], readers[buffer] = task, []
        for buffer in reads:
            # a task that also writes the buffer is its writer
            if writer.get(buffer) != task:
                readers.setdefault(buffer, []).append(task)
        counts.append(len(before) - known)
    num_tasks = len(counts)
    after = np.repeat(np.arange(num_tasks), np.array(counts, dtype=np.int64))
    edges = np.sort(np.array(before, dtype=np.int64) * num_tasks + after)
    edges = edges[np.diff(edges, prepend=-1) > 0]
    return np.stack(np.divmod(edges, max(1, num_tasks)), axis=1)


@dataclass(frozen=True, eq=False)
class Version:
    """The analysis of one version. Ports are numbered in the order producers, patterns, readers, overwriters.

    num_sources   the number of instances that are sources; these come first
    frames[j]     the shape of the array of which reader j reads a strided part, None where it reads contiguously
    made[k]       the instance that producer port k writes
    adds[k]       whether it adds to what earlier ports wrote there
    located[j]    the instance that reader j reads
    edges         (before, after) between ports
    touched       (port, instance) pairs
    first[i]      the port that begins instance i's life, -1 if it was there before
    """

    num_sources: int
    instances: tuple[Piece, ...]
    patterns: tuple[Pattern, ...]
    frames: tuple[tuple[int, ...] | None, ...]
    made: np.ndarray
    adds: np.ndarray
    located: np.ndarray
    edges: np.ndarray
    touched: np.ndarray
    first: np.ndarray

    @cached_property
    def keys(self) -> tuple[tuple[CostKey, ...], np.ndarray]:
        """The distinct cost keys of the patterns, and int64: the number of each pattern's key."""
        distinct: dict[CostKey, int] = {}
        # most patterns share their key with others as one object, so few keys are hashed
        keys = {id(p.key): p.key for p in self.patterns}
        of_key = {name: distinct.setdefault(key, len(distinct)) for name, key in keys.items()}
        numbers = [of_key[id(p.key)] for p in self.patterns]
        return tuple(distinct), np.array(numbers, dtype=np.int64)

    @cached_property
    def is_sum(self) -> bool:
        """Whether some producer adds to an instance that others wrote."""
        return bool(self.adds.any())

    @cached_property
    def is_strided(self) -> bool:
        """Whether some reader reads a strided part."""
        return self.frames.count(None) < len(self.frames)

    @cached_property
    def kinds(self) -> np.ndarray:
        """int8: the kind of each pattern."""
        if not self.patterns:
            return NO_KINDS
        return np.array([p.kind for p in self.patterns], dtype=np.int8)

    @cached_property
    def lanes(self) -> tuple[np.ndarray, np.ndarray]:
        """int64: the number of lanes that each pattern occupies, and the lanes, by slot."""
        each = [transfer.lanes(p.kind, p.procs) for p in self.patterns]
        return np.array([len(x) for x in each], dtype=np.int64), np.array([n for x in each for n in x], dtype=np.int64)

    @cached_property
    def slots(self) -> np.ndarray:
        """int64: the slot of each instance."""
        return np.fromiter(map(_PROC, self.instances), np.int64, len(self.instances))

    @cached_property
    def volumes(self) -> np.ndarray:
        """int64: the number of elements of each instance."""
        # many instances share their box as one object, so few volumes are computed
        boxes = list(map(_BOX, self.instances))
        names = list(map(id, boxes))
        volume = {name: box.volume for name, box in dict(zip(names, boxes)).items()}
        return np.fromiter(map(volume.__getitem__, names), np.int64, len(names))

    @cached_property
    def are_sources(self) -> np.ndarray:
        """bool: which instances are sources."""
        return np.arange(len(self.instances)) < self.num_sources


def version(
    contributions: Sequence[Source],
    readers: Sequence[tuple[int, Box]],
    dtype: str,
    links: Links,
    carried: bool = False,
    overwritten: bool = False,
    forms: Sequence[str] = collectives.SPECIAL_FORMS,
    twins: Sequence[Hashable] = (),
    most: float = inf,
) -> Version:
    """Analyse one version of a region. Raises TooManyTransfers where it takes more than `most` transfer tasks.

    contributions   the boxes that producers write, in program order, with a port for each of their processors. Equal
                    boxes on the same processors are summed into one instance; boxes that overlap are summed on the way
                    to their readers
    readers         (processor, box) in program order
    carried         whether the contributions are there already: then there are no producer ports
    overwritten     whether each contribution is written again, in place, after the readers, by overwriter ports
    twins           readers of one number are replicas, whose boxes must have the same strides
    """
    sources: dict[Source, int] = {}
    ports, adds = list[tuple[int, int]](), list[bool]()
    for source in contributions:
        known = len(sources)
        number = sources.setdefault(source, known)
        ports += [(number, proc) for proc in source.procs]
        adds += [number < known] * len(source.procs)
    t = collectives.plan(list(sources), readers, dtype, links, forms, twins, most)
    num_sources = sum(len(source.procs) for source in t.sources)
    # carried instances begin their life with no port
    there = num_sources if carried else 0
    order = _ordered(
        tuple(map(t.instances.__getitem__, ports)), tuple(adds), tuple([(p.reads, p.writes) for p in t.patterns]),
        tuple(t.located), len(t.pieces), there, carried, overwritten,
    )  # fmt: skip
    frames = tuple([_frame(box, t.pieces[place].box) for (_, box), place in zip(readers, t.located, strict=True)])
    return Version(num_sources, tuple(t.pieces), tuple(t.patterns), frames, *order)


def in_place(held: Sequence[tuple[int, Box]], num_readers: int, carried: bool, overwritten: bool) -> Version:
    """The version whose parts are each written by one producer and read in place by `num_readers` readers.

    held   processor (slot) and box of each part; boxes are disjoint
    """
    every = tuple(range(len(held)))
    order = _ordered(
        every, (False,) * len(held), (), every * num_readers, len(held), len(held) * carried, carried, overwritten
    )
    pieces = tuple([Piece("source", box, slot) for slot, box in held])
    return Version(len(held), pieces, (), (None,) * (len(held) * num_readers), *order)


def filled(readers: Sequence[tuple[int, Box]], twins: Sequence[Hashable] = ()) -> Version:
    """The version that the host writes wherever it is read: every read lies in one of its boxes.

    readers, twins   as for `version`
    """
    lies = placement.lying(readers, twins)
    places = sorted({(slot, box) for (slot, _), box in lies.items()})
    number = {place: n for n, place in enumerate(places)}
    every, located = tuple(range(len(places))), tuple([number[slot, lies[slot, box]] for slot, box in readers])
    order = _ordered(every, (False,) * len(places), (), located, len(places), len(places), True, False)
    frames = tuple([_frame(box, lies[slot, box]) for slot, box in readers])
    return Version(len(places), tuple([Piece("source", box, slot) for slot, box in places]), (), frames, *order)


def everywhere(box: Box, num_procs: int, located: np.ndarray) -> Version:
    """The version of which the host writes the same box on each of `num_procs` processors.

    located   int64[readers]: the processor of each
    """
    pieces = tuple([Piece("source", box, slot) for slot in range(num_procs)])
    every, ports = np.arange(num_procs), np.arange(len(located))
    return Version(
        num_procs, pieces, (), (None,) * len(located), every, np.zeros(num_procs, bool), located,
        np.zeros((0, 2), np.int64), np.stack([ports, located], axis=1), np.full(num_procs, -1),
    )  # fmt: skip


# Versions of different shapes often have the same edges.
@lru_cache(maxsize=1024)
def _ordered(
    made: tuple[int, ...],
    adds: tuple[bool, ...],
    patterns: tuple[Touch, ...],
    located: tuple[int, ...],
    num_pieces: int,
    there: int,
    carried: bool,
    overwritten: bool,
) -> tuple[np.ndarray, ...]:
    """(made, adds, located, edges, touched, first) of a version, from the pieces that each port touches."""
    begun = () if carried else made
    touches: list[Touch] = [*patterns, *[((place,), ()) for place in located]]
    if overwritten:
        touches += [((), (m,)) for m in made]
    pairs, first = list(enumerate(begun)), [-1] * num_pieces
    for port, b in reversed(pairs):
        first[b] = port
    for port, (reads, writes) in enumerate(touches, len(begun)):
        touched = (*reads, *writes)
        pairs += [(port, b) for b in (sorted({*touched}) if len(touched) > 1 else touched)]
        for b in writes:
            if b >= there and first[b] < 0:
                first[b] = port
    return (
        np.array(made, dtype=np.int64),
        np.array(adds, dtype=bool),
        np.array(located, dtype=np.int64),
        scan(touches, begun),
        np.array(pairs, dtype=np.int64).reshape(-1, 2),
        np.array(first, dtype=np.int64),
    )


def _frame(box: Box, held: Box) -> tuple[int, ...] | None:
    return None if box == held or contiguous(box, held) else held.shape


def links(machine: Machine, procs: Sequence[int]) -> Links:
    """The machine as a template sees it: slot i is processor procs[i].

    The transfers of one version run at the same time, so all of its processors may contend for shared links.
    """
    users = machine.users(procs)
    among = users if any(users) else None

    crowds = [machine.crowd(p, among) for p in procs] if among is not None else [()] * len(procs)

    def level(slots: tuple[int, ...]) -> Level:
        return machine.link(tuple([procs[s] for s in slots]), among, tuple([crowds[s] for s in slots]))

    processor = machine.processors[0]
    return Links(
        lambda slot: machine.groups(procs[slot]),
        level,
        processor.bytes_per_second,
        processor.task_overhead_seconds,
        "tree" in machine.algorithms,
    )


def complete(box_shape: tuple[int, ...], boxes: Iterable[Box], who: str) -> None:
    """Raise ValueError where the written boxes do not cover the region."""
    rest = uncovered(whole(box_shape), boxes)
    if rest:
        raise ValueError(f"{who}: nobody writes {rest[0]}")
