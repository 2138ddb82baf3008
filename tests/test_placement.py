"""Where reads lie: boxes that go together are those that one finds by looking at all pairs again and again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from hypothesis import example, given, settings
from hypothesis import strategies as st

from castile.runtime.dependence import Contribution, links, version
from castile.runtime.machine import Level, Machine, Processor
from castile.runtime.placement import filled, joined
from castile.runtime.region import Box, bounding

FOUR = Machine("four", (Processor("p", 1e9, 1e9, 2**30, 0, 0.0),) * 4, (Level("link", 4, 1e-6, 1e9),))


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    runs = [sorted(draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))) for _ in range(2)]
    return Box(*(tuple(run[end] for run in runs) for end in range(2)))


def pair(found: Sequence[Box]) -> tuple[Box, Box] | None:
    """The first two around which a box holds no more than they do."""
    every = [(a, b) for n, a in enumerate(found) for b in found[:n]]
    return next(((a, b) for a, b in every if bounding((a, b)).volume <= a.volume + b.volume), None)


@settings(max_examples=400)
@given(st.sets(boxes(), max_size=8))
def test_boxes_go_together_as_if_all_pairs_were_looked_at_each_time(drawn: set[Box]) -> None:
    found = sorted(drawn)
    while (two := pair(found)) is not None:
        found = sorted({bounding(two), *(box for box in found if box not in two)})
    assert joined(sorted(drawn)) == found


def parts_of(rows: int, cols: int, procs: str) -> list[tuple[Box, set[int]]]:
    """The six elements cut so, with the replicas of each part in digits."""
    high, wide, places = 3 // rows, 2 // cols, product(range(rows), range(cols))
    each = zip(places, procs.split(), strict=True)
    return [(Box((r * high, c * wide), ((r + 1) * high, (c + 1) * wide)), set(map(int, on))) for (r, c), on in each]


@st.composite
def cut(draw: st.DrawFn) -> list[tuple[Box, set[int]]]:
    """Six elements cut into rows, columns or single ones, each with its replicas."""
    rows, cols = draw(st.sampled_from([(1, 1), (1, 2), (3, 1), (3, 2)]))
    on = st.sets(st.sampled_from("0123"), min_size=1, max_size=4).map("".join)
    return parts_of(rows, cols, " ".join(draw(on) for _ in range(rows * cols)))


@settings(max_examples=400)
@given(st.lists(cut(), min_size=1, max_size=3))
@example([parts_of(3, 2, "012 013 023 123 012 013"), parts_of(1, 1, "013"), parts_of(3, 1, "12 01 01")])
def test_what_the_host_fills_is_read_where_it_lies(readers: list[list[tuple[Box, set[int]]]]) -> None:
    """However readers cut it: nothing has to be moved, nor would one copy be added to another."""
    parts = [part for each in readers for part in each]
    reads = [(proc, box) for box, procs in parts for proc in sorted(procs)]
    twins = [number for number, (_, procs) in enumerate(parts) for _ in procs]
    sources = [Contribution(box, (proc,)) for proc, box in filled(reads, twins)]
    among = links(FOUR, range(4))
    assert not version(sources, reads, "float64", among, carried=True, alike=True, twins=twins).patterns
