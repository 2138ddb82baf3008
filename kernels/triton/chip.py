"""Triton for a chip that need not be there: launches are compiled into Triton's disk cache, and nothing runs.

Arrays are absent too: they have a shape, steps, a dtype and an alignment. It knows no kernel.
"""

import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.backends.nvidia import driver as nvidia

from castile.kernels.calls import nothing
from castile.kernels.triton import driver


class AbsentArray(np.ndarray):
    """An array with the shape of a whole one and memory for one element, taken to lie on the chip."""


class Chip(DriverBase):
    """A driver of Triton's that compiles for a compute capability (times ten), for Triton 3.6 to 3.9."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_active_torch_device(self) -> Any:
        raise NotImplementedError

    def get_benchmarker(self) -> Any:
        raise NotImplementedError

    def get_current_device(self) -> int:
        # Triton keeps what it compiled by device.
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0


class Pointer:
    """An address that is never dereferenced, aligned to 16 bytes as NumPy's memory is."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.dtype = array, array.dtype

    def data_ptr(self) -> int:
        return int(self.array.__array_interface__["data"][0])


def activate(capability: int) -> None:
    """Let this process compile for that chip from now on, and run nothing."""
    driver.activate(Chip(capability))


def capability() -> int:
    """The compute capability that Triton compiles for, times ten."""
    return int(triton.runtime.driver.active.get_current_target().arch)


def call(launch: Any, args: tuple[Any, ...]) -> Callable[[], None]:
    """Compile a Launch for the chip; the call does nothing."""
    compiled = driver.compiled(launch, [driver.argument(arg, Pointer) for arg in args])
    # Triton 3.6 has a C compiler make what starts a kernel, for each signature; where there is no driver it cannot.
    if hasattr(nvidia, "make_launcher"):
        with suppress(AssertionError, OSError, subprocess.SubprocessError):
            nvidia.CudaLauncher(compiled.src, compiled.metadata)
    return nothing


def workspace(number: int, size: int, dtype: str) -> AbsentArray:
    """Workspace of a form."""
    return np.zeros(1, dtype).view(AbsentArray)
