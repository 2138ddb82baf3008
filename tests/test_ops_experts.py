"""What the laws of operators do not say of the largest elements: they are PyTorch's."""

import numpy as np
import pytest

from castile.kernels.table import Table
from castile.planner.graph import Graph
from castile.planner.op import find
from tests.op_cases import case
from tests.op_laws import node_of, relative, run

torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")


@pytest.mark.parametrize(("shape", "count"), [((7,), 3), ((4, 5), 5), ((2, 3, 6), 1)])
def test_the_largest_elements_are_those_of_torch(shape: tuple[int, ...], count: int) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    c = case(find("topk")(count), (x, " ".join("abc"[: x.ndim])))
    part = node_of(c).whole()
    y = tuple(run(c, "F", part, c.arrays, None, None))
    tensor = torch.tensor(x, requires_grad=True)
    values, places = tensor.topk(count)
    assert np.array_equal(y[0], values.detach().numpy()) and np.array_equal(y[1], places.numpy())
    dy = np.random.default_rng(1).normal(size=y[0].shape)
    (slope,) = torch.autograd.grad(values, tensor, torch.tensor(dy))
    assert relative(run(c, "B", part, c.arrays, dy, y)[0], slope.numpy()) == 0


def test_of_equals_the_first_comes_first() -> None:
    x = np.array([[1.0, 3, 3, 2, 3], [0, 0, 0, 0, 0]])
    for form in ("reference", "numpy"):
        values, places = np.empty((2, 4)), np.empty((2, 4), np.int32)
        Table(form).bind("top_k", (x,), (values, places), {"count": 4})()
        assert values.tolist() == [[3, 3, 3, 2], [0] * 4] and places.tolist() == [[1, 2, 4, 3], [0, 1, 2, 3]], form


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda g, x: g.topk("top", x, 7), "7 is no number of elements"),
        (lambda g, x: g.topk("top", x, 0), "topk: k should be at least 1"),
        (lambda g, x: g.route("route", g.reshape("one", x, "b (s e) -> b s e", s=1), 0), "route: k and capacity"),
        (
            lambda g, x: g.pair_dots("pairs", g.reshape("one", x, "b (f d) -> b f d", f=1)),
            "of 1 vectors there are no pairs",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(make, words: str) -> None:
    g = Graph("small", "float64")
    with pytest.raises(ValueError, match=words):
        make(g, g.input("x", (2, 6), "b i"))
