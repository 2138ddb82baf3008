"""Overhead of the runtime: a step's wall time less its kernels' time, per task, on two MPI ranks with numpy.

    python benchmarks/overhead.py [--ranks 2] [--steps 200]

Each rank runs a chain of small kernels and every tenth task hands an array to its neighbour, which needs it in the next
one: so latency and waiting count too. Kernel time is what the kernels take in the same step, by the same clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from castile.launch import launch
from castile.runtime.memory import pack
from castile.runtime.region import whole
from castile.runtime.runner import Runner
from castile.runtime.task import (
    NUM_LANES,
    Arg,
    Body,
    Buffer,
    Call,
    Comm,
    CostKey,
    Kind,
    Lane,
    Task,
    TaskGraph,
    View,
)
from castile.runtime.timeline import Timeline

TARGET_MICROSECONDS = 15.0
SHAPE = (32, 32)
TASKS_PER_MOVE = 10
NUM_MOVES = 60
WARM_UP_STEPS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        measure(options.steps)
        return
    words = [sys.executable, "-m", "mpi4py", __file__, "--rank", "--steps", str(options.steps)]
    environment = {**os.environ, **launch.variables(), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    sys.exit(subprocess.run(launch.mpirun_words(options.ranks, None, words), env=environment).returncode)


def measure(num_steps: int) -> None:
    """Runs the steps on this rank; rank 0 prints the figures of the slowest rank."""
    from castile.runtime.comm.mpi import world

    comm = world()
    graph, timeline = chains(comm.size)
    runner = Runner(graph, timeline, pack(graph, timeline), (comm.rank,), comm)
    for array in runner.persistent("carried").values():
        # Small, so that a chain of products neither grows without bound nor dies out.
        array[:] = np.random.default_rng(0).standard_normal(array.shape) * 0.1
    samples = [sample(runner) for _ in range(WARM_UP_STEPS + num_steps)][WARM_UP_STEPS:]
    gathered = comm.gather_bytes(json.dumps(samples).encode())
    if gathered is not None:
        report(comm.size, len(graph.tasks_of(0)), [json.loads(data) for data in gathered])


def sample(runner: Runner) -> tuple[float, float]:
    """One step's seconds, and those of its kernels."""
    runner.comm.barrier()
    begin = time.perf_counter()
    runner.run()
    wall = time.perf_counter() - begin
    spans = runner.timeline()
    computes = runner.graph.kind[spans.task] == Kind.COMPUTE
    return wall, float(spans.durations()[computes].sum()) * 1e-12


def report(num_ranks: int, num_tasks: int, samples: list[list[tuple[float, float]]]) -> None:
    medians = [statistics.median((wall - kernels) / num_tasks for wall, kernels in rank) * 1e6 for rank in samples]
    best = [min((wall - kernels) / num_tasks for wall, kernels in rank) * 1e6 for rank in samples]
    kernels = statistics.median(kernels / num_tasks for _, kernels in samples[0]) * 1e6
    print(
        f"{num_ranks} ranks, {num_tasks} tasks a rank, every {TASKS_PER_MOVE}th a move, kernels {kernels:.2f} us a task"
    )
    print(f"wall less kernels: best step {max(best):.2f} us a task")
    met = "met" if max(medians) <= TARGET_MICROSECONDS else "not met"
    print(f"overhead_microseconds_per_task {max(medians):.2f}  target <= {TARGET_MICROSECONDS:g}  {met}")


def chains(num_ranks: int) -> tuple[TaskGraph, Timeline]:
    """A chain on each processor over three arrays; each TASKS_PER_MOVE-th task sends one round the ring."""
    buffers = [
        Buffer(name, whole(SHAPE), "float32", proc, role)
        for proc in range(num_ranks)
        for name, role in (("w", "carried"), ("x", "carried"), ("y", ""), ("z", ""))
    ]
    tasks: list[Task] = []
    for at in range(NUM_MOVES * TASKS_PER_MOVE):
        for proc in range(num_ranks):
            tasks.append(_task(len(tasks), at, proc, num_ranks))
    return _graph(tasks, buffers, num_ranks)


def _task(number: int, at: int, proc: int, num_ranks: int) -> Task:
    w, x, y, z = (View(4 * proc + i, whole(SHAPE)) for i in range(4))
    step = at % TASKS_PER_MOVE
    if step == TASKS_PER_MOVE - 1 and num_ranks > 1:
        other = (proc + 1) % num_ranks
        landing, n = View(4 * other + 3, whole(SHAPE)), whole(SHAPE).volume
        comm = Comm("move", (proc, other), (y, None), (None, landing), (None, None), ((0, n), (0, 0)))
        return Task(number, f"move{number}", Kind.MOVE, (proc, other), (y, landing), comm=comm)
    if step == 0:
        views, call = (z if at else x, x, y), Call("add", (Arg("view", 0), Arg("view", 1)), (Arg("view", 2),))
    elif step % 2:
        views, call = (y, w, z), Call("contract", ("ab,cb->ac", Arg("view", 0), Arg("view", 1)), (Arg("view", 2),))
    else:
        views, call = (z, y), Call("relu", (Arg("view", 0),), (Arg("view", 1),))
    return Task(number, f"{call.kernel}{number}", Kind.COMPUTE, (proc,), views, Body((call,)))


def _graph(tasks: list[Task], buffers: list[Buffer], num_procs: int) -> tuple[TaskGraph, Timeline]:
    """Tasks that share a buffer run in program order, one time unit each."""
    last: dict[int, int] = {}
    needs, lanes, uses = [], [], []
    first = [-1] * len(buffers)
    for task in tasks:
        touched = sorted({view.buffer for view in task.views})
        needs.append(sorted({last[b] for b in touched if b in last}))
        for b in touched:
            if b not in last and not buffers[b].role:
                first[b] = task.index
            last[b] = task.index
        uses.append(touched)
        lane = [Lane.COMPUTE] if task.comm is None else [Lane.SEND, Lane.RECEIVE]
        lanes.append([p * NUM_LANES + l for p, l in zip(task.procs, lane)])
    n, numbers = len(tasks), np.arange(len(tasks))
    sizes = [4 * b.box.volume for b in buffers]
    graph = TaskGraph(
        np.array([t.kind for t in tasks], np.int8), numbers, np.zeros(n, np.int32), (CostKey("any", "", "", 1, 1),),
        *_flat(lanes), *_flat(needs), *_flat(uses), np.array([b.proc for b in buffers]), np.array(sizes),
        np.array(first), np.zeros(n, np.int64), num_procs, tasks, buffers,
    )  # fmt: skip
    return graph, Timeline(numbers, numbers * 1000, numbers * 1000 + 1000)


def _flat(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.cumsum([0, *map(len, rows)]), np.array([x for row in rows for x in row], np.int64)


if __name__ == "__main__":
    main()
