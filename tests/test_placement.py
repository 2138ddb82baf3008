"""Where reads lie: boxes that go together are those that one finds by looking at all pairs again and again."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from castile.runtime.placement import joined
from castile.runtime.region import Box, bounding


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
