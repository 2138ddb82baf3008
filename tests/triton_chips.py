"""Kernels compiled for chips that are not there, and what can be told of them without running: registers, spills,
shared memory, how many warps fit at once, and how long the memory and the arithmetic need at least.
"""

import struct
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.tools.tensor_descriptor import TensorDescriptor

from castile.kernels.triton.launch import Blocks, Launch, Room
from castile.kernels.triton.views import View


@dataclass(frozen=True)
class Chip:
    """What NVIDIA says of a chip: A100, H200 and B200 by compute capability; rates dense."""

    processors: int
    shared_bytes: int
    bytes_per_second: float
    bf16_flops_per_second: float
    tf32_flops_per_second: float
    fp32_flops_per_second: float


CHIPS = {
    80: Chip(108, 166912, 2.0e12, 3.12e14, 1.56e14, 1.95e13),
    90: Chip(132, 232448, 4.8e12, 9.89e14, 4.94e14, 6.7e13),
    100: Chip(148, 232448, 8.0e12, 2.25e15, 1.1e15, 7.5e13),
}
_REGISTERS, _WARPS, _BLOCKS = 65536, 64, 32


@dataclass(frozen=True)
class Compiled:
    """One kernel for one chip, as its cubin has it. `stack` is where spilled registers would lie."""

    name: str
    chip: int
    registers: int
    stack: int
    shared: int
    warps: int
    ptx: str

    @property
    def warps_at_once(self) -> int:
        """Warps that one processor holds at the same time."""
        by_registers = _REGISTERS // (-(-self.registers // 8) * 8 * 32 * self.warps)
        by_shared = (CHIPS[self.chip].shared_bytes + 1024) // (self.shared + 1024)
        return self.warps * min(by_registers, by_shared, _WARPS // self.warps, _BLOCKS)


class NoDevice(DriverBase):  # type: ignore[misc]
    """A driver that compiles for a chip and runs nothing."""

    def __init__(self, chip: int) -> None:
        self.chip = chip

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.chip, 32)

    def get_active_torch_device(self) -> Any:
        raise NotImplementedError

    def get_benchmarker(self) -> Any:
        raise NotImplementedError

    def get_current_device(self) -> int:
        # Triton keeps what it compiled by device.
        return self.chip

    def get_current_stream(self, device: int) -> int:
        return 0


class Pointer:
    """An aligned address that nobody follows."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)

    def data_ptr(self) -> int:
        return 16


def compiled(launch: Launch, chip: int) -> Compiled:
    """The kernel of a launch, specialised as a real launch with aligned arrays would have it."""
    triton.runtime.driver.set_active(NoDevice(chip))
    args = [_argument(arg) for arg in launch.args]
    options = {"num_warps": launch.warps, "num_stages": launch.stages, "grid": (1,)}
    made = launch.kernel.warmup(*args, **launch.constants, **options)
    name = launch.kernel.__name__
    assert made.metadata.global_scratch_size == 0, f"{name} wants memory of Triton, which a captured step cannot give"
    registers, stack = _resources(made.asm["cubin"])
    return Compiled(name, chip, registers, stack, made.metadata.shared, launch.warps, made.asm["ptx"])


def _argument(arg: Any) -> Any:
    if isinstance(arg, Blocks):
        return TensorDescriptor(Pointer(arg.array.dtype), list(arg.shape), list(arg.steps), list(arg.block))
    inner = arg.array if isinstance(arg, View) else arg
    return Pointer(inner.dtype) if isinstance(inner, Room) or hasattr(inner, "strides") else arg


def moved_bytes(launch: Launch) -> int:
    """Bytes that a launch has to move: every array and Room of its arguments once, and no element twice."""
    if launch.nbytes is not None:
        return launch.nbytes
    views = [arg for arg in launch.args if isinstance(arg, View)]
    seen = sum(
        prod(size for size, step in zip(one.shape, one.steps, strict=True) if step) * np.dtype(one.array.dtype).itemsize
        for one in views
    )
    plain = [arg for arg in launch.args if not isinstance(arg, View) and hasattr(arg, "strides")]
    return seen + sum(x.size * x.itemsize for x in plain)


def least_seconds(launch: Launch, chip: int) -> float:
    """What memory or arithmetic alone would take, whichever is longer."""
    about = CHIPS[chip]
    rate = about.fp32_flops_per_second
    if launch.tensor_cores:
        # Sums in parts are written in float32, whatever is multiplied.
        inner = (arg.array if isinstance(arg, View | Blocks) else arg for arg in launch.args)
        half = any(np.dtype(one.dtype).itemsize == 2 for one in inner if hasattr(one, "dtype"))
        rate = about.bf16_flops_per_second if half else about.tf32_flops_per_second
    return max(moved_bytes(launch) / about.bytes_per_second, launch.flops / rate)


def told(launch: Launch, made: Compiled) -> str:
    """A line of the estimate."""
    chip = CHIPS[made.chip]
    at_once = chip.processors * max(1, made.warps_at_once // made.warps)
    waves = prod(launch.grid) / at_once
    return (
        f"sm_{made.chip} {made.name:24} {moved_bytes(launch) / 1e6:9.2f} MB {launch.flops / 1e9:9.2f} GF "
        f"{least_seconds(launch, made.chip) * 1e6:8.1f} us at least; {made.registers:3} registers, "
        f"{made.shared / 1024:5.1f} KB, {made.warps_at_once:2} of {_WARPS} warps, {waves:7.2f} waves"
    )


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread and bytes of its stack, from the attributes that ptxas leaves in .nv.info."""
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, _ = struct.unpack_from("<HHH", cubin, 0x3A)
    (strings,) = struct.unpack_from("<H", cubin, 0x3E)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + n * size) for n in range(count)]
    names = sections[strings][4]
    found: dict[int, int] = {}
    for section in sections:
        name = names + section[0]
        if cubin[name : cubin.index(b"\0", name)] == b".nv.info":
            found |= _attributes(cubin[section[4] : section[4] + section[5]])
    return found[0x2F], found[0x11]


def _attributes(info: bytes) -> dict[int, int]:
    found, at = {}, 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == 4:
            if size == 8:
                found[attribute] = struct.unpack_from("<II", info, at)[1]
            at += size
    return found
