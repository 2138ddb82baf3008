"""The runtime without a network: the heat example against NumPy, and what is refused of programs written by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.planner.cost import CostModel
from castile.planner.simulate import simulate
from castile.runtime import machine, memory
from castile.runtime.comm.local import LocalWorld
from castile.runtime.epochs import Access, Launch
from castile.runtime.launches import build
from castile.runtime.region import Box, Region, blocks, slices
from castile.runtime.runner import Runner
from castile.runtime.task import Arg, Body, Call, CostKey, Kind, TaskGraph, Use
from tests import standing
from tests.effort import examples
from tests.mpi import CHECKOUT
from tests.stencil import heat, jacobi, random_plate

COPY = Body((Call("copy", (Arg("view", 0),), (Arg("view", 1),)),))
FILL = Body((Call("zero", (), (Arg("view", 0),), (("dtype", "float64"), ("shape", (2,)))),))
R, W, A = Use.READ, Use.WRITE, Use.REDUCE


@settings(max_examples=examples(40))
@given(st.data())
def test_the_plate_is_that_of_numpy_to_the_last_bit(data: st.DataObject) -> None:
    procs = data.draw(st.integers(1, 5))
    height, width = data.draw(st.integers(max(3, 2 * procs), 13)), data.draw(st.integers(3, 9))
    sweeps, periods = 2 * data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    size = data.draw(st.integers(1, procs))
    plate = random_plate(height, width)
    result = heat.spread(machine.local(procs), plate, sweeps, periods, LocalWorld(size).communicators)
    assert np.array_equal(result, jacobi(plate, sweeps * periods))


def test_neighbours_get_one_row_a_sweep_each_way_and_nothing_else() -> None:
    graph = heat.period(machine.local(3), 12, 7, 4)
    moved = [comm for n in np.flatnonzero(graph.kind >= Kind.MOVE) for comm in graph.tasks[n].comms]
    assert {comm.form for comm in moved} == {"move"}
    assert all(view.box.shape[0] == 1 for comm in moved for view in comm.send if view)
    # two pairs of neighbours, both ways, four sweeps: five inner points, and the row's ends where they lie on the way
    elements = sum(comm.counts[0][1] for comm in moved)
    assert 5 * (2 * 2 * 4) <= elements <= 7 * (2 * 2 * 4)


def test_it_runs_dry_on_the_null_backend() -> None:
    heat.spread(machine.local(3), random_plate(9, 5), 4, 2, LocalWorld(3).communicators, backend="null")


def test_the_example_prints_what_it_computed() -> None:
    words = [sys.executable, str(CHECKOUT / "docs" / "examples" / "heat.py")]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    mean = jacobi(heat.hot_edge(heat.HEIGHT, heat.WIDTH), heat.SWEEPS * heat.PERIODS).mean()
    assert ended.stdout.splitlines()[-1].endswith(f"{mean:.6f}")


@pytest.mark.mpi
def test_the_plate_is_the_same_on_two_ranks() -> None:
    status, output, errors = standing.run(2, str(Path(__file__).parent / "mpi_cases" / "heat.py"))
    assert status == 0 and output.count("plates agree") == 2, errors


# Small programs on a region x [4], in two halves, on two processors.

LOWER, UPPER, ALL = Box((0,), (2,)), Box((2,), (4,)), Box((0,), (4,))
REGIONS = {name: Region(name, (4,), "float64") for name in "xyz"}
AT_HOME = ((0, LOWER), (1, UPPER))


def launch(name: str, proc: int, *accesses: tuple[str, Box, Use], body: Body = COPY) -> Launch:
    return Launch(name, (proc,), tuple(Access(*a) for a in accesses), body, CostKey("copy", "2", "float64", 0, 32))


def program(*launches: Launch, homes=None, inputs=(), outputs=()) -> TaskGraph:
    return build(launches, REGIONS, machine.local(2), homes or {}, inputs, outputs)


def run(graph: TaskGraph, state: dict[str, np.ndarray], inputs: dict[str, np.ndarray], steps: int = 1):
    """Carried regions and outputs after so many steps on one rank of poisoned memory."""
    on = machine.local(graph.num_procs)
    simulated = simulate(graph, CostModel(on).picoseconds(graph.cost_keys), on.engines)
    packing = memory.pack(graph, simulated.timeline)
    comm = LocalWorld(1).communicators[0]
    runner = Runner(graph, simulated.timeline, packing, range(graph.num_procs), comm, poison=True)
    for role, values in (("carried", state), ("input", inputs)):
        for (region, box, _), array in runner.persistent(role).items():
            array[...] = values[region][slices(box)]
    for _ in range(steps):
        runner.run()
    carried = {name: np.full(4, np.nan) for name in state}
    for (region, box, _), array in runner.persistent("carried").items():
        carried[region][slices(box)] = array
    return carried, {region: array.copy() for (region, _, _), array in runner.persistent("output").items()}


def halves(name: str, source: str, target: str, procs=(0, 1)) -> list[Launch]:
    return [launch(f"{name}{n}", procs[n], (source, box, R), (target, box, W)) for n, box in enumerate((LOWER, UPPER))]


def test_a_region_written_elsewhere_is_brought_home() -> None:
    data = np.arange(4.0)
    # each half is written on the other's processor, and then read once more
    steps = [*halves("a", "y", "x", (1, 0)), *halves("b", "x", "z")]
    graph = program(*steps, homes={"x": AT_HOME}, inputs=["y"], outputs=["z"])
    carried, output = run(graph, {"x": np.zeros(4)}, {"y": data})
    assert np.array_equal(carried["x"], data) and np.array_equal(output["z"], data)
    assert [t.name for t in graph.tasks if "home" in t.name] == ["x/home[0]", "x/home[1]"]


def test_in_place_a_launch_reads_the_old_and_writes_the_new() -> None:
    double = Body((Call("add", (Arg("view", 0), Arg("view", 0)), (Arg("view", 1),)),))
    steps = [launch(f"a{n}", n, ("x", box, R), ("x", box, W), body=double) for n, box in enumerate((LOWER, UPPER))]
    graph = program(*steps, homes={"x": AT_HOME})
    assert graph.num_tasks == graph.num_buffers == 2
    carried, _ = run(graph, {"x": np.arange(4.0)}, {}, steps=3)
    assert np.array_equal(carried["x"], 8 * np.arange(4.0))


def test_sums_from_two_processors_are_added_for_who_reads() -> None:
    adds = [launch(f"a{n}", n, ("y", ALL, R), ("x", ALL, A)) for n in (0, 1)]
    graph = program(*adds, *halves("b", "x", "z"), inputs=["y"], outputs=["z"])
    _, output = run(graph, {}, {"y": np.arange(4.0)})
    assert np.array_equal(output["z"], 2 * np.arange(4.0))


def test_replicas_compute_alike_and_count_once() -> None:
    both = Launch("a", (0, 1), (Access("y", ALL, R), Access("x", ALL, A)), COPY, CostKey("copy", "4", "float64", 0, 64))
    graph = program(both, *halves("b", "x", "z"), inputs=["y"], outputs=["z"])
    assert [t.name for t in graph.tasks][:2] == ["a~0", "a~1"]
    _, output = run(graph, {}, {"y": np.arange(4.0)})
    assert np.array_equal(output["z"], np.arange(4.0))


REFUSED = {
    r"'b' reads 'x' \[0:4\], which nobody has written": lambda: program(
        launch("a", 0, ("x", LOWER, W), body=FILL), launch("b", 0, ("x", ALL, R), ("y", ALL, W))
    ),
    "'a0' reads 'y'": lambda: program(*halves("a", "y", "x")),
    r"'x' is written in part: nobody writes \[2:4\]": lambda: program(launch("a", 0, ("x", LOWER, W), body=FILL)),
    r"'b' writes 'x' \[0:4\], which is written twice": lambda: program(
        launch("a", 0, ("x", LOWER, W), body=FILL), launch("b", 1, ("x", ALL, W), body=FILL)
    ),
    "'b0' reads 'x'": lambda: program(
        launch("a", 0, ("x", LOWER, R), ("x", LOWER, W)), launch("b0", 1, ("x", ALL, R), ("y", ALL, W)),
        homes={"x": AT_HOME},
    ),
    "'a' adds to 'x'": lambda: program(launch("a", 0, ("x", ALL, A), body=FILL), homes={"x": AT_HOME}),
    "'a0' writes the input 'x'": lambda: program(*halves("a", "x", "x"), inputs=["x"]),
    "no region of this program": lambda: program(launch("a", 0, ("w", ALL, W), body=FILL)),
    r"touches 'x' \[3:5\]": lambda: program(launch("a", 0, ("x", Box((3,), (5,)), W), body=FILL)),
    "home of region 'x' has a hole": lambda: program(homes={"x": AT_HOME[:1]}),
    "home of region 'x' has boxes that overlap": lambda: program(homes={"x": ((0, LOWER), (1, ALL))}),
    "give it a body for `adds`": lambda: program(
        *(launch(f"a{n}", 0, ("y", ALL, R), ("x", ALL, A)) for n in (0, 1)), *halves("b", "x", "z"), inputs=["y"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_meant_is_refused_in_words(words: str) -> None:
    with pytest.raises(ValueError, match=words):
        REFUSED[words]()


def test_blocks_of_the_example_are_those_of_the_runtime() -> None:
    graph = heat.period(machine.local(3), 11, 4, 2)
    homes = sorted(b.box for b in graph.buffers if b.role == "carried" and b.region == "plate")
    assert homes == [Box((lo, 0), (hi, 4)) for lo, hi in blocks(11, 3)]
