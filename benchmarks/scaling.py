"""A training step of a GPT on two MPI ranks against the same step on one of them, in float32 with one thread a rank.

    python benchmarks/scaling.py [--ranks 2] [--rounds 25] [--budget 300]

The plan for all ranks is the one that `castile train` would choose: seeds are measured, a search runs on what they
taught, and the fastest is taken. Then it and the plan on one processor take turns, and medians are compared.

Share of communication hidden = 1 - exposed / transfer, over all ranks: `transfer` is the time in which at least one
transfer of a rank is under way (all its members have come, it has not ended), `exposed` the part of that time in which
the rank's compute lane stands still. Waiting for a neighbour that has not come yet is no transfer; it is told apart.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks import on_ranks
from benchmarks.alone import SEED, Workload, workload
from benchmarks.figures import Figure, tell
from benchmarks.lanes import lanes
from castile.launch.jobs.execution import feed_from
from castile.launch.measuring import plan_choice
from castile.launch.measuring.measure import TimedPlan, measure, timed_plan
from castile.planner.known.seeds import seeds
from castile.planner.strategy import Strategy

MODEL = "gpt:layers=4,width=256,heads=4,seq=128"
BATCH = 8
LEAST = 1.6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=25, help="steps of each plan that are timed")
    parser.add_argument("--budget", default="300", help="how long the search looks")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.rank:
        words = ["--rank", "--rounds", str(options.rounds), "--budget", options.budget]
        sys.exit(on_ranks.start(__file__, options.ranks, words))
    work = workload(MODEL, BATCH)
    trials = compare(work, options.rounds, options.budget)
    if work.job.leads:
        report(work, *trials)


def compare(work: Workload, rounds: int, budget: str) -> tuple[TimedPlan, TimedPlan]:
    """One processor's plan and that of all, measured in turns."""
    job = work.job
    feed = feed_from(work.dataset.batch(0, BATCH))
    # small steps, so that many of them on one batch stay finite
    rate = work.recipe.lr / 100
    chosen = plan_choice.choose(job, plan_choice.PlanOptions("mcmc", budget, SEED), feed, rate)
    plans: dict[str, Strategy] = {
        "one_processor": seeds(job.lowering)["one_processor"],
        chosen.equals or "found by mcmc": chosen.plan,
    }
    if len(plans) == 1:
        plans["data_parallel"] = seeds(job.lowering)["data_parallel"]
    trials = [timed_plan(job, name, plan, SEED) for name, plan in plans.items()]
    measure(job, trials, feed, rate, rounds)
    return trials[0], trials[1]


def report(work: Workload, one: TimedPlan, all_: TimedPlan) -> None:
    """Tell the figures, on rank 0."""
    print(f"{MODEL}, batch {BATCH}, {work.job.comm.size} ranks")
    for t in (one, all_):
        print(f"  {t.name:16} {1e3 * t.seconds:8.2f} ms a step, within {100 * t.spread_seconds / t.seconds:.1f} %")
    did = [lanes(all_.prepared.tasks, timeline) for timeline in all_.steps]
    step = np.array([d.step for d in did])
    shares = {
        "computing": np.array([d.compute.mean() for d in did]) / step,
        "exposed": np.array([d.exposed.mean() for d in did]) / step,
        "transfer": np.array([d.transfer.mean() for d in did]) / step,
    }
    middle = {name: float(np.median(share)) for name, share in shares.items()}
    tell(
        [
            Figure("one_rank_step_seconds", one.seconds),
            Figure("all_ranks_step_seconds", all_.seconds),
            Figure("ranks_over_one_speedup", one.seconds / all_.seconds, least=LEAST, note=all_.name),
            Figure("communication_hidden_share", float(np.median([d.hidden_share for d in did]))),
            Figure("transfer_share_of_step", middle["transfer"]),
            Figure("waiting_for_transfers_share_of_step", middle["exposed"]),
            Figure("waiting_for_neighbours_share_of_step", 1 - middle["computing"] - middle["exposed"]),
        ]
    )


if __name__ == "__main__":
    main()
