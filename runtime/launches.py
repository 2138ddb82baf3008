"""Programs written directly on the runtime: launches in program order become a task graph.

Dependences, copies and sums are derived from what launches touch, as in Legion (Bauer et al., SC 2012): no program
writes a send by hand. It does not know operators or strategies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from castile.runtime import dependence, transfer
from castile.runtime.dependence import Version
from castile.runtime.epochs import Access, Epoch, Home, Launch, Port, epochs
from castile.runtime.machine import Machine
from castile.runtime.region import Box, Region, intersect, whole
from castile.runtime.task import Arg, Body, Buffer, Call, CostKey, Kind, Task, TaskGraph, Use, View
from castile.runtime.transfer import Source

ALIGNMENT = 64
HOST = -1


def build(
    launches: Sequence[Launch],
    regions: Mapping[str, Region],
    machine: Machine,
    homes: Mapping[str, Sequence[Home]],
    inputs: Collection[str] = (),
    outputs: Collection[str] = (),
) -> TaskGraph:
    """The task graph of one period of a loop: the launches in program order, and the transfers between them.

    homes     by region that outlives the period the boxes that hold it, all of it; equal boxes are replicas. At the end
              of the period its last version is there again: written in place if its writers do so, else copied
    inputs    regions that the host fills, wherever they are read
    outputs   regions whose last version the host reads, whole, on processor 0
    Raises ValueError in one sentence where a launch reads what nobody wrote, writes do not cover a region or write a
    box twice, or homes do not hold their region exactly once.
    """
    for name, places in homes.items():
        _check_homes(name, regions[name], places)
    held = {*homes, *inputs}
    program = list(launches)
    found = epochs(program, regions, held)
    for name in homes:
        if len(found[name]) > 1 and (name in outputs or not _in_place(program, found[name][-1], homes[name])):
            program += _homing(regions[name], homes[name])
    draft = _Draft(program, machine)
    for name, versions in epochs(program, regions, held).items():
        if name in inputs and len(versions) > 1:
            raise ValueError(f"launch {program[versions[1].made[0][0][0]].name!r} writes the input {name!r}")
        role = "carried" if name in homes else "input" if name in inputs else ""
        draft.region(versions, homes.get(name, ()), role, name in outputs)
    return draft.graph()


def _check_homes(name: str, region: Region, places: Sequence[Home]) -> None:
    boxes = sorted({box for _, box in places})
    dependence.complete(region.shape, boxes, f"the home of region {name!r} has a hole")
    if len(set(places)) < len(places) or any(intersect(a, b) for n, a in enumerate(boxes) for b in boxes[:n]):
        raise ValueError(f"the home of region {name!r} has boxes that overlap: each should equal or avoid the others")


def _in_place(program: Sequence[Launch], last: Epoch, places: Sequence[Home]) -> bool:
    """Whether a region's last version is written exactly in its home, and never read."""
    written = [(proc, box) for (launch, _), box in last.writes for proc in program[launch].procs]
    return not last.reads and not last.sums and sorted(written) == sorted(places)


def _homing(region: Region, places: Sequence[Home]) -> list[Launch]:
    """Launches that copy a region's last version home."""
    copies = []
    body = Body((Call("copy", (Arg("view", 0),), (Arg("view", 1),)),))
    for number, (box, procs) in enumerate(_by_box(places).items()):
        nbytes = 2 * box.volume * np.dtype(region.dtype).itemsize
        key = CostKey("copy", "x".join(map(str, box.shape)), region.dtype, 0, nbytes)
        accesses = (Access(region.name, box, Use.READ), Access(region.name, box, Use.WRITE))
        copies.append(Launch(f"{region.name}/home[{number}]", procs, accesses, body, key))
    return copies


def _by_box(places: Sequence[Home]) -> dict[Box, tuple[int, ...]]:
    """The processors that keep each box."""
    return {box: tuple(p for p, b in places if b == box) for box in dict.fromkeys(box for _, box in places)}


@dataclass(frozen=True, eq=False)
class _Placed:
    """A version in the graph.

    rows                 (task, access) of each port of the version: producers, transfers, readers, overwriters; HOST
                         for the host
    after                the launch that its transfers follow, -1 for none
    base, first_buffer   the numbers of its first transfer and its first buffer
    """

    epoch: Epoch
    version: Version
    procs: tuple[int, ...]
    label: str
    rows: list[Port]
    after: int
    base: int
    first_buffer: int
    roles: tuple[str, ...]


@dataclass
class _Draft:
    """The graph under construction: tasks of launches first, then each version's transfers."""

    program: Sequence[Launch]
    machine: Machine
    placed: list[_Placed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begin = np.concatenate([[0], np.cumsum([len(launch.procs) for launch in self.program])]).tolist()
        self.num_tasks, self.num_buffers = self.begin[-1], 0

    def region(self, versions: Sequence[Epoch], places: Sequence[Home], role: str, is_output: bool) -> None:
        """Analyse all versions of a region; of a region with a home the last one overwrites the first."""
        over = versions[-1] if places and len(versions) > 1 else None
        versions = versions[:-1] if over else versions
        for number, epoch in enumerate(versions):
            label = epoch.region.name + (f"@{number}" if len(versions) > 1 else "")
            last = is_output and number == len(versions) - 1
            if number == 0:
                self.version(epoch, label, role, places, last, over)
            else:
                self.version(epoch, label, "", (), last, None)

    def version(
        self, epoch: Epoch, label: str, role: str, places: Sequence[Home], is_output: bool, over: Epoch | None
    ) -> None:
        """Analyse one version, and number its transfers and buffers."""
        kept = _by_box(places)
        made = [(box, self.program[launch].procs) for (launch, _), box in epoch.made] + list(kept.items())
        reads = [(proc, box, port) for port, box in epoch.reads for proc in self.program[port[0]].procs]
        reads += [(0, whole(epoch.region.shape), (HOST, 0))] if is_output else []
        slots: dict[int, int] = {}
        for proc in [p for _, procs in made for p in procs] + [proc for proc, _, _ in reads]:
            slots.setdefault(proc, len(slots))
        readers, twins = [(slots[proc], box) for proc, box, _ in reads], [port for _, _, port in reads]
        contributions = [Source(box, tuple(slots[p] for p in procs)) for box, procs in made]
        links = dependence.links(self.machine, tuple(slots))
        version = dependence.filled(readers, twins) if role == "input" else dependence.version(
            contributions, readers, epoch.region.dtype, links, bool(role), over is not None, twins=twins
        )  # fmt: skip
        rows = self.rows(epoch.made) + [(self.num_tasks + n, 0) for n in range(len(version.patterns))]
        rows += self.rows(epoch.reads) + [(HOST, 0)] * is_output + (self.over(over, kept) if over else [])
        roles = [role if i.kind == "source" else "" for i in version.instances]
        if is_output:
            roles[version.located[-1]] = roles[version.located[-1]] or "output"
        first = min([launch for (launch, _), _ in epoch.reads], default=0)
        after = max([launch for (launch, _), _ in epoch.made], default=first - 1)
        place = self.num_tasks, self.num_buffers
        self.placed.append(_Placed(epoch, version, tuple(slots), label, rows, after, *place, tuple(roles)))
        self.num_tasks += len(version.patterns)
        self.num_buffers += len(version.instances)

    def rows(self, ports: Sequence[tuple[Port, Box]]) -> list[Port]:
        """(task, access) of the ports of launches, replica by replica."""
        tasks = [(range(self.begin[launch], self.begin[launch + 1]), place) for (launch, place), _ in ports]
        return [(task, place) for replicas, place in tasks for task in replicas]

    def over(self, last: Epoch, kept: Mapping[Box, tuple[int, ...]]) -> list[Port]:
        """(task, access) of the writer that overwrites each piece of a home."""
        writers = {box: port for port, box in last.writes}
        rows = [(writers[box], proc) for box, procs in kept.items() for proc in procs]
        return [(self.begin[n] + self.program[n].procs.index(proc), place) for (n, place), proc in rows]

    def graph(self) -> TaskGraph:
        """The graph in flat arrays."""
        tasks = [*self.computing(), *self.transfers()]
        keys: dict[CostKey, int] = {}
        cost_keys = [launch.key for launch in self.program for _ in launch.procs]
        cost_keys += [p.key for v in self.placed for p in v.version.patterns]
        cost = [keys.setdefault(key, len(keys)) for key in cost_keys]
        order = [(n + 1 << 40) + r for n, launch in enumerate(self.program) for r in range(len(launch.procs))]
        for n, v in enumerate(self.placed):
            order += [(v.after + 1 << 40) + (n + 1 << 20) + k for k in range(len(v.version.patterns))]
        edges, uses, first = self.relations()
        buffers = [buffer for v in self.placed for buffer in _buffers(v)]
        lanes = _rows([(t.index, lane) for t in tasks for lane in transfer.lanes(t.kind, t.procs)], len(tasks))
        needs, used = _rows([(b, a) for a, b in edges], len(tasks)), _rows(uses, len(tasks))
        sizes = [prod(b.box.shape) * np.dtype(b.dtype).itemsize for b in buffers]
        return TaskGraph(
            np.array([t.kind for t in tasks], np.int8), _array(order), _array(cost), tuple(keys), *lanes, *needs, *used,
            _array([b.proc for b in buffers]), -(-_array(sizes) // ALIGNMENT) * ALIGNMENT, _array(first),
            _array([t.body.private_bytes for t in tasks]), self.machine.num_procs, tasks, buffers,
        )  # fmt: skip

    def relations(self) -> tuple[set[tuple[int, int]], set[tuple[int, int]], list[int]]:
        """(before, after) between tasks, (task, buffer), and the task that begins each buffer's life."""
        edges, uses, first = set(), set(), []
        for v in self.placed:
            task = [row[0] for row in v.rows]
            edges |= {(task[a], task[b]) for a, b in v.version.edges.tolist()}
            uses |= {(task[port], v.first_buffer + b) for port, b in v.version.touched.tolist()}
            begins = zip(v.roles, v.version.first.tolist(), strict=True)
            first += [-1 if role or port < 0 else task[port] for role, port in begins]
        real = {(a, b) for a, b in edges if a != b and a != HOST and b != HOST}
        return real, {(t, b) for t, b in uses if t != HOST}, first

    def computing(self) -> list[Task]:
        """The tasks of the launches."""
        buffer: dict[Port, int] = {}
        adds: dict[Port, bool] = {}
        for v in self.placed:
            made, located = v.version.made.tolist(), v.version.located.tolist()
            producing = made if v.epoch.made else []
            pieces = [*producing, *([HOST] * len(v.version.patterns)), *located, *made]
            buffer.update((row, v.first_buffer + piece) for row, piece in zip(v.rows, pieces, strict=False))
            adds.update(zip(v.rows, v.version.adds.tolist() if producing else (), strict=False))
        return [
            _computing(launch, self.begin[n] + r, r, buffer, adds)
            for n, launch in enumerate(self.program)
            for r in range(len(launch.procs))
        ]

    def transfers(self) -> list[Task]:
        """The tasks of the versions."""
        return [
            transfer.task(p, v.base + n, f"{v.label}:{p.name}[{n}]", v.procs, v.first_buffer)
            for v in self.placed
            for n, p in enumerate(v.version.patterns)
        ]


def _computing(
    launch: Launch, number: int, replica: int, buffer: Mapping[Port, int], adds: Mapping[Port, bool]
) -> Task:
    places = [(number, place) for place in range(len(launch.accesses))]
    views = tuple(View(buffer[place], access.box) for place, access in zip(places, launch.accesses, strict=True))
    adding = tuple(adds.get(place, False) for place in places)
    if isinstance(launch.body, Body) and any(adding):
        access = launch.accesses[adding.index(True)]
        raise ValueError(
            f"launch {launch.name!r} adds to {access.region!r} {access.box} after others on the same processors: "
            "give it a body for `adds`"
        )
    body = launch.body if isinstance(launch.body, Body) else launch.body(adding)
    name = f"{launch.name}~{replica}" if len(launch.procs) > 1 else launch.name
    return Task(number, name, Kind.COMPUTE, (launch.procs[replica],), views, body)


def _buffers(v: _Placed) -> list[Buffer]:
    region = v.epoch.region
    return [
        Buffer(region.name, i.box, region.dtype, v.procs[i.proc], role)
        for i, role in zip(v.version.instances, v.roles, strict=True)
    ]


def _array(values: Sequence[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def _rows(pairs: Iterable[tuple[int, int]], num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (row, value) in CSR form, with sorted, unique values."""
    ordered = sorted(set(pairs))
    counts = np.bincount(_array([row for row, _ in ordered]), minlength=num_rows)
    return np.concatenate([[0], np.cumsum(counts)]), _array([value for _, value in ordered])
