"""Strategies: who computes which piece of every node. Data only, with a strict JSON form.

It does not know how a plan becomes tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import product
from math import inf, prod
from pathlib import Path

import msgspec

from castile.planner.graph import Graph, Node
from castile.planner.op import Part
from castile.runtime import strict
from castile.runtime.machine import Machine
from castile.runtime.region import blocks

SCHEMA = 2
MAX_FILE_BYTES = 256 * 2**20
# Which of its ready kernels a processor begins first: the one that has been ready longest, that comes first in the
# program, or that begins the longest chain of tasks.
READY, PROGRAM, PATH = ORDERS = ("ready", "program", "path")
# How many runs of processors a Config lists in words, and how many places of Configs that are cut alike.
MOST_RUNS, MOST_PLACES = 16, 3


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """How a node is cut: a degree for each split axis, how many replicas compute the same, and on which processors.

    procs[part * replicas + replica], parts in row-major order of the axes in the order of the node's axis line.
    """

    split: dict[str, int] = {}
    replicas: int = 1
    procs: tuple[int, ...] = (0,)

    @property
    def num_parts(self) -> int:
        """The number of parts into which the node is cut, replicas not counted."""
        return prod(self.split.values())

    def degree(self, axis: str) -> int:
        """The degree to which an axis is cut: 1 where it is not."""
        return self.split.get(axis, 1)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Plans are looked up by their Configs, so the hash is computed once and read often.
        return hash((tuple(sorted(self.split.items())), self.replicas, self.procs))

    @property
    def cuts(self) -> str:
        """How the node is cut, in words, without the processors."""
        cuts = " ".join(f"{axis}:{degree}" for axis, degree in self.split.items() if degree > 1) or "whole"
        return f"{cuts} x{self.replicas}" if self.replicas > 1 else cuts

    def __str__(self) -> str:
        return f"{self.cuts} on {_briefly(self.procs)}"


def in_words(alike: Sequence[Config]) -> str:
    """Configs with the same cuts on several sets of processors: `o:4 on 0-3`, `o:4 on each of 0-3 ... 60-63`.

    Of several Configs the order in which their processors have the parts is left out.
    """
    if len(alike) == 1:
        return str(alike[0])
    first, *others = dict.fromkeys(runs_of(tuple(sorted({*config.procs}))) for config in alike)
    if not others:
        return f"{alike[0].cuts} on {first} in {len(alike)} orders"
    places = f"{first} ... {others[-1]}" if len(others) >= MOST_PLACES else ", ".join([first, *others])
    return f"{alike[0].cuts} on each of {places}"


def runs_of(procs: tuple[int, ...]) -> str:
    """Processors in words: three or more in a row as `4-8`."""
    return ",".join(_runs(procs))


def _briefly(procs: tuple[int, ...]) -> str:
    """Processors in words; where there are many runs, the sorted set and the first few in their order."""
    runs = _runs(procs)
    if len(runs) <= MOST_RUNS:
        return ",".join(runs)
    every = _runs(tuple(sorted(set(procs))))
    more = ",..." if len(every) > MOST_RUNS else ""
    return f"{','.join(every[:MOST_RUNS])}{more} in the order {','.join(map(str, procs[:4]))},..."


@lru_cache(maxsize=1024)
def _runs(procs: tuple[int, ...]) -> list[str]:
    runs: list[list[int]] = []
    for p in procs:
        if runs and p == runs[-1][-1] + 1:
            runs[-1].append(p)
        else:
            runs.append([p])
    return [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]


class Predicted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The simulator's prediction: seconds a step, peak bytes on the fullest processor, and bytes moved a step."""

    step_seconds: float
    peak_bytes: int
    moved_bytes: int


class Strategy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Config for every node; updates, accumulators and fetches of parameters may be left to their defaults.

    microbatches     equal pieces of the batch, computed one after the other; their gradients are summed
    graph, machine   fingerprints of the graph and the machine that the plan was made for
    model, batch, machine_name   the same as a user names them: the model with settings, samples a step ("" and 0 where
                     unknown), and the machine
    optimizer, clip  the optimizer and gradient norm of the updates; "" and None for those of the model's recipe, a clip
                     of 0 for none
    bucket_bytes     sums over the same processors are joined in buckets of at most this many bytes, gathers and
                     reduce-scatters in groups; updates and casts of one bucket are one task. 0: each by itself
    order            which of its ready kernels a processor begins first, one of ORDERS
    ahead            how many microbatches a processor may begin beyond those that fill its pipeline, so that transfers
                     of one overlap with kernels of another (Fan et al., "DAPPLE", PPoPP 2021), at the price of memory
    recompute        the nodes whose results are not kept for gradient passes but computed again. A parameter's fetch
                     among them is made for each microbatch, and again for its gradients
    """

    configs: dict[str, Config]
    microbatches: int = 1
    model: str = ""
    graph: str = ""
    machine: str = ""
    num_procs: int = 1
    search: str = ""
    seed: int = 0
    cost_snapshot: str = ""
    predicted: Predicted | None = None
    schema: int = SCHEMA
    bucket_bytes: int = 0
    order: str = READY
    batch: int = 0
    machine_name: str = ""
    recompute: tuple[str, ...] = ()
    ahead: int = 0
    optimizer: str = ""
    clip: float | None = None

    @property
    def made_for(self) -> str:
        """The model and its samples a step, as far as they are known, in words."""
        samples = f" with {self.batch} samples a step" if self.batch else ""
        return f"{self.model or 'another model'}{samples}"

    def unlike(self, graph: Graph, model: str) -> str:
        """A sentence's end that the plan was made for another graph than this one of a model; "" where it was not."""
        if not self.graph or self.graph == graph.fingerprint:
            return ""
        if (self.model, self.batch) == (model, graph.batch):
            return f"was made for {self.made_for} as it was then: it has changed since, or is of another dtype here"
        return f"was made for {self.made_for}, and not for {model} with {graph.batch} samples a step as it is here"


def signed(
    plan: Strategy, model: str, graph: Graph, machine: Machine, optimizer: str = "", clip: float | None = None
) -> Strategy:
    """The plan with its model, batch, machine and updates by name, so that its file alone says what it is for."""
    return msgspec.structs.replace(
        plan, model=model, batch=graph.batch, machine_name=machine.name, optimizer=optimizer, clip=clip
    )


def same_tasks(one: Strategy, other: Strategy) -> bool:
    """Whether two plans of one graph with the same microbatches have the same tasks in the same order."""
    return _decisions(one) == _decisions(other)


def _decisions(plan: Strategy) -> tuple[object, ...]:
    return plan.bucket_bytes, plan.order, plan.ahead, frozenset(plan.recompute), plan.configs


@dataclass(frozen=True)
class Names:
    """The names a strategy may use: the graph's nodes, and the update, accumulate and fetch of each parameter.

    fetches   the fetches: a plan may recompute them as it may nodes
    """

    nodes: Mapping[str, Node]
    optional: Mapping[str, Node] = field(default_factory=dict)
    fetches: frozenset[str] = frozenset()

    @cached_property
    def within(self) -> dict[str, str]:
        """By name of a node that a rewrite merged into another: the name of that one."""
        return {member: name for name, node in self.nodes.items() for member in node.members}


def parts(node: Node, split: Mapping[str, int], axis: str = "", micro: tuple[int, int] = (0, 1)) -> list[Part]:
    """The parts of a node cut so, row-major in the order of its axis line; `axis` and `micro` as in `ranges`."""
    a, points = node.alignment, product(*ranges(node, split, axis, micro))
    return [Part(node.op, a, dict(zip(a.axes, point, strict=True))) for point in points]


def ranges(node: Node, split: Mapping[str, int], axis: str, micro: tuple[int, int]) -> list[list[tuple[int, int]]]:
    """The blocks (begin, end) into which a node is cut, by axis in the order of its axis line.

    axis, micro   of this axis only the piece of one microbatch is cut: (its index, the number of microbatches)
    """
    found, (index, count) = [], micro
    for name in node.alignment.axes:
        extent = node.alignment.extents[name]
        if name != axis or count == 1:
            found.append(blocks(extent, split.get(name, 1)))
        else:
            length = extent // count
            first = index * length
            found.append([(lo + first, hi + first) for lo, hi in blocks(length, split.get(name, 1))])
    return found


def check_split(node: Node, split: Mapping[str, int]) -> None:
    """Raise ValueError, in one sentence, where a node may not be cut to these degrees by axis."""
    a = node.alignment
    for axis, degree in split.items():
        if axis not in a.extents:
            near = strict.suggestion(axis, list(a.axes))
            raise ValueError(f"{node.name}: no axis {axis!r} to split{near}; its axes are {', '.join(a.axes)}")
        if degree < 1:
            raise ValueError(f"{node.name}: axis {axis!r} is split {degree} times; a degree is at least 1")
        if axis in a.frozen and degree > 1:
            raise ValueError(f"{node.name}: axis {axis!r} of {node.op.name} may not be split (degree {degree})")
        if degree > a.extents[axis]:
            raise ValueError(f"{node.name}: axis {axis!r} has {a.extents[axis]} elements, too few for {degree} parts")


def check_config(node: Node, config: Config, num_procs: int | None = None) -> None:
    """Raise ValueError, in one sentence with the node's own names, where the Config is not legal."""
    check_split(node, config.split)
    if config.replicas < 1:
        raise ValueError(f"{node.name}: {config.replicas} replicas; there is at least 1")
    if len(config.procs) != config.num_parts * config.replicas:
        need = config.num_parts * config.replicas
        raise ValueError(
            f"{node.name}: {config.num_parts} parts x {config.replicas} replicas need {need} processors, "
            f"{len(config.procs)} are named"
        )
    for part in range(config.num_parts if config.replicas > 1 else 0):
        copies = config.procs[part * config.replicas : (part + 1) * config.replicas]
        if len(set(copies)) < len(copies):
            raise ValueError(f"{node.name}: part {part} is replicated twice on one processor: {copies}")
    most = num_procs if num_procs is not None else inf
    if min(config.procs) < 0 or max(config.procs) >= most:
        out = next(p for p in config.procs if not 0 <= p < most)
        raise ValueError(f"{node.name}: processor {out} is out of range; the machine has {num_procs}, counted from 0")


def check(
    strategy: Strategy,
    names: Names,
    graph: Graph,
    machine: Machine,
    known: AbstractSet[tuple[str, Config]] = frozenset(),
) -> None:
    """Raise ValueError in one sentence where the strategy does not fit this graph and machine.

    known   (name, Config) of nodes that were checked before
    """
    _check_whole(strategy, graph, machine)
    _check_names(strategy, names, graph)
    for name, config in strategy.configs.items():
        if (name, config) not in known:
            check_config(names.nodes.get(name) or names.optional[name], config, machine.num_procs)


def _check_whole(strategy: Strategy, graph: Graph, machine: Machine) -> None:
    """Check what the plan was made for, and what it says of the step as a whole."""
    if unlike := strategy.unlike(graph, graph.name):
        raise ValueError(f"the plan {unlike}: give the same model, settings, --batch and --dtype, or plan again")
    if strategy.num_procs > machine.num_procs:
        raise ValueError(
            f"the plan needs {strategy.num_procs} processors, {machine.name} has {machine.num_procs}: "
            "name the machine that it was made for, or plan again"
        )
    if strategy.machine and strategy.machine != machine.fingerprint:
        other = f"another machine, {strategy.machine_name}," if strategy.machine_name else "another machine,"
        raise ValueError(f"the plan was made for {other} not for {machine.name}: name that one, or plan again")
    if strategy.microbatches < 1:
        raise ValueError(f"the plan has {strategy.microbatches} microbatches; there is at least 1")
    if strategy.bucket_bytes < 0:
        raise ValueError(f"the plan has buckets of {strategy.bucket_bytes} bytes; 0 is for none")
    if strategy.ahead < 0:
        raise ValueError(f"the plan has {strategy.ahead} microbatches begun ahead; 0 is for none")
    if strategy.order not in ORDERS:
        near = strict.suggestion(strategy.order, list(ORDERS))
        raise ValueError(f"the plan has kernels in order {strategy.order!r}{near}; there are {', '.join(ORDERS)}")


def _check_names(strategy: Strategy, names: Names, graph: Graph) -> None:
    """Check that every node has a Config, and that every name is known."""
    for name in strategy.recompute:
        if name not in names.nodes and name not in names.fetches:
            near = strict.suggestion(name, list(names.nodes))
            raise ValueError(f"the plan computes {name!r} again, and {graph.name} has no such node{near}")
    for name in strategy.configs:
        if name in names.within:
            raise ValueError(f"the plan names a node {name!r}, here a part of {names.within[name]!r}: plan again")
        if name not in names.nodes and name not in names.optional:
            near = strict.suggestion(name, list(names.nodes))
            raise ValueError(f"the plan names a node {name!r} that {graph.name} does not have{near}")
    missing = [name for name in names.nodes if name not in strategy.configs]
    if missing:
        raise ValueError(f"the plan has no entry for node {missing[0]!r} of {graph.name}")


LEFT_OUT = {"order": READY, "batch": 0, "machine_name": "", "recompute": (), "ahead": 0, "optimizer": "", "clip": None}


def encode(strategy: Strategy) -> bytes:
    """The plan as JSON for `read`, a line for each node; fields of LEFT_OUT with their default are left out."""
    fields = msgspec.to_builtins(strategy)
    for name, default in LEFT_OUT.items():
        if fields[name] == default:
            del fields[name]
    nodes = ",\n".join(f"  {_line(name)}: {_line(config)}" for name, config in fields.pop("configs").items())
    lines = [*(f"{_line(name)}: {_line(value)}" for name, value in fields.items()), f'"configs": {{\n{nodes}\n }}']
    return ("{\n " + ",\n ".join(lines) + "\n}\n").encode()


def _line(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def read(path: str | Path) -> Strategy:
    """Read a plan's file. Raises ValueError in one sentence where it is missing, damaged or of another schema."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"plan {path}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"plan {path}: {len(data)} bytes are no plan; the most is {MAX_FILE_BYTES}")
    return decode(data, f"plan {path}")


def decode(data: bytes, what: str = "plan") -> Strategy:
    """Decode a plan from JSON. Unknown and duplicate keys are refused; errors name the field by its path."""
    strategy = strict.from_json(data, Strategy, what)
    if strategy.num_procs < 1:
        raise ValueError(f"{what}: num_procs is {strategy.num_procs}; a plan is for at least 1 processor")
    if strategy.batch < 0:
        raise ValueError(f"{what}: batch is {strategy.batch}; 0 is for a number of samples that is not known")
    if strategy.clip is not None and not strategy.clip >= 0:
        raise ValueError(f"{what}: clip is {strategy.clip}; a norm is above 0, and 0 clips nothing")
    for name, value in msgspec.structs.asdict(strategy.predicted).items() if strategy.predicted else ():
        if value < 0:
            raise ValueError(f"{what}: predicted.{name} is {value}; it is 0 or more")
    if strategy.schema != SCHEMA:
        raise ValueError(f"{what}: schema {strategy.schema}, this castile reads schema {SCHEMA}: plan again")
    return strategy
