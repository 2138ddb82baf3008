"""GPUs of this host: the machine `local` where there are any, and how ranks on them communicate.

It does not know plans. Without CuPy and a driver it finds none, and nothing else here is called.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import msgspec

from castile.launch.here import consistency, probe
from castile.launch.processes import installing
from castile.launch.reports import progress
from castile.planner.costs.snapshot import Environment
from castile.runtime import machine as machines
from castile.runtime.comm.base import Communicator
from castile.runtime.machine import Level, Machine, Processor
from castile.runtime.processor import SHARES

KIND = "gpu"
# The machine whose processors are parts of one GPU, all of them of one rank.
VIRTUAL = "virtual"
# What the device computes; other kinds of numbers would take their way through the host.
DTYPES = ("float32", "float16", "bfloat16")
PACKAGES = ("cupy-cuda13x", "cupy-cuda12x", "triton")
# Where NVIDIA's driver shows a folder for each GPU of this host.
DRIVERS = Path("/proc/driver/nvidia/gpus")
# Of each device's memory, besides what is taken already: libraries, what kernels want for themselves.
LIBRARIES_BYTES = 2**30
# And NCCL's buffers, made when a step first needs them: of each channel 10 MiB to receive in and 2 MiB to send from.
# On a Hopper 32 channels lead to each peer that messages and exchanges go to, and 24 make the ring of a group; a rank
# is in two groups or so.
PEER_BYTES, RING_BYTES, NUM_RINGS = 32 * 12 * 2**20, 24 * 12 * 2**20, 2
# The machine of the chip on which it was measured what kernels attain of a GPU's rates; and those of chips whose data
# sheets promise as many operations, by what drivers call them.
MEASURED = "h200"
SHEETS = {
    "NVIDIA H200": MEASURED,
    "NVIDIA H100 80GB HBM3": "dgx-h100",
    "NVIDIA A100-SXM4-80GB": "dgx-a100",
    "NVIDIA A100-SXM4-40GB": "dgx-a100",
    "NVIDIA A100 80GB PCIe": "dgx-a100",
    "NVIDIA A100-PCIE-40GB": "dgx-a100",
}
# In place of links between cores, until transfers have been measured: between GPUs of a host a hop of NCCL's rings over
# NVLink, by its own model, and a rate that is low for NVLink, high for ways through the host; between hosts both are
# assumed, low for InfiniBand, high for Ethernet.
LINKS = {"host": Level("gpus", 1, 3.4e-6, 5e10), "network": Level("network", 1, 2e-5, 1e10)}
INSTALLING = installing.line("castile[gpu]")
# Who starts ranks says which GPUs they see.
MEND = "CUDA_VISIBLE_DEVICES says which GPUs a rank sees"


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured of a GPU."""

    name: str
    memory_bytes: int
    reserved_bytes: int
    float32_flops_per_second: float
    float16_flops_per_second: float
    float64_flops_per_second: float
    bytes_per_second: float
    task_overhead_seconds: float


@dataclass(frozen=True)
class Placing:
    """How the ranks of a job are placed on GPUs.

    num_sharers      ranks on one GPU, at most
    num_near         ranks on one host, at most
    reserved_bytes   memory of one GPU that other processes hold, at most
    """

    num_sharers: int = 1
    num_near: int = 1
    reserved_bytes: int = 0


def is_meant(text: str, dtype: str) -> bool:
    """Whether a machine's name means GPUs of this host: `local` or `virtual`, where there are any for that dtype."""
    return _may_be_meant(text, dtype) and count() > 0


def is_on(machine: Machine) -> bool:
    """Whether its processors are GPUs."""
    return all(processor.kind == KIND for processor in machine.processors)


def is_virtual(machine: Machine) -> bool:
    """Whether its processors are parts of one GPU."""
    return machine.name.partition(":")[0] == VIRTUAL


def count() -> int:
    """The GPUs that this process may use: those that the driver shows, or 0 where CuPy or Triton is missing."""
    return _devices().count() if find_spec("cupy") and find_spec("triton") else 0


def unused() -> str:
    """Why this host's GPUs are not used, "" where they are, where it has none and where nobody wants them."""
    if count() or not DRIVERS.is_dir() or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return ""
    missing = [name for name, module in (("CuPy", "cupy"), ("Triton", "triton")) if not find_spec(module)]
    if missing:
        return f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not installed: {INSTALLING}"
    return str(_devices().why_none())


def check(comm: Communicator, text: str, named: Machine, dtype: str) -> None:
    """Raises UserError, on all ranks, where that machine means GPUs on some ranks, and others have none."""
    if _may_be_meant(text, dtype) or is_on(named):
        consistency.check_ranks(comm, "what steps run on", "GPUs" if count() else "cores alone", MEND)


def use(local_rank: int) -> None:
    """Let this process use the GPU of its rank on this host. The first rank shows the progress of compiling."""
    from castile.runtime.backends.cuda import kernels

    _devices().use(local_rank)
    kernels.WATCH.set(partial(progress.bar, local_rank == 0, "compiling"))


def split(num_parts: int) -> None:
    """Divide the GPU in use among processors of this rank. Raises ValueError with a reason where that is impossible."""
    _parts().split(num_parts)


def environment(kernels: str, active_ranks: int) -> Environment:
    """The environment in which the GPU in use is measured; `kernels` is the hash of their sources."""
    here = probe.environment(kernels, active_ranks)
    name = _devices().current().name
    return msgspec.structs.replace(here, device=name, libraries=", ".join([here.libraries, *_versions()]))


@cache
def measure() -> Figures:
    """Figures of the GPU in use, in about a second; a process measures once."""
    device, rates = _devices().current(), _devices().rates()
    return Figures(
        device.name,
        device.memory_bytes,
        device.reserved_bytes,
        rates.float32_flops_per_second,
        rates.float16_flops_per_second,
        rates.float64_flops_per_second,
        rates.bytes_per_second,
        rates.task_overhead_seconds,
    )


def check_kind(comm: Communicator) -> None:
    """Raises UserError, on all ranks, where the GPUs in use are not of one kind.

    They would round differently, and kernels are tuned for all on one of them.
    """
    consistency.check_ranks(comm, "the GPU", _devices().current().name, MEND)


def placing(comm: Communicator) -> Placing:
    """How ranks are placed on GPUs; every rank calls it after it chose its own.

    The GPUs that a rank sees do not tell: launchers may show each rank only its own.
    """
    mine = comm.host_index, _devices().bus(), _devices().current().reserved_bytes
    gathered = [json.loads(one) for one in comm.gather_bytes(json.dumps(mine).encode()) or []]
    taken = Counter((host, bus) for host, bus, _ in gathered)
    reserved = max((nbytes for _, _, nbytes in gathered), default=0)
    return Placing(max(taken.values(), default=1), max(comm.host_sizes), reserved)


def named(meant: Machine, placed: Placing) -> Machine:
    """The machine of a name that `is_meant`, as `virtual` or `machine` make it of the GPU in use."""
    return virtual(meant.num_procs) if is_virtual(meant) else machine(meant, placed)


def virtual(procs: int) -> Machine:
    """The GPU in use as `procs` processors with equal shares of it."""
    whole = machine(machines.local(1), Placing()).processors[0]
    # A copy waits for an event and is waited for, and reads and writes each byte.
    links = (Level("device", procs, 2 * whole.task_overhead_seconds, whole.bytes_per_second / 2),) if procs > 1 else ()
    found = Machine(f"{VIRTUAL}:procs={procs}", (whole,) * procs, links, algorithms=("exchange",))
    return machines.divided(found)


def machine(cores: Machine, placed: Placing) -> Machine:
    """A machine with GPUs like the one in use in place of cores; ranks that share a GPU have equal parts of its memory
    and rates. It has the data sheet's peaks where these are known.
    """
    figures, num_sharers = measure(), placed.num_sharers
    (like, *_) = machines.parse(SHEETS.get(figures.name, MEASURED)).kinds
    memory = figures.memory_bytes // num_sharers
    reserved = max(figures.reserved_bytes, placed.reserved_bytes) + _buffers(placed.num_near, cores.num_procs)
    processor = Processor(
        KIND,
        figures.float32_flops_per_second / num_sharers,
        figures.bytes_per_second / num_sharers,
        memory,
        min(reserved // num_sharers + LIBRARIES_BYTES, memory // 2),
        figures.task_overhead_seconds,
        figures.float16_flops_per_second / num_sharers,
        figures.float64_flops_per_second / num_sharers,
        **{field: getattr(like, field) for field in SHARES},
    )
    if figures.name in SHEETS:
        # A share of them is asked for, and one above 1 would be none.
        peaks = [(dtype, max(peak / num_sharers, processor.flops_rate(dtype))) for dtype, peak in like.peaks]
        processor = msgspec.structs.replace(processor, peaks=tuple(peaks))
    levels = tuple(
        msgspec.structs.replace(LINKS[level.name], group=level.group, shared_by=level.shared_by)
        for level in cores.levels
    )
    # sums go by NCCL's rings where each rank has its GPU; transfers of a processor share the stream that they are put
    # onto, as on a core they share what copies
    algorithms = ("ring",) if num_sharers == 1 else cores.algorithms
    return Machine(cores.name, (processor,) * cores.num_procs, levels, cores.engines, algorithms)


def _buffers(num_near: int, num_ranks: int) -> int:
    """Bytes of each GPU that NCCL takes where all ranks on a host send to each other."""
    return (num_near - 1) * PEER_BYTES + NUM_RINGS * RING_BYTES if num_ranks > 1 else 0


def joined(comm: Communicator) -> tuple[Communicator, str]:
    """The communicator for ranks whose GPUs are in use, and how arrays travel, in words. All ranks call it."""
    from castile.runtime.comm import nccl

    chosen: tuple[Communicator, str] = nccl.choose(comm)
    return chosen


def ways_to_talk() -> str:
    """How ranks on the GPUs of this host would communicate, one on each or, where there is one GPU, two on it."""
    from castile.runtime.comm import nccl, seats

    num_gpus, may_share = count(), os.environ.get(seats.SHARING_SWITCH) == "1"
    each = [seats.Seat("", str(rank % num_gpus), nccl.version(), may_share) for rank in range(max(2, num_gpus))]
    return seats.verdict(each)[1]


def most_parts() -> tuple[int, str]:
    """The number of virtual devices that the first GPU can be divided into, and a description; 0 and the reason if it
    cannot.
    """
    try:
        most = _parts().most()
    except ValueError as error:
        return 0, str(error)
    return most, f"up to {most} on a GPU (--machine {VIRTUAL}:procs=2)"


def _may_be_meant(text: str, dtype: str) -> bool:
    return text.partition(":")[0] in ("local", VIRTUAL) and dtype in DTYPES


def _versions() -> Iterator[str]:
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            yield f"{name} {version(name)}"


def _parts() -> ModuleType:
    from castile.runtime.backends.cuda import parts

    return parts


def _devices() -> ModuleType:
    from castile.runtime.backends.cuda import devices

    return devices
