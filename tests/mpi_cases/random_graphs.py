"""Run by tests on several ranks: random graphs with as many processors as ranks, and with more, on poisoned memory."""

import sys
import tracemalloc
from pathlib import Path
from time import perf_counter_ns

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from castile.runtime.comm.mpi import world
from castile.runtime.comm.processors import rank_of
from castile.runtime.memory import pack
from castile.runtime.runner import Runner
from castile.runtime.timeline import merge
from tests.handmade import in_order, interpret, random_graph, random_inputs

comm = world()
for seed in range(12):
    num_procs = comm.size + (seed % 3 == 2)
    graph = random_graph(seed, num_procs, 60, n=[7, 1000, 50_000][seed % 3])
    procs = [p for p, rank in enumerate(rank_of(num_procs, comm.size)) if rank == comm.rank]
    runner = Runner(graph, in_order(graph), pack(graph, in_order(graph)), procs, comm, poison=True)
    for step in range(3):
        inputs = random_inputs(graph, step)
        for (region, _, _), array in runner.persistent("input").items():
            array[...] = inputs[region]
        timeline = runner.step()
        expected = interpret(graph, inputs)
        for (region, _, _), array in runner.persistent("output").items():
            assert array.tobytes() == expected[region].tobytes(), f"graph {seed}, step {step}, {region}"
    tracemalloc.start()
    runner.run()
    snapshot = tracemalloc.take_snapshot()
    tracemalloc.stop()
    numpy_only = snapshot.filter_traces([tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)])
    assert sum(s.size for s in numpy_only.statistics("filename")) < 64 * 1024
    assert (merge([timeline]).end >= timeline.start).all() and (timeline.start >= 0).all()
    lasted = (perf_counter_ns() - comm.epoch_ns) * 1000
    assert timeline.end.max() <= lasted, "times count from the world's beginning"
print("graphs agree", flush=True)
