"""Every Triton form on a GPU against its definition, under the same law as in the interpreter."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from castile.kernels.form import Refused
from castile.kernels.table import Table, definitions
from tests.kernel_cases import Draw, cases
from tests.test_kernels import several, unwritten
from tests.triton_cases import NAMES, cast, error, plain
from tests.triton_cases_long import LONG

pytestmark = pytest.mark.gpu


def spread(got: np.ndarray, want: np.ndarray) -> float:
    """The root of the mean square of the difference; infinities that are the same are none."""
    one, other = got.astype(np.float64), want.astype(np.float64)
    apart = np.subtract(one, other, where=one != other, out=np.zeros_like(one))
    return float(np.sqrt(np.mean(apart**2))) if apart.size else 0.0


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_form_equals_definition_on_a_gpu(name: str, dtype: str) -> None:
    import cupy

    def moved(x: Any) -> Any:
        return cupy.asarray(x) if isinstance(x, np.ndarray) else x

    for case in [*cases(name, "float32"), *LONG.get(name, [])]:
        low = cast(name, case, dtype)
        args, params = cast(name, low, "float64")
        with np.errstate(all="ignore"):
            exact = several(definitions()[name](*args, **params))
        rounded = plain(name, low, dtype)
        outs = tuple(moved(unwritten(x)) for x in rounded)
        Table("triton").bind(name, tuple(map(moved, low[0])), outs, low[1], None, False)()
        for out, near, want in zip(outs, rounded, exact, strict=True):
            scale = max(1.0, float(np.abs(want).max(initial=0)))
            got = out.get()
            assert spread(got, want) <= 2 * spread(near, want) + 4e-6 * scale, f"{name} {low[1]}"
            # Which of few elements is off by most is luck: over six seeds it was up to 3.5 times as far off.
            assert error(got, want) <= 4 * error(near, want) + 4e-6 * scale, f"{name} {low[1]}"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "spec", ["ik,jk->ij", "ik,kj->ji", "ki,jk->ij", "ki,kj->ij", "bki,jbk->bij", "bisk,bksj->sbij"]
)
def test_every_way_to_a_product_comes_to_the_same_on_a_gpu(spec: str, dtype: str) -> None:
    """Tiles, walks and the library's own, of shapes that tiles do not divide."""
    import cupy

    draw, size = Draw("float32"), {"i": 1000, "j": 776, "k": 1544, "b": 2, "s": 3}
    terms = spec.split("->")[0].split(",")
    low, _ = cast("contract", ((spec, *(draw(*(size[label] for label in term)) for term in terms)), {}), dtype)
    exact = np.einsum(spec, *(x.astype("float32") for x in low[1:]), optimize=True)
    args = (spec, *map(cupy.asarray, low[1:]))
    most = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype] * float(np.abs(exact).max())
    ways = Table("triton").ways("contract", args, (cupy.empty(exact.shape, dtype),), {}, False)
    for way in ways:
        out = cupy.asarray(unwritten(exact.astype(dtype)))
        with suppress(Refused):
            Table("triton").bind("contract", args, (out,), {}, None, False, way)()
            assert error(out.get(), exact) <= most, f"{spec} {way}"
    assert len(ways) > 7
