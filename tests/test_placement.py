"""Where reads lie: boxes that go together are those that one finds by looking at all pairs again and again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from hypothesis import example, given, settings
from hypothesis import strategies as st

from castile.runtime.dependence import filled
from castile.runtime.placement import merged
from castile.runtime.region import Box, bounding, contains, contiguous
from tests.effort import examples


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    runs = [sorted(draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))) for _ in range(2)]
    return Box(*(tuple(run[end] for run in runs) for end in range(2)))


def pair(found: Sequence[Box]) -> tuple[Box, Box] | None:
    """The first two around which a box holds no more than they do."""
    every = [(a, b) for n, a in enumerate(found) for b in found[:n]]
    return next(((a, b) for a, b in every if bounding((a, b)).volume <= a.volume + b.volume), None)


@settings(max_examples=examples(400))
@given(st.sets(boxes(), max_size=8))
def test_boxes_go_together_as_if_all_pairs_were_looked_at_each_time(drawn: set[Box]) -> None:
    found = sorted(drawn)
    while (two := pair(found)) is not None:
        found = sorted({bounding(two), *(box for box in found if box not in two)})
    assert merged(sorted(drawn)) == found


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


# Boxes that overlap as it comes, each with its replicas.
anyhow = st.lists(st.tuples(boxes(), st.sets(st.integers(0, 3), min_size=1)), min_size=1, max_size=4)


@settings(max_examples=examples(400))
@given(st.lists(st.one_of(cut(), anyhow), min_size=1, max_size=3))
@example([parts_of(3, 2, "012 013 023 123 012 013"), parts_of(1, 1, "013"), parts_of(3, 1, "12 01 01")])
def test_what_the_host_fills_is_read_where_it_lies(readers: list[list[tuple[Box, set[int]]]]) -> None:
    """However readers cut it: each finds all that it reads on its processor, and replicas see it laid out alike."""
    parts = [part for each in readers for part in each]
    reads = [(proc, box) for box, procs in parts for proc in sorted(procs)]
    twins = [number for number, (_, procs) in enumerate(parts) for _ in procs]
    found = filled(reads, twins)
    lies: dict[int, set[Box]] = {}
    for (proc, box), twin, place, frame in zip(reads, twins, found.located.tolist(), found.frames, strict=True):
        piece = found.instances[place]
        assert piece.proc == proc and contains(piece.box, box)
        assert frame == (None if contiguous(box, piece.box) else piece.box.shape)
        lies.setdefault(twin, set()).add(piece.box)
    assert all(len(boxes) == 1 for boxes in lies.values())
    assert len({*found.instances}) == len(found.instances) == len({*found.located.tolist()})
