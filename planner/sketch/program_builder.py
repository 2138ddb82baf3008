"""Builds the program of a sketch: the passes that it keeps, the node that decides each, and the layouts of its flows.

A node of the graph decides its own passes and those that update, cast or clip its parameters, as these lie as the
parameter does. Ports are looked at once for equal passes. It does not know Configs or costs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from castile.planner.bodies.vocabulary import itemsize
from castile.planner.bounds.additive import Additive
from castile.planner.graph import Node
from castile.planner.lowering.ragged import first_seen_numbers, row_pointers
from castile.planner.sketch.arrays import Program
from castile.planner.sketch.layouts import LayoutTable
from castile.planner.sketch.node_costs import param_of
from castile.planner.sketch.order import joined, ordered
from castile.planner.step.program import Program as Passes
from castile.planner.step.program import Step
from castile.planner.strategy import parts

NONE = -1


class _PortOwner(NamedTuple):
    """The owner of ports: a pass, or None for a parameter that lies somewhere before the step (its home); the node that
    decides it; and which operand of that node is the parameter that is updated or at home, NONE for a pass of the node
    itself.
    """

    step: Step | None
    owner: int
    operand: int


class _Ports(NamedTuple):
    """Where flows are made, or read: entries of the slot of the pass (NONE for a home), the node that decides it, and
    the layout there.

    flow   the number of the flow
    """

    flow: np.ndarray
    slot: np.ndarray
    owner: np.ndarray
    layout: np.ndarray

    def of(self, which: np.ndarray) -> _Ports:
        """Some of it."""
        return _Ports(*(column[which] for column in self))


class ProgramBuilder:
    """The passes that are kept, in the order in which a sketch takes them, and the flows between them.

    spaces[N]   the space of each node; where the host reads outputs, after all nodes also the space of the host
    """

    def __init__(
        self,
        names: Sequence[str],
        nodes: Mapping[str, Node],
        additive: Additive,
        spaces: np.ndarray,
        layouts: LayoutTable,
    ) -> None:
        self._nodes, self._additive, self._layouts = list(nodes.values()), additive, layouts
        self._spaces, self._space = spaces, spaces.tolist()
        has_host, self._step_kinds = len(spaces) > len(names), list[Hashable](additive.step_kinds)
        self._program = _read_by_host(additive.program) if has_host else additive.program
        self._params = {p.name: p.shape for p in additive.program.graph.params}
        every, number = self._program.steps, {name: n for n, name in enumerate(names)}
        reading = every[len(self._step_kinds) :]
        self._step_kinds += [step.inputs for step in reading]
        self._decider = {name: number[decider] for name, decider in additive.deciders.items()}
        # By nodes of the program that the graph has not: the parameter that they cast, update or clip, "" for none.
        self._of = {name: param_of(name, self._program) for name in self._decider.keys() - number.keys()}
        # By slot the node that decides the step, NONE for steps that are not kept; and whether it updates a parameter.
        owner = {name: n for name, n in self._decider.items() if self._of.get(name, name)}
        self._owner = np.array([owner.get(step.node.name, NONE) for step in every], np.int64)
        self._is_late = np.array([step.node.name not in number for step in every], np.bool_)
        # What the host reads is sent as soon as it is made, and waited for at the end, as gradients are by updates.
        self._owner[len(every) - len(reading) :], self._is_late[len(every) - len(reading) :] = len(names), True
        self._micro = np.array([s.micro.number if s.micro.count > 1 else NONE for s in every], np.int64)
        made, read = ([getattr(flow, of) for flow in self._program.flows] for of in ("producers", "readers"))
        self._made, self._read = (of.of(self._owner[of.slot] >= 0) for of in (joined(made), joined(read)))
        self._agenda = ordered(self._owner >= 0, self._is_late, self._micro, self._made, self._read)
        self.steps = [every[slot] for slot in self._agenda.slot.tolist()]
        self._askers: list[_PortOwner] = []
        self._alike: dict[Hashable, int] = {}

    def program(self, kinds: np.ndarray, known_first: np.ndarray, num_splits: np.ndarray) -> tuple[Program, int]:
        """(the flat arrays, how many rows of seconds there are).

        kinds[N]     as `spaces`, the kind of each node
        known_first  where the splits of each kind begin
        num_splits   of each space
        """
        owner, mine = self._owner[self._agenda.slot], np.flatnonzero(~self._agenda.is_ahead)
        place, ahead = (self._agenda.places(len(self._owner), is_ahead) for is_ahead in (False, True))
        ends, reads = self._ends_and_reads()
        partial = (ends.slot >= 0) & ~self._is_late[ends.slot] & ~self._bears_all(ends.layout)
        reads = reads.of(_is_needed(ends, partial, reads, ahead[reads.slot] >= 0))
        # An entry that only sends has the reads of the step itself.
        sent = np.flatnonzero(ahead[reads.slot] >= 0)
        which = np.append(np.arange(len(reads.slot)), sent)
        reader = np.append(place[reads.slot], ahead[reads.slot[sent]])
        reads, flow = reads.of(which[np.lexsort((which, reader))]), np.unique(ends.flow)
        sizes = [itemsize(self._program.flows[n].dtype) for n in flow.tolist()]
        rows, num_rows = _rows(owner, mine, kinds, num_splits[self._spaces])
        program = Program(
            owner, rows, row_pointers(np.bincount(reader, minlength=len(owner))), np.searchsorted(flow, reads.flow),
            reads.layout, row_pointers(np.bincount(np.searchsorted(flow, ends.flow))),
            np.where(ends.slot >= 0, place[ends.slot], NONE), ends.owner, ends.layout, partial,
            np.array(sizes, np.int64), row_pointers(np.bincount(owner[mine], minlength=len(self._spaces))),
            mine[np.argsort(owner[mine], kind="stable")], self._spaces, known_first[kinds], self._turns(),
            self._work(), self._slopes(),
        )  # fmt: skip
        return program, num_rows

    def _ends_and_reads(self) -> tuple[_Ports, _Ports]:
        """(where flows lie before they are read, who reads flows of which there is something)"""
        steps, made, read, home = self._program.steps, self._made, self._read, self._homes()
        asker, num_inputs = self._askers_of_steps(), np.array([len(step.inputs) for step in steps], np.int64)
        flow = np.concatenate([made.flow, home[0], read.flow])
        slot = np.concatenate([made.slot, np.full(len(home[0]), NONE), read.slot])
        owner = np.concatenate([self._owner[made.slot], home[1], self._owner[read.slot]])
        by = np.concatenate([asker[made.slot], home[2], asker[read.slot]])
        port = np.concatenate([made.port + num_inputs[made.slot], np.zeros_like(home[0]), read.port])
        is_read = np.arange(len(flow)) >= len(flow) - len(read.flow)
        # Ports that are alike have one layout. Layouts are numbered in the order of flows.
        width = int(port.max(initial=0)) + 1
        alike, which = np.unique(by * width + port, return_inverse=True)
        there = np.array([self._is_there(*divmod(number, width)) for number in alike.tolist()], np.bool_)[which]
        there &= np.isin(flow, flow[there & ~is_read])
        met = np.flatnonzero(there)
        met = met[np.lexsort((is_read[met], flow[met]))]
        number, first = first_seen_numbers(which[met])
        layout = np.array([self._layout(*divmod(n, width)) for n in alike[which[met[first]]].tolist()], np.int64)
        found = _Ports(flow[met], slot[met], owner[met], layout[number])
        return found.of(~is_read[met]), found.of(is_read[met])

    def _homes(self) -> np.ndarray:
        """int64[3, n]: for parameters the number of the flow, the node that decides their home, and the owner of their
        layout.
        """
        rows, params = [], self._params
        for number, flow in [(n, flow) for n, flow in enumerate(self._program.flows) if flow.region in params]:
            owner = self._decider.get(flow.home.node.name, NONE) if flow.home is not None else NONE
            if owner >= 0 and flow.region in self._nodes[owner].inputs:
                rows.append((number, owner, self._asker_of(None, owner, flow.region)))
        return np.array(rows, np.int64).reshape(-1, 3).T

    def _askers_of_steps(self) -> np.ndarray:
        """By slot the number of who has its ports, NONE for passes that are not kept."""
        rows = zip(self._program.steps, self._owner.tolist(), strict=True)
        every = [
            NONE if owner < 0 else self._asker_of(step, owner, self._of.get(step.node.name, "")) for step, owner in rows
        ]
        return np.array(every, np.int64)

    def _asker_of(self, step: Step | None, owner: int, param: str) -> int:
        """The number of who has the ports of a pass or a home: the same for those that have the same layouts."""
        key: Hashable = step and self._step_kinds[step.slot], self._space[owner]
        operand = NONE
        if param:
            node = self._nodes[owner]
            operand = node.inputs.index(param)
            key = key, self._layouts.kind(node), operand
        number = self._alike.setdefault(key, len(self._askers))
        if number == len(self._askers):
            self._askers.append(_PortOwner(step, owner, operand))
        return number

    def _is_there(self, asker: int, port: int) -> bool:
        """Whether a port has a layout: of passes that update or clip a parameter only ports of the parameter's shape
        do.
        """
        step, owner, operand = self._askers[asker]
        if step is None or operand == NONE:
            return True
        of, a = (*step.inputs, *step.outputs)[port], step.node.alignment
        shape = a.shape((a.operands if of.of_operand else a.results)[of.index])
        return shape == self._params[self._nodes[owner].inputs[operand]]

    def _layout(self, asker: int, port: int) -> int:
        """The layout of a port: of what updates or clips a parameter that of the parameter where it is used."""
        step, owner, operand = self._askers[asker]
        space = self._space[owner]
        if operand != NONE:
            return self._layouts.number(self._nodes[owner], space, True, operand)
        assert step is not None
        # What the host reads has the layout of the pass that makes it.
        node = self._nodes[owner] if owner < len(self._nodes) else step.node
        of = (*step.inputs, *step.outputs)[port]
        return self._layouts.number(node, space, of.of_operand, of.index, of.begin)

    def _bears_all(self, layout: np.ndarray) -> np.ndarray:
        """Of layouts whether every axis that may be cut cuts the array; where not, parts may have the same box, and are
        summands.
        """
        each, which = np.unique(layout, return_inverse=True)
        return np.array([self._layouts.bears_all(number) for number in each.tolist()], np.bool_)[which]

    def _turns(self) -> np.ndarray:
        """Where the first and the second microbatch begin, and how many others the first represents."""
        begins = [int(np.argmax(self._micro[self._agenda.slot] == n)) for n in np.unique(self._micro[self._micro >= 0])]
        if not begins:
            return np.array([len(self.steps), len(self.steps), 0], np.int64)
        first, second = begins
        return np.array([first, second, self.steps[first].micro.times - 1], np.int64)

    @cached_property
    def _operations(self) -> dict[int, float]:
        """The operations of each step of a microbatch, by slot."""
        found = {}
        for step in self._program.steps:
            if step.micro.count > 1 and step.micro.number == 0:
                whole = parts(step.node, {}, step.axis, (0, step.micro.count))[0]
                found[step.slot] = step.node.op.flops(step.which, whole)
        return found

    def _work(self) -> np.ndarray:
        """The operations of the forward pass of each node, of a microbatch."""
        found, steps = np.zeros(len(self._spaces)), self._program.steps
        for slot, operations in self._operations.items():
            if steps[slot].which == "F" and self._owner[slot] >= 0 and not self._is_late[slot]:
                found[self._owner[slot]] += operations
        return found

    def _slopes(self) -> float:
        """The share of gradients of parameters in a microbatch's operations."""
        every, steps = self._operations, self._program.steps
        slopes = sum(operations for slot, operations in every.items() if steps[slot].which == "W")
        return slopes / max(1.0, sum(every.values()))


def _read_by_host(program: Passes) -> Passes:
    """A program with a further step for each output, in which the host reads it."""
    steps, flows = list(program.steps), []
    for flow in program.flows:
        if flow.role == "output" and flow.producers:
            slot, port = flow.producers[0]
            node, made = steps[slot].node, steps[slot].outputs[port]
            flow = msgspec.structs.replace(flow, readers=(*flow.readers, (len(steps), 0)))
            steps.append(Step(len(steps), node, "", (made,), (), "host"))
        flows.append(flow)
    return replace(program, steps=tuple(steps), flows=tuple(flows))


def _is_needed(ends: _Ports, partial: np.ndarray, reads: _Ports, is_ahead: np.ndarray) -> np.ndarray:
    """For each read whether it brings something: what a node has made, or has read for an earlier pass, it has.

    is_ahead   for each read, whether what it brings is sent ahead: no other read finds it there
    """
    count = 1 + int(max(ends.layout.max(initial=0), reads.layout.max(initial=0)))
    made, read = ends.owner * count + ends.layout, reads.owner * count + reads.layout
    flow, first, which = np.unique(ends.flow, return_index=True, return_inverse=True)
    # A node that has made all of a flow, in one layout and without sums, need not be sent it in that layout.
    is_one, of = (
        np.logical_and.reduceat((made == made[first][which]) & ~partial, first),
        np.searchsorted(flow, reads.flow),
    )
    is_needed, number = ~is_one[of] | (made[first][of] != read), np.arange(len(read))
    same = np.unique(of * (1 + int(read.max(initial=0))) + read, return_inverse=True)[1]
    earliest, stays = np.full(len(read), len(read)), np.flatnonzero(is_needed & ~is_ahead)
    np.minimum.at(earliest, same[stays], stays)
    return is_needed & (number <= earliest[same])


def _rows(owner: np.ndarray, mine: np.ndarray, kinds: np.ndarray, num_splits: np.ndarray) -> tuple[np.ndarray, int]:
    """(where the seconds of each step begin, how many there are in all): passes of nodes of one kind have the same
    rows.

    mine   the steps that compute, and do not only send
    """
    rows, node = np.full(len(owner), NONE), owner[mine]
    order = np.argsort(node, kind="stable")
    # How many steps of the same node come before each step.
    seen = np.empty_like(order)
    seen[order] = np.arange(len(order)) - np.searchsorted(node[order], node[order])
    number, first = first_seen_numbers(kinds[node] * len(owner) + seen)
    ends = np.cumsum(num_splits[node[first]])
    rows[mine] = (ends - num_splits[node[first]])[number]
    return rows, int(ends[-1]) if len(ends) else 0
