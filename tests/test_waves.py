"""The estimate of a product's tiles: its laws, and what it was fitted to and is checked by, measured on an H200."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")

from castile.kernels.triton.waves import TileShape, best_split, microseconds
from tests.triton_arrays import array
from tests.triton_cases import fake_plan

TILES = ((128, 256, 8), (128, 128, 8), (128, 128, 4), (256, 128, 8), (64, 256, 8), (128, 64, 4), (64, 64, 4))
# Microseconds in bfloat16, one program a tile, by each of these: on random numbers that outgrow the cache, medians.
MEASURED = {
    ("...i,oi->...o", (8, 1024, 768), (3072, 768)): (86.6, 74.6, 72.9, 78.5, 118.1, 95.2, 112.6),
    ("...o,oi->...i", (8, 1024, 3072), (3072, 768)): (72.9, 67.5, 76.6, 77.3, 78.0, 80.0, 105.1),
    ("bshd,bthd->bhst", (8, 1024, 12, 64), (8, 1024, 12, 64)): (116.9, 104.7, 107.1, 114.2, 145.3, 132.8, 138.9),
    ("...i,oi->...o", (8, 1024, 768), (50257, 768)): (1351.4, 1324.9, 1379.7, 1478.8, 1773.4, 1619.6, 2030.1),
}
EXTENTS = {
    ("...i,oi->...o", (8, 1024, 768), (3072, 768)): (8192, 3072, 768, 1),
    ("...o,oi->...i", (8, 1024, 3072), (3072, 768)): (8192, 768, 3072, 1),
    ("...i,oi->...o", (8, 1024, 768), (50257, 768)): (8192, 50257, 768, 1),
}
cuts = st.builds(TileShape, *[st.sampled_from([16, 32, 64, 128, 256])] * 2, st.sampled_from([16, 32, 64]),
                 st.sampled_from([4, 8]), st.sampled_from(["half", "ieee", "tf32x3"]))  # fmt: skip
lengths = st.integers(1, 60000)


@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_the_first_setting_is_nearly_the_best_that_was_measured(case: Any) -> None:
    spec, *shapes = case
    made = fake_plan("contract", ((spec, *(array(shape, "bfloat16") for shape in shapes)), {}))
    assert made is not None
    first = made.settings[0]
    spent = dict(zip(TILES, MEASURED[case], strict=True))
    assert spent[first.m, first.n, first.warps] <= 1.05 * min(spent.values())


@pytest.mark.parametrize("case", EXTENTS, ids=str)
def test_estimates_are_near_what_was_measured(case: Any) -> None:
    for (m, n, warps), spent in zip(TILES, MEASURED[case], strict=True):
        assert microseconds(TileShape(m, n, 64, warps, "half"), *EXTENTS[case]) == pytest.approx(spent, rel=0.18)


@given(cuts, *[lengths] * 3, st.integers(1, 100), st.integers(1, 16))
def test_more_to_do_never_takes_less(cut: TileShape, m: int, n: int, k: int, l: int, parts: int) -> None:
    spent = microseconds(cut, m, n, k, l, parts)
    assert 0 < spent
    for more in ((m + cut.m, n, k, l), (m, n + cut.n, k, l), (m, n, k + cut.k * parts, l), (m, n, k, l + 1)):
        assert microseconds(cut, *more, parts) >= spent


@given(cuts, *[lengths] * 3, st.integers(1, 100))
def test_sums_are_divided_where_that_pays_and_what_waits_is_bounded(
    cut: TileShape, m: int, n: int, k: int, l: int
) -> None:
    parts = best_split(cut, m, n, k, l)
    assert microseconds(cut, m, n, k, l, parts) <= microseconds(cut, m, n, k, l)
    assert parts == 1 or (parts * m * n * l <= 2**23 and k > cut.k * parts)


def test_a_long_sum_of_a_small_result_fills_the_chip() -> None:
    assert best_split(TileShape(128, 128, 64, 8, "half"), 128, 128, 65536, 1) == 16
