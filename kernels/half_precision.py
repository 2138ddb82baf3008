"""16-bit numbers on a CPU, and results of another dtype than they are computed in: both are left to the definitions.

Definitions compute in float32 and round once, at the end, as GPUs do. It knows no kernel.
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import numpy as np

Definition = TypeVar("Definition", bound=Callable[..., Any])

HALF_DTYPES = ("float16", "bfloat16")


def in_float32(definition: Definition) -> Definition:
    """The definition, computed in float32 for 16-bit arrays; its results are float32 then."""

    @wraps(definition)
    def define(*args: Any, **params: Any) -> Any:
        return definition(*map(_to_float32, args), **params)

    return define  # type: ignore[return-value]


def castable(definition: Definition) -> Definition:
    """Mark a definition whose results may be wanted in another floating dtype than it returns."""
    setattr(definition, "casts", True)
    return definition


def fits_form(definition: Callable[..., Any], args: tuple[Any, ...], outs: tuple[Any, ...]) -> bool:
    """Whether a form without 16-bit numbers and casts can do this work."""
    given, made = ({_name(x.dtype) for x in some if hasattr(x, "dtype")} for some in (args, outs))
    if not (given | made).isdisjoint(HALF_DTYPES):
        return False
    return not hasattr(definition, "casts") or not any(dtype.startswith("float") for dtype in made - given)


@cache
def _name(dtype: np.dtype) -> str:
    """A dtype's name, which NumPy puts together whenever it is asked."""
    return dtype.name


def _to_float32(x: Any) -> Any:
    return x.astype(np.float32) if hasattr(x, "dtype") and x.dtype.name in HALF_DTYPES else x
