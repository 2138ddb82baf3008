"""Run by tests on several ranks: known plans of a small GPT, as one graph and task by task, beside one processor.

On GPUs (`cuda`) transfers go by NCCL, or it is said why not; on cores (`numpy`) by MPI.
"""

import gc
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from castile.launch import models
from castile.launch.here import gpus
from castile.launch.jobs.execution import Execution, Prepared, feed_from, prepare
from castile.launch.jobs.jobs import recipe_updates
from castile.planner.cost import CostModel
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.runtime.comm.base import Communicator
from castile.runtime.comm.local import LocalWorld
from castile.runtime.comm.mpi import world
from castile.runtime.machine import Level, Machine, Processor
from tests.training import difference

MODEL, BATCH_OF_EACH = "gpt:layers=1,width=64,heads=4,seq=32,vocab=64", 2
# Sums of gradients, parameters in pieces, and layers in pieces: others take long to compile for a first time.
PLANS = ("data_parallel", "fsdp", "megatron")
# The second is captured, and one of the others would show what a replay forgets.
STEPS, RATE, TOLERANCE = 5, 0.05, 1e-4

backend, comm = sys.argv[1], world()
chosen: Communicator = comm
if backend == "cuda":
    gpus.use(comm.local_rank)
    chosen, why = gpus.joined(comm)
    if chosen is comm:
        print(f"not by NCCL: {why}", flush=True)
        comm.barrier()
        sys.exit()

model = models.parse(MODEL)
graph = model.graph(BATCH_OF_EACH * comm.size, "float32")
rng = np.random.default_rng(7)
steps = [
    {name: rng.integers(0, 64, graph.tensors[name].shape).astype(graph.tensors[name].dtype) for name in graph.inputs}
    for _ in range(STEPS)
]


def lowered(num_procs: int) -> Lowering:
    processors = (Processor("gpu", 5e13, 4e12, 2**33),) * num_procs
    machine = Machine("many", processors, (Level("link", num_procs, 1e-5, 1e11),) if num_procs > 1 else ())
    return Lowering(graph, machine, recipe_updates(model.recipe))


def losses(prepared: Prepared, end: Communicator, kind: str, timed: bool) -> list[float]:
    """Of each step, where this rank has them."""
    execution = Execution(graph, prepared, end, [end.rank], backend=kind, poison=True)
    execution.initialise(0)
    found = []
    for n, arrays in enumerate(steps):
        execution.feed(feed_from(arrays), RATE, n)
        (execution.step if timed else execution.run)()
        loss = execution.output(graph.loss)
        found += [] if loss is None else [float(loss)]
    assert execution.runner.remarks == [], execution.runner.remarks
    return found


one = lowered(1)
whole = prepare(one, next(iter(seeds(one).values())), CostModel(one.machine))
expected = np.array(losses(whole, LocalWorld(1).communicators[0], "numpy", False))
lowering = lowered(comm.size)
known = seeds(lowering)
for name in PLANS:
    prepared = prepare(lowering, known[name], CostModel(lowering.machine))
    digests = comm.gather_bytes(prepared.tasks.digest.encode())
    assert digests is None or len(set(digests)) == 1, f"{name}: ranks disagree on the tasks"
    captured, timed = (losses(prepared, chosen, backend, timed) for timed in (False, True))
    assert captured == timed, f"{name}: other bits task by task: {captured}, {timed}"
    assert not captured or difference(np.array(captured), expected) < TOLERANCE, f"{name}: {captured}, not {expected}"
    # what one plan leaves is no more there for the next
    gc.collect()
    comm.barrier()
    if comm.rank == 0:
        print(f"{name} learns what one processor learns", flush=True)
