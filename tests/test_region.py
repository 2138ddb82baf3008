"""Boxes: what is found of many at once is what the definition of one pair says."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.runtime import region
from castile.runtime.region import (
    Box,
    Overlaps,
    all_overlap,
    blocks,
    bounding,
    contains,
    contiguous,
    disjoint,
    intersect,
    minus,
    moved,
    overlap,
    relative,
    slices,
    uncovered,
    whole,
)


def tiles(rng: random.Random, box: Box, cuts: int) -> list[Box]:
    """A box cut in two, and so on with its halves: tiles that are seldom a grid."""
    dim = rng.randrange(len(box.lo)) if box.lo else 0
    if cuts == 0 or not box.lo or box.shape[dim] < 2:
        return [box]
    at = rng.randrange(box.lo[dim] + 1, box.hi[dim])
    below = Box(box.lo, (*box.hi[:dim], at, *box.hi[dim + 1 :]))
    above = Box((*box.lo[:dim], at, *box.lo[dim + 1 :]), box.hi)
    return tiles(rng, below, cuts - 1) + tiles(rng, above, cuts - 1)


def situation(rng: random.Random) -> list[Box]:
    """Tiles, sometimes with one that is empty, larger than it was, or there twice; or a grid."""
    shape = [rng.choice((5, 9, 30)) for _ in range(rng.randint(0, 3))]
    boxes = tiles(rng, whole(shape), rng.randint(0, 6))
    if shape and rng.random() < 0.2:
        boxes = [Box((lo, *rest.lo), (lo + 1, *rest.hi)) for lo in range(5) for rest in tiles(rng, whole(shape[1:]), 0)]
    if rng.random() < 0.3:
        boxes.append(Box(boxes[0].lo, boxes[0].lo))
    if shape and rng.random() < 0.3:
        n = rng.randrange(len(boxes))
        boxes[n] = Box(boxes[n].lo, (*boxes[n].hi[:-1], boxes[n].hi[-1] + 1))
    if rng.random() < 0.1:
        boxes.append(rng.choice(boxes))
    rng.shuffle(boxes)
    return boxes


@pytest.mark.parametrize("most_pairs", [7, region.MOST_PAIRS])
def test_what_overlaps_among_many_is_what_overlaps_two_by_two(most_pairs: int, monkeypatch) -> None:
    monkeypatch.setattr(region, "MOST_PAIRS", most_pairs)
    rng, seen = random.Random(0), {(apart, many): 0 for apart in (False, True) for many in (False, True)}
    for _ in range(600):
        boxes = situation(rng)
        apart = not any(intersect(a, b) for n, a in enumerate(boxes) for b in boxes[:n])
        assert disjoint(boxes) == apart, boxes
        seen[apart, len(boxes) > region.FEW] += 1
        overlaps, near = Overlaps(boxes), rng.choice(boxes)
        grown = Box(near.lo, tuple(h + rng.randrange(3) for h in near.hi))
        for asked in (near, grown, near):
            assert overlaps.of(asked) == tuple(n for n, box in enumerate(boxes) if intersect(box, asked)), asked
        assert overlap(near, grown) == (intersect(near, grown) is not None)
        some, others = rng.sample(boxes, min(2, len(boxes))), [grown, *rng.sample(boxes, min(1, len(boxes) - 1))]
        assert all_overlap(some, others) == all(intersect(a, b) for a in some for b in others), (some, others)
    assert min(seen.values()) >= 20, seen


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 6))
def test_blocks_are_even_and_go_along_with_coarser_ones(extent: int, parts: int, times: int) -> None:
    coarse, fine = blocks(extent, parts), blocks(extent, parts * times)
    assert [lo for lo, _ in coarse] == [0, *(hi for _, hi in coarse[:-1])] and coarse[-1][1] == extent
    lengths = [hi - lo for lo, hi in coarse]
    assert lengths[0] == max(lengths) <= min(lengths) + 1
    assert coarse == [(fine[n][0], fine[n + times - 1][1]) for n in range(0, len(fine), times)]


@given(st.data())
def test_what_boxes_say_of_each_other_is_what_their_elements_say(data: st.DataObject) -> None:
    frame = whole(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    each = [st.tuples(st.integers(0, n), st.integers(0, n)).map(sorted) for n in frame.shape]
    boxes = [Box(*zip(*runs)) for runs in data.draw(st.lists(st.tuples(*each), min_size=1, max_size=4))]
    numbers = np.arange(frame.volume).reshape(frame.shape)
    elements = [set(numbers[slices(box)].flat) for box in boxes]
    for box, mine in zip(boxes, elements):
        assert box.volume == len(mine)
        if mine:
            run = sorted(mine)
            assert contiguous(box, frame) == (run == [*range(run[0], run[-1] + 1)])
            assert contains(boxes[0], box) == (mine <= elements[0])
            assert slices(relative(moved(box, (3,) * len(box.lo)), moved(frame, (3,) * len(box.lo)))) == slices(box)
        rest = minus(frame, box)
        assert len(rest) <= 2 * len(frame.shape) and disjoint(rest)
    left = uncovered(frame, boxes)
    covered = [number for box in left for number in numbers[slices(box)].flat]
    assert sorted(covered) == sorted(set(numbers.flat).difference(*elements))
    around = bounding(boxes)
    assert around == (tuple(np.min([b.lo for b in boxes], 0)), tuple(np.max([b.hi for b in boxes], 0)))
