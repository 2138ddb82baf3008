"""Hosts: the machine `local` with measured figures of each host and of the links between them, instead of assumed ones.

It does not know how a host or a link is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import msgspec

from castile.launch.here import link_timing, probe
from castile.launch.here.link_timing import Link
from castile.launch.here.probe import Figures
from castile.runtime import cores
from castile.runtime import machine as machines
from castile.runtime.comm.base import Communicator
from castile.runtime.machine import Level, Machine, Processor

# The level of links between hosts.
NETWORK = "network"
# About what a message between hosts takes, and how many bytes go in a second.
GUESS = (2e-4, 2.5e8)


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A host of the job, as its first rank describes it.

    kind           equal for hosts that should attain the same
    memory_bytes   of each processor
    """

    kind: str
    memory_bytes: int
    figures: Figures


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Figures of the links between hosts."""

    hosts: tuple[str, ...]
    link: Link


def measured(named: Machine, comm: Communicator | None = None) -> Machine:
    """A machine that the user names; `local` with measured figures instead of assumed ones.

    Every rank calls it; rank 0's result is the one to broadcast.
    """
    if named.name.partition(":")[0] != "local":
        return named
    if comm is None or comm.size != named.num_procs:
        # this host stands for all
        near = None if comm is None else comm.near
        mine = Host("", named.processors[0].memory_bytes, probe.of_host(near, each(named)))
        return _with(named, [mine] * named.num_procs, probe.kept(_path(named.num_procs // each(named)), Network))
    here = machines.hosts(comm.host_sizes)
    kind = probe.cache_path(comm.local_size, cores.together(comm.near)).name
    mine = Host(kind, here.processors[0].memory_bytes, probe.of_host(comm.near, comm.local_size))
    gathered = comm.gather_bytes(msgspec.json.encode(mine))
    hosts = [msgspec.json.decode(one, type=Host) for one in gathered or []] or [mine] * comm.size
    return _with(named, hosts, _network(comm) if len(comm.host_sizes) > 1 else None)


def each(machine: Machine) -> int:
    """How many of a machine's processors share a host's memory: those in a group of the level below the network."""
    below = [level.group for level in machine.levels if level.name != NETWORK]
    return below[-1] if below else 1


def _with(named: Machine, hosts: Sequence[Host], network: Network | None) -> Machine:
    """The machine with the figures of each processor's host, and with measured links.

    Hosts of equal kind have the figures of the first of them; all have the memory of the poorest.
    """
    alike: dict[str, Figures] = {}
    for host in hosts:
        alike.setdefault(host.kind, host.figures)
    memory = min(host.memory_bytes for host in hosts)
    processors = tuple(_processor(p, alike[host.kind], memory) for p, host in zip(named.processors, hosts, strict=True))
    levels = tuple(_level(level, hosts[0].figures, network) for level in named.levels)
    return Machine(named.name, processors, levels, named.engines, named.algorithms)


def _processor(assumed: Processor, figures: Figures, memory_bytes: int) -> Processor:
    return msgspec.structs.replace(
        assumed,
        flops_per_second=figures.float32_flops_per_second,
        float64_flops_per_second=figures.float64_flops_per_second,
        bytes_per_second=figures.bytes_per_second,
        task_overhead_seconds=figures.task_overhead_seconds,
        row_seconds=figures.row_seconds,
        look_seconds=figures.look_seconds,
        memory_bytes=memory_bytes,
    )


def _level(assumed: Level, figures: Figures, network: Network | None) -> Level:
    link = figures.link if assumed.name != NETWORK else network.link if network else None
    return assumed if link is None else msgspec.structs.replace(assumed, **msgspec.structs.asdict(link))


def _network(comm: Communicator) -> Network | None:
    """Figures of the links between these hosts, on rank 0: stored ones, or measured now by the first ranks of pairs of
    hosts.
    """
    names = comm.gather_bytes(comm.host.encode())
    firsts = list(accumulate(comm.host_sizes[:-1], initial=0))
    hosts = tuple(names[first].decode() for first in firsts) if names else ()
    path = _path(len(firsts))
    found = probe.kept(path, Network) if comm.rank == 0 else None
    is_known = found is not None and found.hosts == hosts
    if comm.bcast_bytes(bytes([is_known])) == bytes([True]):
        return found
    link = link_timing.link(comm, firsts, GUESS, comm.crowded)
    if link is None:
        return None
    made = Network(hosts, link)
    probe.keep(path, made)
    return made


def _path(num_hosts: int) -> Path:
    return probe.folder() / f"network-{num_hosts}.json"
