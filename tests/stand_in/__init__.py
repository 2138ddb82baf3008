"""Stand-ins for libraries that need a GPU: they keep to the rules, do the work lazily on the host, and refuse misuse.

`installed()` puts them where castile's rooms for GPUs import them from.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from unittest.mock import patch

from tests.stand_in import cublas, cupy, green

# What imports CuPy, below which nothing may survive that saw another CuPy.
ROOMS = (
    "castile.runtime.backends.cuda", "castile.runtime.comm.looks", "castile.runtime.comm.nccl",
    "castile.runtime.comm.staged",
)  # fmt: skip

_PLACE = cublas.Place(
    cupy.cuda.memory,
    lambda stream, work: cupy.cuda.stream_of(stream).enqueue(work, "gemm"),
    lambda: cupy.cuda.world.device,
    lambda stream: cupy.cuda.stream_of(stream).capture is not None,
)


@contextmanager
def installed(seed: int = 0) -> Iterator[ModuleType]:
    """The stand-in of CuPy in place of any other, on a device that has seen nothing; streams take turns by the seed."""
    cupy.cuda.renew(seed)
    ours = {"cupy": cupy, "cupy.cuda": cupy.cuda, **green.modules()}
    there = {name: sys.modules.get(name) for name in ours}
    sys.modules.update(ours)
    _forget()
    try:
        with cublas.installed(cublas.Library(_PLACE)), _driver():
            yield cupy
    finally:
        _forget()
        # nothing else that was imported meanwhile may be imported twice
        for name, module in there.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


@contextmanager
def _driver() -> Iterator[None]:
    """The driver where ctypes opens that of CUDA."""
    real, made = ctypes.CDLL, cupy.cuda.graphs.libcuda()
    with patch.object(ctypes, "CDLL", lambda path: made if path == "libcuda.so.1" else real(path)):
        yield


def _forget() -> None:
    """The rooms are imported anew by whoever asks for them next."""
    for name in [name for name in sys.modules if name.startswith(ROOMS)]:
        del sys.modules[name]
        above, _, own = name.rpartition(".")
        if above in sys.modules:
            vars(importlib.import_module(above)).pop(own, None)
