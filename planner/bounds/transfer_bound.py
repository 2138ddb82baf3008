"""A quick bound below the cost of a pair of Configs, for all pairs at once: the bytes that must move between two nodes.

It counts what a processor needs and does not hold, over the fastest link; not how it would get there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from castile.planner.bounds.additive import Additive, Edge
from castile.planner.lowering.versions import Placed
from castile.planner.step.program import Flow
from castile.planner.strategy import Config
from castile.runtime.task import CostKey
from castile.runtime.timeline import PICOSECONDS

# The shares of a link's latency and of its seconds a byte that a transfer takes for sure: collectives round bytes in
# several ways; and where measurements correct the figures one can be sure of little.
SURE, SURE_LEARNED = (1.0, 0.5), (0.05, 0.05)


class Layouts(NamedTuple):
    """The box that each processor has of a region under each of C Configs: lo, hi [C, P, dims]; volume [C, P].

    summed[C]   whether each element is a sum over several processors
    """

    lo: np.ndarray
    hi: np.ndarray
    volume: np.ndarray
    summed: np.ndarray

    def only(self, number: int) -> Layouts:
        """One of them."""
        return Layouts(*(column[number : number + 1] for column in self))


def least_move(model: Additive, edge: Edge, first: Sequence[Config], second: Sequence[Config]) -> np.ndarray:
    """int64[len(first), len(second)]: picoseconds that `Additive.move` of these Configs seldom falls below.

    It can where blocks are very uneven, links were measured much faster than the machine says, or a part that is in the
    cost of one node already changes how the rest is sent. So costs are compared with it as they are computed
    (`CostTables`).
    """
    choices = (first, second)
    total = np.zeros((len(first), len(second)))
    for flow, alone in zip(edge.flows, edge.alone, strict=True):
        made = {model.side(edge, slot) for slot, _ in flow.producers} or {model.home_side(edge, flow)}
        read = {model.side(edge, slot) for slot, _ in flow.readers}
        if alone is None and len(made) == 1 and len(flow.producers) <= 1 and read - made:
            (source,) = made
            bound = model.times(flow) * _bound(model, edge, flow, source, choices)
            total += bound if source == 0 else bound.T
    return np.floor(total).astype(np.int64)


def _bound(model: Additive, edge: Edge, flow: Flow, source: int, choices: Sequence[Sequence[Config]]) -> np.ndarray:
    """[C of the source, C of the reader] picoseconds: the longest wait of any processor for what it does not hold."""
    name, other = edge.nodes[source], edge.nodes[1 - source]
    held = layouts(model, [model.made(flow, model.decided(name, c))[0] for c in choices[source]])
    missing = np.zeros((len(choices[source]), len(choices[1 - source])))
    decided = [model.decided(other, c) for c in choices[1 - source]]
    for slot, port in flow.readers:
        if model.side(edge, slot) != source:
            needed = layouts(model, [model.placed(slot, port, False, configs) for configs in decided])
            missing = np.maximum(missing, missing_elements(held, needed).max(axis=2))
    latency, rate = fastest_link(model, flow.dtype)
    return np.where(missing > 0, latency + missing * np.dtype(flow.dtype).itemsize * rate, 0) * PICOSECONDS


def missing_elements(held: Layouts, needed: Layouts) -> np.ndarray:
    """[C held, C needed, P]: the elements that each processor needs and does not hold, or holds as summands."""
    common = np.ones((len(held.lo), len(needed.lo), held.volume.shape[1]))
    for d in range(needed.lo.shape[2]):
        lo = np.maximum(held.lo[:, None, :, d], needed.lo[None, :, :, d])
        common *= np.maximum(np.minimum(held.hi[:, None, :, d], needed.hi[None, :, :, d]) - lo, 0)
    common[held.summed] = 0
    common = np.where(held.volume[:, None, :] > 0, common, 0)
    return np.maximum(needed.volume[None] - common, 0)


def layouts(model: Additive, placed: Sequence[Placed]) -> Layouts:
    """The boxes of some layouts by processor."""
    num_procs = model.lowering.machine.num_procs
    dims = next((len(box.lo) for p in placed for box in p.boxes if box is not None), 0)
    lo, hi = np.zeros((len(placed), num_procs, dims), np.int64), np.zeros((len(placed), num_procs, dims), np.int64)
    volume, summed = np.zeros((len(placed), num_procs), np.int64), np.zeros(len(placed), bool)
    for n, p in enumerate(placed):
        replicas = p.config.replicas
        for part, box in enumerate(p.boxes):
            if box is not None:
                procs = list(p.config.procs[part * replicas : (part + 1) * replicas])
                lo[n, procs], hi[n, procs], volume[n, procs] = box.lo, box.hi, box.volume
        times = Counter(box for box in p.boxes if box is not None).values()
        summed[n] = min(times, default=0) > 1
    return Layouts(lo, hi, volume, summed)


def fastest_link(model: Additive, dtype: str) -> tuple[float, float]:
    """(least latency in seconds, least seconds a byte) of all links, as far as they are certain."""
    levels = model.lowering.machine.levels
    if not levels:
        return 0.0, 0.0
    keys = [CostKey("move", "", dtype, 0, 2**20, level.name, 2) for level in levels]
    sure = SURE if all(model.cost.seconds(key).source == "roofline" for key in keys) else SURE_LEARNED
    return (
        sure[0] * min(level.latency_seconds for level in levels),
        sure[1] / max(level.bytes_per_second for level in levels),
    )
