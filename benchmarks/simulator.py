"""How fast the simulator is, peak memory included, on the lowered step of a GPT of about 50 thousand tasks.

    python benchmarks/simulator.py [--layers 58] [--data 4] [--tensor 4] [--runs 200]

Two dgx-h100 nodes, 16 processors: every block is cut along the samples and, within groups, along heads and channels,
as in Megatron-LM (Shoeybi et al., 2019). What the search pays for each plan is timed: `simulate`, all of it, with the
durations of a cost model. Lowering is stated apart, for the first time (templates are made) and when Configs are known.
Seconds are processor time, so that neighbours on the host do not count. How fast the machine is today says a bare loop
over the same tasks, timed in turns with the simulator: it serves each on one lane out of a heap, and knows no memory.
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
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.known.seeds import stamped
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.simulate import simulate
from castile.planner.strategy import Config
from castile.runtime import machine as machines
from castile.runtime.compiled import compiled
from castile.runtime.task import TaskGraph

# Million tasks a second of all runs, and of the best one: on a fast machine a bare loop over as many reaches 20.
LEAST, LEAST_AT_BEST = 10.0, 18.0
# Of what a bare loop over the same tasks reaches in the same run.
LEAST_OF_BARE = 0.9
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
    arrays = plain(tasks, durations)
    calls = (lambda: simulate(tasks, durations, machine.engines, "numba"), lambda: compiled(bare)(*arrays))
    compiling = [once(call) for call in calls]
    times, of_bare = np.array([[once(call) for call in calls] for _ in range(options.runs)]).T
    best = f"best {1e3 * times.min():.2f} ms: {1e-6 * tasks.num_tasks / times.min():.1f} million tasks a second"
    print(f"  median {1e3 * np.median(times):.2f} ms, within {100 * spread(times):.1f} %, {best}")
    print(f"  a bare loop: best {1e3 * of_bare.min():.2f} ms; compiled in {sum(compiling):.1f} s")
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
            Figure("bare_loop_best_million_tasks_per_second", 1e-6 * tasks.num_tasks / float(of_bare.min())),
            Figure("simulator_over_bare_loop", float(of_bare.min() / times.min()), least=LEAST_OF_BARE),
        ]
    )


def once(call: Callable[[], object]) -> float:
    """Seconds of processor time that one call takes."""
    began = process_time()
    call()
    return process_time() - began


def plain(tasks: TaskGraph, durations: np.ndarray) -> tuple[np.ndarray, ...]:
    """What `bare` takes: what each task lasts, its first lane, who follows it in rows, and for how many it waits."""
    waits = np.diff(tasks.need_ptr)
    follow_ptr = np.zeros(tasks.num_tasks + 1, np.int64)
    np.cumsum(np.bincount(tasks.needs, minlength=tasks.num_tasks), out=follow_ptr[1:])
    follows = np.repeat(np.arange(tasks.num_tasks), waits)[np.argsort(tasks.needs, kind="stable")]
    return np.maximum(durations[tasks.cost], 1), tasks.lanes[tasks.lane_ptr[:-1]], follow_ptr, follows, waits


def bare(lasts, lane, follow_ptr, follows, waits):  # type: ignore[no-untyped-def]
    """When the last of some tasks ends, each served on one lane, out of a heap by when it is ready and its number."""
    ready, left, free = np.zeros(len(lasts), np.int64), waits.copy(), np.zeros(lane.max() + 1, np.int64)
    (soon, heap), size = np.zeros((2, len(lasts)), np.int64), int(np.sum(waits == 0))
    heap[:size] = np.flatnonzero(waits == 0)
    while size > 0:
        task, begin, size, at = heap[0], max(soon[0], free[lane[heap[0]]]), size - 1, 0
        key, moved = soon[size], heap[size]
        while 2 * at + 1 < size:
            child = 2 * at + 1
            if child + 1 < size and (soon[child + 1], heap[child + 1]) < (soon[child], heap[child]):
                child += 1
            if (key, moved) <= (soon[child], heap[child]):
                break
            soon[at], heap[at], at = soon[child], heap[child], child
        soon[at], heap[at] = key, moved
        done = begin + lasts[task]
        free[lane[task]] = done
        for k in range(follow_ptr[task], follow_ptr[task + 1]):
            t = follows[k]
            ready[t], left[t] = max(ready[t], done), left[t] - 1
            if left[t] == 0:
                at, size = size, size + 1
                while at > 0 and (ready[t], t) < (soon[(at - 1) // 2], heap[(at - 1) // 2]):
                    soon[at], heap[at], at = soon[(at - 1) // 2], heap[(at - 1) // 2], (at - 1) // 2
                soon[at], heap[at] = ready[t], t
    return free.max()


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
