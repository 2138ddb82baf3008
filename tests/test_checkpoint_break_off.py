"""A job that breaks off while a checkpoint is written: who leaves ends the save, though others come to it no more."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from concurrent import futures
from pathlib import Path

import numpy as np
import pytest

from castile.launch.checkpoints import checkpointer
from castile.launch.checkpoints import folder as folders
from castile.launch.checkpoints.checkpointer import Checkpointer
from castile.launch.checkpoints.disk import Disk
from castile.runtime.comm.local import LocalWorld
from castile.runtime.region import whole
from tests.checkpoints import BATCH, FACTS, PLAN, Watched, cut, on_ranks, save, state
from tests.effort import rare
from tests.mpi import mpirun_apart

SIZE = 3
LEAVING = [ranks for many in (1, 2, 3) for ranks in itertools.combinations(range(SIZE), many)]


def check_whole(folder: Path, step: int) -> None:
    found = folders.latest(folder)
    assert found is not None and (found.step, found.warnings) == (step, ())
    assert {path.suffix for path in found.path.iterdir()} == {".json", ".safetensors"}
    reader = found.open()
    for name, array in state(step).items():
        assert np.array_equal(reader.read(name, whole(array.shape)), array), name


@pytest.mark.parametrize("polls", [0, 1, 40])
@pytest.mark.parametrize("leaving", LEAVING)
def test_whoever_leaves_ends_the_save(leaving, polls, tmp_path):
    """Others stay where they are, however far the ranks have come with it together; who is slow is waited for."""

    def body(comm):
        slow = Watched(lambda name: time.sleep(0.05 * (comm.rank == 1)))
        saver = Checkpointer(tmp_path, comm, 5, 2, FACTS, disk=slow)
        saver.save(5, 5 * BATCH, cut(state(5), comm.rank, SIZE), PLAN)
        told = [saver.poll() for _ in range(polls)]
        return saver.break_off() if comm.rank in leaving else None, next(filter(None, told), None)

    for rank, (left, told) in enumerate(on_ranks(SIZE, body)):
        if rank in leaving:
            found = told or left
            assert found is not None and (found.step, found.complete, found.warning) == (5, True, "")
    check_whole(tmp_path, 5)
    assert not list(tmp_path.glob("*.part"))


def test_a_save_is_known_to_be_under_way_before_anything_of_it_is_there(tmp_path, monkeypatch):
    """Whoever is interrupted while the writer begins waits for it too: a thread that begins runs first."""

    saver, seen = Checkpointer(tmp_path, LocalWorld(1).communicators[0], 5, 2, FACTS), []

    def at_once(work, *args):
        seen.append(saver.is_saving)
        done = futures.Future()
        done.set_result(work(*args))
        return done

    monkeypatch.setattr(saver._thread, "submit", at_once)
    saver.save(5, 5 * BATCH, cut(state(5), 0, 1), PLAN)
    assert seen == [True] and saver.break_off().complete


def test_a_save_of_which_no_more_is_written_is_given_up_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointer, "QUIET_SECONDS", 0.3)
    save(tmp_path, [5], SIZE)
    go = threading.Event()

    def body(comm):
        disk = Watched(lambda name: go.wait(10)) if comm.rank == 1 else Disk()
        saver = Checkpointer(tmp_path, comm, 5, 2, FACTS, begin_step=5, disk=disk)
        saver.save(10, 10 * BATCH, cut(state(10), comm.rank, SIZE), PLAN)
        told = saver.break_off() if comm.rank == 2 else None
        comm.barrier()
        go.set()
        return told

    told = on_ranks(SIZE, body)[2]
    assert told is not None and not told.complete
    assert told.warning.endswith(": nothing more of it was written for 0 s; step-00000005 stays the latest")
    check_whole(tmp_path, 5)


def test_what_the_disk_refuses_who_leaves_is_told(tmp_path):
    full = OSError(28, "No space left on device")

    def refuse(name):
        if name == "write":
            raise full

    def body(comm):
        saver = Checkpointer(tmp_path, comm, 5, 2, FACTS, disk=Watched(refuse) if comm.rank == 1 else None)
        saver.save(5, 5 * BATCH, cut(state(5), comm.rank, SIZE), PLAN)
        return saver.break_off() if comm.rank == 1 else None

    told = on_ranks(SIZE, body)[1]
    assert told is not None and not told.complete and "No space left on device" in told.warning


BREAKING = """
import sys, time
from castile.launch.__main__ import main
from castile.launch.checkpoints.disk import Disk
from castile.launch.data import Dataset
from castile.launch.processes.ranks import UserError, this_world
who, words = sys.argv[1].split(","), sys.argv[2:]
sync, take = Disk.sync, Dataset.take
def slow(*args):
    time.sleep(0.5)
    sync(*args)
def taken(self, step, *args):
    if step == 12 and str(this_world().rank) in who:
        # both are in this step then: the save of step 10 is under way
        time.sleep(0.3)
        raise UserError("sample 7 is no image")
    return take(self, step, *args)
Disk.sync, Dataset.take = slow, taken
sys.exit(main(words))
"""


@pytest.mark.mpi
@pytest.mark.parametrize("who", ["1", *rare("0,1")])
def test_a_mistake_on_any_rank_ends_the_job_with_the_save_that_was_under_way(who, alone):
    words = ["train", "mlp:width=32", "--search", "data_parallel", "--steps", "100000"]
    more = ["--checkpoint", "run", "--checkpoint-every", "10", "--metrics", "a.jsonl"]
    status, _, err = mpirun_apart(2, "-c", BREAKING, who, *words, *more)
    assert status == 2, err
    # a zero byte ends what Open MPI says of it, wherever that comes
    told = [line for line in err.replace("\0", "").splitlines() if line.startswith("castile: ")]
    assert told[-2:] == [
        "castile: samples of step 13: sample 7 is no image",
        "castile: with --resume the same command goes on from run/step-00000010",
    ], err
    assert Counter(told)[told[-1]] == 1
    found = folders.latest("run")
    assert found is not None and (found.step, found.warnings, list(alone.glob("run/*.part"))) == (10, (), []), err
