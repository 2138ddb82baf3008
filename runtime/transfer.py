"""Moving pieces: the tasks that pack, send, land and sum boxes of one version, and the general form made of them.

It does not know which special forms exist, what the regions hold, or who produced them. Processors are slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from castile.runtime.machine import Level
from castile.runtime.region import Box, contiguous, intersect, uncovered, whole
from castile.runtime.task import NOTHING, NUM_LANES, Arg, Body, Call, Comm, CostKey, Kind, Lane, Task, View


@dataclass(frozen=True)
class Source:
    """An instance, alike on each of `procs`; instances that overlap are partial sums of what readers want."""

    box: Box
    procs: tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """A buffer of the plan: `kind` is "source", "copy" (what a reader reads) or "staging"."""

    kind: str
    box: Box
    proc: int


@dataclass(frozen=True)
class Pattern:
    """A transfer task; processors are slots, buffers are numbers of the plan's pieces."""

    kind: Kind
    name: str
    procs: tuple[int, ...]
    key: CostKey
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    views: tuple[View, ...] = ()
    body: Body = NOTHING
    comm: Comm | None = None


@dataclass(frozen=True)
class Links:
    """What the choice of a form needs to know of the machine, by slot."""

    distance: Callable[[int, int], int]
    level: Callable[[tuple[int, ...]], Level]
    copy_bytes_per_second: float
    task_seconds: float


@dataclass
class Transfer:
    """The plan of one version: pieces (sources first), tasks in an order that respects their needs, a piece a read."""

    sources: Sequence[Source]
    dtype: str
    links: Links
    forms: Sequence[str]
    pieces: list[Piece] = field(default_factory=list)
    patterns: list[Pattern] = field(default_factory=list)
    located: list[int] = field(default_factory=list)
    instances: dict[tuple[int, int], int] = field(default_factory=dict)
    packs: dict[tuple[tuple[int, ...], int, Box], View] = field(default_factory=dict)

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    def held(self, source: int, proc: int) -> int:
        """The piece that is a source's instance on one of its processors."""
        return self.instances[source, proc]

    def add(self, kind: str, box: Box, proc: int) -> int:
        self.pieces.append(Piece(kind, box, proc))
        return len(self.pieces) - 1


@dataclass(frozen=True)
class Term:
    """What one processor contributes to a copy: sources that always lie together, summed over `box`."""

    sources: tuple[int, ...]
    proc: int
    box: Box


@dataclass(frozen=True)
class Wanted:
    """A copy to be made and its terms in the order of their sum."""

    proc: int
    box: Box
    terms: tuple[Term, ...]


# The general form: pieces from point to point, and one fold a copy.


def general(t: Transfer, copy: Wanted, target: int) -> None:
    if len(copy.terms) == 1 and copy.terms[0].box == copy.box and copy.terms[0].proc != copy.proc:
        move(t, packed(t, copy.terms[0], unbroken=True), copy.terms[0].proc, View(target, copy.box), copy.proc)
        return
    if len(procs := {term.proc for term in copy.terms}) == 1 and copy.proc not in procs:
        source = copy.terms[0].proc
        move(t, assembled(t, copy, source), source, View(target, copy.box), copy.proc)
        return
    arrived = []
    for term in copy.terms:
        view = packed(t, term, unbroken=term.proc != copy.proc)
        if term.proc != copy.proc:
            landing = View(t.add("staging", term.box, copy.proc), term.box)
            move(t, view, term.proc, landing, copy.proc)
            view = landing
        arrived.append((view, term.box))
    add_up(t, Kind.FOLD, "fold", copy.proc, View(target, copy.box), arrived)


def assembled(t: Transfer, copy: Wanted, proc: int) -> View:
    """A copy put together on the one processor that has all its terms, so that it goes in one message."""
    key = (tuple(source for term in copy.terms for source in term.sources), proc, copy.box)
    if key not in t.packs:
        views = [(packed(t, term, unbroken=False), term.box) for term in copy.terms]
        target = View(t.add("staging", copy.box, proc), copy.box)
        add_up(t, Kind.PACK, "pack", proc, target, views)
        t.packs[key] = target
    return t.packs[key]


def packed(t: Transfer, term: Term, unbroken: bool) -> View:
    """A term as one array on its processor: the source itself, or a packed copy where it is a sum or in strides."""
    if len(term.sources) == 1:
        held = View(t.held(term.sources[0], term.proc), term.box)
        if not unbroken or contiguous(term.box, t.sources[term.sources[0]].box):
            return held
    key = (term.sources, term.proc, term.box)
    if key not in t.packs:
        target = View(t.add("staging", term.box, term.proc), term.box)
        parts = [(i, intersect(t.sources[i].box, term.box)) for i in term.sources]
        views = [(View(t.held(i, term.proc), box), box) for i, box in parts if box is not None]
        add_up(t, Kind.PACK, "pack", term.proc, target, views)
        t.packs[key] = target
    return t.packs[key]


def add_up(t: Transfer, kind: Kind, name: str, proc: int, target: View, sources: list[tuple[View, Box]]) -> None:
    """A task that writes to `target` the sum of arrays, each over its box, in their order; what none covers is zero."""
    boxes = [box for _, box in sources]
    overlapping = any(intersect(a, b) for n, a in enumerate(boxes) for b in boxes[:n])
    leads = bool(boxes) and boxes[0] == target.box
    cleared = not leads and (overlapping or bool(uncovered(target.box, boxes)))
    adds = [cleared or (overlapping and n > 0) for n in range(len(boxes))]
    views: list[View] = []
    calls: list[Call] = []
    if cleared:
        views.append(target)
        calls.append(Call("zero", (), (Arg("view", 0),), (("dtype", t.dtype), ("shape", target.box.shape))))
    for (source, box), add in zip(sources, adds, strict=True):
        views += [source, View(target.buffer, box)]
        calls.append(Call("copy", (Arg("view", len(views) - 2),), (Arg("view", len(views) - 1),), (), add))
    local(t, kind, name, proc, views, calls)


def local(t: Transfer, kind: Kind, name: str, proc: int, views: list[View], calls: list[Call]) -> None:
    """A task of copies and sums on one processor."""
    written = {views[c.outs[0].index].buffer for c in calls}
    volumes = [views[c.outs[0].index].box.volume for c in calls]
    touched = sum(v * (len(c.args) + 1 + c.accumulate) for v, c in zip(volumes, calls, strict=True)) * t.itemsize
    flops = sum(v for v, c in zip(volumes, calls, strict=True) if c.accumulate)
    shapes = "+".join("x".join(map(str, views[c.outs[0].index].box.shape)) for c in calls)
    key = CostKey(name, shapes, t.dtype, flops, touched)
    reads = tuple(dict.fromkeys(v.buffer for v in views if v.buffer not in written))
    t.patterns.append(Pattern(kind, name, (proc,), key, reads, tuple(written), tuple(views), Body(tuple(calls))))


def move(t: Transfer, source: View, src: int, target: View, dst: int) -> None:
    count = source.box.volume
    emit(t, "move", (src, dst), (source, None), (None, target), (None, None), ((0, count), (0, 0)), count)


def emit(
    t: Transfer,
    form: str,
    group: tuple[int, ...],
    send: tuple[View | None, ...],
    receive: tuple[View | None, ...],
    scratch: tuple[View | None, ...],
    counts: tuple[tuple[int, ...], ...],
    elements: int,
) -> None:
    comm = Comm(form, group, send, receive, scratch, counts)
    key = CostKey(form, "", t.dtype, 0, elements * t.itemsize, t.links.level(group).name, len(group))
    reads = tuple(dict.fromkeys(v.buffer for v in send if v))
    writes = tuple(dict.fromkeys(v.buffer for v in (*receive, *scratch) if v))
    kind = Kind.MOVE if form == "move" else Kind.COLLECTIVE
    t.patterns.append(Pattern(kind, form, group, key, reads, writes, comm=comm))


def flat(t: Transfer, proc: int, pieces: list[Box]) -> tuple[View, list[View]]:
    """Staging that holds the pieces end to end: all of it, and each piece's run in the piece's shape."""
    total = sum(p.volume for p in pieces)
    buffer = t.add("staging", whole((total,)), proc)
    runs, offset = [], 0
    for p in pieces:
        runs.append(View(buffer, Box((offset,), (offset + p.volume,)), p.shape))
        offset += p.volume
    return View(buffer, whole((total,))), runs


# Patterns written out.


def lanes(kind: Kind, procs: Sequence[int]) -> list[int]:
    """The lanes that a task on these processors occupies."""
    if kind == Kind.MOVE:
        return [procs[0] * NUM_LANES + Lane.SEND, procs[1] * NUM_LANES + Lane.RECEIVE]
    lane = Lane.COLLECTIVE if kind == Kind.COLLECTIVE else Lane.COMPUTE
    return [p * NUM_LANES + lane for p in procs]


def task(pattern: Pattern, number: int, name: str, procs: Sequence[int], first_buffer: int) -> Task:
    """A pattern as a task: slot i is processor procs[i], piece k is buffer first_buffer + k."""

    def placed(view: View | None) -> View | None:
        return view and view._replace(buffer=view.buffer + first_buffer)

    def comm(c: Comm) -> Comm:
        send, receive, scratch = (tuple(map(placed, views)) for views in (c.send, c.receive, c.scratch))
        return Comm(c.form, tuple(procs[s] for s in c.group), send, receive, scratch, c.counts)

    views = tuple(v._replace(buffer=v.buffer + first_buffer) for v in pattern.views)
    where = tuple(procs[s] for s in pattern.procs)
    return Task(number, name, pattern.kind, where, views, pattern.body, pattern.comm and comm(pattern.comm))
