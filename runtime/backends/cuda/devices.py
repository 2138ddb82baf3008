"""The GPUs of this host: how many there are, which one a rank takes, and the rates that a roofline needs.

It does not know plans or machines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cupy

MATRIX = 4096
COPIED_BYTES = 2**30
NUM_NODES = 256
REPETITIONS = 5
MILLISECONDS = 1e-3


@dataclass(frozen=True)
class Device:
    """The current device; what other programs and the driver hold of its memory is reserved."""

    name: str
    memory_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class Rates:
    """What the current device reaches, by library calls that others do not disturb: products, copies, and a task's own
    cost in a captured step.
    """

    float32_flops_per_second: float
    float16_flops_per_second: float
    float64_flops_per_second: float
    bytes_per_second: float
    task_overhead_seconds: float


def count() -> int:
    """The devices that this process may use, 0 without a driver."""
    return int(cupy.cuda.runtime.getDeviceCount()) if cupy.cuda.is_available() else 0


def why_none() -> str:
    """Why this process may use no device, in words."""
    known, wanted = cupy.cuda.runtime.driverGetVersion(), cupy.cuda.runtime.runtimeGetVersion()
    if known // 1000 < wanted // 1000:
        return f"the driver knows CUDA {_spelt(known)}, and CuPy here needs {wanted // 1000}.0: bring a newer driver"
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return str(error)
    return "the driver shows none"


def use(local_rank: int) -> None:
    """Makes a device the current one of this thread: ranks of a host take them in turn."""
    cupy.cuda.Device(local_rank % count()).use()


def bus() -> str:
    """Where the current device sits on its host: its name there, whatever number each process knows it by."""
    return str(cupy.cuda.Device().pci_bus_id)


def current() -> Device:
    """The device that `use` chose."""
    number = cupy.cuda.runtime.getDevice()
    name = cupy.cuda.runtime.getDeviceProperties(number)["name"].decode()
    free, total = cupy.cuda.runtime.memGetInfo()
    return Device(name, total, total - free)


def _spelt(version: int) -> str:
    """CUDA's version as people write it: 12080 is 12.8."""
    return f"{version // 1000}.{version % 1000 // 10}"


def rates() -> Rates:
    """Measured now, in about half a second."""
    with cupy.cuda.Stream(non_blocking=True) as stream:
        single, half, double = (2 * MATRIX**3 / _product(stream, dtype) for dtype in ("float32", "float16", "float64"))
        found = Rates(single, half, double, 2 * COPIED_BYTES / _copy(stream), _node(stream))
    # A plan counts on this memory.
    cupy.get_default_memory_pool().free_all_blocks()
    return found


def _product(stream: cupy.cuda.Stream, dtype: str) -> float:
    random = cupy.random.RandomState(0)
    a, b = (random.standard_normal((MATRIX, MATRIX), dtype="float32").astype(dtype) for _ in range(2))
    out = cupy.empty_like(a)
    return _seconds(stream, lambda: cupy.matmul(a, b, out=out))


def _copy(stream: cupy.cuda.Stream) -> float:
    source, target = (cupy.empty(COPIED_BYTES, "uint8") for _ in range(2))
    return _seconds(stream, lambda: target.data.copy_from_device_async(source.data, COPIED_BYTES, stream))


def _node(stream: cupy.cuda.Stream) -> float:
    """Seconds of a kernel that does nothing to speak of, among others like it in a graph."""
    word = cupy.zeros(1, "float32")
    word += 1
    stream.begin_capture()
    for _ in range(NUM_NODES):
        cupy.add(word, 1, out=word)
    graph = stream.end_capture()
    return _seconds(stream, lambda: graph.launch(stream)) / NUM_NODES


def _seconds(stream: cupy.cuda.Stream, work: Callable[[], object]) -> float:
    """The shortest of some runs, the first left out."""
    lasted = []
    for _ in range(1 + REPETITIONS):
        begun, ended = cupy.cuda.Event(), cupy.cuda.Event()
        begun.record(stream)
        work()
        ended.record(stream)
        ended.synchronize()
        lasted.append(cupy.cuda.get_elapsed_time(begun, ended) * MILLISECONDS)
    return min(lasted[1:])
