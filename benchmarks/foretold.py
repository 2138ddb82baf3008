"""What is told of a step on an H200 from kernels compiled here, beside what it took there.

    python benchmarks/foretold.py

Measured: benchmarks/results/h200-steps-bfloat16.json, with the kernels of then and their default settings, each step
captured as one CUDA graph. Told: what `castile profile MODEL --machine h200` does for one H200, with the kernels of
now. Data sheets: the same step by the machine's figures alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, tell
from castile.launch import models
from castile.launch.here import absent_gpus
from castile.launch.jobs.profile_store import kernels_hash
from castile.launch.measuring import kernel_estimates
from castile.planner.cost import CostModel
from castile.planner.costs.snapshot import snapshot_of
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.families.updates import Updates
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.runtime import machine as machines

MEASURED = Path(__file__).parent / "results/h200-steps-bfloat16.json"
# A step told takes so many times what was measured, at least and at most.
LEAST, MOST = 0.75, 1.25


def main() -> None:
    rows = json.loads(MEASURED.read_text(encoding="utf-8"))["rows"]
    default = [row for row in rows if row["settings"] == "default"]
    print(f"{'model':32} {'batch':>5} {'data sheets':>11} {'told':>8} {'measured':>8}  ms a step")
    tell([figure for row in default for figure in one(row["model"], row["batch"], row["step_ms"])])


def one(text: str, batch: int, measured_ms: float) -> list[Figure]:
    """Compile, tell, print a line of the table, and tell the figures."""
    machine = machines.parse("h200").part([0])
    assert machine is not None
    lowering = Lowering(models.parse(text).graph(batch, "bfloat16"), machine, Updates(find("adamw")()))
    plan, kind = seeds(lowering, ["data_parallel"])["data_parallel"], absent_gpus.kind_of(machine)
    began = perf_counter()
    found = kernel_estimates.kinds(lowering, {plan.search: plan})
    told = kernel_estimates.estimate(found, kind, {}, lambda done, total: None, lambda row: None)
    took = perf_counter() - began
    snapshot = snapshot_of(absent_gpus.environment(kind, kernels_hash()), [row.measured for row in told])
    prices = (CostModel(machine), CostModel(machine, snapshot))
    plain, known = (1e3 * Evaluator(lowering, cost).evaluate(plan).seconds for cost in prices)
    print(f"{text:32} {batch:5} {plain:11.2f} {known:8.2f} {measured_ms:8.2f}", flush=True)
    name, beside = "foretold_" + "".join(c if c.isalnum() else "_" for c in text), plain / measured_ms
    return [
        Figure(f"{name}_over_measured_ratio", known / measured_ms, LEAST, MOST, f"by data sheets {beside:.2f}"),
        Figure(f"{name}_seconds", took, note=f"to compile and count {len(found.calls)} kinds of tasks"),
    ]


if __name__ == "__main__":
    main()
