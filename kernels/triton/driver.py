"""Triton on CuPy: launches use CuPy's current device and stream, and are frozen into one call of Triton's launcher.

It knows no kernel. CuPy is imported with the first launch, so that forms can be read on a machine without a GPU. No
kernel asks Triton for scratch memory: forms get `workspace` when they are bound.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from math import prod
from subprocess import SubprocessError
from typing import Any

import triton
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import BaseBackend
from triton.backends.nvidia.driver import CudaDriver, CudaLauncher, CudaUtils
from triton.tools.tensor_descriptor import TensorDescriptor

from castile.kernels.form import Refused

# cudaDevAttrComputeCapabilityMajor and Minor, and MultiProcessorCount
_MAJOR, _MINOR, _PROCESSORS = 75, 76, 16


class DevicePointer:
    """A CuPy array as Triton wants a tensor: an address and a dtype."""

    __slots__ = ("address", "array", "dtype")

    def __init__(self, array: Any) -> None:
        self.array = array
        self.address = array.data.ptr
        # The dtype itself: its name would be made anew at each launch.
        self.dtype = array.dtype

    def data_ptr(self) -> int:
        """Where the first element lies."""
        return int(self.address)


class CupyDriver(CudaDriver):
    """Triton's driver for NVIDIA GPUs with CuPy's runtime for torch's; for Triton 3.6 to 3.9."""

    def __init__(self) -> None:
        # Not that of the parent, which imports torch.
        cuda = import_module("cupy").cuda
        self.utils = _utils()
        self.launcher_cls = CudaLauncher
        self.get_current_device = cuda.runtime.getDevice
        self.set_current_device = cuda.runtime.setDevice
        self.get_device_capability = cache(lambda device: _capability(cuda, device))
        self.num_processors = cache(lambda device: cuda.runtime.deviceGetAttribute(_PROCESSORS, device))
        self.get_current_stream = lambda device: cuda.get_current_stream().ptr

    @staticmethod
    def is_active() -> bool:
        return bool(import_module("cupy").cuda.is_available())

    def get_active_torch_device(self) -> Any:
        raise RuntimeError("there is no torch in this process")

    get_device_interface = get_active_torch_device


class FrozenLaunch:
    """A launch with all of its arguments fixed: one call of the launcher."""

    __slots__ = ("args", "kept", "run")

    def __init__(self, kernel: Any, grid: tuple[int, ...], stream: int, args: tuple[Any, ...], kept: Any) -> None:
        # `run` loads the module, so it is read before `function`.
        self.run = kernel.run
        # Without launch metadata and without the hooks that profilers set.
        self.args = (*(*grid, 1, 1)[:3], stream, kernel.function, kernel.packed_metadata, None, None, None, *args)
        self.kept = kept

    def __call__(self) -> None:
        self.run(*self.args)


def call(launch: Any, args: tuple[Any, ...]) -> Callable[[], None]:
    """The frozen call of a Launch on CuPy's current device and stream; compiles the kernel if need be.

    Raises Refused for a grid that the device does not take: another setting may have another one.
    """
    active = _driver()
    device = active.get_current_device()
    grid = launch.grid
    if launch.is_persistent:
        grid = (min(grid[0], active.num_processors(device)), *grid[1:])
    if prod(grid) >= 2**31 or any(n >= 2**16 for n in grid[1:]):
        raise Refused(f"{launch.kernel.__name__}: a GPU takes no grid of {grid}")
    pointers = tuple(argument(arg, DevicePointer) for arg in args)
    kernel = compiled(launch, pointers)
    addresses = tuple(arg.address if isinstance(arg, DevicePointer) else arg for arg in pointers)
    constants = tuple(launch.constants[name] for name in launch.kernel.arg_names[len(args) :])
    stream = active.get_current_stream(device)
    return FrozenLaunch(kernel, grid, stream, addresses + constants, args)


def compiled(launch: Any, pointers: Sequence[Any]) -> Any:
    """The kernel of a Launch, compiled for the chip that Triton is used with, or read from its cache."""
    options = {"num_warps": launch.warps, "num_stages": launch.stages, "grid": launch.grid}
    return launch.kernel.warmup(*pointers, **launch.constants, **options)


def capability() -> int:
    """The compute capability of CuPy's current device, times ten."""
    active = _driver()
    major, minor = active.get_device_capability(active.get_current_device())
    return 10 * int(major) + int(minor)


def argument(arg: Any, pointer: Callable[[Any], Any]) -> Any:
    """An argument of a Launch as Triton takes it; `pointer` makes a tensor of an array."""
    if hasattr(arg, "block"):
        return TensorDescriptor(pointer(arg.array), list(arg.shape), list(arg.steps), list(arg.block))
    return pointer(arg) if hasattr(arg, "strides") else arg


# One piece of working memory a device, stream and number: launches of one stream run one after the other.
_workspaces: dict[tuple[int, int, int], Any] = {}


def workspace(number: int, size: int, dtype: str) -> Any:
    """Scratch memory of `size` elements, which the next form on this device and stream may overwrite.

    A longer one replaces a shorter one; launches that were frozen with the shorter keep it.
    """
    cupy = import_module("cupy")
    which = (cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr, number)
    nbytes = size * cupy.dtype(dtype).itemsize
    if which not in _workspaces or _workspaces[which].size < nbytes:
        _workspaces[which] = cupy.empty(1 << (nbytes - 1).bit_length(), "uint8")
    return _workspaces[which][:nbytes].view(dtype)


def activate(active: Any) -> None:
    """Make this Triton's driver from now on."""
    triton.runtime.driver.set_active(active)
    with _without_torch():
        # Looks for torch when it is first called, and never again: an import of seconds.
        native_specialize_impl(BaseBackend, 1, False, True, True)


@cache
def _driver() -> CupyDriver:
    active = CupyDriver()
    activate(active)
    return active


class _TorchHider:
    """An import finder that hides torch."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "torch":
            raise ModuleNotFoundError("torch is not wanted", name=name)


@contextmanager
def _without_torch() -> Iterator[None]:
    """A context in which torch cannot be imported; if it was imported before, it stays."""
    sys.meta_path.insert(0, _TorchHider)
    try:
        yield
    finally:
        sys.meta_path.remove(_TorchHider)


def _utils() -> CudaUtils:
    """Triton's interface to the CUDA driver, a C module that it compiles when first used.

    Raises ValueError where that fails.
    """
    try:
        return CudaUtils()
    except (RuntimeError, SubprocessError) as error:
        lacking = "a C compiler and Python's headers (as of the packages gcc and python3-dev)"
        raise ValueError(f"Triton starts kernels by a module made with {lacking}, and that fails: {error}") from error


def _capability(cuda: Any, device: int) -> tuple[int, int]:
    attribute = cuda.runtime.deviceGetAttribute
    return attribute(_MAJOR, device), attribute(_MINOR, device)
