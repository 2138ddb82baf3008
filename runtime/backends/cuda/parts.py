"""Parts: a GPU as several, each with multiprocessors of its own, by green contexts of the driver.

Memory and its bandwidth stay common to all parts. It does not know what runs on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import cupy

# A context's multiprocessors are a multiple of this: what every architecture from Hopper on asks for.
GRAIN = 8
PACKAGE = "cuda-bindings"
# The priority of transfers: other ranks wait for them, and they find no room while a kernel has blocks to start.
SOONER = -1


@dataclass(frozen=True, eq=False)
class Place:
    """Where a processor's work runs: a stream of kernels and one of transfers; `kept` holds what they need."""

    compute: Any
    traffic: Any
    kept: Any = None


# Of each device that is divided its parts; of others what each processor has there.
_PARTS: dict[int, tuple[Place, ...]] = {}
_PLACES: dict[tuple[int, int], Place] = {}


def split(num_parts: int) -> float:
    """Divides the current device among processors from here on; the share of its multiprocessors that each has.

    Raises ValueError where the driver cannot, or its library is missing.
    """
    total, groups = _groups(num_parts)
    device = cupy.cuda.runtime.getDevice()
    if len(_PARTS.get(device, ())) != num_parts:
        _PARTS[device] = tuple(_place(device, group) for group in groups)
    return int(groups[0].sm.smCount) / total


def most() -> int:
    """Into how many parts the driver divides the current device. Raises ValueError as `split` does."""
    return len(_groups_of(*_device(), GRAIN))


def place(proc: int) -> Place:
    """The streams of a processor on the current device, those of its part where that is divided: all its graphs share
    them, and with them the working memory of kernels.
    """
    device = cupy.cuda.runtime.getDevice()
    if found := _PARTS.get(device):
        return found[proc % len(found)]
    if (device, proc) not in _PLACES:
        streams = [cupy.cuda.Stream(non_blocking=True, priority=priority) for priority in (0, SOONER)]
        _PLACES[device, proc] = Place(*streams)
    return _PLACES[device, proc]


class _Outside:
    """A stream that CuPy did not make."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address


def _groups(num_parts: int) -> tuple[int, list[Any]]:
    """The device's multiprocessors, and as many equal groups of them, as large as the driver makes them.

    Groups lie within what multiprocessors share, so that there may be fewer of a size than the whole has room for.
    """
    driver, whole = _device()
    total = int(whole.sm.smCount)
    for size in range(total // num_parts // GRAIN * GRAIN, 0, -GRAIN):
        if len(groups := _groups_of(driver, whole, size)) >= num_parts:
            return total, groups[:num_parts]
    least = len(_groups_of(driver, whole, GRAIN))
    raise ValueError(f"this GPU has {total} multiprocessors: at most {least} parts of {GRAIN}")


def _device() -> tuple[Any, Any]:
    """The driver, and the multiprocessors of the current device."""
    driver = _driver()
    # Makes the device's own context, which the parts share memory and modules with.
    cupy.cuda.runtime.memGetInfo()
    device = _checked(driver.cuDeviceGet(cupy.cuda.runtime.getDevice()))
    return driver, _checked(driver.cuDeviceGetDevResource(device, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))


def _groups_of(driver: Any, whole: Any, size: int) -> list[Any]:
    """All groups of so many multiprocessors that the driver makes."""
    groups, count, _ = _checked(driver.cuDevSmResourceSplitByCount(int(whole.sm.smCount) // size, whole, 0, size))
    return list(groups[:count])


def _place(device: int, group: Any) -> Place:
    driver = _driver()
    description = _checked(driver.cuDevResourceGenerateDesc([group], 1))
    flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    context = _checked(driver.cuGreenCtxCreate(description, _checked(driver.cuDeviceGet(device)), flags))
    flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
    streams = [_checked(driver.cuGreenCtxStreamCreate(context, flags, 0)) for _ in range(2)]
    compute, traffic = (cupy.cuda.Stream.from_external(_Outside(int(stream))) for stream in streams)
    return Place(compute, traffic, (description, context, streams))


def _driver() -> Any:
    try:
        driver = import_module("cuda.bindings.driver")
    except ImportError as error:
        raise ValueError(f"parts of a GPU need the library {PACKAGE}: pip install {PACKAGE}") from error
    if not hasattr(driver, "cuGreenCtxStreamCreate"):
        raise ValueError(f"parts of a GPU need a newer {PACKAGE}: pip install -U {PACKAGE}")
    return driver


def _checked(answer: tuple[Any, ...]) -> Any:
    """What a call of the driver gave besides its status. Raises ValueError with its word where it has failed."""
    status, *found = answer
    if int(status):
        raise ValueError(f"the driver does not divide this GPU: {getattr(status, 'name', status)}")
    return found[0] if len(found) == 1 else found
