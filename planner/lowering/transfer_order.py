"""Orders transfers that wait for nothing: each waits for those before it on its engines.

What exists when a step begins could all be sent at once. An engine serves what has been ready longest, so all
parameters that are gathered would come before anything that the step itself sends; in order, what the step sends goes
between them. Such transfers by themselves are sent when they would be anyway. It does not know what is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from castile.planner.lowering.ragged import ranges, to_csr
from castile.runtime.task import NUM_LANES, Kind, TaskGraph


def in_transfer_order(tasks: TaskGraph, engines: Sequence[int]) -> TaskGraph:
    """The graph with these edges; engines[lane] serves a lane."""
    num_needs = np.diff(tasks.need_ptr)
    transfers = np.flatnonzero((num_needs == 0) & (tasks.kind >= Kind.MOVE))
    num_lanes = np.diff(tasks.lane_ptr)[transfers]
    lanes = tasks.lanes[ranges(tasks.lane_ptr[transfers], num_lanes)]
    turns = order_edges(tasks.order[transfers], num_lanes, lanes, engines)
    if len(turns) == 0:
        return tasks
    before, after = transfers[turns].T
    every = np.repeat(np.arange(tasks.num_tasks), num_needs)
    need_ptr, needs = to_csr(np.append(every, after), np.append(tasks.needs, before), tasks.num_tasks)
    return replace(tasks, need_ptr=need_ptr, needs=needs)


def order_edges(order: np.ndarray, num_lanes: np.ndarray, lanes: np.ndarray, engines: Sequence[int]) -> np.ndarray:
    """int64[n, 2]: the transfers that each follows on one of its engines; order: the sort key of each."""
    owner = np.repeat(np.arange(len(order)), num_lanes)
    engine = lanes // NUM_LANES * NUM_LANES + np.asarray(engines)[lanes % NUM_LANES]
    by_engine = np.lexsort((order[owner], engine))
    owner, engine = owner[by_engine], engine[by_engine]
    follows = (engine[1:] == engine[:-1]) & (owner[1:] != owner[:-1])
    return np.stack([owner[:-1][follows], owner[1:][follows]], axis=1)
