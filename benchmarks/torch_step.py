"""A training step on one rank against the same model in PyTorch, eager on a CPU with one thread, in float32.

    python benchmarks/torch_step.py [gpt] [convnet] [lstm] [resnet] [--rounds N] [--profile]

Both begin with the same parameters, see the same samples and update by momentum; the losses of the first steps must
agree. Then they take turns, and medians are compared: loss, gradients and update, without reading in the samples.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

# Thread pools read these when their libraries are loaded.
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
# A host may tell OpenBLAS to take its processor for an older one; PyTorch's libraries would not be told.
os.environ.pop("OPENBLAS_CORETYPE", None)
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.alone import SEED, Workload, alone, workload
from benchmarks.figures import Figure, in_turns, spread, tell
from castile.launch.jobs.execution import Execution, Prepared, feed_from

NUM_AGREEING = 5
# Float32 sums in another order: a few units in the last place for each step.
TOLERANCE = 1e-4
NO_TORCH = "PyTorch is not installed: pip install torch==2.13.0"


@dataclass(frozen=True)
class Case:
    """A model with settings, samples a step, timed steps, and how many times PyTorch's seconds a step may take.

    dataset   where the data of its recipe may not be there
    """

    model: str
    batch: int
    rounds: int
    most: float
    dataset: str = ""


CASES = {
    "gpt": Case("gpt:layers=4,width=256,heads=4,seq=128", 8, 40, 1.5),
    "convnet": Case("convnet", 64, 600, 3.0),
    "resnet": Case("resnet", 64, 40, 3.0, dataset="synthetic"),
    "lstm": Case("lstm:layers=2,width=256,seq=64", 32, 30, 1.5),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--rounds", type=int, default=0, help="steps of each that are timed; by default the case's own")
    parser.add_argument("--profile", action="store_true", help="print what castile's kernels take")
    options = parser.parse_args()
    figures = []
    for name in options.names:
        if find_spec("torch") is None:
            figures.append(Figure(f"{name}_step_over_torch_ratio", None, most=CASES[name].most, note=NO_TORCH))
        else:
            figures += compare(name, CASES[name], options.rounds or CASES[name].rounds, options.profile)
    tell(figures)


def compare(name: str, case: Case, rounds: int, profile: bool) -> list[Figure]:
    """Check that both train alike, then time both."""
    import torch

    from benchmarks.torch_model import TorchStep

    torch.set_num_threads(1)
    work = workload(case.model, case.batch, case.dataset)
    prepared, ours = alone(work)
    theirs = TorchStep(work.graph, SEED, work.recipe.lr, work.recipe.momentum)
    difference = agree(work, ours, theirs)
    print(f"{case.model}, batch {case.batch}: losses of {NUM_AGREEING} steps differ by {difference:.1e} at most")
    seconds = in_turns({"castile": ours.runner.run, "torch": theirs.run}, rounds)
    for who, times in seconds.items():
        best = f"within {100 * spread(times):.1f} %, best {1e3 * times.min():.3f}"
        print(f"  {who:8} {1e3 * np.median(times):8.3f} ms a step, {best}")
    if profile:
        print_profile(prepared, ours)
    middle = {who: float(np.median(times)) for who, times in seconds.items()}
    return [
        Figure(f"{name}_castile_step_seconds", middle["castile"]),
        Figure(f"{name}_torch_step_seconds", middle["torch"]),
        Figure(f"{name}_step_over_torch_ratio", middle["castile"] / middle["torch"], most=case.most),
    ]


def agree(work: Workload, ours: Execution, theirs) -> float:  # type: ignore[no-untyped-def]
    """The largest relative difference of the losses of the first steps; exits where it is too large."""
    differences = []
    for step in range(NUM_AGREEING):
        arrays = work.dataset.batch(step, work.graph.batch)
        ours.feed(feed_from(arrays), work.recipe.lr)
        theirs.feed(arrays)
        ours.runner.run()
        theirs.run()
        mine = ours.output(work.graph.loss)
        assert mine is not None
        differences.append(abs(float(mine) / float(theirs.loss.detach()) - 1))
    if not max(differences) <= TOLERANCE:
        sys.exit(f"castile and PyTorch do not train alike: losses differ by {differences}, relative")
    return max(differences)


def print_profile(prepared: Prepared, execution: Execution, steps: int = 20) -> None:
    """What castile's tasks of one kind take together: milliseconds in the best of some steps, and rates."""
    timelines = [execution.step() for _ in range(steps)]
    seconds = np.min([t.durations() for t in timelines], axis=0) * 1e-12
    rows: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0, 0])
    for task, taken in zip(timelines[0].task, seconds):
        key = prepared.tasks.cost_keys[prepared.tasks.cost[task]]
        rows[f"{key.name} {key.shapes}"] = [
            a + b for a, b in zip(rows[f"{key.name} {key.shapes}"], (1, taken, key.flops, key.nbytes))
        ]
    for words, (count, taken, flops, nbytes) in sorted(rows.items(), key=lambda row: -row[1][1]):
        rates = f"{flops / taken * 1e-9:7.1f} GFLOP/s {nbytes / taken * 1e-9:6.1f} GB/s"
        print(f"  {1e3 * taken:8.3f} ms {int(count):4} {rates}  {words}")
    whole = np.min([t.end.max() - t.start.min() for t in timelines]) * 1e-12
    print(f"  {1e3 * (whole - seconds.sum()):8.3f} ms between the tasks")


if __name__ == "__main__":
    main()
