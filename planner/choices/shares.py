"""Shares: how many parts each processor gets where processors are of several kinds, in proportion to their speed.

A processor with several parts computes them one after another. It does not know which axis is cut, nor what transfers
between processors cost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from castile.planner.cost import CostModel
from castile.planner.lower import Lowering

# The most parts a processor, on average.
MOST_PARTS_A_PROC = 4
# A larger number of parts must balance work better than a smaller one by this share.
GAIN = 0.02


def speeds(lowering: Lowering, cost: CostModel) -> tuple[float, ...]:
    """The speed of each processor at all kernels of a step, relative to the fastest."""
    machine = lowering.machine
    kinds = range(len(machine.kinds))
    if len(kinds) == 1:
        return (1.0,) * machine.num_procs
    # Two microbatches stand for all, which take equally long.
    program = lowering.shortened(2).program(lowering.plan({}))
    lasts = np.zeros(len(kinds))
    for step in program.steps:
        keys, of_part = lowering.templates.get(step, {}, program.dtypes.__getitem__).does.keys
        lasts += [step.micro.times * cost.picoseconds(keys, kind)[of_part].sum() for kind in kinds]
    return tuple((lasts.min() / lasts)[machine.kind_of].tolist())


def spread(speeds: Sequence[float]) -> dict[int, tuple[int, ...]]:
    """By number of equal parts: the processors that compute them, in order, so that the last is done earliest.

    Only numbers of parts that balance work better than every smaller number, up to MOST_PARTS_A_PROC times the
    processors. Empty where all processors are equally fast.
    """
    if len(set(speeds)) < 2:
        return {}
    rates, counts = np.array(speeds), np.zeros(len(speeds), np.int64)
    found: dict[int, tuple[int, ...]] = {}
    least = np.inf
    for num_parts in range(1, MOST_PARTS_A_PROC * len(speeds) + 1):
        counts[np.argmin((counts + 1) / rates)] += 1
        # The time of the slowest processor, in units of all work at speed 1.
        lasts = float((counts / rates).max()) / num_parts
        if lasts * (1 + GAIN) < least:
            found[num_parts], least = tuple(np.repeat(np.arange(len(speeds)), counts).tolist()), lasts
    return found
