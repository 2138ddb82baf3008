"""Delta over full: how much sooner a plan's step is known when one Config changes in a plan that is known.

    python benchmarks/delta.py [--model NAME ...] [--table] [--machine flexflow-k80:nodes=16] [--proposals 60]
                               [--fulls 10]

Metropolis walks as in FlexFlow (Jia, Zaharia, Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks",
MLSys 2019, section 6), from data parallelism, with its batches of 64 a processor (AlexNet 256): a node drawn at random
gets any Config of its space, all with the same probability. NMT and Inception, or with --table its six networks.

Full: the plan is lowered, priced and simulated, as FlexFlow's full algorithm builds each plan's task graph. Delta: what
the change touches is priced and timed again (`Incremental`); accepted proposals are made, and their time counts. Both
go over the same plans, whose templates and versions of regions were made in a walk before. "limited" is delta that ends
as soon as a plan cannot be accepted any more, as in a search. The ratio of the simulations alone leaves lowering and
pricing out. Seconds are processor time, so that neighbours on the host do not count.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.figures import Figure, tell
from castile.launch import models
from castile.planner.choices.space import space_of
from castile.planner.cost import CostModel
from castile.planner.families.updates import Updates
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.simulate import simulate
from castile.planner.simulation import incremental
from castile.planner.simulation.delta import Change, Delta
from castile.planner.simulation.incremental import Incremental
from castile.planner.strategy import Strategy
from castile.runtime import machine as machines

LEAST = 7.0
# Of the plan's own time: a plan that takes so much longer is kept with probability 1/e.
TEMPERATURE = 0.01
TARGETS = ("inception:norm=False", "nmt")
HEADINGS = "network       tasks  accepted  timed  full/s  delta/s  limited/s  over full  simulation alone"
TABLE = ("alexnet", "resnet:depth=101", "inception:norm=False", "rnntc", "rnnlm", "nmt")


class Watch(Delta):
    """A delta simulation that knows how long its proposals took, all of them together."""

    seconds_spent = 0.0

    def propose(self, change: Change, limit: float = math.inf) -> float | None:
        began = process_time()
        found = super().propose(change, limit)
        Watch.seconds_spent += process_time() - began
        return found


class Measured(NamedTuple):
    """Of one network: seconds a proposal, and what they are made of."""

    num_tasks: int
    num_accepted: int
    timed_share: float
    first: float
    full: float
    simulation: float
    delta: float
    limited: float
    retiming: float

    def row(self, name: str) -> str:
        """As under HEADINGS."""
        rates = f"{1 / self.full:7.1f} {1 / self.delta:8.0f} {1 / self.limited:10.0f}"
        tasks = f"{self.num_tasks:7} {self.num_accepted:9} {100 * self.timed_share:4.0f} %"
        return f"{name:11} {tasks} {rates} {self.full / self.delta:10.1f} {self.simulation / self.retiming:17.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=TARGETS)
    parser.add_argument("--table", action="store_true", help="FlexFlow's six networks")
    parser.add_argument("--machine", default="flexflow-k80:nodes=16")
    parser.add_argument("--proposals", type=int, default=60)
    parser.add_argument("--fulls", type=int, default=10, help="of the proposals, how many are evaluated in full too")
    options = parser.parse_args()
    machine = machines.parse(options.machine)
    print(f"on {machine.name} of {machine.num_procs} processors, {options.proposals} proposals each:")
    print(HEADINGS)
    figures = []
    for model in TABLE if options.table else options.model:
        name = model.partition(":")[0]
        graph = models.parse(model).graph((256 if name == "alexnet" else 64) * machine.num_procs)
        lowering = Lowering(graph, machine, Updates(find("sgd")(momentum=0.9)))
        found = measured(lowering, CostModel(machine), options.proposals, options.fulls)
        print(found.row(name), flush=True)
        least = LEAST if model in TARGETS else None
        figures += [
            Figure(f"delta_{name}_first_seconds", found.first, note="a proposal with new templates and versions"),
            Figure(f"delta_{name}_full_proposals_per_second", 1 / found.full),
            Figure(f"delta_{name}_proposals_per_second", 1 / found.delta),
            Figure(f"delta_{name}_limited_proposals_per_second", 1 / found.limited),
            Figure(f"delta_{name}_simulation_ratio", found.simulation / found.retiming, note="without lowering"),
            Figure(f"delta_{name}_over_full_ratio", found.full / found.delta, least=least),
        ]
    tell(figures)


Proposal = tuple[Strategy, bool, float]


def measured(lowering: Lowering, cost: CostModel, num_proposals: int, num_fulls: int) -> Measured:
    """Walk, and go the same way again by either form."""
    start = Strategy(seeds(lowering)["data_parallel"].configs)
    incremental.Delta = Watch  # type: ignore[misc]
    one = Incremental(lowering, cost, start)
    began = process_time()
    walk = list(walked(one, num_proposals))
    first = (process_time() - began) / len(walk)
    # What is kept for reuse need not be searched for garbage again and again, in whichever form's time that falls.
    gc.collect()
    gc.freeze()
    replay(one, start, walk)
    delta, retiming, num_timed = replay(one, start, walk)
    limited, _, _ = replay(one, start, walk, limited=True)
    sample = walk[:: max(1, len(walk) // num_fulls)]
    fulls(lowering, cost, sample[:1])
    full, simulation = fulls(lowering, cost, sample)
    num_accepted = sum(accepted for _, accepted, _ in walk)
    share = num_timed / one.num_tasks
    return Measured(one.num_tasks, num_accepted, share, first, full, simulation, delta, limited, retiming)


def walked(one: Incremental, num_proposals: int) -> Iterator[Proposal]:
    """Proposals of a Metropolis walk, whether each was accepted, and the seconds up to which it would have been."""
    rng, nodes = random.Random(0), list(one.lowering.piece.nodes.items())
    for _ in range(num_proposals):
        name, node = rng.choice(nodes)
        plan = Strategy({**one.strategy.configs, name: space_of(node, one.lowering.machine.num_procs).draw(rng)})
        limit = one.seconds * (1 - TEMPERATURE * math.log(1 - rng.random()))
        accepted = one.propose(plan, limit) is not None
        if accepted:
            one.accept()
        yield plan, accepted, limit


def replay(
    one: Incremental, start: Strategy, walk: list[Proposal], limited: bool = False
) -> tuple[float, float, float]:
    """Go the same way again: seconds a proposal, those of the delta simulation, and how many tasks were timed."""
    one.propose(start)
    one.accept()
    num_timed, spent = 0, 0.0
    Watch.seconds_spent = 0.0
    for plan, accepted, limit in walk:
        began = process_time()
        one.propose(plan, limit if limited else math.inf)
        if accepted:
            one.accept()
        spent += process_time() - began
        num_timed += one.num_timed
    return spent / len(walk), Watch.seconds_spent / len(walk), num_timed / len(walk)


def fulls(lowering: Lowering, cost: CostModel, walk: list[Proposal]) -> tuple[float, float]:
    """Mean seconds of evaluating a plan from nothing, and of simulating it."""
    times = np.empty((len(walk), 2))
    for n, (plan, _, _) in enumerate(walk):
        began = process_time()
        graph, durations = cost.by_kind(lowering.lower(plan))
        lowered = process_time()
        simulate(graph, durations, lowering.machine.engines)
        times[n] = process_time() - began, process_time() - lowered
    whole, simulation = times.mean(axis=0).tolist()
    return whole, simulation


if __name__ == "__main__":
    main()
