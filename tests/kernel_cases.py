"""A generator of cases for every kernel, `case_<name>`: small, odd and broken shapes, and one of some size.

It knows no form and no tolerance.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from castile.kernels import reference

Case = tuple[tuple[Any, ...], dict[str, Any]]


class Draw:
    """Random operands of one dtype."""

    def __init__(self, dtype: str, seed: int = 0) -> None:
        self.dtype, self.random = dtype, np.random.default_rng(seed)

    def __call__(self, *shape: int) -> np.ndarray:
        return np.asarray(self.random.normal(size=shape), self.dtype)

    def ids(self, below: int, *shape: int, dtype: str = "int64") -> np.ndarray:
        return self.random.integers(0, below, shape).astype(dtype)


# The last three have short rows, more of them than work at once, and rows too long to work on at once.
SHAPES = [(1,), (63,), (3, 1), (1, 5, 7), (2, 3, 4, 5), (17, 129), (3, 7, 33, 4), (700, 3), (2, 1030)]
IMAGES = [
    ((2, 3, 8, 8), 4, (3, 3), (1, 1), (1, 1, 1, 1)),
    ((1, 1, 5, 7), 2, (1, 1), (1, 1), (0, 0, 0, 0)),
    ((3, 2, 6, 5), 1, (1, 1), (2, 2), (0, 0, 0, 0)),
    ((2, 3, 9, 7), 5, (2, 3), (2, 3), (0, 1, 2, 0)),
    ((1, 2, 3, 1), 3, (3, 1), (1, 1), (2, 2, 0, 0)),
    ((2, 1, 4, 4), 2, (4, 4), (1, 1), (3, 3, 3, 3)),
    ((3, 5, 17, 16), 4, (3, 3), (1, 1), (1, 1, 1, 1)),
    # Parts of images split along the width, whose rows are longer than those of their results.
    ((5, 3, 8, 5), 4, (3, 3), (1, 1), (1, 1, 1, 0)),
    ((2, 3, 6, 40), 2, (3, 3), (1, 1), (0, 1, 0, 1)),
    ((2, 3, 8, 4), 2, (1, 1), (1, 1), (0, 0, 0, 0)),
]


def case_contract(draw: Draw) -> Iterator[Case]:
    for spec, a, b in [
        ("...i,oi->...o", (2, 3, 5), (7, 5)),
        ("...i,oi->...o", (1, 1), (1, 1)),
        ("...o,oi->...i", (63, 65), (65, 66)),
        ("...o,...i->oi", (4, 3, 5), (4, 3, 6)),
        ("bshd,bthd->bhst", (2, 5, 3, 4), (2, 6, 3, 4)),
        ("bhst,bthd->bshd", (2, 3, 5, 6), (2, 6, 3, 4)),
        ("bhst,bshd->bthd", (2, 3, 5, 6), (2, 5, 3, 4)),
        ("ib,jb->ijb", (4, 3), (5, 3)),
        ("ij,j->i", (4, 3), (3,)),
        ("i,j->ji", (4,), (3,)),
        ("i,i->", (63,), (63,)),
        ("ij,jk->k", (4, 3), (3, 2)),
        ("abc,cbd->da", (2, 3, 4), (4, 3, 5)),
        ("...,...->...", (3, 4), (3, 4)),
        ("ii,ij->j", (3, 3), (3, 2)),
    ]:
        yield (spec, draw(*a), draw(*b)), {}
    yield ("abc->ca", draw(3, 4, 5)), {}
    yield ("ab,bc,cd->ad", draw(3, 4), draw(4, 5), draw(5, 2)), {}


def case_add(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        yield (draw(*shape), draw(*shape)), {}
    yield (draw(2, 3, 4), draw(3, 1)), {}
    yield (draw(2, 3, 4), draw()), {}


def case_add_bias(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        for dim in range(-1, len(shape)):
            yield (draw(*shape), draw(shape[dim])), {"dim": dim}


def case_sum_over(draw: Draw) -> Iterator[Case]:
    for dims in [(0,), (0, 1), (1, 2), (0, 2, 3), (-1,), (0, 1, 2, 3)]:
        yield (draw(2, 3, 4, 5),), {"dims": dims}
    yield (draw(63),), {"dims": (0,)}
    for dims in [(0, 2, 3), (0,)]:
        yield (draw(9, 7, 17, 16),), {"dims": dims}
        yield (draw(9, 70, 8, 4),), {"dims": dims}


def case_reshape(draw: Draw) -> Iterator[Case]:
    for a, b in [((2, 3, 4), (2, 12)), ((6, 4), (2, 3, 2, 2)), ((1, 5), (5,)), ((2, 3), (3, 2)), ((40, 60), (20, 120))]:
        yield (draw(*a),), {"shape": b}


def case_expand(draw: Draw) -> Iterator[Case]:
    for shape in [*SHAPES, ()]:
        yield (draw(),), {"shape": shape}


def case_copy(draw: Draw) -> Iterator[Case]:
    for shape in [*SHAPES, ()]:
        yield (draw(*shape),), {}


def case_zero(draw: Draw) -> Iterator[Case]:
    for shape in [*SHAPES, ()]:
        yield (), {"shape": shape, "dtype": draw.dtype}


def case_relu(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        yield (draw(*shape),), {}


def case_relu_grad(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        yield (draw(*shape), draw(*shape)), {}


def case_gelu(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        for approximate in ("none", "tanh"):
            yield (3 * draw(*shape),), {"approximate": approximate}


def case_gelu_grad(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        for approximate in ("none", "tanh"):
            yield (draw(*shape), 3 * draw(*shape)), {"approximate": approximate}


def case_conv2d(draw: Draw) -> Iterator[Case]:
    for x, o, kernel, stride, pads in IMAGES:
        yield (draw(*x), draw(o, x[1], *kernel)), {"stride": stride, "pads": pads}


def case_conv2d_grad_input(draw: Draw) -> Iterator[Case]:
    for (x, w), params in case_conv2d(draw):
        yield (draw(*reference.conv2d(x, w, **params).shape), w), params | {"shape": x.shape}


def case_conv2d_grad_weight(draw: Draw) -> Iterator[Case]:
    for (x, w), params in case_conv2d(draw):
        yield (draw(*reference.conv2d(x, w, **params).shape), x), params | {"kernel": w.shape[2:]}


def case_max_pool2d(draw: Draw) -> Iterator[Case]:
    for x, kernel, stride, pads in [
        ((2, 3, 8, 8), (2, 2), (2, 2), (0, 0, 0, 0)),
        ((1, 2, 7, 5), (3, 3), (2, 1), (1, 1, 1, 0)),
        ((3, 1, 1, 9), (1, 2), (1, 3), (0, 0, 0, 1)),
        ((1, 1, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
        ((3, 5, 17, 16), (2, 2), (2, 2), (0, 1, 1, 1)),
        ((3, 5, 8, 4), (2, 2), (2, 2), (0, 0, 0, 0)),
        ((2, 3, 6, 5), (2, 2), (1, 1), (1, 1, 1, 1)),
    ]:
        image = draw(*x)
        # Ties show which of several maxima is taken.
        yield (np.round(image),), {"kernel": kernel, "stride": stride, "pads": pads}
        yield (image,), {"kernel": kernel, "stride": stride, "pads": pads}


def case_max_pool2d_grad(draw: Draw) -> Iterator[Case]:
    for (x,), params in case_max_pool2d(draw):
        yield (draw(*reference.max_pool2d(x, **params).shape), x), params


def case_layer_norm(draw: Draw) -> Iterator[Case]:
    for shape in [*SHAPES[2:], (2, 3, 63)]:
        yield (draw(*shape), draw(shape[-1]), draw(shape[-1])), {"eps": 1e-5}


def case_layer_norm_grad_input(draw: Draw) -> Iterator[Case]:
    for (x, g, b), params in case_layer_norm(draw):
        _, mean, rstd = reference.layer_norm(x, g, b, **params)
        yield (draw(*x.shape), x, g, mean, rstd), {}


def case_layer_norm_grad_params(draw: Draw) -> Iterator[Case]:
    for (x, g, b), params in case_layer_norm(draw):
        _, mean, rstd = reference.layer_norm(x, g, b, **params)
        yield (draw(*x.shape), x, mean, rstd), {}


def case_embedding(draw: Draw) -> Iterator[Case]:
    for shape, rows, cols, dtype in [
        ((3, 5), 7, 4, "int64"),
        ((63,), 3, 1, "int32"),
        ((1, 1), 1, 1, "uint8"),
        ((60,), 99, 33, "int64"),
    ]:
        yield (draw.ids(rows, *shape, dtype=dtype), draw(rows, cols)), {}


def case_embedding_grad(draw: Draw) -> Iterator[Case]:
    for (ids, table), _ in case_embedding(draw):
        yield (draw(*ids.shape, table.shape[1]), ids), {"rows": len(table)}


def case_attention(draw: Draw) -> Iterator[Case]:
    for b, s, t, heads, d, causal, offset in [
        (2, 5, 7, 3, 4, False, 0),
        (1, 1, 1, 1, 1, True, 0),
        (2, 70, 70, 2, 3, True, 0),
        (1, 3, 9, 2, 5, True, 4),
        (2, 130, 63, 1, 2, True, 0),
        (1, 300, 301, 3, 2, False, 0),
        (1, 300, 301, 3, 2, True, 1),
    ]:
        params = {"heads": heads, "causal": causal, "offset": offset, "scale": 0.7}
        yield (draw(b, s, heads * d), draw(b, t, heads * d), draw(b, t, heads * d)), params


def case_attention_grad(draw: Draw) -> Iterator[Case]:
    for (q, kk, v), params in case_attention(draw):
        y, lse = reference.attention(q, kk, v, **params)
        yield (draw(*q.shape), q, kk, v, y, lse), params


def case_cross_entropy(draw: Draw) -> Iterator[Case]:
    for shape, classes in [((5,), 7), ((2, 3), 1), ((1, 63), 129)]:
        yield (3 * draw(*shape, classes), draw.ids(classes, *shape)), {"scale": 0.3}


def case_cross_entropy_grad(draw: Draw) -> Iterator[Case]:
    for (logits, labels), params in case_cross_entropy(draw):
        yield (draw(), logits, labels, reference.cross_entropy(logits, labels, **params)[1]), params


def case_sgd(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        for momentum, nesterov in [(0.0, False), (0.9, False), (0.9, True)]:
            params = {"momentum": momentum, "decay": 0.1, "nesterov": nesterov}
            yield (draw(*shape), draw(*shape), draw(*shape), draw()), params


def cases(name: str, dtype: str) -> list[Case]:
    """All cases of one kernel."""
    return list(globals()[f"case_{name}"](Draw(dtype)))


def kernels_with_cases() -> set[str]:
    """Names of the kernels that have a generator here."""
    return {name[5:] for name in globals() if name.startswith("case_")}
