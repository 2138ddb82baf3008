"""Saves: what is copied is what is read, whoever reads it; errors of the disk stay small; one save at a time."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch.checkpoints import checkpointer, layout, manifest
from castile.launch.checkpoints import folder as folders
from castile.launch.checkpoints.checkpointer import Checkpointer
from castile.launch.checkpoints.disk import Disk
from castile.launch.checkpoints.layout import Held
from castile.launch.checkpoints.reader import open_checkpoint
from castile.launch.execution import Execution, feed_from, prepare
from castile.launch.ranks import UserError
from castile.planner.cost import CostModel
from castile.planner.lower import Lowering
from castile.runtime.comm.local import LocalWorld
from castile.runtime.region import Box, Region, slices, whole
from castile.runtime.runner import run_local
from tests import strategies, training
from tests.checkpoints import BATCH, FACTS, PLAN, Watched, cut, in_child, on_ranks, save, state
from tests.mpi import mpirun

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
    def body(comm) -> None:
        saver = Checkpointer(folder, comm, 1, 2, FACTS)
        saver.save(step, step * BATCH, carried(world[comm.rank]), PLAN)
        told = saver.close()
        assert told is not None and told.complete and told.warning == ""

    on_ranks(len(world), body)


@settings(max_examples=25)
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
    folder = tmp_path_factory.mktemp("any") / "checkpoints"
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
    for name, plan in plans(problem, 2).items():
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


def alone(folder: Path, disk: Disk | None = None, **words) -> Checkpointer:
    return Checkpointer(folder, LocalWorld(1).communicators[0], 5, 2, FACTS, disk=disk, **words)


def told_of(saver: Checkpointer):
    for _ in range(2000):
        if (told := saver.poll()) is not None:
            return told
        time.sleep(0.005)
    raise TimeoutError


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
    assert told.complete and told.nbytes == copied.nbytes and saver.poll() is None and saver.close() is None
    reader = open_checkpoint(tmp_path / "step-00000005")
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
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "step-00000015", "step-00000020"]


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


# Errors.


class Failing(Watched):
    """A disk that is full at the n-th operation of that kind."""

    def __init__(self, kind: str, number: int = 0, error: Exception | None = None) -> None:
        super().__init__(self._count)
        self.kind, self.left = kind, number
        self.error = error or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x")

    def _count(self, name: str) -> None:
        if name == self.kind:
            self.left -= 1
            if self.left == -1:
                raise self.error


KINDS = [("create", 0), ("write", 2), ("sync", 0), ("sync", 1), ("sync", 2), ("create", 1), ("write", 6), ("rename", 0)]


@pytest.mark.parametrize("kind, number", KINDS)
def test_an_error_of_the_disk_is_a_warning_and_the_one_before_stays(kind, number, tmp_path):
    save(tmp_path, [5])
    told = save(tmp_path, [10, 15], begin_step=5, disk=Failing(kind, number))
    assert [(o.step, o.complete) for o in told] == [(10, False), (15, True)]
    assert (
        "No space left on device" in told[0].warning and "are free; step-00000005 stays the latest" in told[0].warning
    )
    assert "of step 10, 433 bytes, was not written" in told[0].warning and "\n" not in told[0].warning
    assert list(folders.checkpoints(tmp_path)) == [5, 15] and not list(tmp_path.glob("*.part"))


def test_when_one_rank_fails_all_are_told(tmp_path):
    def body(comm):
        saver = Checkpointer(tmp_path, comm, 5, 2, FACTS, disk=Failing("write") if comm.rank == 1 else None)
        saver.save(5, 5 * BATCH, cut(state(5), comm.rank, 3), PLAN)
        return saver.close()

    told = on_ranks(3, body)
    assert len({(o.step, o.complete, o.warning) for o in told}) == 1
    assert not told[0].complete and "rank 1 on " in told[0].warning and "there is none yet" in told[0].warning
    assert folders.latest(tmp_path) is None and not list(tmp_path.glob("*.part"))


def test_an_old_one_that_cannot_be_removed_is_told_and_the_new_one_counts(tmp_path):
    told = save(tmp_path, [5, 10], keep=1, disk=Failing("remove"))
    assert [o.complete for o in told] == [True, True] and "step-00000010 is complete, but" in told[1].warning
    found = folders.latest(tmp_path)
    assert found is not None and found.step == 10


def test_a_fault_of_ours_in_the_thread_is_raised(tmp_path):
    saver = alone(tmp_path, Failing("write", error=RuntimeError("ours")))
    saver.save(5, 5 * BATCH, cut(state(5), 0, 1), PLAN)
    with pytest.raises(RuntimeError, match="ours"):
        told_of(saver)


def test_a_file_that_the_system_lets_grow_no_further(tmp_path):
    save(tmp_path, [5])

    def body() -> None:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        saver = alone(tmp_path, begin_step=5)
        resource.setrlimit(resource.RLIMIT_FSIZE, (256, limit[1]))
        saver.save(10, 10 * BATCH, cut(state(10), 0, 1), PLAN)
        told = told_of(saver)
        assert not told.complete and "File too large" in told.warning
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        saver.save(15, 15 * BATCH, cut(state(15), 0, 1), PLAN)
        told = saver.close()
        assert told is not None and told.complete

    assert in_child(body) == 0
    assert list(folders.checkpoints(tmp_path)) == [5, 15]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB, where this process may make one."""
    folder = tmp_path / "small"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a small file system, and not everywhere")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_full(small_disk):
    big = {("w", Box((0,), (1500,)), 0): np.arange(1500.0)}
    saver = alone(small_disk)
    saver.prepare(big, PLAN)
    saver.save(5, 5 * BATCH, big, PLAN)
    assert told_of(saver).complete
    (small_disk / "other").write_bytes(bytes(40000))
    saver.save(10, 10 * BATCH, big, PLAN)
    told = told_of(saver)
    assert not told.complete and "step 10, 11.7 KiB, was not written" in told.warning and "are free" in told.warning
    found = folders.latest(small_disk)
    assert found is not None and found.step == 5
    (small_disk / "other").unlink()
    saver.save(15, 15 * BATCH, big, PLAN)
    told = saver.close()
    assert told is not None and told.complete


def test_too_little_room_is_told_before_the_first_step(monkeypatch, tmp_path):
    monkeypatch.setattr(checkpointer, "free_bytes", lambda folder: 1000)

    def body(comm) -> None:
        saver = Checkpointer(tmp_path, comm, 5, 2, FACTS)
        with pytest.raises(UserError, match=r"433 bytes, and 3 more come .* 1.3 KiB; only 1000 bytes are free"):
            saver.prepare(cut(state(5), comm.rank, 2), PLAN)

    on_ranks(2, body)


def test_hosts_must_share_the_folder(tmp_path):
    def body(comm) -> None:
        with pytest.raises(UserError, match="choose a folder that all hosts share"):
            Checkpointer(tmp_path / str(comm.rank), comm, 5, 2, FACTS)

    on_ranks(2, body)


def test_one_run_a_folder(tmp_path):
    saver = alone(tmp_path)
    with pytest.raises(UserError, match="another run writes there now"):
        alone(tmp_path)
    saver.close()
    alone(tmp_path).close()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--checkpoint .*choose another folder"):
        alone(tmp_path / "file" / "checkpoints")


def test_a_run_does_not_write_over_checkpoints_of_another(tmp_path):
    save(tmp_path, [5, 10])
    with pytest.raises(UserError, match=r"step-00000010 is there|step-00000005 is there"):
        alone(tmp_path)
    # A damaged one is set aside, so that its step can be saved anew.
    (tmp_path / "step-00000010" / manifest.NAME).write_text("{}")
    save(tmp_path, [10], begin_step=5)
    found = folders.latest(tmp_path)
    assert found is not None and (found.step, found.warnings) == (10, ())
    assert (tmp_path / "step-00000010.damaged").is_dir()


@pytest.mark.parametrize("every, keep", [(0, 1), (5, 0)])
def test_counts_begin_at_one(every, keep, tmp_path):
    with pytest.raises(UserError, match="give 1 or more"):
        Checkpointer(tmp_path, LocalWorld(1).communicators[0], every, keep, FACTS)


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_under_mpirun(num_ranks, tmp_path):
    status, output = mpirun(num_ranks, str(CASES / "checkpoint.py"), str(tmp_path))
    assert status == 0 and output.count("checkpoint agrees") == num_ranks, output
