"""Flows: the producers and readers of each region of a program, from the ports of its steps.

It does not know what steps compute, nor strategies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from castile.planner.bodies.vocabulary import Spec
from castile.planner.step.program import Flow, Home, Step, bearing


def flows(
    steps: Sequence[Step], specs: Mapping[str, Spec], homes: Mapping[str, Home], outputs: Collection[str]
) -> tuple[Flow, ...]:
    """The flows of a program.

    steps     in program order
    specs     shape and dtype of each region, with dims in the order of operators
    outputs   the regions that the host reads
    """
    producers, readers = defaultdict[str, list[tuple[int, int]]](list), defaultdict[str, list[tuple[int, int]]](list)
    orders: dict[str, tuple[int, ...]] = {}
    for step in steps:
        for n, port in enumerate(step.outputs):
            producers[port.region].append((step.slot, n))
        for n, port in enumerate(step.inputs):
            readers[port.region].append((step.slot, n))
        # few steps have memory orders, and looking at all ports takes as long as all else
        if step.node.alignment.is_ordered:
            ports = zip((*step.inputs, *step.outputs), bearing(step), strict=True)
            orders.update({port.region: one.order for port, one in ports if one.order})
    found = []
    for region in dict.fromkeys((*readers, *producers)):
        made, read = tuple(producers.get(region, ())), tuple(readers.get(region, ()))
        shape, dtype = specs[region].shape, specs[region].dtype
        shape = tuple([shape[dim] for dim in orders[region]]) if region in orders else shape
        if region in homes:
            found.append(Flow(region, shape, dtype, "carried", (), read, homes[region], made))
        else:
            role = "output" if region in outputs else "" if made else "input"
            found.append(Flow(region, shape, dtype, role, made, read))
    return tuple(found)
