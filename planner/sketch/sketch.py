"""Sketches: a graph on a machine as flat arrays, in which compiled loops time plans and walk through them.

A sketch is the execution simulation of FlexFlow (Jia, Zaharia, Aiken, MLSys 2019, section 5) with one task for each
pass of a node and one for each transfer, in the order of the program. What it leaves out (pieces of different length,
several transfers of one processor at once, packing) costs some percent. It only ranks plans for a search; the time of a
plan is that of `simulate`. It does not know clipping's factor, fetches, accumulators and states, nor the few numbers of
a training step that the host reads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from castile.planner.bodies.vocabulary import itemsize
from castile.planner.bounds.additive import Additive
from castile.planner.choices.space import Placement, Space
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluated import PENALTY
from castile.planner.lower import Lowering
from castile.planner.lowering.ragged import ranges, row_pointers
from castile.planner.sketch import classes, contents, metropolis, moves, reads, sweep, transfer_costs
from castile.planner.sketch.allocation import classes_for, log_for, room_for, uses_of
from castile.planner.sketch.arrays import RECORDS, Links, Prices, Worth
from castile.planner.sketch.choices import choices_of
from castile.planner.sketch.largest import Largest
from castile.planner.sketch.layouts import LayoutTable
from castile.planner.sketch.node_costs import NodeCosts
from castile.planner.sketch.program_builder import ProgramBuilder
from castile.planner.sketch.spaces import SpaceTable
from castile.planner.step.program import Program
from castile.planner.strategy import Config
from castile.runtime.compiled import assembled, can_compile, is_kept
from castile.runtime.garbage import uncollected
from castile.runtime.task import CostKey

# Random numbers for each proposal.
NUM_DRAWS = 12
# Bytes of the two transfers whose prices give a link's latency and seconds a byte.
SMALL, LARGE = 1 << 10, 1 << 24
TABLE = 1 << 16
# The most processors, about, that all Configs of a sketch name together.
MOST_NAMED = 1 << 24
# The host reads whole arrays on processor 0.
_WHOLE = (Placement(1, (0,)),)
ON_HOST = Space([{}], lambda _: _WHOLE)


class WalkResult(NamedTuple):
    """The result of a walk: its best plan, the plan's energy, and the number of the proposal that led to it.

    energy   seconds, with a penalty for a plan that does not fit
    """

    plan: dict[str, Config]
    energy: float
    number: int


class _Proposals(NamedTuple):
    """The proposals of a walk, as for `metropolis.walk`."""

    draws: np.ndarray
    first: np.ndarray
    rises: np.ndarray
    limit: float


_NONE = _Proposals(np.zeros((0, NUM_DRAWS)), np.zeros(0, np.int64), np.zeros(0), metropolis.NEVER)


class _Aim(NamedTuple):
    """The objective of walks: energy, within `capacity` bytes of each processor."""

    capacity: np.ndarray
    worth: Worth


class NumberedWalk(NamedTuple):
    """The result of a walk as in `WalkResult`, with the best plan in numbers."""

    best: np.ndarray
    least: float
    number: int


class Sketch:
    """Estimates plans of one graph on one machine, and walks through them. Prices are computed on first use and cached.

    spaces   by node, the Configs to choose from; where these are many, some of them
    known    plans whose Configs must be among these
    bucket   the most bytes of a bucket of gradient sums, once `join` puts sums into buckets
    """

    @uncollected()
    def __init__(
        self,
        lowering: Lowering,
        cost: CostModel,
        spaces: Mapping[str, Space],
        known: Sequence[Mapping[str, Config]],
        bucket: int = 0,
    ) -> None:
        self.lowering, self.cost, self._bucket = lowering, cost, float(bucket)
        # Two microbatches: one stands for all but the last; gradients are summed with the last.
        additive = Additive(lowering.shortened(2), cost)
        nodes = lowering.piece.nodes
        self.names = list(nodes)
        self._steps = additive.steps
        alike = [(tuple(n.alignment.extents.items()), n.alignment.frozen, id(spaces[n.name])) for n in nodes.values()]
        self._spaces = _numbered(alike)
        self._works = NodeCosts(lowering, cost, additive.program, additive.step_kinds)
        # Nodes of one kind may differ in their space, where some are pinned or have no passes.
        every = zip(self.names, self._spaces.tolist(), strict=True)
        self._kinds = _numbered([(additive.kinds[name], self._works.keeps.get(name), space) for name, space in every])
        firsts = [self.names[n] for n in np.unique(self._spaces, return_index=True)[1]]
        of_space: list[dict[Config, None]] = [{} for _ in firsts]
        for name, space in zip(self.names, self._spaces.tolist(), strict=True):
            of_space[space].update(dict.fromkeys(plan[name] for plan in known))
        num_procs = lowering.machine.num_procs
        most = max(50, min(1000, MOST_NAMED // (num_procs * len(firsts))))
        each, kinds, of_owners = [spaces[name] for name in firsts], self._kinds, self._spaces
        # A forward pass ends when the host has its results; of a training step it reads only a few numbers.
        has_host = lowering.mode == "forward"
        if has_host:
            firsts, each, of_space = [*firsts, firsts[-1]], [*each, ON_HOST], [*of_space, {}]
            kinds, of_owners = (np.append(of, of.max() + 1) for of in (kinds, of_owners))
        self.table = SpaceTable([nodes[name] for name in firsts], each, num_procs, of_space, most)
        self._layouts = LayoutTable(self.table, lowering.templates.node_kind)
        self.spaces = self.table.arrays()
        self.type_of = lowering.machine.kind_of.astype(np.int64)
        self.axes_of = np.array([len(axes) for axes in self.table.axes], np.int64)
        splits = np.array([len(splits) for splits in self.table.splits], np.int64)
        self._first_of_kind = np.unique(self._kinds, return_index=True)[1]
        self._known_first = row_pointers(splits[of_owners[np.unique(kinds, return_index=True)[1]]])
        self._draft = ProgramBuilder(self.names, nodes, additive, of_owners, self._layouts)
        self.program, num_rows = self._draft.program(kinds, self._known_first, splits)
        self.layouts, num_contents = self._layouts.arrays(self.table.first)
        self.links = _links(cost)
        num_types = len(lowering.machine.kinds)
        # Bytes that parts of nodes hold: with whole updates, and with updates in pieces.
        self._nbytes = np.zeros((2, self._known_first[-1]))
        self.prices = Prices(
            np.zeros(self._known_first[-1], np.bool_), np.full((num_rows, num_types), np.nan),
            np.zeros((self._known_first[-1], num_types)), self._nbytes[0], np.zeros(self._known_first[-1]),
            np.zeros(num_contents, np.int64), np.zeros(num_contents, np.int64),
            np.zeros(TABLE, np.int64), np.zeros(TABLE),
        )  # fmt: skip
        self.uses = uses_of(self.program)
        self._make_room()
        self.choices = choices_of(lowering, self._kinds, self._spaces, self.table)
        self._host = self._read_by_host(additive.program) if has_host else []

    @property
    def is_apart(self) -> bool:
        """Whether walks can run in other threads: loops are compiled, and all prices of a machine are computed at once.

        Prices computed one by one use the templates of lowering, which other threads use too.
        """
        return self._works.is_plain and can_compile()

    def copy_for_thread(self) -> Sketch:
        """A copy with arrays of its own, for a walk in another thread, which has the same result."""
        other, known, match, relocated = copy(self), self.prices, self.choices.match, self.choices.relocated
        found = {name: getattr(known, name).copy() for name in ("pattern", "content", "keys", "values")}
        other.prices = known._replace(**found)
        other.choices = self.choices._replace(match=match.copy(), relocated=relocated.copy())
        other._make_room()
        return other

    def _make_room(self) -> None:
        num_procs = len(self.type_of)
        self.room = room_for(num_procs, len(self.links.group), len(self.prices.content), self.program, self.spaces)
        self.classes = classes_for(num_procs, self.spaces)
        self.log = log_for(num_procs, self.program)
        self.room.entries[0] = np.count_nonzero(self.prices.keys)

    def number(self, configs: Mapping[str, Config]) -> np.ndarray:
        """int64[nodes]: the numbers of a plan's Configs. Raises ValueError where the sketch lacks one."""
        found = list(map(self.table.find, self._spaces.tolist(), map(configs.__getitem__, self.names)))
        if None in found:
            raise ValueError(f"{self.names[found.index(None)]}: the sketch has no such Config")
        return np.array([*found, *self._host], np.int64)

    def configs(self, plan: np.ndarray) -> dict[str, Config]:
        """The Configs with these numbers, by node."""
        configs = map(self.table.config, self._spaces.tolist(), plan[: len(self.names)].tolist())
        return dict(zip(self.names, configs, strict=True))

    def update(self, in_pieces: bool) -> None:
        """Set whether plans hold memory as with updates in pieces (`known/pieces`); at first updates are whole."""
        self.prices = self.prices._replace(nbytes=self._nbytes[int(in_pieces)])

    def join(self, together: bool) -> None:
        """Set whether gradient sums are joined in buckets; at first each goes alone."""
        self.links = self.links._replace(bucket=self._bucket if together else 0.0)

    def seconds(self, configs: Mapping[str, Config]) -> float:
        """The seconds of a plan's step. Raises ValueError where the sketch lacks one of its Configs."""
        nothing = np.zeros((0, NUM_DRAWS))
        return self.walk(self.number(configs), nothing, nothing[:, 0], np.full(len(self.type_of), np.inf)).least

    @property
    def held(self) -> np.ndarray:
        """float64[P]: bytes that processors hold in the plan that was timed last."""
        return self.room.held + (self.room.num_stages[0] - 1) * self.room.kept

    def result_of(self, trail: NumberedWalk) -> WalkResult:
        """The result of a walk, in Configs."""
        return WalkResult(self.configs(trail.best), trail.least, trail.number)

    def walk(
        self, plan: np.ndarray, draws: np.ndarray, heats: np.ndarray, capacity: np.ndarray, longer: float = 0.0
    ) -> NumberedWalk:
        """A Metropolis walk from a plan, one proposal for each row of draws.

        plan                    numbers of the Configs with which it begins; the walk changes them
        draws[N, NUM_DRAWS]     uniform in [0, 1)
        heats[N]                the share by which the energy may rise, times an exponential draw of mean 1
        capacity[P]             bytes of each processor
        longer                  0; or, to minimize the memory of the fullest processor, the seconds by which a step may
                                take longer to halve it
        """
        self._begin(plan)
        best, rises = plan.copy(), -heats * np.log(1 - draws[:, -1])
        proposals = _Proposals(draws, _NONE.first, rises, metropolis.NEVER)
        _, least, number = self._walk(proposals, plan, np.nan, best, np.nan, _aim(capacity, longer))
        return NumberedWalk(best, least, number)

    def without_useless_changes(
        self, first: np.ndarray, best: np.ndarray, each: float, every: float, capacity: np.ndarray, longer: float = 0.0
    ) -> tuple[float, np.ndarray]:
        """(energy, plan): the best plan of a walk from `first`, with changes reverted that gain next to nothing.

        each, every   the share by which reverting one change, and all of them, may raise the energy
        """
        for known in (first, best):
            self._begin(known)
        plan, wanted = best.copy(), _aim(capacity, longer)
        energy, _, _ = self._walk(_NONE, plan, np.nan, best, np.nan, wanted)
        back = _Proposals(_NONE.draws, first, np.full(2 * len(plan), each), energy * (1 + every))
        # An energy of -inf keeps `best` as it is.
        self._walk(back, plan, energy, best, -np.inf, wanted)
        energy, _, _ = self._walk(_NONE, plan, np.nan, best, np.nan, wanted)
        return energy, plan

    def _walk(
        self, proposals: _Proposals, plan: np.ndarray, energy: float, best: np.ndarray, least: float, wanted: _Aim
    ) -> tuple[float, float, int]:
        """(energy, least energy, the proposal that led to it): run `metropolis.walk` to its end. Prices that it lacks
        are computed on its way, and the hash table is grown.
        """
        at, why, outcome, (nodes, old) = 0, metropolis.FULL, np.zeros(2, np.int64), np.zeros((2, len(plan)), np.int64)
        while why != metropolis.DONE:
            why, at, energy, least = _bodies().walk(
                at, *proposals, plan, energy, best, least, *wanted, self.axes_of, self.type_of,
                self.program, self.uses, self.spaces, self.layouts, self.links, self.prices, self.choices,
                self.classes, self.room, self.log, nodes, old, outcome,
            )  # fmt: skip
            if why == metropolis.UNKNOWN:
                self._fill(int(outcome[1]))
            elif why == metropolis.FULL:
                self._widen()
        return float(energy), float(least), int(outcome[0])

    def _begin(self, plan: np.ndarray) -> None:
        """Price the splits of a plan, and drop the state of other plans."""
        numbers = self.program.known + self.spaces.split[plan]
        for number in np.unique(numbers[~self.prices.known[numbers]]).tolist():
            if not self.prices.known[number]:
                self._fill(number)
        self._widen()
        self.room.kept_state[0], self.room.kept_longest[0], self.room.transfer[:] = 0.0, 0.0, reads.UNPRICED
        self.room.num_ends[:] = reads.UNKNOWN

    def _fill(self, number: int) -> None:
        """Price one split of a kind, or all splits of all kinds where these can be priced at once."""
        if self._works.is_plain:
            self._price(range(len(self._first_of_kind)), None)
        else:
            kind = int(np.searchsorted(self._known_first, number, side="right")) - 1
            self._price([kind], number - int(self._known_first[kind]))

    def _price(self, kinds: Sequence[int], split: int | None) -> None:
        """Price a split of kinds, or all for None; kinds that differ only in extents are priced together."""
        nodes, alike = self.lowering.piece.nodes, dict[Hashable, list[int]]()
        for kind in kinds:
            node = nodes[self.names[self._first_of_kind[kind]]]
            alike.setdefault(self._works.together(node, self._steps[node.name]), []).append(kind)
        firsts = [self._first_of_kind[of].tolist() for of in alike.values()]
        own = [[self._own(node) for node in of] for of in firsts]
        each = [[self._largest(node, split) for node in of] for of in firsts]
        largest = [Largest.joined(of) for of in each]
        steps = [[[self._draft.steps[s] for s in row] for row in zip(*of, strict=True)] for of in own]
        every = self._works.seconds(list(zip(largest, steps, strict=True)))
        rows = zip(alike.values(), each, largest, own, steps, every, strict=True)
        for of, ones, joined, numbers, decided, seconds in rows:
            counts = [one.count for one in ones]
            split_of = ranges(np.full(len(counts), split or 0), counts)
            for places, lasts in zip(np.array(numbers, np.int64).T, seconds, strict=True):
                self.prices.seconds[np.repeat(self.program.row[places], counts) + split_of] = lasts
            here = np.repeat(self._known_first[of], counts) + split_of
            passes = zip(decided, seconds, strict=True)
            self.prices.total[here] = sum(steps[0].micro.times * lasts for steps, lasts in passes)
            steps_of = self._steps[joined.node.name]
            self.prices.kept[here], *held = self._works.nbytes(joined, steps_of)
            self._nbytes[0, here], self._nbytes[1, here] = held
            self.prices.known[here] = True

    def _read_by_host(self, program: Program) -> list[int]:
        """Price the host's reads, which cost only their transfers; returns [the number of the host's Config]."""
        outputs = [flow for flow in program.flows if flow.role == "output"]
        self.prices.seconds[self.program.row[self._own(len(self.names))]] = 0.0
        self._nbytes[:, -1] = sum(prod(flow.shape) * itemsize(flow.dtype) for flow in outputs)
        self.prices.known[-1] = True
        return [int(self.table.first[-2])]

    def _own(self, node: int) -> list[int]:
        """The passes that a node decides."""
        return self.program.own[self.program.own_ptr[node] : self.program.own_ptr[node + 1]].tolist()

    def _largest(self, number: int, split: int | None) -> Largest:
        """The largest part of a node under a split, or under each split for None."""
        node, space = self.lowering.piece.nodes[self.names[number]], int(self._spaces[number])
        splits, degree = self.table.splits[space], self.table.degree[space]
        if split is not None:
            return Largest([node], splits[split], [1])
        return Largest([node], dict(zip(self.table.axes[space], degree.T, strict=True)), [len(splits)])

    def _widen(self) -> None:
        """Grow the hash table fourfold where half of it is used."""
        if 2 * self.room.entries[0] > len(self.prices.keys) or len(self.prices.keys) < 8 * len(self.program.flow):
            used, size = np.flatnonzero(self.prices.keys), 4 * len(self.prices.keys)
            keys, values = np.zeros(size, np.int64), np.zeros(size)
            _bodies().rehashed(self.prices.keys[used], self.prices.values[used], keys, values)
            self.prices = self.prices._replace(keys=keys, values=values)


def _numbered(values: Sequence[object]) -> np.ndarray:
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)


def _links(cost: CostModel) -> Links:
    """Latency and seconds a byte of each level, from the prices of a small and a large transfer."""
    levels = cost.machine.levels if cost.machine.num_procs > 1 else ()

    def seconds(level: str, nbytes: int) -> float:
        return cost.seconds(CostKey("move", "", "float32", 0, nbytes, level, 2)).seconds

    per_byte = [(seconds(v.name, LARGE) - seconds(v.name, SMALL)) / (LARGE - SMALL) for v in levels]
    latency = [max(0.0, seconds(v.name, SMALL) - SMALL * b) for v, b in zip(levels, per_byte, strict=True)]
    # most transfers are collectives, so a hop has its part of their overhead
    busy = [2 * v.message_seconds + v.collective_seconds / (v.group - 1) for v in levels]
    latency = [hop + more for hop, more in zip(latency, busy, strict=True)]
    has_trees = "tree" in cost.machine.algorithms
    group = np.arange(cost.machine.num_procs) // np.array([v.group for v in levels], np.int64).reshape(-1, 1)
    task = min(p.task_overhead_seconds for p in cost.machine.processors)
    return Links(group, np.array(latency), np.array(per_byte), has_trees, task, 0.0)


def _aim(capacity: np.ndarray, longer: float) -> _Aim:
    """The objective of walks: seconds within the capacity of each processor; with `longer`, bytes.

    Both have the same types, so that the walk is compiled once.
    """
    if longer:
        return _Aim(np.ones(len(capacity)), Worth(1.0, 1 / longer, 1.0))
    return _Aim(capacity.astype(np.float64), Worth(0.0, 1.0, PENALTY))


class _Bodies(NamedTuple):
    walk: Callable[..., Any]
    rehashed: Callable[..., Any]


@cache
def _bodies() -> _Bodies:
    """The loops, compiled where numba is installed."""
    bodies = _Bodies(metropolis.walk, contents.rehashed)
    if not can_compile():
        return bodies
    rooms = (contents, transfer_costs, reads, classes, sweep, moves, metropolis)
    parts, inlined = ([part for room in rooms for part in getattr(room, name, ())] for name in ("PARTS", "INLINED"))
    words = {contents.index: np.uintp}
    return _Bodies(*assembled(bodies, parts, inlined, words, RECORDS, nogil=True))


def is_compiled() -> bool:
    """Whether the loops were compiled by an earlier search of this user."""
    return is_kept(_bodies().walk)
