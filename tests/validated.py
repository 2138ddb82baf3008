"""A job as `castile validate` reports of one, which nothing was run for."""

from types import SimpleNamespace
from unittest.mock import Mock

from castile.planner.costs.snapshot import Environment, Snapshot

LEARNED = Snapshot(Environment("cpu"), (), 1.25e-5, 2.5e-4, 9)


def job(microbatches: int = 1, recompute: tuple[str, ...] = ()) -> SimpleNamespace:
    named = SimpleNamespace(name="m", text="m")
    lowering, graph = SimpleNamespace(microbatches=microbatches, recompute=recompute), Mock(batch=8)
    graph.nodes = dict.fromkeys(recompute)
    return SimpleNamespace(model=named, machine=named, graph=graph, lowering=lowering, snapshot=LEARNED)
