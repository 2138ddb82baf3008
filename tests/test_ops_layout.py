"""Dims in another order, side by side and in ranges: which parts read nothing, what is refused, and in which words."""

import numpy as np
import pytest

from castile.planner.graph import Graph
from castile.planner.op import find
from castile.planner.strategy import parts
from tests.op_cases import case
from tests.op_laws import node_of
from tests.test_models import backward, forward


def test_parts_of_a_concatenation_read_what_they_hold():
    c = case(find("concat")(1), (np.zeros((2, 3)), "b s"), (np.zeros((2, 5)), "b s"))
    first, second = parts(node_of(c), {"s": 2})
    assert [first.reads(n).shape for n in (0, 1)] == [(2, 3), (2, 1)]
    assert [second.reads(n).shape for n in (0, 1)] == [(2, 0), (2, 4)]


def test_parts_of_a_slice_read_their_range():
    c = case(find("slice")(1, 2, 6), (np.zeros((2, 7)), "b s"))
    assert [part.reads(0).lo[1] for part in parts(node_of(c), {"s": 2})] == [2, 4]


def test_pieces_put_together_are_the_whole():
    g = Graph("g", "float64")
    x = g.input("x", (3, 6), "b i")
    y = g.linear("fc", x, features=7)
    q, k, v = g.split("qkv", y, -1, (2, 1, 4))
    whole = g.concat("again", -1, q, k, v)
    g.minimise(g.sum("loss", whole))
    rng = np.random.default_rng(0)
    env = {"x": rng.normal(size=(3, 6)), "fc.weight": rng.normal(size=(7, 6)), "fc.bias": rng.normal(size=7)}
    env = forward(g, env)
    assert (env["again"] == env["fc"]).all()
    assert (backward(g, env)["fc"] == 1).all()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda g, x: g.contract("it", "b i -> i", x, x), "two operands"),
        (lambda g, x: g.contract("it", "b i, b j -> b", x, x), "'[ij]' in one array only; sum it before"),
        (lambda g, x: g.contract("it", "b b, b i -> b i", x, x), "'b' twice"),
        (lambda g, x: g.contract("it", "b (i j), b k -> b k", x, x), "without marks"),
        (lambda g, x: g.contract("it", "b i, i o -> b o", x, x), "it .contract.: .*i=6 does not fit"),
        (lambda g, x: g.transpose("it", x, "b i -> i"), "same axes on both sides"),
        (lambda g, x: g.transpose("it", x, "b i -> i b", j=2), "no axis 'j'"),
        (lambda g, x: g.reshape("it", x, "b i -> i b"), "same axes in the same order"),
        (lambda g, x: g.reshape("it", x, "b i -> b i o", o=2), "only one whose length is given as 1 may be new"),
        (lambda g, x: g.reshape("it", x, "b i -> b i ()"), "name every dim, as in 'b -> b o' with o=1"),
        (lambda g, x: g.reshape("it", x, "b i -> (b i)", o=1), "no axis 'o'"),
        (lambda g, x: g.concat("it", 1, x), "two tensors or more"),
        (lambda g, x: g.concat("it", 0, x, g.input("y", (3, 7), "b i")), "it .concat.: axis i=6"),
        (lambda g, x: g.concat("it", 0, x, g.input("z", (3,), "b")), "same number of dims"),
        (lambda g, x: g.slice("it", x, 1, 2, 7), "2 to 7 should be a range of dim 1 of 'x', 6 long"),
        (lambda g, x: g.slice("it", x, 0, 1, 1), "not empty"),
        *((build, f"dim {dim}")
          for dim in (2, -3, 5)
          for build in (lambda g, x, dim=dim: g.concat("it", dim, x, x),
                        lambda g, x, dim=dim: g.slice("it", x, dim, 0, 2),
                        lambda g, x, dim=dim: g.pad("it", x, dim, 1, 1),
                        lambda g, x, dim=dim: g.split("it", x, dim, (2, 4)))),
        (lambda g, x: g.split("it", x, 1, (2, 3)), "does not add up"),
        (lambda g, x: g.rotary("it", x, heads=2), "no even multiple of 2 heads"),
        (lambda g, x: g.group_norm("it", x, groups=4), "4 groups do not divide"),
        (lambda g, x: g.lstm("it", g.reshape("y", x, "b i -> b i d", d=1), 0), "'it.input': 0 in its shape should be"),
        *((lambda g, x, name=name, more=more: getattr(g, name)("it", g.sum("y", x, 1), 3, *more),
           rf"{name}: it takes an array of more dims, and is given 'y' of shape")
          for name, more in (("lstm", ()), ("gru", ()), *((f"conv{of}", (2,)) for of in ("1d", "2d", "_transpose2d")))),
        *((lambda g, x, kernel=kernel: g.conv2d("it", g.reshape("y", x, "b (c h w) -> b c h w", c=1, h=2), 1, kernel),
           told)
          for kernel, told in ((0, "'it.weight': 0 in its shape should be"), ((2,), "one number, or two, for rows"))),
        *((lambda g, x, name=name: getattr(g, name)("it", g.sum("y", x), 0), r"dims \(0,\) should be distinct dims")
          for name in ("sum", "mean", "max")),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_words(build, words):
    g = Graph("g")
    with pytest.raises(ValueError, match=words):
        build(g, g.input("x", (3, 6), "b i"))
