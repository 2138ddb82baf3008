"""Compiled loops: a function body in plain Python, compiled by numba, so that the same text is its own reference.

It does not know what the loops compute.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np


@cache
def can_compile() -> bool:
    return find_spec("numba") is not None


@cache
def _listener() -> Any:
    """What counts the time that compiling takes, from the first loop on."""
    from numba.core import event

    listener = event.TimingListener()
    event.register("numba:compile", listener)
    return listener


def compiling_seconds() -> float:
    """For how long this process has compiled loops, or read what was kept of them."""
    return _listener().duration if can_compile() and _listener().done else 0.0


@cache
def compiled(body: Callable[..., Any]) -> Callable[..., Any]:
    """The body compiled, once for each kind of arguments and kept on disk; the body itself where numba is missing.

    The body may use numbers and arrays of fixed types, and no other function of castile.
    """
    if not can_compile():
        return body
    # Importing numba costs a tenth of a second, which only those pay who need it.
    import numba

    _listener()
    # A large array freed once teaches malloc to keep memory of this size, which calls in a row then reuse without
    # faulting its pages in again (mallopt(3), dynamic threshold).
    np.empty(2**24, np.uint8)
    result: Callable[..., Any] = numba.njit(cache=True)(body)
    return result
