"""Numbers of 16 bits on a CPU, and results of another dtype than is computed with: what forms for wide numbers leave.

Definitions compute in float32 and round once, at the end, as chips do. It knows no kernel.
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import numpy as np

Definition = TypeVar("Definition", bound=Callable[..., Any])

NARROW = ("float16", "bfloat16")


def widened(definition: Definition) -> Definition:
    """The definition, of arrays of 16 bits as of these numbers in float32; so are its results then."""

    @wraps(definition)
    def define(*args: Any, **params: Any) -> Any:
        return definition(*map(_wide, args), **params)

    return define  # type: ignore[return-value]


def casts(definition: Definition) -> Definition:
    """Mark a definition whose results may be wanted in another floating dtype than it gives them in."""
    setattr(definition, "casts", True)
    return definition


def is_plain(definition: Callable[..., Any], args: tuple[Any, ...], outs: tuple[Any, ...]) -> bool:
    """Whether a form that knows no numbers of 16 bits, and no casts, can do this work."""
    given, made = ({_name(x.dtype) for x in some if hasattr(x, "dtype")} for some in (args, outs))
    if not (given | made).isdisjoint(NARROW):
        return False
    return not hasattr(definition, "casts") or not any(dtype.startswith("float") for dtype in made - given)


@cache
def _name(dtype: np.dtype) -> str:
    """A dtype's name, which NumPy puts together whenever it is asked."""
    return dtype.name


def _wide(x: Any) -> Any:
    return x.astype(np.float32) if hasattr(x, "dtype") and x.dtype.name in NARROW else x
