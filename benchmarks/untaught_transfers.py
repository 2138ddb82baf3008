"""What is told of steps on two MPI ranks where no transfer was measured, beside what they take.

    python benchmarks/untaught_transfers.py [MODEL@SAMPLES ...] [--ranks 2] [--plans 8] [--rounds 15] [--transfers]

Plans are drawn as `castile validate` draws them. Each is told twice: by the host's rates alone, and with its kernels as
its own steps took them, so that what is left are transfers and waiting. --transfers tells of each kind what it is told
to take and what it took. Steps are seconds of the host, so other programs count: errors hold for a host that has none.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from pathlib import Path

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
import numpy as np

from benchmarks import on_ranks
from benchmarks.alone import SEED
from benchmarks.figures import Figure, tell
from castile.launch import validate
from castile.launch.jobs import jobs
from castile.launch.jobs.jobs import Job
from castile.launch.measuring.measure import TimedPlan, measure, sample_feed, timed_plan
from castile.launch.measuring.plan_choice import simulated
from castile.planner.cost import CostModel
from castile.planner.costs.learn import learn, undisturbed
from castile.planner.costs.snapshot import Snapshot

MODELS = ("convnet@512", "gpt:layers=2,width=64@16", "mlp@256", "lstm@32")
# With kernels known, steps of the first two, which are long enough, are off by so much on average.
MOST, LONG = 0.1, MODELS[:2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--plans", type=int, default=8, help="plans of each model (default: 8)")
    parser.add_argument("--rounds", type=int, default=15, help="steps of each that are timed (default: 15)")
    parser.add_argument("--transfers", action="store_true", help="tell of each kind of transfer")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.rank:
        sys.exit(on_ranks.start(__file__, options.ranks, ["--rank", *sys.argv[1:]]))
    figures = [figure for text in options.models for figure in one(text, options)]
    if figures:
        tell(figures)


def one(text: str, options: argparse.Namespace) -> list[Figure]:
    """How a model's plans were told, on rank 0."""
    model, _, samples = text.rpartition("@")
    job = jobs.start(model, f"local:procs={options.ranks}", int(samples), "")
    job.measure()
    plans = validate.draw(job, options.plans, SEED)
    trials = [timed_plan(job, name, plan, SEED) for name, plan in plans.items()]
    measure(job, trials, sample_feed(job, SEED), job.model.recipe.lr / 100, options.rounds)
    if not job.leads:
        return []
    rows = []
    for t in trials:
        learned, took = learn(job.snapshot, t.prepared.tasks, t.steps), undisturbed(t.steps)
        rates, known = (simulated(t.prepared, CostModel(job.machine, s)) for s in (None, _kernels(learned)))
        print(
            f"{text:26} {t.name:16} took {1e3 * took:7.2f} ms, told {rates / took:.2f}, with kernels {known / took:.2f}"
        )
        if options.transfers:
            _tell_transfers(job, t, learned)
        rows.append(validate.Row(t.name, False, took, t.spread_seconds, rates, known))
    by_rates, by_kernels = (validate.truth(rows, after) for after in (False, True))
    mean = float(np.mean([row.after_seconds / row.measured_seconds for row in rows]))
    name = "untaught_ranks_" + re.sub(r"\W+", "_", text)
    return [
        Figure(f"{name}_mean_error_ratio", by_rates.mean_error),
        Figure(f"{name}_kendall_tau", by_rates.kendall_tau, note=f"{by_rates.num_pairs} pairs"),
        Figure(f"{name}_transfers_mean_error_ratio", by_kernels.mean_error, most=MOST if text in LONG else None),
        Figure(f"{name}_transfers_kendall_tau", by_kernels.kendall_tau),
        Figure(f"{name}_transfers_told_over_taken_ratio", mean),
    ]


def _kernels(learned: Snapshot) -> Snapshot:
    """What was learned of kernels alone."""
    rows = tuple(row for row in learned.rows if not row.key.link)
    return msgspec.structs.replace(learned, rows=rows)


def _tell_transfers(job: Job, t: TimedPlan, learned: Snapshot) -> None:
    told, tasks = CostModel(job.machine), t.prepared.tasks
    counts = Counter(tasks.cost_keys[cost] for cost in tasks.cost)
    for row in sorted(learned.rows, key=lambda row: (row.key.name, row.key.nbytes)):
        if row.key.link:
            price, took = told.seconds(row.key).seconds, row.seconds
            kind = f"{counts[row.key]:4} x {row.key.name:16} {row.key.num_begun:3} at once {row.key.nbytes:10} bytes"
            print(f"    {kind}: told {1e6 * price:8.1f}, took {1e6 * took:8.1f} us: {price / took:.2f}")


if __name__ == "__main__":
    main()
