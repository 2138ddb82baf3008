"""How fast the simulator is, peak memory included, on a graph of the shape of a parallel GPT step.

    python benchmarks/simulator.py [--procs 64 --layers 22 --runs 60]

Tensor parallel over groups of 8 processors, data parallel between the groups: per layer and processor 40 computing
tasks, 4 sums over the tensor group and 4 over the data group. Durations are drawn at random from few values, so that
equal times are common. The target is 10 million tasks per second.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from castile.planner.simulate import simulate
from castile.runtime.task import NUM_LANES, CostKey, Kind, Lane, TaskGraph

TENSOR = 8
FORWARD, BACKWARD, GRADIENTS = 5, 11, 2
TARGET = 10


class Step:
    """Task lists of a training step as they are written, processor by processor in step."""

    def __init__(self, procs: int) -> None:
        self.procs = procs
        self.kind: list[int] = []
        self.cost: list[int] = []
        self.lanes: list[list[int]] = []
        self.needs: list[list[int]] = []
        self.uses: list[list[int]] = []
        self.buffers: list[tuple[int, int, int]] = []

    def task(self, kind: Kind, cost: int, lane: Lane, group: list[int], needs: list[int], uses: list[int]) -> int:
        self.kind.append(kind)
        self.cost.append(cost)
        self.lanes.append([proc * NUM_LANES + lane for proc in group])
        self.needs.append(needs)
        self.uses.append(uses)
        return len(self.kind) - 1

    def compute(self, proc: int, cost: int, needs: list[int], uses: list[int]) -> tuple[int, int]:
        """A task and the buffer that it writes."""
        b = len(self.buffers)
        t = self.task(Kind.COMPUTE, cost, Lane.COMPUTE, [proc], sorted({*needs}), [*uses, b])
        self.buffers.append((proc, 4096 + 64 * cost, t))
        return t, b

    def share(self, cost: int, group: list[int], tasks: list[int], buffers: list[int]) -> int:
        return self.task(Kind.COLLECTIVE, cost, Lane.COLLECTIVE, group, sorted({*tasks}), sorted({*buffers}))

    def graph(self, num_costs: int) -> TaskGraph:
        lane_ptr, lanes = flat(self.lanes)
        need_ptr, needs = flat(self.needs)
        use_ptr, uses = flat(self.uses)
        proc, nbytes, first = (np.array(column) for column in zip(*self.buffers, strict=True))
        num_tasks = len(self.kind)
        order = np.random.default_rng(1).permutation(num_tasks)
        private = 256 * (np.array(self.kind) == Kind.COMPUTE)
        return TaskGraph(
            np.array(self.kind, np.int8), order, np.array(self.cost, np.int32),
            tuple(CostKey(f"op{c}", "", "float32", 0, 0) for c in range(num_costs)), lane_ptr, lanes, need_ptr, needs,
            use_ptr, uses, proc.astype(np.int32), nbytes, first.astype(np.int32), private, self.procs, [], [],
        )  # fmt: skip


def flat(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    ptr = np.concatenate([[0], np.cumsum([len(row) for row in lists])])
    return ptr.astype(np.int32), np.array([x for row in lists for x in row], np.int32)


def make_graph(procs: int, layers: int) -> TaskGraph:
    """Halves of a layer, forward and backward, end in a sum over the tensor group; gradients are summed and applied."""
    step = Step(procs)
    tensor = [list(range(g, g + TENSOR)) for g in range(0, procs, TENSOR)]
    data = [list(range(i, procs, TENSOR)) for i in range(TENSOR)]
    last = [step.compute(p, 0, [], []) for p in range(procs)]
    saved: list[list[list[tuple[int, int]]]] = []
    for _ in range(layers):
        for half in range(2):
            kept: list[list[tuple[int, int]]] = [[] for _ in range(procs)]
            for k in range(FORWARD):
                for p in range(procs):
                    kept[p].append(last[p])
                    residual = kept[p][0] if k == FORWARD - 1 else last[p]
                    operands = zip(last[p], residual, strict=True)
                    last[p] = step.compute(p, 1 + half * FORWARD + k, *map(list, operands))
            saved.append(kept)
            shared(step, tensor, last, 30 + half)
    for _ in range(layers):
        for half in range(2):
            kept = saved.pop()
            for k in range(BACKWARD):
                for p in range(procs):
                    t, b = kept[p][min(k // 2, FORWARD - 1)]
                    last[p] = step.compute(p, 11 + half * 8 + k % 8, [last[p][0], t], [last[p][1], b])
            shared(step, tensor, last, 32 + half)
            for k in range(GRADIENTS):
                grads = [step.compute(p, 34 + k, [last[p][0]], [last[p][1], kept[p][k][1]]) for p in range(procs)]
                shared(step, data, grads, 36 + k)
                for p in range(procs):
                    step.compute(p, 38, [grads[p][0]], [grads[p][1]])
    return step.graph(40)


def shared(step: Step, groups: list[list[int]], ends: list[tuple[int, int]], cost: int) -> None:
    """Adds a sum over each group, after which its members' results count as its own."""
    for group in groups:
        t = step.share(cost, group, [ends[p][0] for p in group], [ends[p][1] for p in group])
        for p in group:
            ends[p] = (t, ends[p][1])


def times(run: Callable[[], object], num_runs: int) -> np.ndarray:
    run()
    seconds = np.empty(num_runs)
    for i in range(num_runs):
        began = time.perf_counter()
        run()
        seconds[i] = time.perf_counter() - began
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="simulator: tasks per second, peak memory included")
    parser.add_argument("--procs", type=int, default=64)
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--runs", type=int, default=60)
    args = parser.parse_args()
    graph = make_graph(args.procs, args.layers)
    durations = np.random.default_rng(0).integers(1, 9, len(graph.cost_keys)) * 12_500_000
    engines = tuple(Lane)
    print(f"{graph.num_tasks} tasks, {len(graph.needs)} needs, {len(graph.uses)} uses, {graph.num_procs} processors")
    plain = times(lambda: simulate(graph, durations, engines, "plain"), 1)
    seconds = times(lambda: simulate(graph, durations, engines, "numba"), args.runs)
    median, best = float(np.median(seconds)), float(seconds.min())
    print(f"plain {plain.min() * 1e3:.0f} ms; compiled median {median * 1e3:.2f} ms, best {best * 1e3:.2f} ms")
    rate = graph.num_tasks / median / 1e6
    print(f"best {graph.num_tasks / best / 1e6:.1f} million tasks per second")
    print(f"median {rate:.1f} million tasks per second, target {TARGET}: {'met' if rate >= TARGET else 'not met'}")


if __name__ == "__main__":
    main()
