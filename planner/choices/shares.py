"""Shares: how many parts each processor gets where processors are of several kinds, in proportion to their speed.

A processor that is named for several parts does them one after another. It does not know which axis is cut, nor what
parts cost on their way from one processor to another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from castile.planner.cost import CostModel
from castile.planner.lower import Lowering

# At most so many times as many parts as processors.
MOST_PARTS_A_PROC = 4
# More parts have to spread work better by this share; of two numbers that spread it nearly alike the smaller is chosen.
GAIN = 0.02


def speeds(lowering: Lowering, cost: CostModel) -> tuple[float, ...]:
    """How fast each processor would do all kernels of a step by itself, in shares of the fastest."""
    machine = lowering.machine
    kinds = range(len(machine.kinds))
    if len(kinds) == 1:
        return (1.0,) * machine.num_procs
    # Of many microbatches two are written out, as all take as long.
    program = lowering.shortened(2).program(lowering.plan({}))
    lasts = np.zeros(len(kinds))
    for step in program.steps:
        keys, of_part = lowering.templates.get(step, {}, program.dtypes.__getitem__).does.keys
        lasts += [step.micro.times * cost.picoseconds(keys, kind)[of_part].sum() for kind in kinds]
    return tuple((lasts.min() / lasts)[machine.kind_of].tolist())


def spread(speeds: Sequence[float]) -> dict[int, tuple[int, ...]]:
    """By number of equal parts the processors that do them, in order, the last of which is done as early as can be.

    Of all numbers up to MOST_PARTS_A_PROC times the processors those that spread work better than every smaller one;
    none where all processors are as fast as each other.
    """
    if len(set(speeds)) < 2:
        return {}
    rates, counts = np.array(speeds), np.zeros(len(speeds), np.int64)
    found: dict[int, tuple[int, ...]] = {}
    least = np.inf
    for num_parts in range(1, MOST_PARTS_A_PROC * len(speeds) + 1):
        counts[np.argmin((counts + 1) / rates)] += 1
        # What a step would take of which the whole is 1.
        lasts = float((counts / rates).max()) / num_parts
        if lasts * (1 + GAIN) < least:
            found[num_parts], least = tuple(np.repeat(np.arange(len(speeds)), counts).tolist()), lasts
    return found
