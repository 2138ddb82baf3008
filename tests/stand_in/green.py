"""What `from cuda.bindings import driver` gives in tests: as much of CUDA's driver as divides a device, by its rules.

A stream of a green context is one of the stand-in's that knows its multiprocessors. Nothing here shows that kernels
keep to them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.stand_in.cupy import cuda

MULTIPROCESSORS = 132
GRAIN = 8


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION = 914


class CUdevResourceType(IntEnum):
    CU_DEV_RESOURCE_TYPE_SM = 1


class CUgreenCtxCreate_flags(IntEnum):
    CU_GREEN_CTX_DEFAULT_STREAM = 1


class CUstream_flags(IntEnum):
    CU_STREAM_NON_BLOCKING = 1


@dataclass
class Resource:
    """Multiprocessors by number."""

    numbers: range
    sm: Any = field(init=False)

    def __post_init__(self) -> None:
        self.sm = SimpleNamespace(smCount=len(self.numbers))


@dataclass
class Context:
    """A green context: some multiprocessors of a device."""

    numbers: range
    device: int


def cuDeviceGet(number: int) -> tuple[Any, ...]:
    return CUresult.CUDA_SUCCESS, number


def cuDeviceGetDevResource(device: int, kind: int) -> tuple[Any, ...]:
    assert kind == CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    return CUresult.CUDA_SUCCESS, Resource(range(MULTIPROCESSORS))


def cuDevSmResourceSplitByCount(wanted: int, whole: Resource, flags: int, least: int) -> tuple[Any, ...]:
    """Groups of `least` rounded up to the grain, as many as there is room for."""
    size = -(-least // GRAIN) * GRAIN
    if not size:
        return CUresult.CUDA_ERROR_INVALID_VALUE, None, 0, None
    count = min(wanted, len(whole.numbers) // size)
    groups = [Resource(whole.numbers[n * size : (n + 1) * size]) for n in range(count)]
    return CUresult.CUDA_SUCCESS, groups, count, Resource(whole.numbers[count * size :])


def cuDevResourceGenerateDesc(groups: list[Resource], count: int) -> tuple[Any, ...]:
    assert len(groups) == count == 1
    return CUresult.CUDA_SUCCESS, groups[0]


def cuGreenCtxCreate(description: Resource, device: int, flags: int) -> tuple[Any, ...]:
    assert flags == CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    return CUresult.CUDA_SUCCESS, Context(description.numbers, device)


def cuGreenCtxStreamCreate(context: Context, flags: int, priority: int) -> tuple[Any, ...]:
    if flags != CUstream_flags.CU_STREAM_NON_BLOCKING:
        return CUresult.CUDA_ERROR_INVALID_VALUE, None
    stream = cuda.Stream(non_blocking=True)
    stream.multiprocessors = context.numbers
    return CUresult.CUDA_SUCCESS, stream.ptr


def modules() -> dict[str, ModuleType]:
    """What stands in sys.modules where cuda-bindings is installed."""
    driver = ModuleType("cuda.bindings.driver")
    vars(driver).update({name: made for name, made in globals().items() if name.startswith(("cu", "CU"))})
    bindings, above = ModuleType("cuda.bindings"), ModuleType("cuda")
    bindings.driver, above.bindings = driver, bindings  # type: ignore[attr-defined]
    return dict(zip(("cuda", "cuda.bindings", "cuda.bindings.driver"), (above, bindings, driver)))
