"""Worlds for tests of checkpoints: ranks as threads, small states cut in any way, and disks that count, fail or die.

It does not know what a checkpoint must survive.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from castile.launch.checkpoints.checkpointer import Checkpointer, Outcome
from castile.launch.checkpoints.disk import Disk
from castile.launch.checkpoints.manifest import Facts
from castile.runtime.comm.base import Communicator
from castile.runtime.comm.local import LocalWorld
from castile.runtime.region import Box, blocks, slices
from tests.threads import Ranks

FACTS = Facts("mlp:width=4", "digits", 32, 7, "0123abcd", "float64")
PLAN = b'{"configs":{},"schema":1}'
BATCH = 32
Carried = dict[tuple[str, Box, int], np.ndarray]


def on_ranks(size: int, body: Callable[[Communicator], object]) -> list:
    """What `body` gives on each of `size` ranks; an exception of a rank is raised."""
    return Ranks(size).run(body)


def state(step: int) -> dict[str, np.ndarray]:
    """Regions whole, other numbers for every step: two parameters, the state of one, a count, and bytes."""
    rng = np.random.default_rng(step)
    return {
        "fc1.w": rng.normal(size=(6, 5)),
        "fc1.w/m": rng.normal(size=(6, 5)).astype(np.float32),
        "fc2.w": rng.normal(size=(7,)),
        "count": np.array(step, np.int64),
        "flags": rng.integers(0, 255, (3, 1, 3), np.uint8),
    }


def cut(whole: Mapping[str, np.ndarray], rank: int, size: int) -> Carried:
    """The rank's part of a state: along the first dim by rows, what is too short for that as a copy on every rank."""
    found: Carried = {}
    for name, array in whole.items():
        lo, hi = (0,) * array.ndim, array.shape
        if array.ndim and array.shape[0] >= size:
            begin, end = blocks(array.shape[0], size)[rank]
            lo, hi = (begin, *lo[1:]), (end, *hi[1:])
        box = Box(lo, hi)
        found[name, box, rank] = np.array(array[slices(box)])
    return found


def save(
    folder: Path, steps: Sequence[int], size: int = 1, keep: int = 2, begin_step: int = 0, disk: Disk | None = None
) -> list[Outcome]:
    """Save the states of these steps one after the other, as `size` ranks; what became of each, as rank 0 was told."""

    def body(comm: Communicator) -> list[Outcome]:
        saver = Checkpointer(folder, comm, 5, keep, FACTS, begin_step, disk)
        told = []
        for step in steps:
            saver.save(step, step * BATCH, cut(state(step), comm.rank, size), PLAN)
            told.append(saver.poll())
        return [outcome for outcome in (*told, saver.close()) if outcome is not None]

    folder.mkdir(parents=True, exist_ok=True)
    outcomes = on_ranks(size, body)
    assert all([(o.step, o.warning) for o in found] == [(o.step, o.warning) for o in outcomes[0]] for found in outcomes)
    return outcomes[0]


def alone(folder: Path, disk: Disk | None = None, **words) -> Checkpointer:
    """Of a job of one rank."""
    return Checkpointer(folder, LocalWorld(1).communicators[0], 5, 2, FACTS, disk=disk, **words)


def told_of(saver: Checkpointer) -> Outcome:
    """What became of the save under way. Raises TimeoutError after ten seconds."""
    for _ in range(2000):
        if (told := saver.poll()) is not None:
            return told
        time.sleep(0.005)
    raise TimeoutError


class Watched(Disk):
    """A disk that calls `before` with the name of each operation that changes something."""

    def __init__(self, before: Callable[[str], None]) -> None:
        self.before = before

    def create(self, path: Path) -> int:
        self.before("create")
        return super().create(path)

    def write(self, descriptor: int, data: memoryview) -> int:
        self.before("write")
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self.before("sync")
        super().sync(descriptor)

    def make_folder(self, path: Path) -> None:
        self.before("make_folder")
        super().make_folder(path)

    def rename(self, path: Path, to: Path) -> None:
        self.before("rename")
        super().rename(path, to)

    def remove(self, path: Path) -> None:
        self.before("remove")
        super().remove(path)

    def remove_folder(self, path: Path) -> None:
        self.before("remove_folder")
        super().remove_folder(path)


class Dying(Watched):
    """A disk on which the process ends at the operation of that number, a write half done; nobody is told."""

    def __init__(self, number: int) -> None:
        super().__init__(self._count)
        self.left = number
        self._lock = threading.Lock()

    def _count(self, name: str) -> None:
        with self._lock:
            self.left -= 1
            if self.left < 0:
                os._exit(9)

    def write(self, descriptor: int, data: memoryview) -> int:
        with self._lock:
            last = self.left == 0
        if last:
            os.write(descriptor, data[: len(data) // 2])
        return super().write(descriptor, data)


def in_child(body: Callable[[], object]) -> int:
    """The exit status of a child process that runs `body`; 0 when it comes to its end, 1 when it raises."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            body()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
