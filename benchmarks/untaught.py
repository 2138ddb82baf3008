"""What is told of steps on one core where nothing was measured but the host's rates, beside what they take of the core.

    python benchmarks/untaught.py [MODEL@SAMPLES ...] [--rounds N] [--kernels]

A network out of a file stands where a model's name does: `net.onnx:loss=cross_entropy@8`. Seconds are time of the core
that a step works on, so that neighbours on the host count little. --kernels tells by kernel which share of a step it
takes and which it is told to, those first that are furthest off. The rates are those that castile keeps of this host
(`castile doctor --measure-again`).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections import defaultdict
from pathlib import Path
from unittest import mock

# Thread pools read these when their libraries are loaded.
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.alone import SEED
from benchmarks.figures import Figure, tell
from castile.launch.jobs import jobs
from castile.launch.jobs.execution import Execution, Prepared
from castile.launch.measuring.measure import sample_feed
from castile.planner.cost import CostModel
from castile.planner.known.seeds import seeds
from castile.runtime import worker

MODELS = (
    "gpt:layers=4,width=256,heads=4,seq=128@8",
    "bert:layers=2,width=256,heads=4,seq=64,vocab=2000@8",
    "vit:patch=8,layers=3,width=192,heads=3,hidden=384,size=64@8",
    "lstm:layers=2,width=256,seq=32@32",
    "moe@8",
    "convnet@512",
    "resnet@16",
    "resnet:depth=18,size=64,classes=10@8",
    "resnext:size=64,classes=10@8",
    "inception:size=107,width=8@4",
)
# A step told takes so many times what it took of a core, at least and at most, and all are off by so much on average.
LEAST, MOST, MEAN = 0.75, 1.3, 0.15
WARM_UP = 2
# How often the clock is looked at to know what that takes.
LOOKS = 10_001


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, help="by default ten of castile's own, small")
    parser.add_argument("--rounds", type=int, default=9, help="steps of each that are timed (default: 9)")
    parser.add_argument("--kernels", action="store_true", help="tell of each kernel")
    options = parser.parse_args()
    ratios = {model: one(model, options.rounds, options.kernels) for model in options.models}
    figures = [Figure(f"untaught_{_name(of)}_over_taken_ratio", ratio, LEAST, MOST) for of, ratio in ratios.items()]
    off = float(np.mean([abs(ratio - 1) for ratio in ratios.values()]))
    tell([*figures, Figure("untaught_mean_error_ratio", off, most=MEAN)])


def one(text: str, rounds: int, by_kernel: bool) -> float:
    """How many times as long as it takes a step is told to take."""
    model, _, samples = text.rpartition("@")
    job = jobs.start(model, "local", int(samples), "")
    job.measure()
    prepared = job.prepare(next(iter(seeds(job.lowering).values())))
    execution = job.execute(prepared, SEED)
    execution.feed(sample_feed(job), job.model.recipe.lr)
    # a step's own times, of the core in place of the wall's
    with mock.patch.object(worker, "perf_counter_ns", time.thread_time_ns):
        taken, told = _taken(execution, rounds), CostModel(job.machine)
    step = float(np.median(taken.sum(axis=1)))
    price = np.array([told.seconds(key).seconds for key in prepared.tasks.cost_keys])[prepared.tasks.cost]
    print(f"{text:60} told {1e3 * price.sum():8.2f}, took {1e3 * step:8.2f} ms: {price.sum() / step:.2f}", flush=True)
    if by_kernel:
        _tell_kernels(prepared, np.median(taken, axis=0), price, step)
    return float(price.sum() / step)


def _taken(execution: Execution, rounds: int) -> np.ndarray:
    """float64[rounds, tasks]: seconds of a core that each task took, with what passed since the one before it, but for
    the clock that is looked at twice."""
    looks = [time.thread_time_ns() for _ in range(LOOKS)]
    clock = 2e-9 * (looks[-1] - looks[0]) / (LOOKS - 1)
    for _ in range(WARM_UP):
        execution.run()
    rows = []
    for _ in range(rounds):
        timeline = execution.step()
        order = np.argsort(timeline.end)
        ends = timeline.end[order]
        taken = np.empty(len(ends))
        taken[timeline.task[order]] = np.diff(ends, prepend=timeline.start[order[0]]) * 1e-12 - clock
        rows.append(taken)
    return np.array(rows)


def _tell_kernels(prepared: Prepared, taken: np.ndarray, told: np.ndarray, step: float) -> None:
    rows: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    for task, cost in enumerate(prepared.tasks.cost.tolist()):
        key = prepared.tasks.cost_keys[cost]
        rows[key.name] = [a + b for a, b in zip(rows[key.name], (taken[task], told[task], key.flops, key.nbytes))]
    for name, (took, says, flops, nbytes) in sorted(rows.items(), key=lambda row: -abs(row[1][0] - row[1][1])):
        rates = f"{flops / took * 1e-9:6.1f} GFLOP/s {nbytes / took * 1e-9:5.1f} GB/s"
        print(f"    {name:24} {100 * took / step:5.1f} % told {100 * says / step:5.1f} %  {rates}")


def _name(model: str) -> str:
    return re.sub(r"\W+", "_", Path(model).name)


if __name__ == "__main__":
    main()
