"""Machines: processors, the levels of links between them, and which lanes really run beside each other.

It does not know what will run on them, nor how to measure one; presets are TOML files in `machines/`, found by name.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path

import msgspec
import numpy as np

from castile.runtime import levels, strict
from castile.runtime.cores import affinity
from castile.runtime.levels import Level, Spread, Users, level_name
from castile.runtime.processor import EACH, RATES, Processor
from castile.runtime.task import NUM_LANES, Lane

PRESETS = Path(__file__).parent / "machines"
# Of these the one that stands for this host.
LOCAL = "local.toml"

# Of a host's memory its ranks may fill this share; the rest is the operating system's and the interpreters'.
HOST_SHARE = 0.8

# No cluster has more, and at this number a search takes gigabytes and minutes: what is above it is mistyped.
MOST_PROCS = 2**16
# In a name no number has more digits: of thousands Python makes none.
MOST_DIGITS = 100

# The kind of processors that are cores.
CPU = "cpu"

# How a machine's collectives may be carried out (`castile.planner.costs.algorithms`); the first is the runtime's own
# over messages, the others are those of NCCL's kind.
EXCHANGE = "exchange"
ALGORITHMS = (EXCHANGE, "ring", "tree", "hierarchical")


@dataclass(frozen=True)
class Machine:
    """Processors 0..n-1 and the levels of links between them, the nearest level first.

    engines[lane] is the engine that serves a lane: lanes of one engine never run beside each other.
    algorithms: those by which collectives can be carried out, whichever is cheapest; a file that does not say has all
    but "exchange".
    Raises ValueError where figures are not positive, or levels do not nest or do not hold all processors.
    """

    name: str
    processors: tuple[Processor, ...]
    levels: tuple[Level, ...]
    engines: tuple[int, ...] = tuple(int(lane) for lane in Lane)
    algorithms: tuple[str, ...] = (EXCHANGE,)

    def __post_init__(self) -> None:
        if not self.processors:
            raise ValueError(f"machine {self.name!r} has no processors")
        if len(self.engines) != NUM_LANES:
            raise ValueError(f"machine {self.name!r}: engines needs {NUM_LANES} entries, one a lane")
        for processor in {id(p): p for p in self.processors}.values():
            processor.check(f"machine {self.name!r}: processor")
        levels.check(self.name, self.levels, len(self.processors))
        _check_algorithms(self.name, self.algorithms)

    @property
    def num_procs(self) -> int:
        """How many processors it has."""
        return len(self.processors)

    def distance(self, p: int, q: int) -> int:
        """0 on one processor, else 1 + the number of the nearest level that joins them."""
        return levels.distance(self.levels, p, q)

    def groups(self, proc: int) -> tuple[int, ...]:
        """The group of each level that a processor is in, the nearest first: the last holds all."""
        return levels.groups(self.levels, proc)

    def link(self, procs: Sequence[int], among: Users | None = None, crowds: tuple[tuple[int, ...], ...] = ()) -> Level:
        """The farthest level that a transfer over these processors crosses, as they see it, and how they lie.

        among    those that may use the links at once, as `users` tells; every processor where it is not given
        crowds   what `crowd` says of each of the processors among those, for who asks of many groups of the same
        """
        if among is not None and not crowds:
            crowds = tuple([self.crowd(p, among) for p in procs])
        # all pairs at one distance are alike, where as many share the links of both
        key = (self.distance(*procs) if len(procs) == 2 else tuple(procs), crowds)
        if key not in self._links:
            self._links[key] = levels.link(self.levels, procs, among)
        return self._links[key]

    @cached_property
    def _links(self) -> dict[tuple[int | tuple[int, ...], tuple[tuple[int, ...], ...]], Level]:
        return {}

    def users(self, procs: Sequence[int]) -> Users:
        """How many of these processors share the links of each group: those `among` whom `link` divides them."""
        return levels.users(self.levels, procs)

    def crowd(self, proc: int, among: Users) -> tuple[int, ...]:
        """How many of those `among` whom links are divided share those of each level that lead away from one."""
        return levels.crowd(self.levels, proc, among)

    def spread(self, link: str, members: int) -> Spread:
        """How members lie by the name of their link. Raises ValueError where the machine has no such link."""
        return levels.spread(self.levels[: self.levels.index(self.level(link)) + 1], link, members)

    def level(self, name: str) -> Level:
        """The level of a link's name. Raises ValueError where the machine has none."""
        for level in self.levels:
            if level.name == level_name(name):
                return level
        raise ValueError(f"machine {self.name!r} has no links {name!r}, only {[level.name for level in self.levels]}")

    def part(self, procs: Sequence[int]) -> Machine | None:
        """These processors, ascending, as a machine of their own on which each is as far from the others as here; None
        where that takes more than whole groups of each level, or processors of one.
        """
        count, inner = len(procs), list[Level]()
        for level in self.levels if count > 1 else ():
            inner.append(msgspec.structs.replace(level, group=min(level.group, count)))
            blocks = [procs[at : at + level.group] for at in range(0, count, level.group)]
            if any(block[0] // level.group != block[-1] // level.group for block in blocks):
                return None
            if len(blocks) == 1:
                break
            if len(blocks[-1]) < level.group:
                return None
        return replace(self, processors=tuple([self.processors[p] for p in procs]), levels=tuple(inner))

    @cached_property
    def kinds(self) -> tuple[Processor, ...]:
        """The different processors, in the order of their first."""
        return tuple(dict.fromkeys(self.processors))

    @cached_property
    def kind_of(self) -> np.ndarray:
        """int32[P]: the number of each processor's kind."""
        number = {kind: n for n, kind in enumerate(self.kinds)}
        return np.array([number[p] for p in self.processors], dtype=np.int32)

    @cached_property
    def capacity(self) -> np.ndarray:
        """int64[P]: the bytes of each processor that a plan may use."""
        return np.array([p.capacity_bytes for p in self.processors], dtype=np.int64)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of processors, memories and links by kind and number; measured figures do not enter."""
        kinds = [(p.kind, round(p.memory_bytes / 2**30)) for p in self.processors]
        text = repr((kinds, [(level.name, level.group) for level in self.levels]))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse(text: str) -> Machine:
    """The machine that a user names: `dgx-h100:nodes=16`, `local:procs=4`, `path/to/machine.toml:nodes=2`.

    A preset's settings: `nodes`, and for `local` (whose figures here are assumed ones) `procs` of each node, the cores
    by default. A device that is divided, as `virtual` is, takes `procs` alone, two by default.
    Raises ValueError in one sentence for an unknown name or setting, or a file that is not a machine's.
    """
    path, settings = _split(text)
    file = _read(str(path))
    usual = _usual(path, file)
    for key in settings:
        if key not in usual:
            raise ValueError(f"machine {text!r} has no setting {key!r}{strict.suggestion(key, list(usual))}; "
                             f"its settings: {', '.join(usual)}")  # fmt: skip
    said = usual | settings
    if path == PRESETS / LOCAL:
        return local(said["procs"], said["nodes"])
    return divided(_build(text, file, said["procs"])) if file.divided else _build(text, file, said["nodes"])


def settings_of(name: str) -> dict[str, int]:
    """The settings that a preset takes, or a machine's file, with their defaults. Raises ValueError as `parse` does."""
    path, _ = _split(name)
    return _usual(path, _read(str(path)))


def _usual(path: Path, file: _File) -> dict[str, int]:
    if path == PRESETS / LOCAL:
        return {"procs": num_cores(), "nodes": 1}
    return {"procs": 2} if file.divided else {"nodes": file.nodes}


def presets() -> list[str]:
    """The names of the machines that come with castile."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def num_cores() -> int:
    """The cores that this process may use."""
    return len(affinity())


def local(procs: int, nodes: int = 1) -> Machine:
    """This host as `procs` processors with equal shares of its memory, or several nodes like it; the rates are assumed,
    not measured.
    """
    _check_number(f"local:procs={procs}", procs * nodes)
    return hosts((procs,) * nodes)


def hosts(sizes: Sequence[int]) -> Machine:
    """Hosts like this one with so many processors each; of its memory they have equal shares. The rates are assumed."""
    alike = (sizes[0], len(sizes)) if len(set(sizes)) == 1 else (1, sum(sizes))
    name = f"local:procs={alike[0]}" + f",nodes={alike[1]}" * (alike[1] > 1)
    file = _read(str(PRESETS / "local.toml"))
    memory = int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * HOST_SHARE) // max(sizes)
    processor = msgspec.structs.replace(_plain(file.processor[0]), memory_bytes=memory)
    near, far = (level.joining(1) for level in file.level)
    engines = _engines(name, file.shared_lanes)
    return Machine(name, (processor,) * sum(sizes), between(sizes, near, far), engines, file.algorithms)


def between(sizes: Sequence[int], near: Level, far: Level) -> tuple[Level, ...]:
    """The levels between processors of hosts that have so many each: `near` within hosts, and `far`, by one link of
    each host, between them.

    A level has groups of one size: as large as they can be where each lies within a host. Where hosts have unequal
    numbers some links within them are taken for such between them.
    """
    num_procs = sum(sizes)
    block = math.gcd(*accumulate(sizes[:-1])) or num_procs
    made = [msgspec.structs.replace(near, group=block)] * (block > 1)
    made += [msgspec.structs.replace(far, group=num_procs, shared_by=block)] * (block < num_procs)
    return tuple(made)


def divided(machine: Machine) -> Machine:
    """A machine of processors that are each a whole device, as one of processors that are equal shares of one device.

    Its bandwidth is divided too, as where all use it at once.
    """
    n = machine.num_procs

    def share(p: Processor) -> Processor:
        rates = {field: getattr(p, field) for field in (*RATES, "bytes_per_second")}
        parts = {field: rate and rate / n for field, rate in rates.items()}
        peaks = tuple([(dtype, peak / n) for dtype, peak in p.peaks])
        sizes = {"memory_bytes": p.memory_bytes // n, "reserved_bytes": p.reserved_bytes // n}
        each = {field: getattr(p, field) * n for field in EACH}
        return msgspec.structs.replace(p, peaks=peaks, **each, **sizes, **parts)

    levels = tuple(msgspec.structs.replace(x, bytes_per_second=x.bytes_per_second / n) for x in machine.levels)
    return Machine(machine.name, tuple(map(share, machine.processors)), levels, machine.engines, machine.algorithms)


def to_json(machine: Machine) -> bytes:
    """The machine as JSON text, for the other ranks."""
    return msgspec.json.encode(machine)


def from_json(data: bytes | str) -> Machine:
    """The machine that `to_json` wrote, to the last bit. Raises ValueError in one sentence where it is not one."""
    return strict.from_json(data, Machine, "machine")


class _Processors(Processor, frozen=True, forbid_unknown_fields=True):
    """`count` equal processors of a node."""

    count: int = 1


class _Level(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Level as a file states it: without `group` it joins the whole machine."""

    name: str
    latency_seconds: float
    bytes_per_second: float
    group: int | None = None
    shared_by: int = 1
    message_seconds: float = 0.0
    collective_seconds: float = 0.0
    step_factor: float = 1.0

    def joining(self, group: int) -> Level:
        """The level whose groups have so many processors."""
        return Level(**{field: getattr(self, field) for field in self.__struct_fields__} | {"group": group})


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine's TOML file: a node's processors, the number of nodes, the levels, lanes that share an engine.

    divided: the figures are those of one device, of which each processor is an equal share.
    Nodes are alike; a cluster of unlike ones is written with several of them as one node, between which is a level.
    """

    processor: list[_Processors]
    nodes: int = 1
    divided: bool = False
    level: list[_Level] = []
    shared_lanes: list[list[str]] = []
    algorithms: tuple[str, ...] = ALGORITHMS[1:]


def _split(text: str) -> tuple[Path, dict[str, int]]:
    """The file and the settings of `name:key=value,key=value`."""
    head, dot, tail = text.partition(".toml")
    name, colon, rest = (head + dot, *tail.partition(":")[1:]) if dot else text.partition(":")
    if dot and tail and not colon:
        raise ValueError(f"machine {text!r}: settings are written file.toml:key=number")
    path = Path(name) if dot else PRESETS / f"{name}.toml"
    if not dot and name not in presets():
        raise ValueError(f"no machine {name!r}{strict.suggestion(name, presets())}; "
                         f"there are {', '.join(presets())}, or name a TOML file (x.toml)")  # fmt: skip
    pairs = [_setting(text, part) for part in rest.split(",")] if colon else []
    keys = [key for key, _ in pairs]
    twice = [key for key in keys if keys.count(key) > 1]
    if twice:
        raise ValueError(f"machine {text!r}: setting {twice[0]!r} is given twice")
    return path, dict(pairs)


def _setting(text: str, part: str) -> tuple[str, int]:
    key, equals, value = part.partition("=")
    if not (key.strip() and equals and re.fullmatch(rf"[0-9]{{1,{MOST_DIGITS}}}", value.strip())):
        raise ValueError(
            f"machine {text!r}: settings are written name:key=number, of at most {MOST_DIGITS} digits, and {part!r} is "
            "not one"
        )
    return key.strip(), _positive(text, key.strip(), int(value))


@lru_cache
def _decode(path: str, data: bytes) -> _File:
    return strict.from_toml(data, _File, f"machine file {path}")


def _read(path: str) -> _File:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"machine file {path}: {error.strerror}") from error
    return _decode(path, data)


def _build(name: str, file: _File, nodes: int) -> Machine:
    count = _positive(name, "nodes", nodes) * sum(_positive(name, "count", group.count) for group in file.processor)
    _check_number(name, count)
    node = [_plain(group) for group in file.processor for _ in range(group.count)]
    procs = tuple(node) * nodes
    joined: list[Level] = []
    for level in file.level:
        # What joins nothing more than the level below it does not exist: one node of a cluster has no network.
        if (joined[-1].group if joined else 1) < len(procs):
            group = len(procs) if level.group is None else min(level.group, len(procs))
            joined.append(level.joining(group))
    return Machine(name, procs, tuple(joined), _engines(name, file.shared_lanes), file.algorithms)


def _check_number(name: str, count: int) -> None:
    if count > MOST_PROCS:
        raise ValueError(f"machine {name!r} has {count} processors; plans are made for {MOST_PROCS} at most")


def _plain(group: _Processors) -> Processor:
    return Processor(**{field: getattr(group, field) for field in Processor.__struct_fields__})


def _engines(name: str, shared_lanes: list[list[str]]) -> tuple[int, ...]:
    engines = [int(lane) for lane in Lane]
    known = [lane.name.lower() for lane in Lane]
    for i, lanes in enumerate(shared_lanes):
        for lane in lanes:
            if lane not in known:
                raise ValueError(f"machine {name!r}: shared_lanes[{i}]: no lane {lane!r}"
                                 f"{strict.suggestion(lane, known)}; there are {', '.join(known)}")  # fmt: skip
            engines[known.index(lane)] = known.index(lanes[0])
    return tuple(engines)


def _positive(name: str, field: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"machine {name!r}: {field} must be at least 1, not {value}")
    return value


def _check_algorithms(name: str, algorithms: tuple[str, ...]) -> None:
    for algorithm in algorithms:
        if algorithm not in ALGORITHMS:
            meant = strict.suggestion(algorithm, list(ALGORITHMS))
            raise ValueError(f"machine {name!r}: algorithms: no algorithm {algorithm!r}{meant}; "
                             f"there are {', '.join(ALGORITHMS)}")  # fmt: skip
    if not {EXCHANGE, "ring"} & set(algorithms):
        raise ValueError(f"machine {name!r}: algorithms must name 'ring' or 'exchange', which know every collective")
