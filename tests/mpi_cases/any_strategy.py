"""Run by tests on several ranks: named plans against one device, twice each, with one digest on all ranks."""

import sys
import tracemalloc
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from castile.launch.jobs.execution import Prepared, feed_from, prepare
from castile.planner.cost import CostModel
from castile.planner.lower import Lowering
from castile.runtime.backends.base import Key
from castile.runtime.comm.mpi import world
from castile.runtime.region import slices
from tests.named_plans import links, network, numbers, plans
from tests.strategies import whole_on
from tests.training import SGD, difference, start, train

TOLERANCE = 1e-10

comm = world()
problem = network()
graph, machine = problem.graph, links(comm.size)
steps, values = numbers(problem)
one = train(graph, whole_on(graph), machine, steps, values)


def trained(prepared: Prepared) -> tuple[list[bytes], dict[Key, np.ndarray]]:
    """This rank's losses, to the last bit, and its pieces of what is carried; one step more must take no memory."""
    execution = start(graph, prepared, comm, values)
    losses = []
    for arrays in steps:
        execution.feed(feed_from(arrays), 0.125)
        execution.runner.run()
        found = execution.output(graph.loss)
        losses.append(b"" if found is None else found.tobytes())
    carried = {key: array.copy() for key, array in execution.runner.persistent("carried").items()}
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    execution.runner.run()
    grown = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert grown < 64 * 1024, f"a warm step took {grown} bytes outside its arena"
    return losses, carried


def check(name: str, prepared: Prepared) -> dict[Key, np.ndarray]:
    """What is carried when it has been trained."""
    digests = comm.gather_bytes(prepared.tasks.digest.encode())
    assert digests is None or len(set(digests)) == 1, f"{name}: ranks disagree on the tasks"
    (first, carried), (again, _) = trained(prepared), trained(prepared)
    assert first == again, f"{name}: the same plan gave other bits"
    if first[0]:
        losses = np.array([np.frombuffer(loss)[0] for loss in first])
        assert difference(losses, one.losses) < TOLERANCE, name
    for (region, box, _), piece in carried.items():
        expected = one.carried[region]
        # state counts by the parameter that it moves
        moved = np.abs(one.carried[region.rpartition("/")[0] or region]).max()
        assert difference(piece, expected[slices(box)], max(moved, np.abs(expected).max())) < TOLERANCE, (name, region)
    return carried


lowering = Lowering(graph, machine, SGD)
seen: set[str] = set()
left: dict[str, dict[Key, np.ndarray]] = {}
for name, strategy in plans(problem, comm.size).items():
    prepared = prepare(lowering, strategy, CostModel(machine))
    seen |= {key.name for key in prepared.tasks.cost_keys}
    left[name] = check(name, prepared)
    if name.startswith("sharded") and name.endswith(" in buckets"):
        # of groups only: sums that lie end to end are made at other addresses, from which kernels may add otherwise
        without = left[name.removesuffix(" in buckets")]
        assert all(piece.tobytes() == without[key].tobytes() for key, piece in left[name].items()), f"{name}: bits"
wanted = {"move", "fold", "pack", "unpack", "all_reduce", "reduce_scatter", "all_gather", "all_to_all"}
wanted |= {"broadcast"} if comm.size > 2 else set()
assert wanted <= seen, f"no plan has {wanted - seen}"
print(f"{len(plans(problem, comm.size))} plans agree", flush=True)
