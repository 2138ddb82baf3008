"""Catalogues: what the tasks of equal instances have in common, computed once for all plans, in flat arrays.

They do not know where in a plan instances stand.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from operator import attrgetter
from typing import Generic, TypeVar

import numpy as np

from castile.planner.lowering.instances import HOST, NONE, PATTERN, FlowTemplate, StepInstance, lying
from castile.runtime.compiled import compiled
from castile.runtime.task import CostKey

# Large plans have many steps.
_DOES, _CONFIG = attrgetter("template.does"), attrgetter("config")
NO_PAIRS = np.zeros((0, 2), dtype=np.int64)
BUFFERS = -1
# A catalogue of so many entries begins anew: those of plans of long ago take memory.
MOST = 2**21

Kin = TypeVar("Kin")
Rows = tuple[np.ndarray, np.ndarray]


class Kinds(Generic[Kin]):
    """Distinct things among many that repeat, numbered in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.each: list[Kin] = []

    def numbers(self, things: Sequence[Kin], keys: Sequence[Hashable]) -> np.ndarray:
        """The kind of each thing: those with equal keys have the same."""
        known = self._numbers
        for key, thing in dict(zip(keys, things, strict=True)).items():
            if key not in known:
                known[key] = len(self.each)
                self.each.append(thing)
        return np.fromiter(map(known.__getitem__, keys), np.int64, len(keys))


class Table(Generic[Kin]):
    """The rows of each kind, in columns; computed on demand for all kinds that are new.

    rows   computes for some kinds the kind of each row, ascending, and the rows: int64[columns, rows]
    """

    def __init__(self, kinds: Kinds[Kin], num_columns: int, rows: Callable[[Sequence[Kin]], Rows]) -> None:
        self._kinds, self._rows = kinds, rows
        self._begin = np.zeros(1, np.int64)
        self._columns = np.zeros((num_columns, 0), np.int64)

    @property
    def num_rows(self) -> int:
        """The number of rows of all kinds."""
        return int(self._begin[-1])

    def of(self, which: np.ndarray) -> Rows:
        """The rows of things of these kinds, concatenated: int64[columns, rows], and the thing that each row is of."""
        self._enter(self._kinds.each[len(self._begin) - 1 :])
        return compiled(_concatenated)(self._begin, self._columns, which)

    def placed(self, which: np.ndarray, bases: np.ndarray, first: np.ndarray) -> np.ndarray:
        """int32[columns / 2, rows]: the rows of things of these kinds, with each two columns (owner, number of its own)
        as one.

        bases   where the numbers of each owner begin, first[thing] + owner
        """
        self._enter(self._kinds.each[len(self._begin) - 1 :])
        found: np.ndarray = compiled(_numbered)(self._begin, self._columns, which, bases, first)
        return found

    def _enter(self, kinds: Sequence[Kin]) -> None:
        if not kinds:
            return
        kind, columns = self._rows(kinds)
        old, new = self.num_rows, self.num_rows + len(kind)
        if new > self._columns.shape[1]:
            grown = np.empty((len(columns), max(new, 2 * old)), np.int64)
            grown[:, :old] = self._columns[:, :old]
            self._columns = grown
        self._columns[:, old:new] = columns
        ends = np.cumsum(np.bincount(kind, minlength=len(kinds)))
        self._begin = np.append(self._begin, old + ends)


def _concatenated(begin, columns, which):  # type: ignore[no-untyped-def]
    """Rows begin[kind] to begin[kind + 1] of each of these kinds end to end, and of which of them each row is."""
    num_rows = 0
    for n in range(len(which)):
        num_rows += begin[which[n] + 1] - begin[which[n]]
    rows, thing = np.empty((len(columns), num_rows), np.int64), np.empty(num_rows, np.int64)
    for column in range(len(columns)):
        row = 0
        for n in range(len(which)):
            for k in range(begin[which[n]], begin[which[n] + 1]):
                rows[column, row], thing[row] = columns[column, k], n
                row += 1
    return rows, thing


def _numbered(begin, columns, which, bases, first):  # type: ignore[no-untyped-def]
    """The same with each two columns as one number."""
    num_rows = 0
    for n in range(len(which)):
        num_rows += begin[which[n] + 1] - begin[which[n]]
    found = np.empty((len(columns) // 2, num_rows), np.int32)
    for pair in range(len(found)):
        row = 0
        for n in range(len(which)):
            for k in range(begin[which[n]], begin[which[n] + 1]):
                found[pair, row] = bases[first[n] + columns[2 * pair, k]] + columns[2 * pair + 1, k]
                row += 1
    return found


class CostKeys:
    """Cost keys, numbered in order of appearance: `each` by its number."""

    def __init__(self) -> None:
        self.each: list[CostKey] = []
        self._numbers: dict[CostKey, int] = {}
        self._known: dict[int, tuple[Sequence[CostKey], np.ndarray]] = {}

    def numbered(self, keys: Sequence[CostKey]) -> np.ndarray:
        """Their numbers; cached for the same sequence object."""
        if id(keys) not in self._known:
            for key in keys:
                if key not in self._numbers:
                    self._numbers[key] = len(self.each)
                    self.each.append(key)
            self._known[id(keys)] = keys, np.array([self._numbers[key] for key in keys], dtype=np.int64)
        return self._known[id(keys)][1]


class Catalogue:
    """The kinds of steps and flows met so far, and their tables; owner 0 are the transfers of a flow, -1 its buffers, k
    the tasks of the k-th step that it touches.

    keys         cost keys of tasks
    step_sizes   number of tasks
    tasks        of steps: number of the cost key, lane, private bytes
    flow_sizes   numbers of transfers and buffers
    strided      of flows: whether some step reads in strides
    adds         of flows: owner and task that add to existing numbers, and the output through which
    transfers    of flows: kind, number of the cost key, number of occupied lanes
    lanes        of flows: those of their transfers
    edges        of flows: owner and task that wait, owner and task for which they wait
    uses         of flows: owner and task, owner and number of the buffer that it touches
    buffers      of flows: processor, bytes, and owner and task that begin its life, task -1 for what outlives the step
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.keys = CostKeys()
        self._private: dict[tuple[int, int], np.ndarray] = {}
        steps, flows = Kinds[StepInstance](), Kinds[FlowTemplate]()
        self._steps, self._flows = steps, flows
        self.step_sizes = Table(steps, 1, lambda kinds: _one_row([(s.num_tasks,) for s in kinds]))
        self.tasks = Table(steps, 3, partial(_tasks, self.keys))
        self.flow_sizes = Table(flows, 2, lambda kinds: _one_row([(t.num_tasks, t.num_buffers) for t in kinds]))
        self.strided = Table(flows, 1, lambda kinds: _one_row([(t.version.is_strided,) for t in kinds]))
        self.adds = Table(flows, 3, _adds)
        self.transfers, self.lanes = Table(flows, 3, partial(_transfers, self.keys)), Table(flows, 1, _lanes)
        self.edges, self.uses = Table(flows, 4, _edges), Table(flows, 4, _uses)
        self.buffers = Table(flows, 4, _buffers)

    def kinds(self, steps: Sequence[StepInstance], flows: Sequence[FlowTemplate]) -> tuple[np.ndarray, np.ndarray]:
        """The kind of each step and flow; valid until the next call."""
        long = self.tasks, self.transfers, self.lanes, self.edges, self.uses, self.buffers
        if sum(table.num_rows for table in long) > MOST:
            self.clear()
        placed = list(zip(*(map(id, map(of, steps)) for of in (_DOES, _CONFIG)), strict=True))
        return self._steps.numbers(steps, placed), self._flows.numbers(flows, flows)

    def private_adding(self, kind: int, ports: int) -> np.ndarray:
        """The private bytes of the tasks of a kind of step that add through these outputs: a bit for each."""
        if (kind, ports) not in self._private:
            step = self._steps.each[kind]
            adds = tuple([bool(ports >> port & 1) for port in range(len(step.step.outputs))])
            self._private[kind, ports] = np.repeat(step.template.does.private_adding(adds), step.config.replicas)
        return self._private[kind, ports]


def _tasks(keys: CostKeys, kinds: Sequence[StepInstance]) -> Rows:
    costs = [keys.numbered(s.template.does.keys[0])[s.costs] for s in kinds]
    return _columns(costs, [s.lanes for s in kinds], [s.private for s in kinds])


def _transfers(keys: CostKeys, kinds: Sequence[FlowTemplate]) -> Rows:
    sending = [n for n, t in enumerate(kinds) if t.num_tasks]
    of = [kinds[n] for n in sending]
    costs = [keys.numbered(t.version.keys[0])[t.version.keys[1]] for t in of]
    which, columns = _columns([t.version.kinds for t in of], costs, [t.lanes[0] for t in of])
    return np.array(sending, np.int64)[which], columns


def _lanes(kinds: Sequence[FlowTemplate]) -> Rows:
    return _columns([t.lanes[1] for t in kinds])


def _edges(kinds: Sequence[FlowTemplate]) -> Rows:
    first, step, task = _ports(kinds)
    kind, pairs = _together([t.version.edges for t in kinds], NO_PAIRS)
    before, after = (pairs + first[kind][:, None]).T
    real = (step[before] != HOST) & (step[after] != HOST)
    real &= (step[before] != step[after]) | (task[before] != task[after])
    before, after = before[real], after[real]
    return kind[real], np.stack([step[after] - PATTERN, task[after], step[before] - PATTERN, task[before]])


def _adds(kinds: Sequence[FlowTemplate]) -> Rows:
    adding = [np.flatnonzero(t.version.adds) if t.is_made and t.version.is_sum else NONE for t in kinds]
    kind, port = _together(adding)
    first, step, task = _ports(kinds)
    port += first[kind]
    return kind, np.stack([step[port] - PATTERN, task[port], _together([t.port_number for t in kinds])[1][port]])


def _uses(kinds: Sequence[FlowTemplate]) -> Rows:
    first, step, task = _ports(kinds)
    kind, pairs = _together([t.version.touched for t in kinds], NO_PAIRS)
    port, buffer = pairs[:, 0] + first[kind], pairs[:, 1]
    real = step[port] != HOST
    return kind[real], np.stack([step[port] - PATTERN, task[port], np.full_like(port, BUFFERS), buffer])[:, real]


def _buffers(kinds: Sequence[FlowTemplate]) -> Rows:
    first, step, task = _ports(kinds)
    kind, port = _together([t.first for t in kinds])
    begun = np.flatnonzero(port >= 0)
    begin = np.stack([np.zeros_like(port), np.full_like(port, -1)])
    port = port[begun] + first[kind[begun]]
    begin[:, begun] = step[port] - PATTERN, task[port]
    return kind, np.stack([*lying(kinds), *begin])


def _ports(kinds: Sequence[FlowTemplate]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the ports of each flow begin, which of its flow's steps each is of, and which task of that."""
    counts = np.array([len(t.port_step) for t in kinds], dtype=np.int64)
    steps, tasks = (_together(of)[1] for of in ([t.port_step for t in kinds], [t.port_task for t in kinds]))
    return np.cumsum(counts) - counts, steps, tasks


def _one_row(rows: Sequence[tuple[int, ...]]) -> Rows:
    """A row for each."""
    return np.arange(len(rows)), np.array(rows, dtype=np.int64).T


def _columns(*columns: Sequence[np.ndarray]) -> Rows:
    """Whose each row is, given each column as what each kind has of it."""
    joined = [_together(of) for of in columns]
    return joined[0][0], np.stack([rows for _, rows in joined])


def _together(arrays: Sequence[np.ndarray], none: np.ndarray = NONE) -> Rows:
    """Whose each row is of what kinds have, and the rows; `none` of them are like those."""
    kind = np.repeat(np.arange(len(arrays)), np.array([len(array) for array in arrays], dtype=np.int64))
    return kind, np.concatenate([none, *arrays])
