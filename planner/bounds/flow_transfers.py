"""A flow's transfers between two given layouts, as edges of a longest path and as work of engines.

It does not know when the passes begin, nor what else the engines do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from castile.planner.bounds.additive import Additive
from castile.planner.lowering.instances import HOST, PATTERN, flow_instance
from castile.planner.step.program import Flow
from castile.planner.strategy import Config
from castile.runtime.task import NUM_LANES


@dataclass(frozen=True)
class FlowTransfers:
    """The transfers of one flow, numbered from 0. Other tasks are given as (slot of the pass, number of the task in
    it).

    rows      [E, 4] (slot, task) before (slot, task), with the slot PATTERN for a transfer; each row after those that
              it needs
    lasts     picoseconds of each transfer
    uses      [U, 2] (transfer, processor * NUM_LANES + engine) for each engine that one occupies
    slot      the slot of the pass that the transfers follow
    """

    rows: np.ndarray
    lasts: np.ndarray
    uses: np.ndarray
    slot: int


def flow_transfers(model: Additive, flow: Flow, configs: Mapping[str, Config]) -> FlowTransfers:
    """The transfers of a flow whose users all have a Config."""
    version, procs = model.version(flow, model.made(flow, configs), model.read(flow, configs))
    ports = ((flow.producers, True), (flow.readers, False), (flow.overwriters, True))
    placed = [[model.placed(slot, port, output, configs) for slot, port in of] for of, output in ports]
    found = flow_instance(flow, version, procs, *placed)
    edges = version.edges[np.argsort(version.edges[:, 1], kind="stable")]
    before, after = edges.T
    rows = np.stack(
        [found.port_step[before], found.port_task[before], found.port_step[after], found.port_task[after]], 1
    )
    real = (rows[:, 0] != HOST) & (rows[:, 2] != HOST)
    # Edges to and from the host are left out, and edges between two ports of one task.
    real &= (rows[:, 0] != rows[:, 2]) | (rows[:, 1] != rows[:, 3])
    counts, lanes = found.lanes
    engines = np.array(model.lowering.machine.engines, np.int64)
    columns = lanes // NUM_LANES * NUM_LANES + engines[lanes % NUM_LANES]
    uses = np.unique(np.stack([np.repeat(np.arange(len(counts)), counts), columns], 1), axis=0)
    assert PATTERN < 0
    firsts = lanes[np.cumsum(counts) - counts] // NUM_LANES
    return FlowTransfers(rows[real], model.prices(found.keys, firsts.tolist()), uses, found.slot)
