"""How fast the simulator is, peak memory included, on the lowered step of a GPT of about 50 thousand tasks.

    python benchmarks/simulator.py [--layers 58] [--data 4] [--tensor 4] [--runs 200]

Two dgx-h100 nodes, 16 processors: every block is cut along the samples and, within groups, along heads and channels,
as in Megatron-LM (Shoeybi et al., 2019). What the search pays for each plan is timed: `simulate`, all of it, with the
durations of a cost model. Lowering is stated apart, for the first time (templates are made) and when Configs are known.
Seconds are processor time, so that neighbours on the host do not count.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.figures import Figure, spread, tell
from castile.launch import models
from castile.planner.cost import CostModel
from castile.planner.graph import Graph
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.seeds import stamped
from castile.planner.simulate import simulate
from castile.planner.strategy import Config
from castile.planner.updates import Updates
from castile.runtime import machine as machines

# Of all runs, and of the best one: a bare loop over as many tasks reaches 20.
LEAST, LEAST_AT_BEST = 10.0, 18.0
# The axis along which a node of a block is cut within its group; the others are computed by all of the group alike.
WITHIN = {"q": "o", "k": "o", "v": "o", "attention": "h", "o": "i", "up": "o", "gelu": "o", "down": "i"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=58)
    parser.add_argument("--data", type=int, default=4, help="groups, each with its share of the samples")
    parser.add_argument("--tensor", type=int, default=4, help="processors of a group")
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args()
    num_procs = options.data * options.tensor
    machine = machines.parse(f"dgx-h100:nodes={-(-num_procs // 8)}")
    model = models.parse(f"gpt:layers={options.layers},width=1024,heads=16,seq=1024,vocab=50304")
    graph = model.graph(4 * options.data)
    lowering = Lowering(graph, machine, Updates(find("sgd")(momentum=0.9)))
    plan = stamped(lowering, megatron(graph, options.data, options.tensor), "megatron")
    first, again = once(lambda: lowering.lower(plan)), once(lambda: lowering.lower(plan))
    tasks = lowering.lower(plan)
    cost = CostModel(machine)
    pricing = once(lambda: cost.picoseconds(tasks.cost_keys))
    durations = cost.picoseconds(tasks.cost_keys)
    print(
        f"{graph.name} of {options.layers} layers on {machine.name}: {tasks.num_tasks} tasks, "
        f"{len(tasks.needs)} needs, {tasks.num_buffers} buffers, {len(tasks.cost_keys)} cost keys"
    )
    simulate(tasks, durations, machine.engines, "numba")
    times = np.array([once(lambda: simulate(tasks, durations, machine.engines, "numba")) for _ in range(options.runs)])
    best = f"best {1e3 * times.min():.2f} ms: {1e-6 * tasks.num_tasks / times.min():.1f} million tasks a second"
    print(f"  median {1e3 * np.median(times):.2f} ms, within {100 * spread(times):.1f} %, {best}")
    tell(
        [
            Figure("simulator_num_tasks", tasks.num_tasks),
            Figure("lowering_first_seconds", first),
            Figure("lowering_again_seconds", again),
            Figure("pricing_seconds", pricing),
            Figure(
                "simulator_best_million_tasks_per_second",
                1e-6 * tasks.num_tasks / float(times.min()),
                least=LEAST_AT_BEST,
            ),
            Figure("simulator_million_tasks_per_second", 1e-6 * tasks.num_tasks / float(np.median(times)), least=LEAST),
        ]
    )


def once(call: Callable[[], object]) -> float:
    """Seconds of processor time that one call takes."""
    began = process_time()
    call()
    return process_time() - began


def megatron(graph: Graph, data: int, tensor: int) -> dict[str, Config]:
    """Samples in `data` pieces, and within each the blocks' inner axes in `tensor` pieces."""
    configs = {}
    for name in graph.nodes:
        axis = WITHIN.get(name.rpartition(".")[2], "") if "." in name else ""
        inner = {axis: tensor} if axis else {}
        configs[name] = Config({"b": data, **inner}, 1 if inner else tensor, tuple(range(data * tensor)))
    return configs


if __name__ == "__main__":
    main()
