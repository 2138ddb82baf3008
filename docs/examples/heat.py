"""Heat spreads over a plate: a Jacobi stencil written directly on the runtime, without a network.

    python docs/examples/heat.py

The plate is cut into blocks of rows, one for each processor. Which rows of its neighbours a block needs, and when they
may be overwritten, follows from the boxes that each launch touches: nobody writes a send.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from castile.planner.cost import CostModel
from castile.planner.simulate import simulate
from castile.runtime import machine, memory
from castile.runtime.comm.base import Communicator
from castile.runtime.comm.local import LocalWorld
from castile.runtime.comm.processors import rank_of
from castile.runtime.epochs import Access, Launch
from castile.runtime.launches import build
from castile.runtime.machine import Machine
from castile.runtime.region import Box, Region, blocks, slices
from castile.runtime.runner import Runner, run_local
from castile.runtime.task import Arg, Body, Call, CostKey, TaskGraph, Temp, Use

PROCS, HEIGHT, WIDTH, SWEEPS, PERIODS = 4, 20, 60, 4, 60
SHADES = " .:-=+*#%@"


def period(on: Machine, height: int, width: int, sweeps: int) -> TaskGraph:
    """An even number of sweeps over `plate` [height, width], to `other` and back, on all processors of a machine.

    `quarter` [] is the number 1/4, at hand on every processor.
    """
    rows = blocks(height, on.num_procs)
    regions = {name: Region(name, (height, width), "float64") for name in ("plate", "other")}
    regions["quarter"] = Region("quarter", (), "float64")
    homes = {
        "plate": [(proc, Box((lo, 0), (hi, width))) for proc, (lo, hi) in enumerate(rows)],
        "quarter": [(proc, Box((), ())) for proc in range(on.num_procs)],
    }
    launches = []
    for number in range(sweeps):
        source, target = ("plate", "other") if number % 2 == 0 else ("other", "plate")
        launches += [sweep(number, proc, source, target, rows[proc], (height, width)) for proc in range(on.num_procs)]
    return build(launches, regions, on, homes)


def sweep(number: int, proc: int, source: str, target: str, rows: tuple[int, int], size: tuple[int, int]) -> Launch:
    """One block's sweep: an inner point becomes the mean of its four neighbours, the rim of the plate stays."""
    (lo, hi), (height, width) = rows, size
    inner = Box((max(lo, 1), 1), (min(hi, height - 1), width - 1))
    around = [shifted(inner, *by) for by in ((-1, 0), (1, 0), (0, -1), (0, 1))]
    rim = [Box((lo, 0), (hi, 1)), Box((lo, width - 1), (hi, width))]
    rim += [Box((row, 1), (row + 1, width - 1)) for row in (0, height - 1) if lo <= row < hi]
    accesses = [Access(source, box, Use.READ) for box in (*around, *rim)]
    accesses += [Access(target, box, Use.WRITE) for box in (inner, *rim)]
    accesses.append(Access("quarter", Box((), ()), Use.READ))
    key = CostKey("sweep", f"{hi - lo}x{width}", "float64", 4 * inner.volume, 8 * 6 * inner.volume)
    return Launch(f"sweep{number}[{proc}]", (proc,), tuple(accesses), mean_of_four(inner.shape, len(rim)), key)


def shifted(box: Box, rows: int, columns: int) -> Box:
    lo, hi = ((corner[0] + rows, corner[1] + columns) for corner in (box.lo, box.hi))
    return Box(lo, hi)


def mean_of_four(shape: tuple[int, ...], num_rims: int) -> Body:
    """Views: the neighbours of the inner box and the rim's pieces, then the new inner box and pieces, and 1/4."""
    total, inner = Arg("temp", 0), Arg("view", 4 + num_rims)
    calls = [Call("add", (Arg("view", 0), Arg("view", 1)), (total,))]
    calls += [Call("copy", (Arg("view", n),), (total,), accumulate=True) for n in (2, 3)]
    calls.append(Call("contract", ("ij,->ij", total, Arg("view", 5 + 2 * num_rims)), (inner,)))
    calls += [Call("copy", (Arg("view", 4 + n),), (Arg("view", 5 + num_rims + n),)) for n in range(num_rims)]
    nbytes = 8 * shape[0] * shape[1]
    return Body(tuple(calls), (Temp(0, shape, "float64"),), -(-nbytes // memory.ALIGNMENT) * memory.ALIGNMENT)


def spread(
    on: Machine, plate: np.ndarray, sweeps: int, periods: int, comms: Sequence[Communicator], backend: str = "numpy"
) -> np.ndarray:
    """The plate after `periods` of so many sweeps by the ranks `comms` of this process; NaN is what others hold."""
    graph = period(on, *plate.shape, sweeps)
    simulated = simulate(graph, CostModel(on).picoseconds(graph.cost_keys), on.engines)
    packing = memory.pack(graph, simulated.timeline)
    runners = []
    for comm in comms:
        procs = [proc for proc, rank in enumerate(rank_of(on.num_procs, comm.size)) if rank == comm.rank]
        runners.append(Runner(graph, simulated.timeline, packing, procs, comm, backend, poison=True))
    carried = [(region, box, a) for r in runners for (region, box, _), a in r.persistent("carried").items()]
    for region, box, array in carried:
        array[...] = plate[slices(box)] if region == "plate" else 0.25
    for _ in range(periods):
        if len(runners) == 1:
            runners[0].run()
        else:
            run_local(runners)
    result = np.full(plate.shape, np.nan)
    for region, box, array in carried:
        if region == "plate":
            result[slices(box)] = array
    return result


def picture(plate: np.ndarray) -> str:
    """The plate in letters, the hotter the darker."""
    levels = (plate / plate.max() * (len(SHADES) - 1)).round().astype(int)
    return "\n".join("".join(SHADES[level] for level in row) for row in levels)


def hot_edge(height: int, width: int) -> np.ndarray:
    """A cold plate with one hot edge."""
    plate = np.zeros((height, width))
    plate[0] = 100
    return plate


def main() -> None:
    on, plate = machine.local(PROCS), hot_edge(HEIGHT, WIDTH)
    graph = period(on, HEIGHT, WIDTH, SWEEPS)
    print(f"{SWEEPS} sweeps on {PROCS} processors are {graph.num_tasks} tasks")
    result = spread(on, plate, SWEEPS, PERIODS, LocalWorld(PROCS).communicators)
    print(picture(result))
    print(f"mean temperature after {SWEEPS * PERIODS} sweeps: {result.mean():.6f}")


if __name__ == "__main__":
    main()
