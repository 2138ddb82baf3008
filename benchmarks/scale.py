"""How evaluating one plan grows with the machine: dgx-h100 nodes of 8 processors, from 1 to 512 of them.

    python benchmarks/scale.py [--nodes 1 8 32 128 512] [--models gpt:layers=4,... gpt:size=175b]
                               [--plans data_parallel megatron] [--limit 120] [--batches 64 1024]

A plan is lowered to instances, folded to one processor of each role (`castile.planner.evaluation.folding`), priced and
simulated, its memory included; the batch has a sample for each processor. First: nothing is known, templates are made.
Again: all instances are known, as for a search that comes back to a plan; folding is done anew. Each row is a process
of its own, whose peak memory is told. Where a row takes longer than the limit, larger machines are left out.

Then `castile plan` for a small model on one node, which compiles the loops of searches where that was not done before,
once for each installation; and for the largest model on the target's processors, with so many samples a step as
`--batches` says; where no plan of a whole batch fits, it is cut into microbatches. Of the plan that is told: in how
many, what a step takes, and the model FLOPs utilisation; and what `castile simulate` and `castile explain` of it take.

The last figures are exponents: of the time that evaluating again takes against the number of processors, and against
the size of the folded graph from the small model to the large one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from time import perf_counter, process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.figures import Figure, tell
from castile.launch import models
from castile.planner.cost import CostModel
from castile.planner.evaluation.folding import Folding, price_graph
from castile.planner.families.updates import Updates
from castile.planner.known.seeds import seed
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.simulate import simulate
from castile.planner.strategy import Strategy
from castile.runtime import machine as machines

MODELS = ("gpt:layers=4,width=2048,heads=16,seq=1024,vocab=50304", "gpt:size=175b")
SMALL, TARGET = "mlp", 1024
MOST_FIRST, MOST_AGAIN, MOST_GIB = 15.0, 1.0, 4.0
# Of planning, two cores, and of the commands that tell of a plan.
BATCHES, MOST_PLANNING = (64, 1024), 60.0
# As such networks are trained.
DTYPE = ("--dtype", "bfloat16")
# How often it is looked at what a command and the processes that it begins hold.
EVERY_SECONDS = 0.05
TELLING = ("simulate", "explain")


@dataclass(frozen=True)
class Row:
    """What evaluating a plan took: seconds to make instances and to fold them, first and again, and to simulate.

    folded, whole   tasks of the folded graph, and of the graph that it stands for
    """

    model: str
    plan: str
    num_procs: int
    instances_first: float
    fold_first: float
    instances_again: float
    fold_again: float
    simulate: float
    folded: int
    whole: int
    num_roles: int
    step_seconds: float
    peak_gib: float

    @property
    def first(self) -> float:
        return self.instances_first + self.fold_first + self.simulate

    @property
    def again(self) -> float:
        return self.instances_again + self.fold_again + self.simulate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 8, 32, 128, 512])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--plans", nargs="+", default=["data_parallel", "megatron"])
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of a row, after which none larger is run")
    parser.add_argument("--row", nargs=3, metavar=("MODEL", "PLAN", "NODES"), help="one row as JSON")
    parser.add_argument("--batches", type=int, nargs="*", default=list(BATCHES), help="samples a step to plan for")
    options = parser.parse_args()
    if options.row:
        model, plan, nodes = options.row
        print(json.dumps(asdict(measured(model, plan, int(nodes)))))
        return
    rows = []
    print(HEAD)
    for model in options.models:
        for plan in options.plans:
            for nodes in sorted(options.nodes):
                rows.append(alone(model, plan, nodes))
                print(line(rows[-1]), flush=True)
                if rows[-1].first > options.limit:
                    break
    planned = []
    if options.batches:
        first, _, _ = castile("plan", SMALL, "--machine", "dgx-h100:nodes=1")
        planned = [Figure("plan_small_first_seconds", first, note="compiling included, where there was anything to")]
    planned += [figure for batch in options.batches for figure in planning(options.models[-1], batch)]
    tell([*(figure for plan in options.plans for figure in figures(plan, rows)), *planned])


def alone(model: str, plan: str, nodes: int) -> Row:
    """The row, measured in a process of its own."""
    command = [sys.executable, __file__, "--row", model, plan, str(nodes)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Row(**json.loads(output.splitlines()[-1]))


def measured(model: str, plan: str, nodes: int) -> Row:
    machine = machines.parse(f"dgx-h100:nodes={nodes}")
    graph = models.parse(model).graph(machine.num_procs)
    lowering, cost = Lowering(graph, machine, Updates(find("sgd")(momentum=0.9))), CostModel(machine)
    strategy, folding = Strategy(seed(plan, lowering)), Folding(lowering)
    seconds = []
    for _ in range(2):
        began = process_time()
        steps, flows = folding.instances(strategy)
        lowered = process_time()
        folded = folding.fold_instances(steps, flows)
        seconds += [lowered - began, process_time() - lowered]
        began = process_time()
        simulated = simulate(*price_graph(folded, cost), machine.engines)
        simulation = process_time() - began
    return Row(
        model, plan, machine.num_procs, *seconds, simulation, folded.graph.num_tasks, folded.num_tasks,
        folded.graph.num_procs, simulated.seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    )  # fmt: skip


def planning(model: str, batch: int) -> list[Figure]:
    """What `castile plan` takes for so many samples a step on the target's processors, and what its plan is worth; and
    what it takes to tell of that plan."""
    machine, name = f"dgx-h100:nodes={TARGET // 8}", f"plan_{batch}_on_{TARGET}"
    with TemporaryDirectory() as folder:
        plan = str(Path(folder) / "plan.json")
        *took, facts = castile("plan", model, "--machine", machine, "--batch", str(batch), *DTYPE, "--out", plan)
        told = {command: castile(command, plan) for command in TELLING}
    step = facts["found"]["step_seconds"]
    assert all(of["step_seconds"] == step for _, _, of in told.values()), "it is told of otherwise than it was found"
    return [
        *_bounded(name, *took),
        Figure(f"{name}_microbatches", facts["microbatches"]),
        Figure(f"{name}_step_seconds", step),
        Figure(f"{name}_utilisation_share", facts["model_flops_utilisation"]),
        *(one for command in TELLING for one in _bounded(f"{command}_{name}", *told[command][:2])),
    ]


def _bounded(name: str, seconds: float, gib: float) -> list[Figure]:
    """What a command takes, which is to be as little as planning."""
    return [Figure(f"{name}_seconds", seconds, most=MOST_PLANNING), Figure(f"{name}_gib", gib, most=MOST_GIB)]


def castile(*words: str) -> tuple[float, float, dict[str, Any]]:
    """What a command takes in seconds and GiB, those of processes that it begins among them, and what it says."""
    command = [sys.executable, "-m", "castile", *words, "--json"]
    began, is_over = perf_counter(), Event()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, ThreadPoolExecutor(1) as beside:
        together = beside.submit(most_resident, process.pid, is_over)
        assert process.stdout is not None
        try:
            told = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            lasted = perf_counter() - began
        finally:
            is_over.set()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return lasted, max(usage.ru_maxrss * 1024, together.result()) / 2**30, json.loads(told)


def most_resident(pid: int, is_over: Event) -> int:
    """The most bytes that a process and those that it began had at a time, looked at every so often; what they share
    counts for each.
    """
    most = 0
    while not is_over.wait(EVERY_SECONDS):
        most = max(most, resident(pid))
    return most


def resident(pid: int) -> int:
    """Bytes of a process and of those that it began, now; 0 for one that is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        begun = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * resource.getpagesize() + sum(resident(int(child)) for child in begun)


HEAD = (
    f"{'model':26} {'plan':14} {'procs':>5} {'first: s':>9} {'fold s':>7} {'again: s':>9} {'fold s':>7} "
    f"{'simulate':>9} {'folded':>8} {'of tasks':>10} {'roles':>6} {'step s':>8} {'GiB':>6}"
)


def line(row: Row) -> str:
    return (
        f"{row.model[:26]:26} {row.plan:14} {row.num_procs:5} {row.first:9.2f} {row.fold_first:7.2f} {row.again:9.3f} "
        f"{row.fold_again:7.3f} {row.simulate:9.4f} {row.folded:8} {row.whole:10} {row.num_roles:6} "
        f"{row.step_seconds:8.3f} {row.peak_gib:6.2f}"
    )


def figures(plan: str, rows: list[Row]) -> list[Figure]:
    """Of the last model, the largest: at the target's number of processors, and how time grows."""
    last = [row for row in rows if row.plan == plan and row.model == rows[-1].model]
    at = next((row for row in last if row.num_procs == TARGET), None)
    name = f"scale_{plan}_{TARGET}"
    found = [
        Figure(f"{name}_first_seconds", at and at.first, most=MOST_FIRST),
        Figure(f"{name}_again_seconds", at and at.again, most=MOST_AGAIN),
        Figure(f"{name}_peak_gib", at and at.peak_gib, most=MOST_GIB),
        Figure(f"{name}_whole_over_folded", at and at.whole / at.folded),
        Figure(
            f"scale_{plan}_processors_exponent", exponent([(r.num_procs, r.again) for r in last if r.num_procs > 8])
        ),
    ]
    largest = max(row.num_procs for row in last)
    sizes = [(row.folded, row.again) for row in rows if row.plan == plan and row.num_procs == largest]
    return [*found, Figure(f"scale_{plan}_folded_exponent", exponent(sizes), note=f"at {largest} processors")]


def exponent(points: list[tuple[int, float]]) -> float | None:
    """The slope of the line through the logarithms."""
    if len({x for x, _ in points}) < 2:
        return None
    x, y = np.log(np.array(points, float)).T
    return float(np.polyfit(x, y, 1)[0])


if __name__ == "__main__":
    main()
