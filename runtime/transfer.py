"""Transfers: the tasks that pack, send, receive and sum boxes of one version, and the general form made of them.

It does not know which special forms exist, what regions hold, nor who produced them. Processors are slots.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from math import inf, prod
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np

from castile.runtime.machine import Level
from castile.runtime.nearness import Groups
from castile.runtime.region import Box, Overlaps, bounding, contains, contiguous, disjoint, intersect
from castile.runtime.task import NOTHING, NUM_LANES, Arg, Body, Call, Comm, CostKey, Kind, Lane, Task, View

# Arithmetic with members of an enumeration is slow.
COMPUTE, SEND, RECEIVE, COLLECTIVE = map(int, (Lane.COMPUTE, Lane.SEND, Lane.RECEIVE, Lane.COLLECTIVE))
# attrgetter is fast: collectives have as many views as members
_BUFFER = attrgetter("buffer")

TOO_MANY = (
    "what is sent takes more tasks of transfers than can be looked at one by one: lay neighbours out alike, with fewer "
    "splits that differ"
)


class TooManyTransfers(ValueError):
    """A version, or a whole plan, takes more transfer tasks than the limit."""

    def __init__(self, text: str = TOO_MANY) -> None:
        super().__init__(text)


class Source(NamedTuple):
    """A box with the same elements on each of `procs`; sources that overlap are partial sums."""

    box: Box
    procs: tuple[int, ...]


class Piece(msgspec.Struct, frozen=True):
    """A buffer of the plan: `kind` is "source", "copy" (what a reader reads) or "staging"."""

    kind: str
    box: Box
    proc: int


Copy = tuple[View, View, bool]
Shape = tuple[int, ...]


class Recipe(msgspec.Struct, frozen=True, eq=False, dict=True):
    """What local tasks do that copy and add boxes in the same way: buffer 0 is written, the others are read.

    cleared       the box that is set to zero first, None for none
    make_copies   computes `copies`, which are many, and not needed for the cost
    """

    key: CostKey
    cleared: Box | None
    make_copies: Callable[[], Sequence[Copy]]

    @cached_property
    def copies(self) -> Sequence[Copy]:
        """(view read, view written, whether it is added), in order."""
        return self.make_copies()

    @cached_property
    def views(self) -> tuple[View, ...]:
        first = () if self.cleared is None else (View(0, self.cleared),)
        return (*first, *(view for read, written, _ in self.copies for view in (read, written)))

    @cached_property
    def body(self) -> Body:
        calls: list[Call] = []
        if self.cleared is not None:
            params = (("dtype", self.key.dtype), ("shape", self.cleared.shape))
            calls.append(Call("zero", (), (Arg("view", 0),), params))
        for view, (_, _, adds) in zip(count(len(calls), 2), self.copies):
            calls.append(Call("copy", (Arg("view", view),), (Arg("view", view + 1),), (), adds))
        return Body(tuple(calls))


class Pattern(msgspec.Struct, frozen=True, eq=False):
    """A transfer task; processors are slots, buffers are numbers of the plan's pieces.

    how   the recipe of a local task, the view sent and the view received of a move, or a collective
    """

    kind: Kind
    name: str
    procs: tuple[int, ...]
    key: CostKey
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    how: Recipe | Comm | tuple[View, View]

    @property
    def views(self) -> tuple[View, ...]:
        if not isinstance(self.how, Recipe):
            return ()
        buffers = (*self.writes, *self.reads)
        return tuple(View(buffers[v.buffer], v.box, v.shape) for v in self.how.views)

    @property
    def body(self) -> Body:
        return self.how.body if isinstance(self.how, Recipe) else NOTHING

    @property
    def comm(self) -> Comm | None:
        if isinstance(self.how, Recipe):
            return None
        if isinstance(self.how, Comm):
            return self.how
        source, target = self.how
        counts = ((0, source.box.volume), (0, 0))
        return Comm("move", self.procs, (source, None), (None, target), (None, None), counts)


@dataclass(frozen=True)
class Links:
    """What the choice of a form needs to know of the machine, by slot.

    groups      of a slot its group at each level, the nearest first; the last holds all slots
    level       the level that a set of slots spans
    has_trees   whether collectives can use trees, which take few steps for small messages
    """

    groups: Groups
    level: Callable[[tuple[int, ...]], Level]
    copy_bytes_per_second: float
    task_seconds: float
    has_trees: bool = False


@dataclass
class Transfer:
    """The plan of one version: its pieces (sources first), its tasks in an order that respects their needs, at most
    `most`, and in `located` the piece of each read.
    """

    sources: Sequence[Source]
    dtype: str
    links: Links
    forms: Sequence[str]
    most: float = inf
    pieces: list[Piece] = field(default_factory=list)
    patterns: list[Pattern] = field(default_factory=list)
    located: list[int] = field(default_factory=list)
    instances: dict[tuple[int, int], int] = field(default_factory=dict)
    packs: dict[tuple[tuple[int, ...], int, Box], View] = field(default_factory=dict)
    recipes: dict[Hashable, Recipe] = field(default_factory=dict)
    keys: dict[Hashable, CostKey] = field(default_factory=dict)
    contributed: dict[tuple[int, Box], tuple[tuple[Term, ...], list[Term]]] = field(default_factory=dict)
    frames: dict[int, Box] = field(default_factory=dict)

    @cached_property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    @cached_property
    def overlaps(self) -> Overlaps:
        """Which sources overlap a box."""
        return Overlaps(source.box for source in self.sources)

    def add(self, kind: str, box: Box, proc: int) -> int:
        self.pieces.append(Piece(kind, box, proc))
        return len(self.pieces) - 1

    def terms(self, copy: Delivery) -> list[Term]:
        """The terms that members contribute to a copy."""
        return self.given(copy.members, copy.box)

    def given(self, members: tuple[Term, ...], box: Box) -> list[Term]:
        """The terms that members contribute to a box, without empty ones."""
        # Many copies have the same members and box. Members are kept in the cache, so that their id is not reused.
        key = id(members), box
        if key not in self.contributed:
            common = {of: intersect(of, box) for of in {m.box for m in members}}
            rows = [(m, common[m.box]) for m in members]
            terms = [m if m.box == own else Term(m.sources, m.proc, own) for m, own in rows if own is not None]
            self.contributed[key] = members, terms
        return self.contributed[key][1]

    def around(self, copy: Delivery) -> Box:
        """The bounding box of the terms of a copy, of which there is at least one."""
        terms = self.terms(copy)
        # copies of one box with the same members have one list of terms, which is kept
        if id(terms) not in self.frames:
            self.frames[id(terms)] = bounding({term.box for term in terms})
        return self.frames[id(terms)]

    def put(self, pattern: Pattern) -> None:
        """Append a task. Raises TooManyTransfers where there are more than `most`."""
        if len(self.patterns) >= self.most:
            raise TooManyTransfers
        self.patterns.append(pattern)


class Term(NamedTuple):
    """What one processor contributes to a copy: the sum over `box` of sources that always lie together."""

    sources: tuple[int, ...]
    proc: int
    box: Box


class Delivery(msgspec.Struct, frozen=True, eq=False):
    """A copy to be made.

    members   the contributions, in the order of their sum, each over the bounding box of its sources; copies with equal
              members share them as one object
    """

    proc: int
    box: Box
    members: tuple[Term, ...]


# The general form: pieces from point to point, and one fold a copy.


class _Sent(NamedTuple):
    """A message from one processor for a copy on another: a term that is summed there, or the whole copy (None)."""

    src: int
    copy: Delivery
    term: Term | None


def general(t: Transfer, component: Sequence[Delivery], targets: Mapping[tuple[int, Box], int]) -> None:
    """Emit the general form: point-to-point messages, and one fold a copy.

    targets   the piece of each copy, by processor and box
    """
    folds, sent = list[Delivery](), list[_Sent]()
    for copy in component:
        procs = {term.proc for term in t.terms(copy)}
        if len(procs) == 1 and copy.proc not in procs:
            sent.append(_Sent(procs.pop(), copy, None))
        else:
            folds.append(copy)
            sent += [_Sent(term.proc, copy, term) for term in t.terms(copy) if term.proc != copy.proc]
    landed: dict[tuple[int, Term], View] = {}
    for src, copy, term in _in_rounds(sent):
        if term is None:
            move(t, assembled(t, copy, t.terms(copy)), src, View(targets[copy.proc, copy.box], copy.box), copy.proc)
            continue
        source = packed(t, term, unbroken=True)
        landed[id(copy), term] = View(t.add("staging", term.box, copy.proc), term.box)
        move(t, source, src, landed[id(copy), term], copy.proc)
    for copy in folds:
        views = [landed.get((id(copy), term)) or packed(t, term, unbroken=False) for term in t.terms(copy)]
        arrived = [(view, term.box) for view, term in zip(views, t.terms(copy), strict=True)]
        add_up(t, Kind.FOLD, "fold", copy.proc, View(targets[copy.proc, copy.box], copy.box), arrived)


def _in_rounds(sent: Sequence[_Sent]) -> list[_Sent]:
    """The messages in rounds, so that where many send to many, senders have different receivers at a time."""
    senders = {proc: n for n, proc in enumerate(sorted({one.src for one in sent}))}
    receivers = {proc: n for n, proc in enumerate(sorted({one.copy.proc for one in sent}))}
    most = max(len(senders), len(receivers))
    return sorted(sent, key=lambda one: (senders[one.src] - receivers[one.copy.proc]) % most)


def assembled(t: Transfer, copy: Delivery, terms: Sequence[Term]) -> View:
    """A copy packed on the one processor that has all its terms, so that it is sent in one message."""
    if len(terms) == 1 and terms[0].box == copy.box:
        return packed(t, terms[0], unbroken=True)
    proc = terms[0].proc
    key = (tuple(source for term in terms for source in term.sources), proc, copy.box)
    if key not in t.packs:
        views = [(packed(t, term, unbroken=False), term.box) for term in terms]
        target = View(t.add("staging", copy.box, proc), copy.box)
        add_up(t, Kind.PACK, "pack", proc, target, views)
        t.packs[key] = target
    return t.packs[key]


def packed(t: Transfer, term: Term, unbroken: bool) -> View:
    """A term as one array on its processor: the source itself, or a packed copy where the term is a sum, is wider than
    its source, or, with `unbroken`, is not contiguous.
    """
    sources, proc, box = term
    if len(sources) == 1 and (there := t.instances.get((sources[0], proc))) is not None:
        held = t.sources[sources[0]].box
        if box == held or (contains(held, box) and (not unbroken or contiguous(box, held))):
            return View(there, box)
    if term not in t.packs:
        target = View(t.add("staging", box, proc), box)
        parts = [(i, intersect(t.sources[i].box, box)) for i in sources]
        views = [(View(t.instances[i, proc], part), part) for i, part in parts if part is not None]
        add_up(t, Kind.PACK, "pack", proc, target, views)
        t.packs[term] = target
    return t.packs[term]


def add_up(t: Transfer, kind: Kind, name: str, proc: int, target: View, sources: Sequence[tuple[View, Box]]) -> None:
    """Emit a task that writes to `target` the sum of arrays, each over its box, in their order; zero elsewhere."""
    numbers: dict[int, int] = {}
    operands = [
        (View(numbers.setdefault(view.buffer, len(numbers) + 1), view.box, view.shape), box) for view, box in sources
    ]
    key = (name, target.box, tuple(operands))
    recipe = t.recipes.get(key)
    if recipe is None:
        recipe = t.recipes[key] = _sum(t, name, target.box, operands)
    # an empty target is written by no task
    written = (target.buffer,) if recipe.copies or recipe.cleared is not None else ()
    t.put(Pattern(kind, name, (proc,), recipe.key, tuple(numbers), written, recipe))


def _sum(t: Transfer, name: str, target: Box, operands: Sequence[tuple[View, Box]]) -> Recipe:
    boxes = [box for _, box in operands]
    leads = bool(boxes) and boxes[0] == target
    # all boxes lie inside the target
    overlapping = len(boxes) > 1 and (leads or not disjoint(boxes))
    cleared = not leads and (overlapping or sum(box.volume for box in boxes) < target.volume)
    copies = [(view, View(0, box), cleared or (overlapping and n > 0)) for n, (view, box) in enumerate(operands)]
    shapes, adds = [box.shape for box in boxes], [added for _, _, added in copies]
    frame = target if cleared else None
    return Recipe(cost_of(t, name, shapes, adds, frame), frame, lambda: copies)


def cost_of(
    t: Transfer, name: str, shapes: Sequence[Shape], adds: Sequence[bool], cleared: Box | None = None
) -> CostKey:
    """The cost key of writing arrays of these shapes, or adding to them, after setting the box `cleared` to zero."""
    known = (name, cleared, tuple(shapes), tuple(adds))
    if known not in t.keys:
        copied = list(map(prod, shapes))
        added = sum([volume for volume, adding in zip(copied, adds, strict=True) if adding])
        shapes, zeroed = ([*shapes], 0) if cleared is None else ([cleared.shape, *shapes], cleared.volume)
        text = "+".join(["x".join(map(str, shape)) for shape in shapes])
        t.keys[known] = CostKey(name, text, t.dtype, added, (zeroed + 2 * sum(copied) + added) * t.itemsize)
    return t.keys[known]


def move(t: Transfer, source: View, src: int, target: View, dst: int) -> None:
    group = (src, dst)
    key = _key(t, "move", group, source.box.volume)
    t.put(Pattern(Kind.MOVE, "move", group, key, (source.buffer,), (target.buffer,), (source, target)))


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
    reads, writes = (tuple(dict.fromkeys(map(_BUFFER, filter(None, of)))) for of in (send, (*receive, *scratch)))
    comm = Comm(form, group, send, receive, scratch, counts)
    t.put(Pattern(Kind.COLLECTIVE, form, group, _key(t, form, group, elements), reads, writes, comm))


def _key(t: Transfer, form: str, group: tuple[int, ...], elements: int) -> CostKey:
    known = (form, elements, t.links.level(group).name, len(group))
    if known not in t.keys:
        t.keys[known] = CostKey(form, "", t.dtype, 0, elements * t.itemsize, *known[2:])
    return t.keys[known]


# Patterns written out.


def lanes(kind: Kind, procs: Sequence[int]) -> list[int]:
    """The lanes that a task on these processors occupies."""
    if kind == Kind.MOVE:
        return [procs[0] * NUM_LANES + SEND, procs[1] * NUM_LANES + RECEIVE]
    lane = COLLECTIVE if kind == Kind.COLLECTIVE else COMPUTE
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
    comms = (comm(pattern.comm),) if pattern.comm else ()
    return Task(number, name, pattern.kind, where, views, pattern.body, comms)
