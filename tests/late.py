"""The definitions on a stand-in of CuPy: each is done when the stream comes to it on which it was bound.

It does not know what is trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

from castile.kernels.table import Table
from castile.runtime.backends import base
from tests.stand_in import nccl


class LateTable(Table):
    """The definitions, each done when the stream comes to it on which it was bound."""

    def __init__(self, stream: Any) -> None:
        super().__init__("reference")
        self.on_host: set[str] = set()

    def bind(self, name: str, args: Any, outs: Any, params: Any, scratch: Any = None, accumulate: bool = False) -> Any:
        from cupy.cuda import get_current_stream

        there = tuple(arg.on_device if hasattr(arg, "on_device") else arg for arg in args)
        work = super().bind(name, there, tuple(out.on_device for out in outs), params, None, accumulate)
        places = (x.data for x in (*args, *outs) if hasattr(x, "on_device"))
        return partial(get_current_stream().enqueue, work, name, *places)


@contextmanager
def device(seed: int = 0) -> Iterator[ModuleType]:
    """A stand-in of CuPy on which the definitions run."""
    with nccl.installed(seed):
        import cupy

        base.load("cuda")
        table = patch("castile.runtime.backends.cuda.DeviceTable", LateTable)
        # ranks of one process take turns at every look, so that a run repeats whatever the host is busy with
        looks = patch("castile.runtime.backends.cuda.issuer.LOOK_NANOSECONDS", 0)
        with table, looks:
            yield cupy
