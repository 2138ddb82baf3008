"""Numbers of 16 bits and casts on a CPU: definitions compute in float32 and round once. Kernels are found by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from castile.kernels.table import Table, definitions
from castile.planner.bodies import vocabulary
from tests.kernel_cases import Case, cases
from tests.test_kernels import scratch_of, several, sliced, spec_of, unwritten
from tests.triton_cases import cast

NAMES = sorted(definitions())
CASTING = [name for name in NAMES if hasattr(definitions()[name], "casts")]
NARROW = ("float16", "bfloat16")


def bound(folder: str, name: str, case: Case, outs: tuple[np.ndarray, ...], accumulate: bool = False) -> None:
    """Run a kernel of a folder of forms into outs."""
    args, params = case
    Table(folder).bind(name, args, outs, params, scratch_of(name, args, params, accumulate), accumulate)()


def results(name: str, case: Case) -> tuple[vocabulary.Spec, ...]:
    return vocabulary.results(name, tuple(map(spec_of, case[0])), case[1])


def wide(x: Any) -> Any:
    return x.astype("float32") if isinstance(x, np.ndarray) and x.dtype.name in NARROW else x


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", NAMES)
def test_16_bits_are_computed_in_float32_and_rounded_once(name: str, dtype: str) -> None:
    for case in cases(name, "float32")[::4]:
        low = cast(name, case, dtype)
        with np.errstate(all="ignore"):
            wanted = several(definitions()[name](*map(wide, low[0]), **low[1]))
            outs = tuple(sliced(unwritten(np.empty(one.shape, one.dtype))) for one in results(name, low))
            bound("numpy", name, low, outs)
            for out, want in zip(outs, wanted, strict=True):
                np.testing.assert_array_equal(out, np.asarray(want).astype(out.dtype), err_msg=name)


def test_who_casts_is_said_alike_by_definitions_and_vocabulary() -> None:
    assert [name for name in NAMES if vocabulary.casts(name)] == CASTING
    assert {"copy", "contract", "sum_over", "embedding_grad", "conv2d_grad_weight"} <= set(CASTING)


@pytest.mark.parametrize("accumulate", [False, True], ids=["write", "add"])
@pytest.mark.parametrize("dtypes", [("float32", "float64"), ("float64", "float32"), ("bfloat16", "float32")])
@pytest.mark.parametrize("name", CASTING)
def test_results_may_be_wanted_in_another_dtype(name: str, dtypes: tuple[str, str], accumulate: bool) -> None:
    """They are computed as ever, and rounded or widened as they are written."""
    for case in cases(name, "float32")[::3]:
        args, params = cast(name, case, dtypes[0])
        wanted = several(definitions()[name](*args, **params))
        outs = tuple(np.ones(x.shape, dtypes[1]) if accumulate else np.full(x.shape, np.nan, dtypes[1]) for x in wanted)
        bound("numpy", name, (args, params), outs, accumulate)
        for out, want in zip(outs, wanted, strict=True):
            exact = want + np.float64(1) if accumulate else want
            scale = max(1.0, float(np.abs(exact).max(initial=0)))
            np.testing.assert_allclose(out, exact, rtol=0, atol=2e-6 * scale, err_msg=name)
