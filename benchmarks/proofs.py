"""Proven optima of small cases, and how soon the default search finds a plan as good.

    python benchmarks/proofs.py [--case lenet rnnlm] [--machine flexflow-p100:nodes=1 ...] [--seconds 600] [--no-proof]

LeNet, and RNNLM unrolled over two words, with 64 samples for each of 4 processors, as in Jia, Zaharia, Aiken, "Beyond
Data and Model Parallelism for Deep Neural Networks", MLSys 2019, section 8.4: there the proofs took 0.8 and 18 hours,
and the search less than a second. What is proven: no plan of a stated space has a shorter simulated step than the best
plan known. For LeNet that space is all of what searches choose from, updates of parameters left where they are used;
for RNNLM it is the paper's: every operator cut along samples and the features of its results, a power of two times, on
aligned blocks of processors, nothing computed twice. The default search has more to choose from, so its plan may be
better than the optimum. Seconds are of this process alone, compiled code warm.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping
from math import prod
from pathlib import Path
from time import process_time

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, tell
from castile.launch import models
from castile.planner.bounds.additive import Additive
from castile.planner.bounds.partial_bounds import PartialBounds
from castile.planner.cost import CostModel
from castile.planner.evaluation.budget import Budget
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.families.updates import Updates
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.search import Run, search
from castile.planner.searches.exhaustive import Descent
from castile.planner.strategy import Config
from castile.runtime import machine as machines

MACHINES = ("flexflow-p100:nodes=1", "flexflow-k80:nodes=1")
CASES = {"lenet": "lenet", "rnnlm": "rnnlm:seq=2"}
SAMPLES = 64
MOST_SECONDS = 1.0
# The axes of unrolled steps, which the paper's operators have one by one.
STEPS = {"s", "t"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--machine", nargs="+", default=list(MACHINES))
    parser.add_argument("--seconds", type=float, default=600.0, help="at most, of a proof")
    parser.add_argument("--no-proof", action="store_true", help="search only")
    options = parser.parse_args()
    found: list[Figure] = []
    for machine in options.machine:
        for case in options.case:
            # Long enough that it compiles what a search of a second uses.
            search("mcmc", evaluator(case, machine), "1000")
            found += figures(case, machine, 0.0 if options.no_proof else options.seconds)
    tell(found)


def figures(case: str, machine: str, seconds: float) -> list[Figure]:
    """What the default search finds within a second and later, and the optimum where there are seconds to prove it."""
    name = f"proofs_{case}_{machine.partition(':')[0].rpartition('-')[2]}"
    soon = search("mcmc", evaluator(case, machine), f"{MOST_SECONDS:g}s").evaluated
    same = evaluator(case, machine)
    first = search("dynamic", same)
    known = search("mcmc", same, start={"dynamic": first.strategy}).evaluated
    best = min(soon, known, key=lambda plan: plan.rank)
    told = [Figure(f"{name}_known_seconds", best.seconds, note="the best plan of all searches")]
    if seconds:
        began = process_time()
        best, num_plans = proven(same, best, spaces(same, case), seconds)
        took = process_time() - began
        told = [
            Figure(f"{name}_optimum_seconds", best.seconds, note=f"the best of {num_plans:.1e} plans"),
            Figure(f"{name}_proof_seconds", took),
        ]
    return [*told, Figure(f"{name}_found_ratio", soon.seconds / best.seconds, most=1.0, note="within a second")]


def evaluator(case: str, machine: str) -> Evaluator:
    on = machines.parse(machine)
    graph = models.parse(CASES[case]).graph(SAMPLES * on.num_procs)
    return Evaluator(Lowering(graph, on, Updates(find("sgd")(momentum=0.9))), CostModel(on))


def spaces(same: Evaluator, case: str) -> dict[str, list[Config]]:
    """The Configs of each node among which the optimum is proven."""
    run = Run(same, Budget(1, None), random.Random(0), {})
    every = {name: run.spaces[name].configs for name in same.lowering.piece.nodes}
    if case != "rnnlm":
        return every
    results = {name: set(node.alignment.results[0].axes) for name, node in same.lowering.piece.nodes.items()}
    return {
        name: [c for c in configs if c.replicas == 1 and set(c.split) <= results[name] - STEPS and _is_even(c)]
        for name, configs in every.items()
    }


def _is_even(config: Config) -> bool:
    return all(degree & (degree - 1) == 0 for degree in config.split.values())


def proven(
    same: Evaluator, known: Evaluated, among: Mapping[str, list[Config]], seconds: float
) -> tuple[Evaluated, int]:
    """The best of a known plan and all of a space, and of how many plans that holds.

    Raises ValueError where that is not proven in time.
    """
    run = Run(same, Budget(None, seconds), random.Random(0), {"known": known})
    Descent(run, PartialBounds(Additive(same.lowering, same.cost), list(among.values()))).run_all()
    return run.best, prod(map(len, among.values()))


if __name__ == "__main__":
    main()
