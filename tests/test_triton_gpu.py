"""Every Triton form on a GPU against its definition, under the same law as in the interpreter."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from castile.kernels.table import Table, definitions
from tests.kernel_cases import cases
from tests.test_kernels import several, unwritten
from tests.triton_cases import NAMES, cast, error, plain

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_form_equals_definition_on_a_gpu(name: str, dtype: str) -> None:
    import cupy

    def moved(x: Any) -> Any:
        return cupy.asarray(x) if isinstance(x, np.ndarray) else x

    for case in cases(name, "float32"):
        low = cast(name, case, dtype)
        args, params = cast(name, low, "float64")
        with np.errstate(all="ignore"):
            exact = several(definitions()[name](*args, **params))
        rounded = plain(name, low, dtype)
        outs = tuple(moved(unwritten(x)) for x in rounded)
        Table("triton").bind(name, tuple(map(moved, low[0])), outs, low[1], None, False)()
        for out, near, want in zip(outs, rounded, exact, strict=True):
            scale = max(1.0, float(np.abs(want).max(initial=0)))
            most = 2 * error(near, want) + 4e-6 * scale
            assert error(out.get(), want) <= most, f"{name} {low[1]}"
