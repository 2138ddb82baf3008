"""On a GPU: what tuning may take computes what the default does, at shapes of networks; 64-bit places are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from castile.kernels import choice, tuning
from castile.kernels.choice import Choice
from castile.kernels.form import Refused
from castile.kernels.table import Table
from castile.planner.bodies import vocabulary
from tests.test_kernels import unwritten
from tests.triton_cases import NAMES, large, specs

pytestmark = pytest.mark.gpu

# Of all ways of a call about so many are tried, the first and the last among them.
WAYS = 4
# Two roundings to bfloat16 apart.
TOLERANCE = 2.0**-7
# Elements that 32 bits do not count, in rows, and rows at their end that are computed again by themselves.
COLS, LAST = 32768, 96
ROWS = 2**31 // COLS + LAST
# Kernels whose rows are those of the first operand, and the shapes of operands; of one the result alone is so large.
BY_ROWS: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = (
    ("copy", ((ROWS, COLS),)),
    ("add", ((ROWS, COLS), (ROWS, COLS))),
    ("pointwise", ((ROWS, COLS), (ROWS, COLS))),
    ("softmax", ((ROWS, COLS),)),
    ("layer_norm", ((ROWS, COLS), (COLS,), (COLS,))),
    ("contract", ((ROWS, COLS), (64, COLS))),
    ("contract", ((ROWS, 64), (COLS, 64))),
)
WORDS = {"pointwise": ("x, y -> x * y - x",), "contract": ("ik,jk->ij",)}
PARAMS = {"layer_norm": {"eps": 1e-5}}
DRAWN_ROWS = 1024


def far_apart(got: Any, want: Any) -> float:
    """The largest difference, as a share of the largest number; what is no number in both is none."""
    one, other = (x.astype("float32").ravel() for x in (got, want))
    odd = one != one
    assert bool((odd == (other != other)).all()), "NaN where there was none"
    same = (one == other) | odd
    one[same] = other[same] = 0
    if not one.size:
        return 0.0
    return float(abs(one - other).max()) / max(1e-30, float(abs(other).max()))


def queue_up(experts: Any, slots: Any, num_experts: int) -> None:
    """Gives each choice of a sample a place of its own, as `queue` does: two at one place would race."""
    import cupy

    number = cupy.arange(experts[0].size, dtype=experts.dtype).reshape(experts.shape[1:])
    experts[...], slots[...] = number % num_experts, number // num_experts


@pytest.mark.parametrize("name", NAMES)
def test_every_way_comes_to_the_same_on_a_gpu(name: str) -> None:
    """A fast way that is wrong would be the one that is taken."""
    import cupy

    from castile.kernels.cupy import measuring

    def nbytes(case: Any) -> int:
        return sum(int(np.prod(x.shape)) for x in case[0] if hasattr(x, "strides"))

    args, params = min(large(name, "bfloat16"), key=nbytes)
    outs = [tuning.dense(one.shape, one.dtype) for one in vocabulary.results(name, specs(args), params)]
    table = Table("triton")
    which = tuning.call_key(table, name, outs, args, params, False)
    ways = tuning.choices(table, which) or [Choice("triton")]
    call, found = choice.call_of(which), list[Any]()
    with measuring.place():
        taken = measuring.operands(call)[0].args
        if name == "dispatch":
            queue_up(*taken[1:3], call.params["num_experts"])
        for way in dict.fromkeys([*ways[:: max(1, len(ways) // WAYS)], ways[-1]]):
            made = tuple(cupy.asarray(unwritten(np.empty(one.shape, one.dtype))) for one in call.outs)
            try:
                table.bind(call.kernel, taken, made, call.params, None, False, way)()
            except Refused:
                continue
            cupy.cuda.get_current_stream().synchronize()
            for got, want in zip(made, found[0] if found else made, strict=True):
                assert far_apart(got, want) <= TOLERANCE, f"{which}: {way} is not what {ways[0]} is"
            found.append(made)
    assert found, f"the device refuses {which} in every way"


@pytest.mark.parametrize(("name", "shapes"), BY_ROWS)
def test_places_beyond_32_bits_are_found_on_a_gpu(name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    """The last rows of a large array are what they are by themselves."""
    import cupy

    free = cupy.cuda.runtime.memGetInfo()[0]
    if free < (wanted := 8 * ROWS * COLS):
        pytest.skip(f"{free} bytes of the GPU are free, {wanted} are needed")
    random = cupy.random.RandomState(0)

    def drawn(shape: tuple[int, ...]) -> Any:
        made = cupy.empty(shape, np.dtype("bfloat16"))
        for begin in range(0, shape[0], DRAWN_ROWS):
            part = made[begin : begin + DRAWN_ROWS]
            part[...] = random.standard_normal(part.size, dtype="float32").astype(made.dtype).reshape(part.shape)
        return made

    arrays, params, results = [*map(drawn, shapes)], PARAMS.get(name, {}), []
    for last in (ROWS, LAST):
        args = (*WORDS.get(name, ()), *(x[-last:].copy() if len(x) == ROWS else x for x in arrays))
        specs_ = vocabulary.results(name, specs(args), params)
        outs = tuple(cupy.full(one.shape, np.nan, np.dtype(one.dtype)) for one in specs_)
        Table("triton").bind(name, args, outs, params)()
        results.append(outs)
    cupy.cuda.get_current_stream().synchronize()
    for whole, part in zip(*results, strict=True):
        assert far_apart(whole[-LAST:], part) <= TOLERANCE
