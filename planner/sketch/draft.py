"""A program as a sketch sees it: the passes that nodes decide, and which layouts their flows go between.

It does not know Configs or prices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np

from castile.planner.additive import Additive
from castile.planner.graph import Node
from castile.planner.program import Flow, Port, Step
from castile.planner.rows import pointer
from castile.planner.sketch.arrays import Program
from castile.planner.sketch.layouts import LayoutTable
from castile.planner.sketch.works import param_of

UNASKED = -1
# An end of a flow: its step (-1: there before), the node that decides it, its layout, whether it may be a sum.
End = tuple[int, int, int, bool]


class Draft:
    """The steps that are kept, numbered anew, and the flows between them.

    spaces[N]   the space of each node
    """

    def __init__(
        self,
        names: Sequence[str],
        nodes: Mapping[str, Node],
        additive: Additive,
        spaces: np.ndarray,
        layouts: LayoutTable,
    ) -> None:
        self._nodes, self._additive, self._spaces, self._layouts = nodes, additive, spaces, layouts
        self._number = {name: n for n, name in enumerate(names)}
        self._space: list[int] = spaces.tolist()
        dtypes = additive.program.dtypes.__getitem__
        kept = [step for step in additive.program.steps if self._is_kept(step)]
        # The node that decides each step.
        self._owner = {step.slot: self._number[additive.deciders[step.node.name]] for step in kept}
        self.steps, self._is_ahead = self._ordered(kept)
        self._place = {s.slot: n for n, (s, ahead) in enumerate(zip(self.steps, self._is_ahead)) if not ahead}
        self._params = {p.name: p.shape for p in additive.program.graph.params}
        # Of each step the layouts of its inputs, then outputs, as far as these were asked for.
        self._known: dict[int, list[int | None]] = {}
        alike: dict[object, list[int | None]] = {}
        for step in kept:
            own: object = step.slot
            if step.node.name in nodes:
                own = additive.lowering.templates.kind(step, dtypes), self._space[self._owner[step.slot]]
            unasked: list[int | None] = [UNASKED] * (len(step.inputs) + len(step.outputs))
            self._known[step.slot] = alike.setdefault(own, unasked)

    def _is_kept(self, step: Step) -> bool:
        if step.node.name in self._nodes:
            return True
        return step.node.name in self._additive.deciders and bool(param_of(step, self._additive.program))

    def _ordered(self, kept: Sequence[Step]) -> tuple[list[Step], list[bool]]:
        """The steps in order, and what updates parameters once more, ahead, where its gradient is made: there it only
        has it sent on its way, as else all sums would wait for the last gradient.

        Steps that could begin together come together, as processors take what is ready first: while one waits for what
        is sent, others go on. What the next ones read is sent before sums that were made together with it.
        """
        turns = self._turns_of(kept)
        when = {step.slot: (step.micro.number, turns[step.slot], step.slot) for step in kept}
        due = self._due(kept, when)
        early: dict[int, list[Step]] = {}
        for step in kept:
            if step.slot in due:
                early.setdefault(due[step.slot], []).append(step)
        # As their gradients come, the last layer's first: none waits for one that comes later.
        waiting = iter(sorted((step for step in kept if step.slot in due), key=lambda step: when[due[step.slot]]))
        kept = [next(waiting) if step.slot in due else step for step in kept]
        found, held = list[tuple[Step, bool]](), list[tuple[Step, bool]]()
        for (_, is_due), run in groupby(kept, key=lambda step: (step.micro, step.slot in due)):
            if is_due:
                found, held = [*found, *held, *((step, False) for step in run)], []
                continue
            for _, together in groupby(sorted(run, key=lambda step: when[step.slot]), lambda step: turns[step.slot]):
                steps = list(together)
                found += [*((step, False) for step in steps), *held]
                held = [(other, True) for step in steps for other in early.get(step.slot, ())]
        found += held
        return [step for step, _ in found], [ahead for _, ahead in found]

    def _due(self, kept: Sequence[Step], when: Mapping[int, tuple[int, int, int]]) -> dict[int, int]:
        """For each step that updates a parameter the slot after which its gradient is there."""
        last: dict[str, int] = {}
        for step in sorted(kept, key=lambda step: when[step.slot]):
            last.update((port.region, step.slot) for port in step.outputs)
        found = {}
        for step in kept:
            if step.node.name not in self._nodes:
                made = [last[p.region] for p in step.inputs if last.get(p.region, step.slot) < step.slot]
                found[step.slot] = max(made, default=step.slot, key=when.__getitem__)
        return found

    def _turns_of(self, kept: Sequence[Step]) -> dict[int, int]:
        """By slot, how many steps come one after the other before each at least."""
        before: dict[int, set[int]] = {}
        for flow in self._additive.program.flows:
            for slot, _ in flow.readers:
                before.setdefault(slot, set()).update(producer for producer, _ in flow.producers)
        found: dict[int, int] = {}
        for step in kept:
            found[step.slot] = 1 + max((found[s] for s in before.get(step.slot, ()) if s in found), default=-1)
        return found

    def _layout(self, step: Step, number: int) -> int | None:
        """The layout of an input of a step that is kept, or beyond them of an output; None where a sketch has none."""
        known = self._known[step.slot]
        if known[number] == UNASKED:
            known[number] = self._find(step, (*step.inputs, *step.outputs)[number])
        return known[number]

    def _find(self, step: Step, port: Port) -> int | None:
        node, is_operand = self._nodes.get(step.node.name), port.of_operand
        if node is not None:
            return self._layouts.number(node, self._space[self._owner[step.slot]], is_operand, port.index, port.begin)
        return self._of_param(step, is_operand, port.index)

    def _of_param(self, step: Step, is_operand: bool, index: int) -> int | None:
        """What updates and clips a parameter lies as the parameter does where it is used."""
        owner, param = self._owner[step.slot], param_of(step, self._additive.program)
        node = self._nodes[self._additive.deciders[step.node.name]]
        a = step.node.alignment
        if a.shape((a.operands if is_operand else a.results)[index]) != self._params[param]:
            return None
        return self._layouts.number(node, self._space[owner], True, node.inputs.index(param))

    def _ends(self, flow: Flow) -> list[End]:
        """Where a flow's pieces are before they are read."""
        if flow.home is None:
            made = [(self._additive.program.steps[slot], port) for slot, port in flow.producers]
            return [
                (self._place[step.slot], self._owner[step.slot], layout, self._may_sum(step, layout))
                for step, port in made
                if step.slot in self._place and (layout := self._layout(step, len(step.inputs) + port)) is not None
            ]
        param = flow.region
        decider = self._additive.deciders.get(flow.home.node.name)
        if decider is None or param not in self._nodes[decider].inputs or param not in self._params:
            return []
        owner, node = self._number[decider], self._nodes[decider]
        return [(-1, owner, self._layouts.number(node, self._space[owner], True, node.inputs.index(param)), False)]

    def _may_sum(self, step: Step, layout: int) -> bool:
        """Whether parts of a step may lie alike, and are then to be summed."""
        return step.node.name in self._nodes and not self._layouts.bears_all(layout)

    def program(self, kinds: np.ndarray, known_first: np.ndarray, num_splits: np.ndarray) -> tuple[Program, int]:
        """Flat arrays, and how many rows of seconds there are; kinds[N] of the nodes, num_splits of each space."""
        reads: list[list[tuple[int, int]]] = [[] for _ in self.steps]
        ends: list[list[End]] = []
        sizes: list[int] = []
        ahead = {step.slot: (n,) for n, step in enumerate(self.steps) if self._is_ahead[n]}
        for flow in self._additive.program.flows:
            made = self._ends(flow)
            if not made:
                continue
            here: set[tuple[int, int]] = set()
            ways = {end[1:] for end in made}
            for slot, port in flow.readers:
                step = self._additive.program.steps[slot]
                layout = self._layout(step, port) if slot in self._place else None
                if layout is not None:
                    owner = self._owner[slot]
                    # What a node holds, or has fetched for an earlier pass, is there.
                    if (owner, layout) in here or ways == {(owner, layout, False)}:
                        continue
                    if slot not in ahead:
                        here.add((owner, layout))
                    for place in (self._place[slot], *ahead.get(slot, ())):
                        reads[place].append((len(ends), layout))
            ends.append(made)
            sizes.append(np.dtype(flow.dtype).itemsize)
        owners = [self._owner[step.slot] for step in self.steps]
        rows, num_rows = self._rows(owners, kinds, num_splits)
        every = [read for of in reads for read in of]
        flat = [end for of in ends for end in of]
        own: list[list[int]] = [[] for _ in self._number]
        for s, n in enumerate(owners):
            if not self._is_ahead[s]:
                own[n].append(s)
        program = Program(
            _array(owners), rows, _pointer(reads), _array([r[0] for r in every]), _array([r[1] for r in every]),
            _pointer(ends), _array([end[0] for end in flat]), _array([end[1] for end in flat]),
            _array([end[2] for end in flat]),
            np.array([end[3] for end in flat], np.bool_), _array(sizes), _pointer(own),
            _array([s for of in own for s in of]), self._spaces, known_first[kinds], self._turns(),
        )  # fmt: skip
        return program, num_rows

    def _turns(self) -> np.ndarray:
        """Where the first and the second microbatch begin, and for how many more than itself the first stands."""
        begins = {s.micro: n for n, s in reversed([*enumerate(self.steps)]) if s.micro.count > 1}
        if not begins:
            return _array([len(self.steps), len(self.steps), 0])
        first, second = sorted(begins, key=begins.__getitem__)
        return _array([begins[first], begins[second], first.times - 1])

    def _rows(self, owners: Sequence[int], kinds: np.ndarray, num_splits: np.ndarray) -> tuple[np.ndarray, int]:
        """Where the seconds of each step begin: the passes of nodes of a kind have the same rows."""
        begins: dict[tuple[int, int], int] = {}
        seen = [0] * len(self._number)
        rows, count = np.zeros(len(owners), np.int64), 0
        for s, n in enumerate(owners):
            if self._is_ahead[s]:
                rows[s] = -1
                continue
            key = int(kinds[n]), seen[n]
            seen[n] += 1
            if key not in begins:
                begins[key] = count
                count += int(num_splits[self._spaces[n]])
            rows[s] = begins[key]
        return rows, count


def _array(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int64)


def _pointer(rows: Sequence[Sequence[object]]) -> np.ndarray:
    return pointer([len(row) for row in rows])
