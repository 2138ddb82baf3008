"""Flows: who produces and who reads each region of a program, found from the ports of its steps.

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
    """In program order; specs: what holds each region, with its dims as operators see them; outputs: what the host
    reads.
    """
    producers, readers = defaultdict[str, list[tuple[int, int]]](list), defaultdict[str, list[tuple[int, int]]](list)
    orders: dict[str, tuple[int, ...]] = {}
    for step in steps:
        for n, port in enumerate(step.outputs):
            producers[port.region].append((step.slot, n))
        for n, port in enumerate(step.inputs):
            readers[port.region].append((step.slot, n))
        # few have any, and to look at all ports again takes as long as all else
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
