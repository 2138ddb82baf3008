"""Kinds: which steps and flows of a program are equal, so that what is made for one serves all.

It does not know strategies: flows of one kind are lowered alike where their users' Configs are equal one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from operator import itemgetter

from castile.planner.lowering.template import Templates
from castile.planner.step.program import Flow, Program


class Kinds:
    """The kinds of a program's steps and flows, by slot and by number.

    nodes      the name of each step's node
    step       the kind of each step
    flow       the kind of each flow
    of_users   for each flow, selects its users' numbers from those of all nodes
    numbers    of the kinds of flows met so far, in any program
    """

    def __init__(self, program: Program, templates: Templates, numbers: dict[Hashable, int]) -> None:
        self._templates, self._steps, dtypes = templates, program.steps, program.dtypes.__getitem__
        self.nodes = [step.node.name for step in program.steps]
        self.step = [templates.kind(step, dtypes) for step in program.steps]
        alike = list(map(templates.alike, self.step))
        self._alike, self._places = [number for number, _ in alike], [places for _, places in alike]
        rows = zip(program.flows, program.slots, program.users, strict=True)
        self.flow = [numbers.setdefault(self._key(*row), len(numbers)) for row in rows]
        self.of_users = [_chosen(users) for users in program.users]

    def _key(self, flow: Flow, slots: tuple[int, ...], users: tuple[str, ...]) -> Hashable:
        of_steps, ports = zip(*flow.producers, *flow.readers, *flow.overwriters)
        home, of_nodes = None, list(map(self.nodes.__getitem__, slots))
        if flow.home is not None:
            home = self._templates.node_kind(flow.home.node), flow.home.result
            of_nodes.append(flow.home.node.name)
        return (
            flow.role, flow.dtype, flow.shape, len(flow.producers), len(flow.readers), ports,
            # Which of them are of one step, and which steps of one node: mostly each is of its own.
            tuple(map(slots.index, of_steps)) if len(slots) < len(ports) else (),
            tuple(map(self._alike.__getitem__, slots)), self._lying(flow, slots), home,
            tuple(map(users.index, of_nodes)) if len(users) < len(of_nodes) else (),
        )  # fmt: skip

    def _lying(self, flow: Flow, slots: tuple[int, ...]) -> Hashable:
        """Where in the region the parts that ports touch lie, () where they are all of it."""
        if not any(map(self._places.__getitem__, slots)):
            return ()
        made = [(slot, port + len(self._steps[slot].inputs)) for slot, port in (*flow.producers, *flow.overwriters)]
        every = [(self._places[slot], port) for slot, port in (*made, *flow.readers)]
        return tuple([places[port] if places else () for places, port in every])


def _chosen(names: tuple[str, ...]) -> Callable[[Mapping[str, int]], tuple[int, ...]]:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda numbers: (numbers[names[0]],)
