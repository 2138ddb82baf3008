"""Saves: what is copied is what is read, whoever reads it; errors of the disk stay small; one save at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch.checkpoints import folder as folders
from castile.launch.checkpoints import layout, manifest
from castile.launch.checkpoints.checkpointer import Checkpointer
from castile.launch.checkpoints.layout import Held
from castile.launch.checkpoints.reader import open_checkpoint
from castile.launch.jobs.execution import Execution, feed_from, prepare
from castile.launch.processes.ranks import UserError
from castile.planner.cost import CostModel
from castile.planner.lower import Lowering
from castile.runtime.comm.local import LocalWorld
from castile.runtime.region import Box, Region, slices, whole
from castile.runtime.runner import run_local
from tests import standing, strategies, training
from tests.checkpoints import BATCH, FACTS, PLAN, Watched, alone, cut, on_ranks, save, state, told_of
from tests.effort import examples, some
from tests.mpi import CHECKOUT

CASES = Path(__file__).parent / "mpi_cases"


# From any ranks under any plan to any others.


def carried(execution: Execution) -> dict:
    return execution.runner.persistent("carried")


def executions(graph, plan, machine, size, values) -> list[Execution]:
    prepared = prepare(Lowering(graph, machine, training.SGD), plan, CostModel(machine))
    return [training.start(graph, prepared, comm, values) for comm in LocalWorld(size).communicators]


def run(world: list[Execution], batches) -> None:
    for arrays in batches:
        for execution in world:
            execution.feed(feed_from(arrays), 0.125)
        run_local([execution.runner for execution in world])


def written_by(world: list[Execution], folder: Path, step: int) -> None:
    folder.mkdir(exist_ok=True)

    def body(comm) -> None:
        saver = Checkpointer(folder, comm, 1, 2, FACTS)
        saver.save(step, step * BATCH, carried(world[comm.rank]), PLAN)
        told = saver.close()
        assert told is not None and told.complete and told.warning == ""

    on_ranks(len(world), body)


@settings(max_examples=examples(25))
@given(st.data())
def test_what_some_ranks_wrote_any_ranks_read(tmp_path_factory, data):
    problem = data.draw(strategies.problems(most_layers=3))
    graph = problem.graph
    values, steps = strategies.beginnings(problem, False), strategies.batches(problem, 1, False)
    worlds = []
    for _ in range(2):
        machine = data.draw(strategies.machines())
        plan = data.draw(strategies.strategies(graph, machine.num_procs))
        size = data.draw(st.integers(1, machine.num_procs))
        worlds.append(executions(graph, plan, machine, size, values))
    first, second = worlds
    run(first, steps)
    expected = training.gather(graph, first)
    folder = tmp_path_factory.mktemp("any")
    written_by(first, folder, 3)
    reader = open_checkpoint(folder / folders.name_of(3))
    assert (reader.step, reader.samples, reader.facts, reader.plan) == (3, 3 * BATCH, FACTS, PLAN)
    dtypes = {region: str(array.dtype) for e in first for (region, _, _), array in carried(e).items()}
    reader.check_regions(Region(name, array.shape, dtypes[name]) for name, array in expected.items())
    for execution in second:
        for (region, box, _), array in carried(execution).items():
            array[...] = reader.read(region, box)
    found = training.gather(graph, second)
    assert found.keys() == expected.keys() == reader.regions.keys()
    assert {tensor.name for tensor in graph.params} <= set(reader.parameters)
    for name in expected:
        assert found[name].tobytes() == expected[name].tobytes(), name
        box = data.draw(boxes(expected[name].shape))
        assert np.array_equal(reader.read(name, box), expected[name][slices(box)]), f"{name}{box}"


@st.composite
def boxes(draw, shape) -> Box:
    bounds = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    return Box(tuple(lo for lo, _ in bounds), tuple(hi for _, hi in bounds))


def test_going_on_from_a_checkpoint_is_not_to_be_told_from_never_stopping(tmp_path):
    from tests.named_plans import links, network, numbers, plans

    problem = network()
    steps, values = numbers(problem)
    for name, plan in some([*plans(problem, 2).items()]):
        unbroken = executions(problem.graph, plan, links(2), 2, values)
        run(unbroken, steps)
        written_by(unbroken, tmp_path / name, 3)
        run(unbroken, steps)
        resumed = executions(problem.graph, plan, links(2), 2, values)
        reader = open_checkpoint(tmp_path / name / folders.name_of(3))
        for execution in resumed:
            for (region, box, _), array in carried(execution).items():
                array[...] = reader.read(region, box)
        run(resumed, steps)
        expected, found = training.gather(problem.graph, unbroken), training.gather(problem.graph, resumed)
        assert all(found[region].tobytes() == expected[region].tobytes() for region in expected), name


def held(rank: int, size: int) -> list[Held]:
    return [Held(region, *box, str(array.dtype)) for (region, box, _), array in cut(state(1), rank, size).items()]


@given(st.integers(1, 6))
def test_each_box_is_written_once_by_the_lowest_rank_that_has_it(size):
    told = [held(rank, size) for rank in range(size)]
    shares = layout.share(told).ranks
    for mine, all_of_it in zip(shares, told):
        assert set(mine) <= set(all_of_it)
    boxes = [(entry.region, entry.box) for mine in shares for entry in mine]
    assert len(boxes) == len(set(boxes)) and set(boxes) == {(e.region, e.box) for mine in told for e in mine}
    for rank, mine in enumerate(shares):
        assert not {(e.region, e.box) for e in mine} & {(e.region, e.box) for low in told[:rank] for e in low}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_box_is_read_from_whatever_files_it_lies_in(size, tmp_path):
    save(tmp_path, [5], size)
    reader = open_checkpoint(tmp_path / folders.name_of(5))
    for name, array in state(5).items():
        for ends in product(*(combinations(range(n + 1), 2) for n in array.shape)):
            box = Box(tuple(lo for lo, _ in ends), tuple(hi for _, hi in ends))
            assert np.array_equal(reader.read(name, box), array[slices(box)]), (name, box)


def test_the_files_are_safetensors(tmp_path):
    save(tmp_path, [5], size=2)
    expected, pieces = state(5), {}
    for path in (tmp_path / "step-00000005").glob("*.safetensors"):
        pieces |= safetensors.numpy.load_file(path)
    assert pieces["count[]"] == 5
    assert np.array_equal(np.concatenate([pieces["fc1.w[0:3, 0:5]"], pieces["fc1.w[3:6, 0:5]"]]), expected["fc1.w"])


def test_a_region_or_box_that_is_not_there_is_named(tmp_path):
    save(tmp_path, [5])
    reader = open_checkpoint(tmp_path / "step-00000005")
    with pytest.raises(ValueError, match="has no 'fc9'"):
        reader.read("fc9", Box((0,), (1,)))
    for box in (Box((0, 0), (7, 5)), Box((0,), (3,)), Box((-1, 0), (2, 5))):
        with pytest.raises(ValueError, match=r"shape \(6, 5\)"):
            reader.read("fc1.w", box)


def regions(**changes: Region | None) -> list[Region]:
    found = {name: Region(name, array.shape, str(array.dtype)) for name, array in state(5).items()} | changes
    return [region for region in found.values() if region is not None]


def test_another_model_or_optimizer_is_refused_in_one_sentence(tmp_path):
    save(tmp_path, [5])
    reader = open_checkpoint(tmp_path / "step-00000005")
    reader.check_regions(regions())
    assert sorted(reader.parameters) == ["count", "fc1.w", "fc2.w", "flags"]
    with pytest.raises(UserError, match=r"lacks 'fc2.w/m': go on with the model and optimizer.*checkpoint export"):
        reader.check_regions([*regions(), Region("fc2.w/m", (7,), "float64")])
    with pytest.raises(UserError, match=r"has 'fc1.w/m', unknown here"):
        reader.check_regions(regions(**{"fc1.w/m": None}))
    with pytest.raises(UserError, match=r"'fc2.w' has shape \(7,\) of float64, this run's has \(7,\) of float32"):
        reader.check_regions(regions(**{"fc2.w": Region("fc2.w", (7,), "float32")}))


# The thread, and what it may hold up.


class Blocked(Watched):
    """A disk that writes nothing until it is told to go on."""

    def __init__(self) -> None:
        self.go = threading.Event()
        super().__init__(lambda name: self.go.wait(20))


def test_a_save_copies_and_the_steps_go_on(tmp_path):
    disk = Blocked()
    saver, now = alone(tmp_path, disk), cut(state(5), 0, 1)
    copied = saver.save(5, 5 * BATCH, now, PLAN)
    assert copied.nbytes == sum(array.nbytes for array in now.values()) and copied.seconds > 0
    for array in now.values():
        array[...] = 0
    assert saver.poll() is None and folders.latest(tmp_path) is None
    disk.go.set()
    told = told_of(saver)
    assert told.complete and saver.poll() is None and saver.close() is None
    reader = open_checkpoint(tmp_path / "step-00000005")
    assert told.nbytes == reader.nbytes > copied.nbytes
    assert all(np.array_equal(reader.read(name, whole(a.shape)), a) for name, a in state(5).items())


def test_the_next_save_waits_for_the_one_under_way_and_tells_of_it(tmp_path):
    disk = Blocked()
    saver = alone(tmp_path, disk)
    saver.save(5, 5 * BATCH, cut(state(5), 0, 1), PLAN)
    threading.Timer(0.1, disk.go.set).start()
    copied = saver.save(10, 10 * BATCH, cut(state(10), 0, 1), PLAN)
    assert copied.waited_seconds > 0.05
    told = saver.poll()
    assert told is not None and told.step == 5
    told = saver.close()
    assert told is not None and told.step == 10 and told.complete


def test_what_is_due(tmp_path):
    saver = alone(tmp_path)
    assert [step for step in range(21) if saver.due(step)] == [5, 10, 15, 20]
    saver.save(5, 5 * BATCH, cut(state(5), 0, 1), PLAN)
    assert told_of(saver).complete and not saver.due(5)
    assert saver.save(5, 5 * BATCH, cut(state(5), 0, 1), PLAN).nbytes == 0
    assert saver.close() is None


def test_old_ones_go_when_the_new_one_is_there(tmp_path):
    told = save(tmp_path, [5, 10, 15, 20], size=2, keep=2)
    assert [o.step for o in told if o.complete] == [5, 10, 15, 20]
    assert list(folders.checkpoints(tmp_path)) == [15, 20]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000015", "step-00000020"]


def test_a_plan_that_changes_under_way_changes_who_writes_what(tmp_path):
    def body(comm) -> None:
        saver = Checkpointer(tmp_path, comm, 5, 2, FACTS)
        saver.save(5, 5 * BATCH, cut(state(5), comm.rank, 2), PLAN)
        # everything on rank 0 now
        saver.save(10, 10 * BATCH, cut(state(10), 0, 1) if comm.rank == 0 else {}, b'{"other":1}')
        saver.close()

    on_ranks(2, body)
    found = folders.latest(tmp_path)
    assert found is not None and found.step == 10
    reader = found.open()
    assert [file.name for file in reader.manifest.files] == ["rank-00000.safetensors"]
    assert all(np.array_equal(reader.read(name, whole(a.shape)), a) for name, a in state(10).items())


def test_hosts_must_share_the_folder(tmp_path):
    def body(comm) -> None:
        # of the same name on every host, so that all have one
        own = tmp_path / str(comm.rank)
        own.mkdir()
        with pytest.raises(UserError, match="choose a folder that all hosts share"):
            Checkpointer(own, comm, 5, 2, FACTS)

    on_ranks(2, body)


def test_one_run_a_folder(tmp_path):
    folder = tmp_path / "made" / "with it"
    with folders.held(folder):
        opened = os.listdir("/proc/self/fd")
        with pytest.raises(UserError, match="another run writes there now; wait for its end or "), folders.held(folder):
            pass
        assert os.listdir("/proc/self/fd") == opened
    with folders.held(folder):
        pass


def test_a_folder_is_free_again_when_its_run_was_killed(tmp_path):
    program = f"""
import os, signal
from pathlib import Path
from castile.launch.checkpoints import folder
with folder.held(Path({str(tmp_path)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    killed = subprocess.run([sys.executable, "-c", program], env=environment, timeout=60)
    assert killed.returncode == -signal.SIGKILL and (tmp_path / folders.LOCK).exists()
    with folders.held(tmp_path):
        pass


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match=r"--checkpoint .*choose another folder"),
        folders.held(tmp_path / "file" / "checkpoints"),
    ):
        pass


def test_a_run_does_not_write_over_checkpoints_of_another(tmp_path):
    save(tmp_path, [5, 10])
    with pytest.raises(UserError, match=r"step-00000010 is there|step-00000005 is there"):
        alone(tmp_path)
    # A damaged one is set aside, so that its step can be saved anew, in place of what was set aside before.
    for damage in ("{}", "[]"):
        (tmp_path / "step-00000010" / manifest.NAME).write_text(damage)
        save(tmp_path, [10], begin_step=5)
        found = folders.latest(tmp_path)
        assert found is not None and (found.step, found.warnings) == (10, ())
        assert (tmp_path / "step-00000010.damaged" / manifest.NAME).read_text() == damage


@pytest.mark.parametrize("every, keep", [(0, 1), (5, 0)])
def test_counts_begin_at_one(every, keep, tmp_path):
    with pytest.raises(UserError, match="give 1 or more"):
        Checkpointer(tmp_path, LocalWorld(1).communicators[0], every, keep, FACTS)


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_under_mpirun(num_ranks, tmp_path):
    status, output, errors = standing.run(num_ranks, str(CASES / "checkpoint.py"), str(tmp_path))
    assert status == 0 and output.count("checkpoint agrees") == num_ranks, errors
