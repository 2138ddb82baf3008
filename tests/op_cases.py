"""Cases for the laws of operators: a function `cases_<operator>` for each, found by its name.

A new operator needs one such function and nothing else to be held to every law.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from castile.planner.op import Op, Tensor, find
from castile.planner.ops.add import Add
from castile.planner.ops.attention import Attention
from castile.planner.ops.conv2d import Conv2d
from castile.planner.ops.gelu import Gelu
from castile.planner.ops.layer_norm import LayerNorm
from castile.planner.ops.max_pool2d import MaxPool2d
from castile.planner.ops.reshape import Reshape
from castile.planner.ops.sgd import Sgd


@dataclass(frozen=True, eq=False)
class Case:
    """An operator and its operands."""

    op: Op
    tensors: tuple[Tensor, ...]
    arrays: tuple[np.ndarray, ...] = field(repr=False)

    def __str__(self) -> str:
        settings = ",".join(f"{name}={value}" for name, value in self.op.settings)
        shapes = " ".join("x".join(map(str, t.shape)) or "()" for t in self.tensors)
        return f"{self.op.name}({settings}) {shapes}"


def cases_of(name: str) -> list[Case]:
    """The cases of an operator; a KeyError where there is no function for it."""
    make: Callable[[np.random.Generator], Iterator[Case]] = globals()[f"cases_{name}"]
    return list(make(np.random.default_rng(len(name))))


def case(op: Op, *operands: tuple[np.ndarray, str]) -> Case:
    """Operands as (array, axes), with a `*` before the axes of a parameter."""
    tensors, arrays = [], []
    for n, (array, axes) in enumerate(operands):
        names = tuple(axes.removeprefix("*").split())
        tensors.append(Tensor(f"x{n}", array.shape, array.dtype.name, names, axes.startswith("*")))
        arrays.append(array)
    return Case(op, tuple(tensors), tuple(arrays))


def cases_linear(rng):
    linear = find("linear")()
    for shape, axes, features in (((5, 3), "b i", 4), ((4, 3, 5), "b s d", 7), ((6,), "i", 3), ((3, 4, 1), "o s i", 1)):
        x, w, b = rng.normal(size=shape), rng.normal(size=(features, shape[-1])), rng.normal(size=features)
        yield case(linear, (x, axes), (w, "*o i"), (b, "*o"))
        yield case(linear, (x, axes), (w, "*o i"))


WINDOWS = (
    # height, width, kernel, stride, padding
    (6, 5, (3, 3), (1, 1), (1, 1)),
    (7, 5, (3, 2), (2, 1), (1, 0)),
    (9, 4, (2, 1), (3, 1), (0, 0)),
    (5, 8, (1, 1), (2, 3), (0, 0)),
    (5, 6, (5, 3), (1, 2), (4, 2)),
    (8, 8, (4, 4), (4, 4), (0, 0)),
    (11, 5, (3, 3), (5, 2), (2, 1)),
)


def cases_conv2d(rng):
    for n, (height, width, kernel, stride, padding) in enumerate(WINDOWS):
        x, w = rng.normal(size=(3, 3, height, width)), rng.normal(size=(5, 3, *kernel))
        bias = [(rng.normal(size=5), "*o")] if n % 2 == 0 else []
        yield case(Conv2d(stride, padding), (x, "b c h w"), (w, "*o i r s"), *bias)


def cases_max_pool2d(rng):
    for height, width, kernel, stride, padding in WINDOWS:
        x = rng.normal(size=(3, 2, height, width))
        yield case(MaxPool2d(kernel, stride, padding), (x, "b c h w"))


def elementwise(op: Op, rng):
    for shape, axes in (((5,), "b"), ((4, 7), "b d"), ((3, 1, 5, 2), "b c h w")):
        yield case(op, (rng.normal(size=shape), axes))


def cases_relu(rng):
    yield from elementwise(find("relu")(), rng)


def cases_gelu(rng):
    yield from elementwise(Gelu("tanh"), rng)
    yield from elementwise(Gelu("none"), rng)


def cases_add(rng):
    x = rng.normal(size=(5, 4, 3))
    yield case(Add(), (x, "b s d"), (rng.normal(size=(5, 4, 3)), "b s d"))
    yield case(Add(), (x, "b s d"), (rng.normal(size=(4, 3)), "s d"))
    yield case(Add(), (x, "b s d"), (rng.normal(size=(4, 3)), "*s d"))
    yield case(Add(), (x, "b s d"), (rng.normal(size=3), "*d"))
    yield case(Add(), (x, "b s d"), (rng.normal(size=()), ""))
    yield case(Add(), (rng.normal(size=7), "b"), (rng.normal(size=7), "*d"))


def cases_reshape(rng):
    x = rng.normal(size=(5, 3, 2, 4))
    yield case(Reshape("b c h w -> b (c h w)"), (x, "b c h w"))
    yield case(Reshape("b c h w -> (b c) (h w)"), (x, "b c h w"))
    yield case(Reshape("b (c h w) -> b c h w", (("c", 3), ("h", 2))), (x.reshape(5, 24), "b d"))
    yield case(Reshape("(b s) d -> b s d", (("s", 3),)), (x.reshape(15, 8), "t d"))
    yield case(Reshape("... (h d) -> ... h d", (("d", 2),)), (x, "b c h w"))


def cases_layer_norm(rng):
    for shape, axes in (((7,), "d"), ((5, 6), "b d"), ((3, 4, 5), "b s d")):
        g, b = rng.normal(size=shape[-1]), rng.normal(size=shape[-1])
        yield case(LayerNorm(), (rng.normal(size=shape), axes), (g, "*d"), (b, "*d"))
    yield case(LayerNorm(0.1), (rng.normal(size=(4, 8)), "b d"), (np.ones(8), "*d"), (np.zeros(8), "*d"))


def cases_embedding(rng):
    for shape, axes in (((5,), "b"), ((3, 5), "b s"), ((2, 3, 2), "b s d")):
        ids = rng.integers(0, 6, shape).astype(np.int32)
        yield case(find("embedding")(), (ids, axes), (rng.normal(size=(6, 5)), "*v d"))


def cases_attention(rng):
    # batch, queries, keys, heads, width of a head
    for b, s, t, h, d in ((2, 5, 5, 3, 2), (3, 4, 4, 4, 1), (1, 7, 7, 2, 4), (2, 5, 3, 2, 3), (2, 3, 6, 1, 2)):
        for causal in (False, True):
            q, keys, values = (rng.normal(size=(b, n, h * d)) for n in (s, t, t))
            yield case(Attention(h, causal), (q, "b s d"), (keys, "b s d"), (values, "b s d"))


def cases_cross_entropy(rng):
    for shape, axes in (((6,), "v"), ((5, 4), "b v"), ((3, 5, 7), "b s v")):
        labels = rng.integers(0, shape[-1], shape[:-1]).astype(np.int32)
        leading = " ".join(axes.split()[:-1])
        yield case(find("cross_entropy")(), (3 * rng.normal(size=shape), axes), (labels, leading))


def cases_sum(rng):
    yield from elementwise(find("sum")(), rng)


def cases_sgd(rng):
    for settings in ((0.0, 0.0, False), (0.9, 0.0, False), (0.9, 0.01, True)):
        for shape, axes in (((7,), "o"), ((5, 3), "o i")):
            w, g, m = ((rng.normal(size=shape), axes) for _ in range(3))
            yield case(Sgd(*settings), w, g, m, (np.array(0.1), ""))


def cases_fetch(rng):
    yield from elementwise(find("fetch")(), rng)


def cases_accumulate(rng):
    yield from elementwise(find("accumulate")(), rng)
