"""Pipelines: any plan for a few processors, made one for many of which each group does a stretch of the network.

Where the stretches end is found as for any row of work: by its sums (Narayanan et al., "PipeDream", SOSP 2019, without
what is sent between them). In which order a pipeline computes microbatches `stages` says. It does not know what the
plan for a few is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt

import numpy as np

from castile.planner.choices import shares
from castile.planner.cost import CostModel
from castile.planner.lower import Lowering
from castile.planner.strategy import Config

# In so many halvings the longest stretch is as short as can be, to a millionth.
HALVINGS = 20


def divisors(number: int) -> tuple[int, ...]:
    """Into how many equal pieces it may be cut: from 1 on each the least divisor at least twice the one before."""
    small, found = [n for n in range(1, isqrt(number) + 1) if number % n == 0], [1]
    for n in [*small, *(number // n for n in reversed(small))]:
        if n >= 2 * found[-1]:
            found.append(n)
    return tuple(found)


def pipelined(
    lowering: Lowering, num_stages: int, inner: Mapping[str, Config], cost: CostModel | None = None
) -> dict[str, Config]:
    """The plan `inner` in each of so many equal groups of processors in turn, for the stretch of nodes of its own.

    inner   Configs on the first processors, as many as a group has
    cost    prices by which all take equally long; the machine's figures by default
    """
    cost, names, size = cost or CostModel(lowering.machine), list(inner), lowering.machine.num_procs // num_stages
    work = np.array(_work(lowering, cost, names))
    rates = np.array(shares.speeds(lowering, cost)).reshape(num_stages, size).sum(1)
    return staged(inner, size, cut(work, rates))


def staged(inner: Mapping[str, Config], size: int, stages: Sequence[int]) -> dict[str, Config]:
    """The plan `inner` in that group of `size` processors that `stages` says of each node in turn."""
    moved: dict[tuple[Config, int], Config] = {}
    for stage, config in {*zip(stages, inner.values(), strict=True)}:
        procs = tuple([p + stage * size for p in config.procs])
        moved[config, stage] = Config(config.split, config.replicas, procs)
    return {name: moved[config, stage] for (name, config), stage in zip(inner.items(), stages, strict=True)}


def cut(work: np.ndarray, rates: np.ndarray) -> list[int]:
    """Which of some in a row does each of many works in a row, so that the slowest takes as little time as can be.

    work[N]    what each takes at a rate of 1
    rates[S]   of who do them; the last have as much as they may, as the first hold the activations of more microbatches
    """
    upto = np.append(0.0, np.cumsum(work[::-1]))
    least, most = upto[-1] / rates.sum(), upto[-1] / rates.min()

    def ends(seconds: float) -> list[int]:
        found = [0]
        for rate in rates[::-1]:
            found.append(int(np.searchsorted(upto, upto[found[-1]] + seconds * rate, side="right")) - 1)
        return found

    for _ in range(HALVINGS):
        middle = (least + most) / 2
        least, most = (least, middle) if ends(middle)[-1] == len(work) else (middle, most)
    counts = np.diff(ends(most))
    return np.repeat(np.arange(len(rates)), counts[::-1]).tolist()


def _work(lowering: Lowering, cost: CostModel, names: Sequence[str]) -> list[int]:
    """What all passes of each node take on one processor, uncut."""
    # All microbatches take the same: as few are written out as sketches need.
    program = lowering.shortened(2).program(lowering.plan({}))
    found = dict.fromkeys(names, 0)
    for step in program.steps:
        if step.node.name in found and step.micro.number == 0:
            keys, of_part = lowering.templates.get(step, {}, program.dtypes.__getitem__).does.keys
            found[step.node.name] += int(cost.picoseconds(keys)[of_part].sum())
    return [found[name] for name in names]
