"""Bounds below the step of every plan in which some nodes have a given Config and the others may have any of theirs.

Two of them, and the larger counts: the longest path through the passes, each at its shortest; and for each processor
the work that it cannot begin before that path allows. A node is chosen if its Config is given, otherwise open. The
bounds ignore the order in which tasks are served, and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from castile.planner.bounds.additive import Additive
from castile.planner.bounds.flow_transfers import FlowTransfers, flow_transfers
from castile.planner.bounds.transfer_bound import fastest_link, layouts, missing_elements
from castile.planner.lowering.instances import PATTERN
from castile.planner.lowering.ragged import row_pointers
from castile.planner.lowering.versions import Placed
from castile.planner.step.program import Flow
from castile.planner.strategy import Config
from castile.runtime.compiled import can_compile, compiled
from castile.runtime.region import uncovered, whole
from castile.runtime.task import NUM_LANES, Lane
from castile.runtime.timeline import PICOSECONDS

# Delay where a part need not wait: nothing begins later for it.
NEVER = -(2**60)


def _unlimited() -> None:
    """A check that never ends the making of tables."""


class Wait(NamedTuple):
    """A pass follows another: every part of it starts at least `delay` picoseconds after some part of that one has
    ended.

    before     the number of the earlier pass
    delay      [C of its node, C of the later one's node]; of one node [C]; NEVER where parts need not wait
    """

    before: int
    delay: np.ndarray


class PartialBounds:
    """Bounds below the simulated step of a graph whose nodes have one of some Configs each.

    steps         the passes, in order, that these Configs decide; `node[s]` is the number of the deciding node
    shortest[s]   [C] picoseconds of the shortest part of a pass;  busy[s] [C, P]: what it takes of each processor
    waits[s]      the passes that it follows
    check         called before each table is made; raises where time is over, which ends the making
    """

    def __init__(
        self, model: Additive, choices: Sequence[Sequence[Config]], check: Callable[[], None] = _unlimited
    ) -> None:
        self.model, self.choices, self.names, self.check = model, choices, list(model.steps), check
        number = {name: n for n, name in enumerate(self.names)}
        found = [(step.slot, number[name]) for name, steps in model.steps.items() for step in steps]
        self.slots, self.node = zip(*sorted(found), strict=True)
        self.place = {slot: s for s, slot in enumerate(self.slots)}
        self.decided = [self._decided(name, configs) for name, configs in zip(self.names, choices, strict=True)]
        durations = [self._durations(s) for s in range(len(self.slots))]
        self.shortest = [shortest for shortest, _ in durations]
        self.busy = [busy for _, busy in durations]
        self.waits: list[list[Wait]] = [[] for _ in self.slots]
        self._crossings: dict[tuple[int, tuple[int, ...]], FlowTransfers] = {}
        self._own: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        self._flows = [(f, users) for f in model.program.flows if (users := self._users(f)) is not None]
        for flow in model.program.flows:
            self._add(flow)
        # A pass of an open node is one task: the shortest part that it may have, on no engine.
        nowhere = np.zeros((0, 2), np.int64)
        self._open = [(shortest.min(keepdims=True), nowhere) for shortest in self.shortest]
        self._anyway: dict[tuple[int | None, ...], np.ndarray] = {}
        self._numbers = np.full(len(model.program.steps), -1)
        self._numbers[list(self.slots)] = np.arange(len(self.slots))

    def bounds(self, chosen: Mapping[int, int], node: int) -> np.ndarray:
        """int64[C of `node`]: a lower bound in picoseconds for each of its Configs.

        chosen   by number of a chosen node the number of its Config; all other nodes are open
        """
        size = len(self.choices[node])
        starts: list[np.ndarray] = []
        ends: list[np.ndarray] = []
        for s, own in enumerate(self.node):
            start = np.zeros(size, np.int64)
            for before, delay in self.waits[s]:
                start = np.maximum(start, ends[before] + self._delay(before, s, delay, chosen, node))
            starts.append(start)
            ends.append(start + _pick(self.shortest[s], chosen, own, node))
        longest = np.max(ends, axis=0)
        return np.maximum(longest, self._one_by_one(chosen, node, starts))

    def served(self, chosen: Mapping[int, int]) -> tuple[int, np.ndarray]:
        """(a lower bound in picoseconds, int64[S]: the earliest end of each pass) where these nodes are chosen.

        As `bounds`, but task by task between chosen nodes: every part waits for what it needs, and transfers occupy
        engines.
        """
        known = [self._passes(s, chosen[node]) if node in chosen else self._open[s] for s, node in enumerate(self.node)]
        crossed = [
            self._crossing(n, users, chosen)
            for n, (_, users) in enumerate(self._flows)
            if all(user in chosen for user in users)
        ]
        num = len(known)
        tasks = [*(lasts for lasts, _ in known), *(c.lasts for c in crossed)]
        base = row_pointers(list(map(len, tasks)))
        uses = [*(uses for _, uses in known), *(c.uses for c in crossed)]
        columns = np.concatenate(uses) + np.repeat(base[:-1], [len(u) for u in uses])[:, None] * (1, 0)
        rows = [(2 * c.slot + 1, self._placed(c, num + n)) for n, c in enumerate(crossed)]
        rows += [(2 * self.slots[s], self._rows(s, chosen)) for s, waits in enumerate(self.waits) if waits]
        ordered = np.concatenate(
            [row for _, row in sorted(rows, key=lambda row: row[0])] or [np.zeros((0, 5), np.int64)]
        )
        served = compiled(_served) if can_compile() else _served
        latest, ends = served(np.concatenate(tasks), base, ordered, columns)
        return int(latest), np.minimum.reduceat(ends, base[:num])

    def _rows(self, s: int, chosen: Mapping[int, int]) -> np.ndarray:
        """What a pass waits for whatever the transfers are, as rows of `_served` without tasks."""
        key = (s, *(chosen.get(self.node[n]) for n in (s, *(before for before, _ in self.waits[s]))))
        if key not in self._anyway:
            rows = [(n, -1, s, 0, int(np.min(self._delay(n, s, delay, chosen, -1)))) for n, delay in self.waits[s]]
            self._anyway[key] = np.array(rows, np.int64).reshape(-1, 5)
        return self._anyway[key]

    def _placed(self, crossed: FlowTransfers, number: int) -> np.ndarray:
        """The rows of a flow's transfers, with passes and transfers by their numbers, and without delay."""
        rows = np.zeros((len(crossed.rows), 5), np.int64)
        rows[:, :4] = crossed.rows
        for column in (0, 2):
            slots = rows[:, column]
            rows[:, column] = np.where(slots == PATTERN, number, self._numbers[slots])
        return rows

    def _passes(self, s: int, config: int) -> tuple[np.ndarray, np.ndarray]:
        """(picoseconds of each task of a pass, the engine that it occupies)"""
        if (s, config) not in self._own:
            chosen = self.decided[self.node[s]][config][self.model.program.steps[self.slots[s]].node.name]
            engine = self.model.lowering.machine.engines[Lane.COMPUTE]
            columns = np.array(chosen.procs, np.int64) * NUM_LANES + engine
            lasts = self.model.lasts(self.slots[s], chosen)
            self._own[s, config] = lasts, np.stack([np.arange(len(columns)), columns], 1)
        return self._own[s, config]

    def _crossing(self, number: int, users: tuple[int, ...], chosen: Mapping[int, int]) -> FlowTransfers:
        key = number, tuple(chosen[user] for user in users)
        if key not in self._crossings:
            configs: dict[str, Config] = {}
            for user in users:
                configs |= self.decided[user][chosen[user]]
            self._crossings[key] = flow_transfers(self.model, self._flows[number][0], configs)
        return self._crossings[key]

    def _users(self, flow: Flow) -> tuple[int, ...] | None:
        """The nodes whose Configs decide a flow; None where others decide too, or nothing moves."""
        names = [self.model.program.steps[slot].node.name for slot, _ in (*flow.producers, *flow.readers)]
        names += [flow.home.node.name] if flow.home is not None else []
        if flow.role == "input" or not all(name in self.model.deciders for name in names):
            return None
        return tuple(sorted({self.names.index(self.model.deciders[name]) for name in names}))

    def _one_by_one(self, chosen: Mapping[int, int], node: int, starts: Sequence[np.ndarray]) -> np.ndarray:
        """A bound on the end of the last processor: work that starts from some time on is done one after the other. And
        no step is shorter than all work spread evenly.
        """
        known = [s for s, own in enumerate(self.node) if own == node or own in chosen]
        size, num_procs = len(self.choices[node]), self.busy[0].shape[1]
        start = np.array([starts[s] for s in known])
        every = np.arange(size)
        busy = np.array(
            [self.busy[s][every if self.node[s] == node else chosen[self.node[s]] + 0 * every] for s in known]
        )
        latest = np.argsort(-start, axis=0, kind="stable")
        after = np.cumsum(np.take_along_axis(busy, latest[:, :, None], axis=0), axis=0)
        served = (np.take_along_axis(start, latest, axis=0)[:, :, None] + after).max(axis=(0, 2))
        rest = sum(int(self.busy[s].sum(axis=1).min()) for s, own in enumerate(self.node) if s not in known)
        shared = -(-(busy.sum(axis=(0, 2)) + rest) // num_procs)
        return np.maximum(served, shared)

    def _delay(
        self, before: int, after: int, delay: np.ndarray, chosen: Mapping[int, int], node: int
    ) -> np.ndarray | int:
        a, b = self.node[before], self.node[after]
        if a == b:
            return _pick(delay, chosen, a, node)
        if a == node:
            return delay[:, chosen[b]] if b in chosen else delay.min(axis=1)
        row = delay[chosen[a]] if a in chosen else delay.min(axis=0)
        return _pick(row, chosen, b, node)

    def _decided(self, name: str, configs: Sequence[Config]) -> list[dict[str, Config]]:
        """The Configs of all nodes that each Config of a node decides."""
        self.check()
        return [self.model.decided(name, config) for config in configs]

    def _durations(self, s: int) -> tuple[np.ndarray, np.ndarray]:
        """(picoseconds of the shortest part, picoseconds of each processor) of a pass, under each Config."""
        self.check()
        configs, slot = self.choices[self.node[s]], self.slots[s]
        name = self.model.program.steps[slot].node.name
        shortest = np.zeros(len(configs), np.int64)
        busy = np.zeros((len(configs), self.model.lowering.machine.num_procs), np.int64)
        for c, decided in enumerate(self.decided[self.node[s]]):
            lasts = self.model.lasts(slot, decided[name])
            shortest[c] = lasts.min()
            np.add.at(busy[c], list(decided[name].procs), lasts)
        return shortest, busy

    def _add(self, flow: Flow) -> None:
        """Add the waits of a flow's readers for its producers."""
        for made, port in flow.producers:
            for read, wanted in flow.readers:
                if made in self.place and read in self.place:
                    before, after = self.place[made], self.place[read]
                    delays = self._delays(flow, (made, port), (read, wanted))
                    if delays.max() >= 0:
                        self.waits[after].append(Wait(before, delays))

    def _delays(self, flow: Flow, made: tuple[int, int], read: tuple[int, int]) -> np.ndarray:
        """The delay between two ports of a flow, under each pair of Configs: the least time in which the part that
        lacks least can get it; NEVER where some part of the reader need not wait.
        """
        self.check()
        a, b = (self.node[self.place[slot]] for slot, _ in (made, read))
        written = [self.model.placed(*made, True, decided) for decided in self.decided[a]]
        wanted = [self.model.placed(*read, False, decided) for decided in self.decided[b]]
        held, needed = layouts(self.model, written), layouts(self.model, wanted)
        if a == b:
            rows = [missing_elements(held.only(c), needed.only(c))[0, 0] for c in range(len(self.choices[a]))]
            missing, reads = np.array(rows), needed.volume > 0
            met = np.array([_meet([w], [r])[0, 0] for w, r in zip(written, wanted, strict=True)])
        else:
            missing, reads, met = missing_elements(held, needed), (needed.volume > 0)[None], _meet(written, wanted)
        least = np.where(reads, missing, np.inf).min(axis=-1)
        # Only where the parts cover the region: what others write of it is not waited for here.
        covers = np.array([_is_apart(p) and _covers(p, flow) for p in written])
        apart = np.array([_is_apart(p) for p in wanted])
        least = np.where(covers & apart if a == b else covers[:, None] & apart, least, 0)
        latency, rate = fastest_link(self.model, flow.dtype)
        least = np.where(np.isfinite(least), least, 0)
        seconds = np.where(least > 0, latency + least * np.dtype(flow.dtype).itemsize * rate, 0)
        return np.where(met, np.floor(seconds * PICOSECONDS).astype(np.int64), NEVER)


def _covers(placed: Placed, flow: Flow) -> bool:
    """Whether the parts of a layout cover the whole region."""
    return not uncovered(whole(flow.shape), [box for box in placed.boxes if box is not None])


def _is_apart(placed: Placed) -> bool:
    """Whether each part lies on processors of its own."""
    return len(set(placed.config.procs)) == len(placed.config.procs)


def _meet(written: Sequence[Placed], wanted: Sequence[Placed]) -> np.ndarray:
    """bool[C, C]: whether every part of a reader reads something that some part of a producer writes."""
    (lo, hi), (first, last) = _corners(written), _corners(wanted)
    lower = np.maximum(lo[:, None, :, None], first[None, :, None])
    upper = np.minimum(hi[:, None, :, None], last[None, :, None])
    parts = np.array([[n < len(p.boxes) for n in range(first.shape[1])] for p in wanted])
    return ((lower < upper).all(axis=-1).any(axis=2) | ~parts).all(axis=-1)


def _corners(placed: Sequence[Placed]) -> tuple[np.ndarray, np.ndarray]:
    """(lo, hi), each [C, parts, dims + 1]: the boxes of parts. The last dim is empty where a part touches nothing."""
    dims = next((len(box.lo) for p in placed for box in p.boxes if box is not None), 0)
    found = np.zeros((2, len(placed), max(len(p.boxes) for p in placed), dims + 1), np.int64)
    for n, p in enumerate(placed):
        for part, box in enumerate(p.boxes):
            if box is not None:
                found[:, n, part] = (*box.lo, 0), (*box.hi, 1)
    return found[0], found[1]


def _pick(values: np.ndarray, chosen: Mapping[int, int], own: int, node: int) -> np.ndarray | int:
    """Of values by Config of node `own`: all, if it is `node`; the chosen Config's, if it is chosen; else the least."""
    if own == node:
        return values
    return int(values[chosen[own]]) if own in chosen else int(values.min())


def _served(lasts, base, rows, uses):  # type: ignore[no-untyped-def]
    """(the longest path or the engine that is done last, whichever is later; when each task ends on that path)

    lasts[T] of tasks, those of pass or flow n from base[n] on. rows [R, 5]: (pass, task, pass, task, delay), in an
    order in which a task is final before others follow it; with a task of -1 all tasks of the second follow the
    earliest of the first. uses [U, 2]: a task and an engine that it occupies.
    """
    start = np.zeros(len(lasts), np.int64)
    for r in range(len(rows)):
        before, after = base[rows[r, 0]], base[rows[r, 2]]
        if rows[r, 1] >= 0:
            before += rows[r, 1]
            after += rows[r, 3]
            start[after] = max(start[after], start[before] + lasts[before])
            continue
        ready = start[before] + lasts[before]
        for t in range(before, base[rows[r, 0] + 1]):
            ready = min(ready, start[t] + lasts[t])
        for t in range(after, base[rows[r, 2] + 1]):
            start[t] = max(start[t], ready + rows[r, 4])
    ends = start + lasts
    latest = ends.max()
    busy = np.zeros(uses[:, 1].max() + 1, np.int64) if len(uses) else np.zeros(1, np.int64)
    order = np.argsort(-start[uses[:, 0]])
    for k in range(len(order)):
        task, column = uses[order[k], 0], uses[order[k], 1]
        busy[column] += lasts[task]
        latest = max(latest, start[task] + busy[column])
    return latest, ends
