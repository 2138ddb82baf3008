"""Kernels compiled for chips that are not there, and the resources of their code: registers, spills, shared memory and
occupancy. It does not know how long they take.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import triton
from triton.runtime.jit import compute_cache_key
from triton.tools.tensor_descriptor import TensorDescriptor

from castile.kernels.estimates.chips import CHIPS
from castile.kernels.triton import chip as absent
from castile.kernels.triton.launch import BlockDescriptor, Launch, Workspace
from castile.kernels.triton.views import View

_REGISTERS, WARPS, _BLOCKS = 65536, 64, 32
# The operation of an instruction that does nothing.
_NOTHING = 0x918


@dataclass(frozen=True)
class Compiled:
    """One kernel for one chip, as its cubin has it. `stack` is where spilled registers would lie."""

    name: str
    chip: int
    instructions: int
    registers: int
    stack: int
    shared: int
    warps: int
    ptx: str

    @property
    def warps_at_once(self) -> int:
        """Warps that one processor holds at the same time."""
        return self.warps * self.held(self.registers)

    def held(self, registers: int) -> int:
        """Programs that one processor holds where a thread has so many registers."""
        by_registers = _REGISTERS // (-(-registers // 8) * 8 * 32 * self.warps)
        by_shared = (CHIPS[self.chip].shared_bytes + 1024) // (self.shared + 1024)
        return min(by_registers, by_shared, WARPS // self.warps, _BLOCKS)


class Pointer:
    """An aligned address that nobody follows."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)

    def data_ptr(self) -> int:
        return 16


def code(launch: Launch, chip: int) -> str:
    """What decides the code that a launch compiles to, as a hash: it is the same for many shapes."""
    known, (_, specialization, options) = _bound(launch, chip)
    decides = compute_cache_key(known, specialization, options)
    return sha256(f"{triton.__version__} {chip} {launch.kernel.cache_key} {decides}".encode()).hexdigest()


def specialised(launch: Launch, chip: int) -> list[Any]:
    """What Triton makes special of the arguments of a launch that are no constants."""
    _, specialization, _ = _bound(launch, chip)[1]
    return [one for one in specialization if one[0] != "constexpr"]


def _bound(launch: Launch, chip: int) -> tuple[dict[Any, str], Any]:
    """Keys that are known to Triton, and its arguments, what it makes special of them, and its options."""
    triton.runtime.driver.set_active(absent.Chip(chip))
    _, known, _, _, bind = launch.kernel.device_caches[chip]
    return known, bind(*map(_argument, launch.args), **launch.constants, **_options(launch))


def _options(launch: Launch) -> dict[str, Any]:
    return {"num_warps": launch.warps, "num_stages": launch.stages}


def compiled(launch: Launch, chip: int) -> Compiled:
    """The kernel of a launch, specialised as a real launch with aligned arrays would have it."""
    triton.runtime.driver.set_active(absent.Chip(chip))
    made = launch.kernel.warmup(*map(_argument, launch.args), **launch.constants, **_options(launch), grid=(1,))
    name = launch.kernel.__name__
    assert made.metadata.global_scratch_size == 0, f"{name} wants memory of Triton, which a captured step cannot give"
    instructions, registers, stack = _resources(made.asm["cubin"])
    return Compiled(name, chip, instructions, registers, stack, made.metadata.shared, launch.warps, made.asm["ptx"])


def parameters(launch: Launch, chip: int) -> list[int | None]:
    """What the compiled kernel of a launch is given: places far apart for arrays, None for what is no whole number."""
    _, specialization, _ = _bound(launch, chip)[1]
    found: list[int | None] = []
    for kind, arg in _flat([one[0] for one in specialization], launch.args):
        if kind.startswith("tensordesc"):
            found += [None, *arg.shape, *arg.steps]
        elif kind.startswith("*"):
            found.append(len(found) + 1 << 44)
        elif kind != "constexpr":
            found.append(arg if isinstance(arg, int) else None)
    # Working memory of Triton's own, which no kernel wants.
    return [*found, None, None]


def _flat(kinds: Any, args: Any) -> Iterator[tuple[str, Any]]:
    for kind, arg in zip(kinds, args, strict=False):
        if isinstance(kind, tuple):
            yield from _flat(kind, arg)
        else:
            yield kind, arg


def _argument(arg: Any) -> Any:
    if isinstance(arg, BlockDescriptor):
        return TensorDescriptor(Pointer(arg.array.dtype), list(arg.shape), list(arg.steps), list(arg.block))
    inner = arg.array if isinstance(arg, View) else arg
    return Pointer(inner.dtype) if isinstance(inner, Workspace) or hasattr(inner, "strides") else arg


def _resources(cubin: bytes) -> tuple[int, int, int]:
    """Instructions, registers of a thread and bytes of its stack: the latter from what ptxas leaves in .nv.info."""
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, _ = struct.unpack_from("<HHH", cubin, 0x3A)
    (strings,) = struct.unpack_from("<H", cubin, 0x3E)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + n * size) for n in range(count)]
    names = sections[strings][4]
    found: dict[int, int] = {}
    instructions = 0
    for section in sections:
        name, content = names + section[0], cubin[section[4] : section[4] + section[5]]
        word = cubin[name : cubin.index(b"\0", name)]
        if word == b".nv.info":
            found |= _attributes(content)
        elif word.startswith(b".text."):
            # Of 16 bytes each; those that do nothing fill up the end.
            words = struct.unpack(f"<{len(content) // 8}Q", content)[::2]
            instructions += sum(one & 0xFFF != _NOTHING for one in words)
    return instructions, found[0x2F], found[0x11]


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
