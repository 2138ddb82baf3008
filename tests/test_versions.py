"""Versions of regions: shortcuts by what is known of layouts give what the analysis of every box gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, product, zip_longest
from operator import itemgetter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from castile.planner.lowering.versions import Placed, Versions
from castile.planner.step.program import Flow
from castile.planner.strategy import Config
from castile.runtime.dependence import Version, filled, links, version
from castile.runtime.machine import Level, Machine, Processor
from castile.runtime.region import Box, blocks, intersect, whole
from castile.runtime.transfer import Source
from tests import strategies as drawn
from tests import transfers
from tests.effort import examples

SHAPE = (4, 3)
ROLES = ("", "", "output", "carried", "carried", "input")
Layout = tuple[tuple[Box | None, ...], Config]
Case = tuple[Flow, list[Layout], list[Layout]]  # what is made and read, and where it lies
EMPTY = Box((2, 0), (2, 3))
# Two processors that are no neighbours may still be near or far.
LEVELS = tuple(Level(f"level{n}", 2**n, 1e-6 * n, 1e9) for n in (1, 2, 3))
DEEP = Machine("deep", (Processor("p", 1e9, 1e9, 2**30, 0, 0.0),) * 8, LEVELS)


@st.composite
def layouts(draw: st.DrawFn, num_procs: int) -> Layout:
    """A grid, its boxes once, by several parts, or by some parts only; all by each part; or any boxes, some empty."""
    rows, cols = (blocks(n, draw(st.integers(1, 2))) for n in SHAPE)
    boxes: list[Box | None] = [Box((a, b), (c, d)) for a, c in rows for b, d in cols]
    kind = draw(st.sampled_from(("grid", "grid", "whole", "sums", "gaps", "anyhow", "anyhow")))
    if kind == "whole":
        boxes = [whole(SHAPE)] * draw(st.integers(1, 2))
    elif kind == "sums":
        boxes *= 2
    elif kind == "gaps":
        boxes[draw(st.integers(0, len(boxes) - 1)) :] = [None, whole(SHAPE)]
    elif kind == "anyhow":
        boxes = [EMPTY] * (draw(st.integers(0, 2)) == 0)
        boxes += draw(st.lists(transfers.boxes(SHAPE), min_size=1, max_size=3))
    replicas = draw(st.sampled_from((1, 1, 2, num_procs)))
    procs = draw(drawn.placements(len(boxes), min(replicas, num_procs), num_procs))
    return tuple(boxes), Config({"n": len(boxes)}, min(replicas, num_procs), procs)


@st.composite
def flows(draw: st.DrawFn, known: Sequence[Layout]) -> Case:
    """What makes and what reads a region, in some of these layouts."""
    some, role = st.lists(st.sampled_from(known), min_size=1, max_size=3), draw(st.sampled_from(ROLES))
    made = draw(some)
    read = draw(st.one_of(some, st.just(made[:1])))
    read += [((None,), Config())] * draw(st.booleans())
    if role in ("input", "carried"):
        made = made[: role == "carried"]
        producers: tuple[tuple[int, int], ...] = ()
    else:
        slots = sorted(draw(st.lists(st.integers(0, 2), min_size=len(made), max_size=len(made))))
        producers = tuple((slot, port) for port, slot in enumerate(slots))
    over = ((9, 0),) * (role == "carried" and draw(st.booleans()))
    return Flow("r", SHAPE, draw(st.sampled_from(("float32", "float64"))), role, producers, (), None, over), made, read


def near(flow: Flow, made: list[Layout], read: list[Layout]) -> list[Case]:
    """The same but for the numbers, who makes it, what becomes of it, or which part touches which box."""
    found = [replace(flow, dtype="float32" if flow.dtype == "float64" else "float64")]
    if flow.role == "carried":
        found += [replace(flow, overwriters=() if flow.overwriters else ((9, 0),))]
        found += [replace(flow, role="", producers=((0, 0),), overwriters=())]
    elif len(made) == 1:
        found += [replace(flow, role="carried", producers=())]
    elif made:
        by_one = len({slot for slot, _ in flow.producers}) == 1
        found += [replace(flow, producers=tuple((port * by_one, port) for port in range(len(made))))]
    return [(flow, turned(made), read), (flow, made, turned(read)), *((one, made, read) for one in found)]


def turned(every: list[Layout]) -> list[Layout]:
    return [(boxes[::-1], config) for boxes, config in every]


def moved(layout: Layout, order: Sequence[int]) -> Layout:
    boxes, config = layout
    return boxes, replace(config, procs=tuple(order[p] for p in config.procs))


def are_apart(boxes: Sequence[Box | None]) -> bool:
    pairs = [(a, b) for n, a in enumerate(boxes) for b in boxes[:n]]
    return all(box and box.volume for box in boxes) and not any(intersect(a, b) for a, b in pairs if a and b)


def touching(layout: Layout) -> Iterator[tuple[int, Box, tuple[int, ...]]]:
    """Each part's number, box and processors."""
    boxes, config = layout
    for n, box in enumerate(boxes):
        if box is not None:
            yield n, box, config.procs[n * config.replicas : (n + 1) * config.replicas]


def plain(flow: Flow, made: Sequence[Layout], read: Sequence[Layout], procs: Sequence[int], on: Machine) -> Version:
    """Box by box, replica by replica: a step makes what it does part by part, its ports in a row."""
    slot = {proc: n for n, proc in enumerate(procs)}
    rows = [(n, k, proc, box) for k, of in enumerate(read) for n, box, every in touching(of) for proc in every]
    readers, twins = [(slot[proc], box) for _, _, proc, box in rows], [(k, n) for n, k, _, _ in rows]
    if flow.role == "input":
        return filled(readers, twins)
    steps = [[port for _, port in ports] for _, ports in groupby(flow.producers, itemgetter(0))] or [[0]]
    parts = [part for ports in steps for of in zip_longest(*(by_part(made[port]) for port in ports)) for part in of]
    contributions = [Source(box, tuple(slot[p] for p in every)) for box, every in filter(None, parts)]
    carried = flow.role == "carried"
    return version(contributions, readers, flow.dtype, links(on, procs), carried, bool(flow.overwriters), twins=twins)


def by_part(layout: Layout) -> list[tuple[Box, tuple[int, ...]] | None]:
    found = {n: (box, every) for n, box, every in touching(layout)}
    return [found.get(n) for n in range(len(layout[0]))]


def told(of: Version) -> tuple[object, ...]:
    """All that a version is."""
    arrays = (of.made, of.adds, of.located, of.edges, of.touched, of.first)
    patterns = [(p.kind, p.name, p.procs, p.key, p.reads, p.writes, p.views, p.body, p.comm) for p in of.patterns]
    return of.instances, patterns, of.frames, *(np.asarray(array).tolist() for array in arrays)


@settings(max_examples=examples(300))
@given(st.data())
def test_versions_are_those_of_all_boxes_on_their_processors(data: st.DataObject) -> None:
    """Also of those that were asked for before on other processors, or that differ from them in one respect."""
    on = data.draw(st.one_of(drawn.machines(most=6), st.just(DEEP)))
    versions, known = Versions(on), data.draw(st.lists(layouts(on.num_procs), min_size=1, max_size=3))

    def placed(layout: Layout) -> Placed:
        boxes, config = layout
        return versions.placed(boxes, config, are_apart(boxes) and data.draw(st.booleans()))

    for _ in range(3):
        first = data.draw(flows(known))
        orders = range(on.num_procs), data.draw(st.permutations(range(on.num_procs)))
        for (flow, made, read), order in product((first, data.draw(st.sampled_from(near(*first)))), orders):
            host = [((whole(SHAPE),), Config())] * (flow.role == "output")
            there, seen = [moved(x, order) for x in made], [moved(x, order) for x in read]
            found, procs = versions.get(flow, [*map(placed, there)], [*map(placed, [*seen, *host])])
            every = [part for layout in (*there, *seen, *host) for part in touching(layout)]
            assert sorted(procs) == sorted({proc for _, _, of in every for proc in of})
            assert told(found) == told(plain(flow, there, [*seen, *host], procs, on))
