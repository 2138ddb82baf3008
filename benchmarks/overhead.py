"""Overhead of the runtime: a step's wall time less its kernels' time, per task, on two MPI ranks with numpy.

    python benchmarks/overhead.py [--ranks 2] [--steps 300]

The step is a real one of many small tasks: a GPT of narrow blocks, data parallel, lowered, packed and bound as in
training. Kernel time is the sum of the measured spans of a rank's compute lane (kernels, packing, adding up) in the
same step, by the same clock; all the rest of the step's wall time counts, waiting too: it is divided by the rank's
tasks, transfers among them. Of the ranks' medians the slowest one's is the figure.

Waiting is told apart and not taken off: the time before tasks that wait for transfers, and before the step's end.
What it holds is the transfers' latency, the neighbour's lateness, and the bookkeeping of just those tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from time import perf_counter_ns

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks import on_ranks
from benchmarks.alone import SEED, Workload, workload
from benchmarks.figures import Figure, tell
from castile.launch.jobs.execution import Execution, feed_from
from castile.planner.known.seeds import seeds
from castile.runtime.executor import program
from castile.runtime.mapper import Default
from castile.runtime.task import Kind
from castile.runtime.timeline import PICOSECONDS

MODEL = "gpt:layers=8,width=32,heads=2,seq=16"
BATCH = 4
MOST_MICROSECONDS = 15.0
WARM_UP = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.rank:
        sys.exit(on_ranks.start(__file__, options.ranks, ["--rank", "--steps", str(options.steps)]))
    work = workload(MODEL, BATCH)
    job = work.job
    execution = job.execute(job.prepare(seeds(job.lowering)["data_parallel"]), SEED)
    execution.feed(feed_from(work.dataset.batch(0, BATCH)), work.recipe.lr / 100)
    meter = Meter(execution, job.comm.rank)
    samples = [meter.step() for _ in range(WARM_UP + options.steps)][WARM_UP:]
    gathered = job.comm.gather_bytes(json.dumps(samples).encode())
    if gathered is not None:
        report(work, meter, np.array([json.loads(data) for data in gathered]))


class Meter:
    """Steps of this rank's part of a plan, taken apart."""

    def __init__(self, execution: Execution, proc: int) -> None:
        self.execution = execution
        prepared = execution.prepared
        tasks = prepared.tasks
        order = Default().order(tasks, prepared.simulated.timeline, proc).tolist()
        steps = program(tasks, order, prepared.packing.edges)
        self.num_tasks = len(steps.tasks)
        self.moves = np.array(steps.asynchronous)
        self._waiting = np.array([len(waits) > 0 for waits in steps.waits])
        self._position = np.argsort(np.argsort(steps.tasks))
        assert (self.moves == (tasks.kind[list(steps.tasks)] >= Kind.MOVE)).all()

    def step(self) -> tuple[float, float, float]:
        """Seconds of one step: its wall time, its kernels, and its waiting."""
        comm, runner = self.execution.comm, self.execution.runner
        comm.barrier()
        began = perf_counter_ns()
        runner.run()
        ended = perf_counter_ns()
        timeline = runner.timeline()
        # picoseconds since the step began, in issue order
        shift = (began - comm.epoch_ns) * 1000
        start, end = (times[self._position] - shift for times in (timeline.start, timeline.end))
        kernels = (end - start)[~self.moves].sum()
        # a transfer is issued and left under way: what comes next could come at once
        last = np.concatenate([[0], np.maximum.accumulate(np.where(self.moves, start, end))])
        gaps = np.append(start, (ended - began) * 1000) - last
        waiting = gaps[:-1][self._waiting].sum() + gaps[-1]
        wall = (ended - began) * 1000
        return wall / PICOSECONDS, float(kernels) / PICOSECONDS, float(waiting) / PICOSECONDS


def report(work: Workload, meter: Meter, samples: np.ndarray) -> None:
    """Tell the figures; samples [rank, step, (wall, kernels, waiting)]."""
    micro = 1e6 * samples / meter.num_tasks
    wall, kernels, waiting = (micro[:, :, column] for column in range(3))
    rest = wall - kernels
    slower = int(np.median(rest, axis=1).argmax())
    print(
        f"{MODEL}, batch {BATCH}, data parallel on {work.job.comm.size} ranks: {meter.num_tasks} tasks a rank, "
        f"{meter.moves.sum()} of them transfers; {rest.shape[1]} steps, best {rest[slower].min():.2f} us a task"
    )
    tell(
        [
            Figure("kernels_microseconds_per_task", float(np.median(kernels[slower]))),
            Figure("waiting_microseconds_per_task", float(np.median(waiting[slower]))),
            Figure("overhead_without_waiting_microseconds_per_task", float(np.median((rest - waiting)[slower]))),
            Figure("overhead_microseconds_per_task", float(np.median(rest[slower])), most=MOST_MICROSECONDS),
        ]
    )


if __name__ == "__main__":
    main()
