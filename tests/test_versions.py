"""Versions of regions: shortcuts by what is known of layouts give what the analysis of every box gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from operator import itemgetter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from castile.planner.lowering.versions import Placed, Versions
from castile.planner.step.program import Flow
from castile.planner.strategy import Config
from castile.runtime.dependence import Contribution, Version, filled, links, version
from castile.runtime.machine import Machine
from castile.runtime.region import Box, blocks, intersect, whole
from tests import strategies as drawn
from tests import transfers
from tests.effort import examples

SHAPE = (4, 3)
ROLES = ("", "", "output", "carried", "input", "input")
Layout = tuple[tuple[Box | None, ...], Config]


@st.composite
def layouts(draw: st.DrawFn, num_procs: int) -> Layout:
    """A grid, its boxes once, by several parts, or by some parts only; all by each part; or boxes anyhow."""
    rows, cols = (blocks(n, draw(st.integers(1, 2))) for n in SHAPE)
    boxes: list[Box | None] = [Box((a, b), (c, d)) for a, c in rows for b, d in cols]
    kind = draw(st.sampled_from(("grid", "grid", "whole", "sums", "gaps", "anyhow")))
    if kind == "whole":
        boxes = [whole(SHAPE)] * draw(st.integers(1, 2))
    elif kind == "sums":
        boxes *= 2
    elif kind == "gaps":
        boxes[draw(st.integers(0, len(boxes) - 1)) :] = [None, whole(SHAPE)]
    elif kind == "anyhow":
        boxes = list(draw(st.lists(transfers.boxes(SHAPE), min_size=1, max_size=3)))
    replicas = draw(st.sampled_from((1, 1, 2, num_procs)))
    procs = draw(drawn.placements(len(boxes), min(replicas, num_procs), num_procs))
    return tuple(boxes), Config({"n": len(boxes)}, min(replicas, num_procs), procs)


@st.composite
def flows(draw: st.DrawFn, known: Sequence[Layout]) -> tuple[Flow, list[Layout], list[Layout]]:
    """What makes and what reads a region, in some of these layouts."""
    some, role = st.lists(st.sampled_from(known), min_size=1, max_size=3), draw(st.sampled_from(ROLES))
    made, read = draw(some), draw(some)
    if role in ("input", "carried"):
        made = made[: role == "carried"]
        producers: tuple[tuple[int, int], ...] = ()
    else:
        slots = sorted(draw(st.lists(st.integers(0, 2), min_size=len(made), max_size=len(made))))
        producers = tuple((slot, port) for port, slot in enumerate(slots))
    over = ((9, 0),) * (role == "carried" and draw(st.booleans()))
    return Flow("r", SHAPE, draw(st.sampled_from(("float32", "float64"))), role, producers, (), None, over), made, read


def moved(layout: Layout, order: Sequence[int]) -> Layout:
    boxes, config = layout
    return boxes, replace(config, procs=tuple(order[p] for p in config.procs))


def are_apart(boxes: Sequence[Box | None]) -> bool:
    pairs = [(a, b) for n, a in enumerate(boxes) for b in boxes[:n]]
    return None not in boxes and not any(intersect(a, b) for a, b in pairs if a and b)


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
    contributions = [Contribution(box, tuple(slot[p] for p in every)) for box, every in filter(None, parts)]
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


@settings(max_examples=examples(150))
@given(st.data())
def test_versions_are_those_of_all_boxes_on_their_processors(data: st.DataObject) -> None:
    """Also of those that were asked for before on other processors, of regions made and used otherwise."""
    on = data.draw(drawn.machines(most=6))
    versions, known = Versions(on), data.draw(st.lists(layouts(on.num_procs), min_size=1, max_size=3))

    def placed(layout: Layout) -> Placed:
        boxes, config = layout
        return versions.placed(boxes, config, are_apart(boxes) and data.draw(st.booleans()))

    for _ in range(3):
        flow, made, read = data.draw(flows(known))
        for order in (range(on.num_procs), data.draw(st.permutations(range(on.num_procs)))):
            there, seen = [moved(x, order) for x in made], [moved(x, order) for x in read]
            host = [((whole(SHAPE),), Config())] * (flow.role == "output")
            found, procs = versions.get(flow, [*map(placed, there)], [*map(placed, [*seen, *host])])
            every = [part for layout in (*there, *seen, *host) for part in touching(layout)]
            assert sorted(procs) == sorted({proc for _, _, of in every for proc in of})
            assert told(found) == told(plain(flow, there, [*seen, *host], procs, on))
