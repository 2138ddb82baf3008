"""What ranks make of one plan is compared: tasks, the order in which they begin, and what waits for memory."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest

from castile.launch import models
from castile.launch.jobs import jobs
from castile.launch.jobs.execution import Prepared, prepare
from castile.launch.jobs.jobs import Job
from castile.planner.cost import CostModel
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.runtime.machine import local
from tests.threads import End, Ranks


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    machine = local(2)
    lowering = Lowering(models.parse("mlp").graph(8), machine)
    return prepare(lowering, seeds(lowering, ["data_parallel"])["data_parallel"], CostModel(machine))


def others(one: Prepared) -> list[Prepared]:
    """The same with one task a picosecond later, and with one edge more."""
    timeline, edges = one.simulated.timeline, one.packing.edges
    later = replace(timeline, start=timeline.start + (np.arange(len(timeline.start)) == 3))
    return [
        replace(one, simulated=replace(one.simulated, timeline=later)),
        replace(one, packing=replace(one.packing, edges=np.append(edges, [[0, 1]], axis=0))),
    ]


def test_ranks_that_come_to_another_order_are_told(prepared: Prepared) -> None:
    """They would begin the same transfers one after the other, each with another first, and wait for ever."""

    def rank(comm: End) -> str:
        mine.prepared = made[comm.rank]
        try:
            Job.prepare(cast(Job, SimpleNamespace(lowering=None, cost=None, comm=comm)), cast(Any, None))
        except RuntimeError as error:
            return str(error)
        return ""

    mine = threading.local()
    with patch.object(jobs, "prepare", lambda *_: mine.prepared):
        made = [prepared, replace(prepared)]
        assert Ranks(2).run(rank) == ["", ""]
        for other in others(prepared):
            made = [prepared, other]
            assert Ranks(2).run(rank)[0].startswith("the ranks came to different tasks, or another order of them")
