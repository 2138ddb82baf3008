"""Compiling for a user's first search on two cores: a forked process compiles the loops that simulate and pack plans,
while this one compiles the walk through sketches.

It does not know what is searched for, nor what the loops compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from castile.launch import models
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.search import DATA_PARALLEL
from castile.planner.searching.forks import Fork
from castile.planner.searching.refinement import with_best_buckets
from castile.planner.sketch.sketch import is_compiled
from castile.planner.strategy import Strategy
from castile.runtime.machine import num_cores, parse

# A small network on a few processors: simulating and packing it compiles the loops that all plans need.
MODEL, MACHINE = "mlp", "flexflow-p100:nodes=1"


@contextmanager
def compiling_in_background() -> Iterator[None]:
    """A context in which another process compiles loops, if no search was ever compiled and a core is free.

    The process is ended on leaving, done or not. What it compiled is kept on disk, where this process looks before it
    compiles.
    """
    if is_compiled() or num_cores() < 2:
        yield
        return
    fork = Fork(_compile_simulation)
    fork.ask(MODEL)
    try:
        yield
    finally:
        fork.end(at_once=True)


def _compile_simulation(model: str) -> Strategy:
    """Simulate and pack data parallelism of a model, with and without buckets and in every order."""
    lowering = Lowering(models.parse(model).graph(), parse(MACHINE))
    cost = CostModel(lowering.machine)
    return with_best_buckets(Evaluator(lowering, cost), seeds(lowering, [DATA_PARALLEL], cost)[DATA_PARALLEL])
