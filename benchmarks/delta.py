"""Delta over full: how much sooner a plan's step is known when one Config changes in a plan that is known.

    python benchmarks/delta.py [--model gpt:layers=12,width=1024,heads=16,seq=1024,vocab=50304] [--nodes 8]
                               [--plan megatron|data_parallel] [--proposals 300] [--fulls 20]

A Metropolis walk on dgx-h100 nodes, 64 processors by default, as in FlexFlow (Jia, Zaharia, Aiken, MLSys 2019): a node
drawn at random gets any Config. Full: the plan is lowered, priced and simulated, its memory included. Delta: what the
change touches is priced and timed again; accepted proposals are made, and their time counts. Both go over the same
plans, whose templates and versions of regions were made in a walk before; what that takes is told apart. The last
figure is the ratio of the two; before it that of their simulations alone, without lowering and pricing.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.figures import Figure, tell
from benchmarks.simulator import megatron
from castile.launch import models
from castile.planner import incremental
from castile.planner.cost import CostModel
from castile.planner.delta import Change, Delta
from castile.planner.incremental import Incremental
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.seeds import seeds
from castile.planner.simulate import simulate
from castile.planner.space import space_of
from castile.planner.strategy import Strategy
from castile.planner.updates import Updates
from castile.runtime import machine as machines

LEAST = 7.0
# Of the plan's own time: a plan that takes so much longer is kept with probability 1/e.
TEMPERATURE = 0.01
GPT = "gpt:layers=12,width=1024,heads=16,seq=1024,vocab=50304"


class Watch(Delta):
    """A delta simulation that knows how long its proposals took, all of them together."""

    seconds_spent = 0.0

    def propose(self, change: Change, limit: float = math.inf) -> float | None:
        began = perf_counter()
        found = super().propose(change, limit)
        Watch.seconds_spent += perf_counter() - began
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=GPT)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--plan", choices=("megatron", "data_parallel"), default="megatron")
    parser.add_argument("--proposals", type=int, default=300)
    parser.add_argument("--fulls", type=int, default=20, help="of the proposals, how many are evaluated in full too")
    options = parser.parse_args()
    machine = machines.parse(f"dgx-h100:nodes={options.nodes}")
    graph = models.parse(options.model).graph(options.batch)
    lowering, cost = Lowering(graph, machine, Updates(find("sgd")(momentum=0.9))), CostModel(machine)
    start = seeds(lowering)["data_parallel"]
    if options.plan == "megatron":
        start = Strategy(megatron(graph, machine.num_procs // 8, 8))
    incremental.Delta = Watch  # type: ignore[misc]
    began = perf_counter()
    walk = list(walked(Incremental(lowering, cost, start), options.proposals))
    first = (perf_counter() - began) / len(walk)
    one = Incremental(lowering, cost, start)
    replay(one, start, walk)
    delta, retiming, timed = replay(one, start, walk)
    limited, _, _ = replay(one, start, walk, limited=True)
    full, simulation = fulls(lowering, cost, [plan for plan, *_ in walk[:: max(1, len(walk) // options.fulls)]])
    share = timed / one.num_tasks
    num_accepted = sum(accepted for _, accepted, _ in walk)
    print(
        f"{graph.name}, {options.plan} on {machine.name} of {machine.num_procs} processors: {one.num_tasks} tasks; "
        f"{len(walk)} proposals, {num_accepted} accepted, {100 * share:.0f} % of the tasks timed one by one"
    )
    tell(
        [
            Figure("delta_num_tasks", one.num_tasks),
            Figure("delta_timed_share", share),
            Figure("delta_first_seconds", first, note="a proposal with new templates and versions"),
            Figure("full_seconds", full),
            Figure("full_simulation_seconds", simulation),
            Figure("delta_seconds", delta),
            Figure("delta_simulation_seconds", retiming),
            Figure("delta_proposals_per_second", 1 / delta),
            Figure("delta_limited_proposals_per_second", 1 / limited, note="refused as soon as they pass the limit"),
            Figure("delta_simulation_ratio", simulation / retiming, least=LEAST),
            Figure("delta_over_full_ratio", full / delta, least=LEAST),
        ]
    )


Proposal = tuple[Strategy, bool, float]


def walked(one: Incremental, num_proposals: int) -> Iterator[Proposal]:
    """Proposals of a Metropolis walk, whether each was accepted, and the seconds up to which it would have been."""
    rng, nodes = random.Random(0), list(one.lowering.piece.nodes.items())
    while num_proposals > 0:
        name, node = rng.choice(nodes)
        plan = Strategy({**one.strategy.configs, name: space_of(node, one.lowering.machine.num_procs).draw(rng)})
        limit = one.seconds * (1 - TEMPERATURE * math.log(1 - rng.random()))
        found = one.propose(plan)
        assert found is not None
        if found <= limit:
            one.accept()
        num_proposals -= 1
        yield plan, found <= limit, limit


def replay(
    one: Incremental, start: Strategy, walk: list[Proposal], limited: bool = False
) -> tuple[float, float, float]:
    """Go the same way again: seconds a proposal, those of the delta simulation, and how many tasks were timed."""
    one.propose(start)
    one.accept()
    num_timed, spent = 0, 0.0
    Watch.seconds_spent = 0.0
    for plan, accepted, limit in walk:
        began = perf_counter()
        one.propose(plan, limit if limited else math.inf)
        if accepted:
            one.accept()
        spent += perf_counter() - began
        num_timed += one.num_timed
    return spent / len(walk), Watch.seconds_spent / len(walk), num_timed / len(walk)


def fulls(lowering: Lowering, cost: CostModel, plans: list[Strategy]) -> tuple[float, float]:
    """Median seconds of evaluating a plan from nothing, and of simulating it."""
    times = np.empty((len(plans), 2))
    for n, plan in enumerate(plans):
        began = perf_counter()
        graph, durations = cost.by_kind(lowering.lower(plan))
        lowered = perf_counter()
        simulate(graph, durations, lowering.machine.engines)
        times[n] = perf_counter() - began, perf_counter() - lowered
    whole, simulation = np.median(times, axis=0).tolist()
    return whole, simulation


if __name__ == "__main__":
    main()
