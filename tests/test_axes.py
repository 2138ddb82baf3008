"""Axis lines: what is read from them, how they fit shapes, and the law by which boxes follow."""

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.planner.axes import Alignment, align, parse
from castile.planner.op import Op, Part, Tensor
from castile.runtime.region import Box, blocks, slices


def fit(text: str, *shapes: tuple[int, ...], names=None, given=None, derive=lambda known: {}) -> Alignment:
    names = names or [tuple(f"n{d}" for d in range(len(shape))) for shape in shapes]
    return align(parse(text), shapes, names, given or {}, derive, "layer")


def test_marks_are_read():
    line = parse("b s (h d!), *v! -> b h, (s d), ")
    assert [o.dims for o in line.operands] == [(("b",), ("s",), ("h", "d")), (("v",),)]
    assert [o.param for o in line.operands] == [False, True]
    assert [r.dims for r in line.results] == [(("b",), ("h",)), (("s", "d"),), ()]
    assert line.frozen == {"d", "v"}


def test_an_axis_inside_a_merged_dim_is_frozen():
    assert parse("b c h -> b (c h)").frozen == {"h"}


def test_leading_axes_keep_their_names_unless_taken():
    a = fit("... i, *o i -> ... o", (2, 3, 4), (5, 4), names=[("b", "o", "x"), ("p", "q")])
    assert a.axes == ("b", "o_", "i", "o") and a.results[0].axes == ("b", "o_", "o")
    assert a.extents == {"b": 2, "o_": 3, "i": 4, "o": 5}


def test_merged_dims_are_measured_by_what_is_given():
    a = fit("b s (h d) -> b h", (2, 3, 12), given={"h": 4})
    assert a.extents["d"] == 3 and a.shape(a.results[0]) == (2, 4)


def test_blocks_of_an_uneven_dim_are_those_into_which_it_would_be_cut():
    """A dim of any length, of which an axis has so many blocks: these are as even as those of an axis so long."""
    a = fit("b (p ~v!) -> b p", (2, 13), given={"p": 5})
    assert a.extents == {"b": 2, "p": 5, "v": 13} and a.frozen == {"v"}
    assert a.shape(a.operands[0]) == (2, 13) and a.shape(a.results[0]) == (2, 5)
    assert [a.dim_range(("p", "v"), (n, n + 1)) for n in range(5)] == blocks(13, 5)
    assert [a.dim_range(("p", "v"), block) for block in blocks(5, 2)] == [(0, 8), (8, 13)]


def test_results_may_bear_derived_axes():
    a = fit("b H -> b h", (2, 9), derive=lambda known: {"h": known["H"] // 2})
    assert a.shape(a.results[0]) == (2, 4)


@pytest.mark.parametrize(
    ("text", "shapes", "words"),
    [
        ("b i", [(2, 3)], "no '->'"),
        ("b ? -> b", [(2, 3)], "'\\?' is not understood"),
        ("b -> b 1", [(2,)], "'1' is not understood; give a name to a dim of one element too"),
        ("b -> b b", [(2,)], "twice in a result"),
        ("b, b -> b", [(2,)], "layer: takes 2 operands, got 1"),
        ("b, b -> b", [(2,), (3,)], "layer: axis b=2 does not fit an operand dim of length 3"),
        ("b (p ~v) -> p v", [(2, 6)], "~v should be the second of two in brackets wherever it is"),
        ("p, b (p ~v) -> p b", [(7,), (2, 6)], "layer: 6 elements are too few for 7 blocks"),
        ("b i -> b", [(2, 3, 4)], "layer: an operand of shape .* should have 2 dims"),
        ("... i, ... -> i", [(2, 3), (2, 3)], "leading axes"),
        ("... i j -> i", [(2,)], "leading axes"),
        ("b (h d) -> b h", [(2, 6)], "h=\\? x d=\\?"),
        ("b -> b h", [(2,)], "the extent of axis 'h' follows from no operand"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(text, shapes, words):
    with pytest.raises(ValueError, match=words):
        fit(text, *shapes)


def test_a_fault_in_derived_extents_names_the_layer():
    def derive(known):
        raise ValueError("no window fits")

    with pytest.raises(ValueError, match="layer: no window fits"):
        fit("b -> b h", (2,), derive=derive)


def test_a_given_extent_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="h=4 x d=\\?"):
        fit("b (h d) -> b h", (2, 6), given={"h": 4})


@st.composite
def lines(draw) -> tuple[Alignment, dict[str, int]]:
    """A line of one operand with merged dims, its result in another grouping, and a split of its free axes."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    axes = "abcde"[: len(sizes)]
    sides = [[[axes[0]]], [[axes[0]]]]
    for axis in axes[1:]:
        for side in sides:
            side[-1].append(axis) if draw(st.booleans()) else side.append([axis])
    text = " -> ".join(" ".join(f"({' '.join(group)})" for group in side) for side in sides)
    extents = dict(zip(axes, sizes, strict=True))
    a = fit(text, tuple(prod(extents[x] for x in group) for group in sides[0]), given=extents)
    free = [x for x in a.axes if x not in a.frozen]
    return a, {x: draw(st.integers(1, a.extents[x])) for x in free}


def parts_of(a: Alignment, split: dict[str, int]) -> list[Part]:
    ranges = [blocks(a.extents[x], split.get(x, 1)) for x in a.axes]
    return [Part(Op(), a, dict(zip(a.axes, point, strict=True))) for point in product(*ranges)]


@given(lines())
def test_shards_hold_the_same_elements_on_both_sides(drawn):
    """The law of merged dims: a part's box of the operand, laid out again, is its box of the result."""
    a, split = drawn
    x = np.arange(prod(a.extents.values())).reshape(a.shape(a.operands[0]))
    y = x.reshape(a.shape(a.results[0]))
    for part in parts_of(a, split):
        mine, yours = x[slices(part.shard(a.operands[0]))], y[slices(part.shard(a.results[0]))]
        np.testing.assert_array_equal(mine.ravel(), yours.ravel())


@given(lines())
def test_shards_tile_what_bears_every_split_axis(drawn):
    a, split = drawn
    covered = np.zeros(a.shape(a.operands[0]), int)
    for part in parts_of(a, split):
        covered[slices(part.shard(a.operands[0]))] += 1
    assert (covered == 1).all()


def test_an_operand_without_the_split_axis_is_needed_whole():
    a = fit("b i, *o i -> b o", (4, 3), (5, 3))
    part = parts_of(a, {"b": 2})[1]
    assert part.shard(a.operands[0]) == Box((2, 0), (4, 3)) and part.shard(a.operands[1]) == Box((0, 0), (5, 3))
    assert part.first("o") and not part.first("b")
    assert part.whole(1) == (5, 3)


def test_a_tensor_needs_a_name_for_each_dim():
    with pytest.raises(ValueError, match=r"'x'.*one distinct axis name a dim"):
        Tensor("x", (2, 3), "float32", ("b", "b"))
