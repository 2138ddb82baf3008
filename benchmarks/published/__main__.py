"""Steps that others measured on clusters, beside what the simulator says of the same plan by the cluster's data sheets.

    python benchmarks/published [--source nemo titan] [--machine dgx-a100 dgx-h100] [--most-nodes 64] [--plan]

`steps.csv` has a line for each step: the network, the plan, and seconds.

megatron   Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021,
           table 1: seconds are the operations that its formula counts over the rate that it tells. How many samples a
           microbatch has is not told: 4 are taken, fewer of the larger networks. `scores.py` is the network
           as it was run.
mpt        mosaicml/llm-foundry, scripts/train/benchmarking/README.md at 061f2c7: FSDP with bfloat16 on A100 of 80 GB
           and on H100; those lines of at most 64 GPUs and 32,768 tokens that keep float32 weights. Attention is that of
           2023.
nemo       NVIDIA/dgxc-benchmarking at 143b90d, llama3.1/README_8b.md, README_70b.md and README_405b.md: Llama 3.1 in
           bfloat16 on H100, NeMo 24.09. Each text is cut in two, and so that both halves have as much to do; pipelines
           come round five or seven times. What is called 405b has fewer blocks on few GPUs, and GPT-2's words.
maxtext    the same, maxtext/README_70b.md: FSDP of Llama 2; configure.sh names what is kept for gradients.
titan      pytorch/torchtitan, docs/performance.md at 0413364 on A100, benchmarks/llama3_h100_202412_torchtitan.md at
           31a17bf on H100 of 500 W with 2.4 TB/s: FSDP. Every second block is computed again, or in each block all but
           attention and every second product (torchtitan/parallelisms/parallelize_llama.py at 004b314).
experts    NVIDIA/Megatron-LM at 022bcb5, megatron/core/transformer/moe/README.md: Mixtral 8x7B on H100 as it says to
           lay it; seconds are the operations of a step over the 468 teraflop/s a GPU that it tells.

Kernels come in the order of the program, as there, and FSDP gathers parameters for each pass. Whether a plan fits is
not asked. The figures: simulated over measured seconds, their geometric mean and by which factor they lie around it
(geometric standard deviation), apart for sequences of more than 2,048 tokens.

With --plan, what `castile plan` finds for the same network, samples and machine too, once each: simulated over what the
best of theirs is simulated to take, and the longest that it took to find one. That takes minutes.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec
import numpy as np

from benchmarks.figures import Figure, tell
from castile.launch import models
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.families.updates import Updates
from castile.planner.known.seeds import seed, stamped
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.step.recompute import Recomputation
from castile.planner.strategy import PROGRAM
from castile.runtime import machine as machines

FOLDER = Path(__file__).parent
SHORT = 2048


class Step(NamedTuple):
    """A line of the file: what ran where, and how long a step took."""

    source: str
    machine: str
    nodes: int
    model: str
    plan: str
    samples: int
    microbatches: int
    recompute: str
    seconds: float

    @property
    def text(self) -> str:
        """The model as commands take it."""
        return str(FOLDER / self.model) if self.model.startswith("scores.py") else self.model

    @property
    def seq(self) -> int:
        """Tokens of a sample; 2,048 where the model does not say."""
        said = re.search(r"seq=(\d+)", self.model)
        return int(said.group(1)) if said else SHORT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = read()
    for name in ("source", "machine"):
        known = sorted({getattr(step, name) for step in steps})
        parser.add_argument(f"--{name}", nargs="+", choices=known, default=known)
    parser.add_argument("--most-nodes", type=int, default=64, help="leave out steps on more nodes")
    parser.add_argument("--plan", action="store_true", help="look for plans of castile's own too")
    options = parser.parse_args()
    chosen = [s for s in steps if s.source in options.source and s.machine in options.machine]
    ratios, theirs = defaultdict[str, list[float]](list), dict[Step, float]()
    print(f"{'machine':9} {'GPUs':>4} {'tokens':>6} {'samples':>7} {'measured':>8} {'simulated':>9} ratio  network")
    for step in (s for s in chosen if s.nodes <= options.most_nodes):
        seconds = theirs[step] = simulated(step)
        length = "short" if step.seq <= SHORT else "long"
        ratios[f"published_{step.source}_{step.machine.replace('-', '_')}_{length}"].append(seconds / step.seconds)
        print(
            f"{step.machine:9} {8 * step.nodes:4} {step.seq:6} {step.samples:7} {step.seconds:8.3f} {seconds:9.3f} "
            f"{seconds / step.seconds:5.2f}  {step.model} {step.plan}",
            flush=True,
        )
    figures = [figure for name, found in ratios.items() for figure in summary(name, found)]
    tell(figures + (planned(theirs) if options.plan else []))


def planned(theirs: Mapping[Step, float]) -> list[Figure]:
    """What is found for the networks of these steps, over what the best of theirs is simulated to take."""
    best: dict[tuple[str, str, str, int], float] = {}
    for step, seconds in theirs.items():
        asked = step.source, step.text, f"{step.machine}:nodes={step.nodes}", step.samples
        best[asked] = min(seconds, best.get(asked, inf))
    ratios, longest = defaultdict[str, list[float]](list), 0.0
    print(f"{'machine':18} {'samples':>7} {'theirs':>8} {'found':>8} ratio  in, s  network")
    for (source, text, machine, samples), seconds in best.items():
        began = perf_counter()
        words = ["plan", text, "--machine", machine, "--batch", str(samples), "--dtype", "bfloat16", "--json"]
        ran = subprocess.run([sys.executable, "-m", "castile", *words], capture_output=True, text=True, check=True)
        took, found = perf_counter() - began, json.loads(ran.stdout)["found"]["step_seconds"]
        ratios[source].append(found / seconds)
        longest = max(longest, took)
        row = f"{machine:18} {samples:7} {seconds:8.3f} {found:8.3f} {found / seconds:5.2f} {took:6.1f}  {text}"
        print(row, flush=True)
    each = [figure for name, found in ratios.items() for figure in summary(f"published_{name}_plan", found)]
    return [*each, Figure("published_longest_planning_seconds", longest)]


def read() -> list[Step]:
    """All steps of the file."""
    with (FOLDER / "steps.csv").open(encoding="utf-8", newline="") as lines:
        return msgspec.convert([tuple(row.values()) for row in csv.DictReader(lines)], list[Step], strict=False)


def simulated(step: Step) -> float:
    """Seconds of the step by the machine's figures alone."""
    machine = machines.parse(f"{step.machine}:nodes={step.nodes}")
    graph = models.parse(step.text).graph(step.samples, "bfloat16")
    updates = Updates(find("adamw")())
    again = Recomputation(graph, updates).named(step.recompute)
    lowering = Lowering(graph, machine, updates, microbatches=step.microbatches, recompute=again)
    plan = stamped(lowering, seed(step.plan, lowering), step.plan)
    evaluator = Evaluator(lowering, CostModel(machine))
    return evaluator.simulate(msgspec.structs.replace(plan, order=PROGRAM))[1].seconds


def summary(name: str, ratios: Sequence[float]) -> list[Figure]:
    """The geometric mean of ratios, and the factor by which they lie around it."""
    logs = np.log(ratios)
    note = f"of {len(ratios)} steps, {min(ratios):.2f} to {max(ratios):.2f}"
    spread = float(np.exp(logs.std()))
    return [Figure(f"{name}_ratio", float(np.exp(logs.mean())), note=note), Figure(f"{name}_spread_factor", spread)]


if __name__ == "__main__":
    main()
