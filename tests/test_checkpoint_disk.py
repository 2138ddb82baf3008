"""What a disk refuses: a warning, told to all ranks, and the checkpoint before it stays."""

from __future__ import annotations

import errno
import os
import resource
import subprocess

import numpy as np
import pytest

from castile.launch.checkpoints import checkpointer
from castile.launch.checkpoints import folder as folders
from castile.launch.checkpoints.checkpointer import Checkpointer
from castile.launch.checkpoints.disk import Disk
from castile.launch.processes.ranks import UserError
from castile.runtime.comm.local import LocalWorld
from castile.runtime.region import Box
from tests.checkpoints import BATCH, FACTS, PLAN, Watched, alone, cut, in_child, on_ranks, save, state, told_of


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
    assert "of step 10, 793 bytes, was not written" in told[0].warning and "\n" not in told[0].warning
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


@pytest.mark.parametrize("left", [None, 10], ids=["gone", "cut"])
def test_what_is_written_elsewhere_makes_no_checkpoint(left, tmp_path):
    """A folder may cease to be the same on all hosts."""

    class Elsewhere(Disk):
        def write_file(self, path, parts):
            nbytes = super().write_file(path, parts)
            path.unlink() if left is None else os.truncate(path, left)
            return nbytes

    def body(comm):
        saver = Checkpointer(tmp_path, comm, 5, 2, FACTS, disk=Elsewhere() if comm.rank == 1 else None)
        saver.save(5, 5 * BATCH, cut(state(5), comm.rank, 2), PLAN)
        return saver.close()

    for told in on_ranks(2, body):
        assert not told.complete and not told.may_pass and "is not seen here" in told.warning
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
    assert not told.complete and "step 10, 11.8 KiB, was not written" in told.warning and "are free" in told.warning
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
        with pytest.raises(UserError, match=r"1.1 KiB, and 3 more come .* 3.2 KiB; only 1000 bytes are free"):
            saver.prepare(cut(state(5), comm.rank, 2), PLAN)

    on_ranks(2, body)


def test_room_is_asked_for_the_best_one_too(monkeypatch, tmp_path):
    """As many more as then lie there at most: those that are kept, the best, and the one that is being written."""
    monkeypatch.setattr(checkpointer, "free_bytes", lambda folder: 1000)
    comm = LocalWorld(1).communicators[0]
    with pytest.raises(UserError, match="4 more come while 2 and the best are kept"):
        Checkpointer(tmp_path, comm, 5, 2, FACTS, keeps_best=True).prepare(cut(state(5), 0, 1), PLAN)
    monkeypatch.undo()
    saver = alone(tmp_path)
    for step in (5, 10, 15, 20):
        saver.save(step, step * BATCH, cut(state(step), 0, 1), PLAN)
        told_of(saver)
        if step == 5:
            saver.note(step, 1.0)
    saver.close()
    assert list(folders.checkpoints(tmp_path)) == [5, 15, 20]
    monkeypatch.setattr(checkpointer, "free_bytes", lambda folder: 100)
    with pytest.raises(UserError, match="1 more come while 2 and the best are kept"):
        Checkpointer(tmp_path, comm, 5, 2, FACTS, 20).prepare(cut(state(25), 0, 1), PLAN)


def file(path):
    path.write_text("x")


def link(path):
    path.symlink_to(path.parent / "nowhere")


def deep(path):
    (path / "more" / "still").mkdir(parents=True)
    (path / "more" / "x").write_text("x")


@pytest.mark.parametrize("make", [file, link, deep])
@pytest.mark.parametrize("suffix", ["", ".part"])
@pytest.mark.parametrize("step", [10, 15])
def test_rubbish_under_a_checkpoints_name_hinders_nobody(step, suffix, make, tmp_path):
    """Of a step that is yet to be saved, whatever it is: the one before is found, and what comes is written."""
    save(tmp_path, [5])
    for more in ("", folders.DAMAGED) if not suffix else ("",):
        make(tmp_path / f"{folders.name_of(step)}{suffix}{more}")
    found = folders.latest(tmp_path)
    assert found is not None and found.step == 5 and len(found.warnings) == (suffix == "")
    assert [o.complete for o in save(tmp_path, [10, 15], begin_step=5)] == [True, True]
    found = folders.latest(tmp_path)
    assert found is not None and (found.step, found.warnings) == (15, ()) and not list(tmp_path.glob("*.part"))
