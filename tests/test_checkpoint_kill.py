"""Kill safety: whatever operation a save is killed at, and whatever a power cut loses, a whole checkpoint is found."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from castile.launch.checkpoints import folder as folders
from castile.launch.checkpoints.disk import Disk
from castile.runtime.region import whole
from tests.checkpoints import BATCH, FACTS, Dying, Watched, in_child, save, state
from tests.effort import rare

OLD, NEW, NEXT = 5, 10, 15


def loaded(folder: Path) -> int:
    """The step of the latest checkpoint, which must hold that step's state to the last bit."""
    found = folders.latest(folder)
    assert found is not None and found.warnings == ()
    reader = found.open()
    assert (reader.step, reader.samples, reader.facts) == (found.step, found.step * BATCH, FACTS)
    expected = state(found.step)
    assert set(reader.regions) == set(expected)
    for name, array in expected.items():
        read = reader.read(name, whole(array.shape))
        assert read.dtype == array.dtype and np.array_equal(read, array), name
    return found.step


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    """A folder with one checkpoint, and what a writer left that died."""
    folder = tmp_path_factory.mktemp("begun") / "checkpoints"
    (told,) = save(folder, [OLD], size=2)
    assert told.complete and told.warning == ""
    left = folder / "step-00000007.part"
    left.mkdir()
    (left / "rank-00000.safetensors").write_bytes(b"half")
    return folder


def operations(begun: Path, size: int, scratch: Path) -> Counter[str]:
    """Every operation of a save that removes what a dead writer left and the checkpoint before."""
    counted: Counter[str] = Counter()
    shutil.copytree(begun, scratch)
    save(scratch, [NEW], size, keep=1, begin_step=OLD, disk=Watched(lambda name: counted.update([name])))
    assert loaded(scratch) == NEW
    return counted


@pytest.mark.parametrize("size", [2, *rare(1)])
def test_a_kill_at_any_operation_leaves_the_old_or_the_new_one(size, begun, tmp_path, tell):
    counted = operations(begun, size, tmp_path / "counted")
    number, found = sum(counted.values()), Counter()
    assert counted["write"] >= 5 and counted["sync"] >= 4 and counted["rename"] == 2 and counted["remove"] >= 3
    for point in range(number):
        folder = tmp_path / f"killed{point}"
        shutil.copytree(begun, folder)
        died = in_child(lambda: save(folder, [NEW], size, keep=1, begin_step=OLD, disk=Dying(point)))  # noqa: B023
        assert died == 9, f"operation {point} of {number} was not reached"
        step = loaded(folder)
        found[step] += 1
        # The next run clears up and goes on.
        save(folder, [NEXT], size, keep=2, begin_step=step)
        assert loaded(folder) == NEXT and not list(folder.glob("*.part"))
    assert set(found) == {OLD, NEW}, "both outcomes are to be seen"
    tell(f"checkpoints: killed at {number} of {number} operations on {size} ranks, 0 of them left none to load")


def test_a_save_that_is_not_killed_ends_well(begun, tmp_path):
    shutil.copytree(begun, tmp_path / "whole")
    assert in_child(lambda: save(tmp_path / "whole", [NEW], keep=1, begin_step=OLD, disk=Dying(10**6))) == 0
    assert loaded(tmp_path / "whole") == NEW


# A power cut: bytes that were not synced are lost, and of the changes to a folder since its last sync any may be.


@dataclass
class Node:
    """A file or a folder as it is, and as the disk has it: `lasting`, and the changes that may or may not be there."""

    data: bytes = b""
    entries: dict[str, Node] | None = None
    lasting: bytes = b""
    lasting_entries: dict[str, Node] = field(default_factory=dict)
    pending: list[tuple[str, Node | None, str]] = field(default_factory=list)

    def change(self, name: str, node: Node | None, gone: str = "") -> None:
        """A name comes, goes (None), or replaces another (`gone`) at once."""
        assert self.entries is not None
        _apply(self.entries, (name, node, gone))
        self.pending.append((name, node, gone))

    def sync(self) -> None:
        self.lasting, self.pending = self.data, []
        self.lasting_entries = dict(self.entries or {})

    def after_cut(self, path: Path, keeps: random.Random) -> None:
        """Write what a power cut now would leave."""
        if self.entries is None:
            path.write_bytes(self.data if keeps.random() < 0.3 else self.lasting)
            return
        path.mkdir()
        left = dict(self.lasting_entries)
        for change in self.pending:
            if keeps.random() < 0.5:
                _apply(left, change)
        for name, node in left.items():
            node.after_cut(path / name, keeps)


def _apply(entries: dict[str, Node], change: tuple[str, Node | None, str]) -> None:
    name, node, gone = change
    entries.pop(gone, None)
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


class Modelled(Disk):
    """A disk that also keeps a model of what is safe, and shows it before each operation."""

    def __init__(self, root: Path, see) -> None:
        self.root, self.see = root, see
        self.model = Node(entries={})
        for path in sorted(root.rglob("*")):
            node = Node(entries={}) if path.is_dir() else Node(path.read_bytes())
            self.at(path.parent).change(path.name, node)
        for path in [root, *root.rglob("*")]:
            self.at(path).sync()

    def at(self, path: Path) -> Node:
        node = self.model
        for name in path.relative_to(self.root).parts:
            assert node.entries is not None
            node = node.entries[name]
        return node

    def of(self, descriptor: int) -> Node:
        return self.at(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    def create(self, path):
        self.see()
        self.at(path.parent).change(path.name, Node())
        return super().create(path)

    def write(self, descriptor, data):
        self.see()
        taken = super().write(descriptor, data)
        self.of(descriptor).data += bytes(data[:taken])
        return taken

    def sync(self, descriptor):
        self.see()
        self.of(descriptor).sync()

    def make_folder(self, path):
        self.see()
        self.at(path.parent).change(path.name, Node(entries={}))
        super().make_folder(path)

    def rename(self, path, to):
        self.see()
        self.at(path.parent).change(to.name, self.at(path), gone=path.name)
        super().rename(path, to)

    def remove(self, path):
        self.see()
        self.at(path.parent).change(path.name, None)
        super().remove(path)

    def remove_folder(self, path):
        self.see()
        self.at(path.parent).change(path.name, None)
        super().remove_folder(path)


def test_a_power_cut_at_any_operation_leaves_the_old_or_the_new_one(begun, tmp_path):
    folder, found = (tmp_path / "real").resolve(), Counter()
    shutil.copytree(begun, folder)

    def see() -> None:
        for seed in range(6):
            cut = tmp_path / f"cut{sum(found.values())}"
            disk.model.after_cut(cut, random.Random(seed))
            found[loaded(cut)] += 1
            shutil.rmtree(cut)

    disk = Modelled(folder, see)
    (told,) = save(folder, [NEW], keep=1, begin_step=OLD, disk=disk)
    assert told.complete
    assert found[OLD] > 50 and found[NEW] > 20
    # What was called complete is there for good.
    disk.model.after_cut(tmp_path / "after", random.Random(0))
    assert loaded(tmp_path / "after") == NEW
