"""What is only moved, in any ways, is one node behind where it came from, with the same elements."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

pytest.importorskip("onnx")

from castile.launch.importers.onnx import shaping, views
from castile.planner.graph import Graph
from castile.planner.op import Tensor
from tests.test_models import forward


def regrouped(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Another shape of as many elements: dims joined, divided, and some of one put between."""
    total, found = prod(shape), list[int]()
    while total > 1:
        fitting = [n for n in range(2, total + 1) if total % n == 0]
        found.append(int(rng.choice(fitting)))
        total //= found[-1]
    if rng.random() < 0.3:
        found.insert(int(rng.integers(len(found) + 1)), 1)
    return tuple(found) or (1,)


def drawn(seed: int) -> tuple[Graph, Tensor, np.ndarray, np.ndarray]:
    """A tensor that was moved in several ways, in its graph, its source's elements, and its own as they should be."""
    rng = np.random.default_rng(seed)
    shape = [(4, 6, 5), (2, 12), (3, 4, 2, 6), (24,), (2, 1, 6, 3)][seed % 5]
    graph, array = Graph("case", "float64"), rng.normal(size=shape)
    x = graph.input("x", shape, " ".join("bcdef"[: len(shape)]))
    wanted = array
    for step in range(5):
        if rng.random() < 0.5:
            dims = tuple(int(n) for n in rng.permutation(wanted.ndim))
            x, wanted = shaping.permuted(graph, f"turned{step}", x, dims), wanted.transpose(dims)
        else:
            target = regrouped(rng, wanted.shape)
            x, wanted = shaping.reshaped(graph, f"shaped{step}", x, target), wanted.reshape(target)
    return graph, x, array, wanted


@pytest.mark.parametrize("seed", range(200))
def test_moved_elements_are_where_they_should_be(seed: int) -> None:
    graph, x, array, wanted = drawn(seed)
    found = forward(graph, {"x": array})[x.name]
    assert found.shape == wanted.shape and np.array_equal(found, wanted)


def test_rows_may_be_joined_behind_a_product() -> None:
    joined = 0
    for seed in range(400):
        graph, x, array, wanted = drawn(seed)
        rows = views.rows(graph, "apart", x)
        if rows is not None:
            w = np.random.default_rng(seed).normal(size=(3, wanted.shape[-1]))
            y = graph.linear("product", rows.source, 3, bias=False)
            found = views.made(graph, "joined", rows.over(y))
            assert found is not None and len(rows.source.shape) > wanted.ndim
            joined += 1
            told = forward(graph, {"x": array, "product.weight": w})[found.name]
            np.testing.assert_allclose(told, wanted @ w.T, rtol=1e-12, atol=1e-12)
    assert joined > 20


def test_heads_that_were_joined_with_samples_are_one_line_from_where_they_came() -> None:
    graph = Graph("case", "float64")
    x = graph.input("x", (5, 3, 8), "s b e")
    apart = shaping.reshaped(graph, "apart", x, (5, 6, 4))
    turned = shaping.permuted(graph, "turned", apart, (1, 2, 0))
    keys = shaping.reshaped(graph, "keys", turned, (3, 2, 4, 5))
    assert graph.nodes["keys"].inputs == ("x",)
    assert graph.nodes["keys"].op.text == "s b (e e_) -> b e e_ s"
    back = shaping.reshaped(graph, "back", shaping.permuted(graph, "again", keys, (3, 0, 1, 2)), (5, 3, 8))
    assert back is x and views.view(graph, keys).source is x
