"""Products in register tiles: any sizes and layouts give what the definition gives, and touch nothing else."""

from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.kernels.numpy import contract, matmul
from castile.kernels.numpy.tiles import lanes
from castile.kernels.table import Table
from tests.effort import examples

# Around rows of a tile, lanes of its vectors, squares that are transposed, and the depth and rows of a panel.
SIZES = st.sampled_from([1, 2, 7, 8, 9, 15, 16, 17, 24, 33, 47, 48, 49, 64, 65, 97])
DEPTHS = st.sampled_from([1, 2, 7, 8, 9, 63, 255, 256, 257, 520])
STEPS = {"float32": 1e-4, "float64": 1e-12}


def matrices(num: int, rows: int, cols: int, turned: bool, dtype: str, seed: int) -> tuple[np.ndarray, tuple[int, int]]:
    """So many matrices inside a larger array of NaN, and the steps of each in elements."""
    inner = (num, cols, rows) if turned else (num, rows, cols)
    whole = np.full([n + 3 for n in inner], np.nan, dtype)
    view = whole[1:-2, 2:-1, 1:-2]
    view[...] = np.random.default_rng(seed).normal(size=inner)
    view = view.transpose(0, 2, 1) if turned else view
    return view, (view.strides[1] // view.itemsize, view.strides[2] // view.itemsize)


@settings(max_examples=examples(150), deadline=None)
@given(
    rows=SIZES, cols=SIZES, depth=DEPTHS, num=st.integers(1, 3), turned=st.tuples(*[st.booleans()] * 3),
    adds=st.booleans(), dtype=st.sampled_from(sorted(STEPS)),
)  # fmt: skip
def test_any_sizes_and_layouts(
    rows: int, cols: int, depth: int, num: int, turned: tuple[bool, bool, bool], adds: bool, dtype: str
) -> None:
    x, of_x = matrices(num, rows, depth, turned[0], dtype, 0)
    y, of_y = matrices(num, depth, cols, turned[1], dtype, 1)
    out, of_out = matrices(num, rows, cols, turned[2], dtype, 2)
    want = x @ y + (out if adds else 0)
    if not adds:
        out[...] = np.nan
    around = np.isnan(out.base).sum()
    steps = (*of_out, *of_x, *of_y)
    places = [[*(n * one.strides[0] // one.itemsize for one in (out, x, y)), adds] for n in range(num)]
    matmul.products(out, x, y, (rows, cols, depth), steps, np.array(places, np.int64))()
    np.testing.assert_allclose(out, want, rtol=STEPS[dtype], atol=STEPS[dtype] * depth)
    assert np.isnan(out.base).sum() == around - (0 if adds else out.size)


@settings(max_examples=examples(150), deadline=None)
@given(
    rows=SIZES, cols=SIZES, depth=DEPTHS, turned=st.tuples(*[st.booleans()] * 3), first=st.integers(-20, 300),
    turns=st.permutations([1, 0, -1]), adds=st.booleans(),
)  # fmt: skip
def test_what_is_not_wanted_is_left_out(
    rows: int, cols: int, depth: int, turned: tuple[bool, bool, bool], first: int, turns: list[int], adds: bool
) -> None:
    """Where the terms that are not wanted are zero, those left out are not missed, and no result that is wanted is."""
    by_row, by_col, by_term = turns
    x, of_x = matrices(1, rows, depth, turned[0], "float64", 0)
    y, of_y = matrices(1, depth, cols, turned[1], "float64", 1)
    out, of_out = matrices(1, rows, cols, turned[2], "float64", 2)
    i, j, k = np.arange(rows)[:, None], np.arange(cols), np.arange(depth)
    if by_term and by_row:
        x[0] *= by_row * i + by_term * k + first >= 0
    if by_term and by_col:
        y[0] *= by_col * j + by_term * k[:, None] + first >= 0
    matters = np.broadcast_to(by_row * i + by_col * j + first >= 0, (rows, cols)) | bool(by_term)
    want = x @ y + (out if adds else 0)
    steps, places = (*of_out, *of_x, *of_y), np.array([[0, 0, 0, adds]], np.int64)
    wanted = matmul.HalfSpace((by_row, by_col, by_term), first)
    matmul.products(out, x, y, (rows, cols, depth), steps, places, wanted)()
    np.testing.assert_allclose(out[0][matters], want[0][matters], rtol=1e-12, atol=1e-12 * depth)


def test_tiles_and_terms_far_from_what_is_wanted_are_not_looked_at() -> None:
    size = 96
    x, y, out = np.ones((size, size)), np.ones((size, size)), np.full((size, size), np.nan)
    places = np.zeros((1, 4), np.int64)
    matmul.products(out, x, y, (size,) * 3, (size, 1) * 3, places, matmul.HalfSpace((1, -1, 0)))()
    assert np.isnan(out[0, -1]) and np.isfinite(np.tril(out)).all()
    x[0, -1] = np.nan
    matmul.products(out, x, y, (size,) * 3, (size, 1) * 3, places, matmul.HalfSpace((1, 0, -1)))()
    assert np.isfinite(out).all()


@pytest.mark.parametrize("tiled", [True, False])
@pytest.mark.parametrize("spec", ["ij,kj->ik", "bij,bjk->bik", "bij,bik->jk", "ij,jk->ki", "bihd,bjhd->bhij"])
def test_in_tiles_or_by_blas(spec: str, tiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "blas_cost", lambda *_: inf if tiled else 0)
    lengths = dict(b=3, d=70, h=2, i=19, j=65, k=40)
    terms, result = spec.replace("->", ",").split(",")[:2], spec[-spec[::-1].index(">") :]
    draw = np.random.default_rng(5)
    x, y = (draw.normal(size=[lengths[label] for label in term]) for term in terms)
    want = np.einsum(spec, x, y)
    out = np.ones([lengths[label] for label in result])
    for accumulate in (False, True):
        work = Table("numpy").bind("contract", (spec, x, y), (out,), {}, None, accumulate)
        assert _is_tiled(work) == tiled
        work()
        np.testing.assert_allclose(out, want * (1 + accumulate), rtol=1e-12, atol=1e-12)


def _is_tiled(work: Any) -> bool:
    return getattr(work, "func", None) is matmul._products


@pytest.mark.parametrize(
    ("shapes", "spec", "tiled"),
    [
        (((256, 1), (1, 32)), "ij,jk->ik", True),
        # where tiles have registers enough
        (((32, 256), (1024, 256)), "ij,kj->ik", lanes(4) == 16),
        (((16, 8192), (8192, 512)), "ij,jk->ik", lanes(4) == 16),
        # many terms, and products of which most of a vector or a tile would be empty
        (((2048, 256), (256, 128)), "ij,jk->ik", False),
        (((256, 512), (512, 1)), "ij,jk->ik", False),
        (((1, 512), (256, 512)), "ij,kj->ik", False),
    ],
)
def test_what_is_left_to_blas(shapes: tuple[tuple[int, int], ...], spec: str, tiled: bool) -> None:
    x, y = (np.ones(shape, np.float32) for shape in shapes)
    out = np.einsum(spec, x, y)
    assert _is_tiled(Table("numpy").bind("contract", (spec, x, y), (out,), {}, None, False)) == tiled
