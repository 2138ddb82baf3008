"""Damage: any byte that changes, any file that is cut, moved or gone is found, named, and the one before is offered."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch.checkpoints import folder as folders
from castile.launch.checkpoints import manifest
from castile.launch.checkpoints.reader import Damaged, open_checkpoint
from castile.launch.processes.ranks import UserError
from castile.runtime.region import whole
from tests.checkpoints import save
from tests.effort import examples

OLD, NEW = 5, 10
NUM_FLIPS = 1000


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("damage") / "checkpoints"
    assert [told.complete for told in save(folder, [OLD, NEW], size=2)] == [True, True]
    return folder


@pytest.fixture
def folder(written, tmp_path) -> Path:
    shutil.copytree(written, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def tensor_at(data: bytes, position: int) -> str:
    """The tensor whose bytes, or whose entry in the head, lie at that place of a safetensors file; "" for neither."""
    length = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + length])
    if position >= 8 + length:
        (found,) = [name for name, entry in head.items()
                    if entry["data_offsets"][0] <= position - 8 - length < entry["data_offsets"][1]]  # fmt: skip
        return found
    text = data[8 : 8 + length].decode()
    spans = [(m.start() + 8, m.end() + 8, m[1]) for m in re.finditer(r',?"([^"]+)":\{"dtype".*?\}', text)]
    return next((name for begin, end, name in spans if begin <= position < end), "")


def test_every_flipped_bit_is_found_and_the_one_before_offered(folder, tell):
    rng, places = random.Random(0), []
    files = {path: path.read_bytes() for path in sorted((folder / folders.name_of(NEW)).iterdir())}
    assert len(files) == 3
    for path, data in files.items():
        places += [(path, position) for position in range(len(data))]
    seen: Counter[str] = Counter()
    for path, position in rng.choices(places, k=NUM_FLIPS):
        data = bytearray(files[path])
        data[position] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        found = folders.latest(folder)
        path.write_bytes(files[path])
        assert found is not None and found.step == OLD, f"{path.name}, byte {position} is taken for whole"
        (warning,) = found.warnings
        tensor = tensor_at(files[path], position) if path.suffix == ".safetensors" else ""
        named = f"{path.name}, tensor {tensor!r}: " if tensor else f"{path.name}: "
        assert named in warning and f"{folders.name_of(OLD)} before it is whole" in warning, warning
        seen[path.suffix] += 1
    assert min(seen[".json"], seen[".safetensors"]) > 100
    found = folders.latest(folder)
    assert found is not None and (found.step, found.warnings) == (NEW, ())
    tell(f"checkpoints: {sum(seen.values())} of {NUM_FLIPS} flipped bits were caught, file and tensor named")


def cut_off(folder: Path) -> str:
    path = folder / "rank-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    return path.name


def empty(folder: Path) -> str:
    (folder / "rank-00000.safetensors").write_bytes(b"")
    return "rank-00000.safetensors"


def lengthened(folder: Path) -> str:
    with (folder / "rank-00000.safetensors").open("ab") as stream:
        stream.write(b"\0")
    return "rank-00000.safetensors"


def swapped(folder: Path) -> str:
    a, b = folder / "rank-00000.safetensors", folder / "rank-00001.safetensors"
    a_bytes, b_bytes = a.read_bytes(), b.read_bytes()
    a.write_bytes(b_bytes)
    b.write_bytes(a_bytes)
    return a.name


def of_another_step(folder: Path) -> str:
    shutil.copy(folder.parent / folders.name_of(OLD) / "rank-00001.safetensors", folder)
    return "rank-00001.safetensors"


def deleted(folder: Path) -> str:
    (folder / "rank-00001.safetensors").unlink()
    return "rank-00001.safetensors"


def a_link(folder: Path) -> str:
    path = folder / "rank-00001.safetensors"
    path.rename(folder.parent / "elsewhere")
    path.symlink_to(folder.parent / "elsewhere")
    return path.name


def a_device(folder: Path) -> str:
    path = folder / "rank-00001.safetensors"
    path.unlink()
    path.symlink_to("/dev/zero")
    return path.name


def a_folder(folder: Path) -> str:
    path = folder / "rank-00001.safetensors"
    path.unlink()
    path.mkdir()
    return path.name


def no_manifest(folder: Path) -> str:
    (folder / manifest.NAME).unlink()
    return manifest.NAME


def cut_manifest(folder: Path) -> str:
    path = folder / manifest.NAME
    path.write_bytes(path.read_bytes()[:-1])
    return path.name


DAMAGES = (
    cut_off, empty, lengthened, swapped, of_another_step, deleted, a_link, a_device, a_folder, no_manifest, cut_manifest
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_other_damage_is_found_and_named_too(damage, folder):
    name = damage(folder / folders.name_of(NEW))
    found = folders.latest(folder)
    assert found is not None and found.step == OLD
    (warning,) = found.warnings
    assert f"{folders.name_of(NEW)} is damaged: {name}" in warning and "\n" not in warning
    if name != manifest.NAME:
        assert ", tensor '" in warning


def test_what_is_damaged_is_never_handed_out(folder):
    reader = open_checkpoint(folder / folders.name_of(NEW))
    path = folder / folders.name_of(NEW) / "rank-00001.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    tensor = tensor_at(data, len(data) - 1)
    region = tensor.partition("[")[0]
    with pytest.raises(Damaged) as told:
        reader.read(region, whole(reader.regions[region].shape))
    assert (told.value.file, told.value.tensor) == (path.name, tensor)


def test_a_folder_in_which_none_is_whole_says_so(folder):
    for step in (OLD, NEW):
        deleted(folder / folders.name_of(step))
    with pytest.raises(UserError, match=r"step-00000010 is damaged.*no checkpoint that is whole"):
        folders.latest(folder)


def test_a_folder_without_checkpoints_has_no_latest(tmp_path):
    assert folders.latest(tmp_path) is None and folders.latest(tmp_path / "nowhere") is None


def test_times_of_files_decide_nothing(folder):
    import os

    for path in [folder / folders.name_of(NEW), *(folder / folders.name_of(NEW)).iterdir()]:
        os.utime(path, (0, 0))
    found = folders.latest(folder)
    assert found is not None and found.step == NEW


# Manifests that are sealed, and yet not as they must be.


def sealed(tree: object) -> bytes:
    assert isinstance(tree, dict)
    rest = {key: value for key, value in tree.items() if key != "seal"}
    data = json.dumps({"seal": "0" * 32, **rest}, separators=(",", ":")).encode()
    return data.replace(b"0" * 32, manifest.digest(data).encode(), 1)


def test_sealing_alike_is_no_damage(folder):
    path = folder / folders.name_of(NEW) / manifest.NAME
    path.write_bytes(sealed(json.loads(path.read_bytes())))
    found = folders.latest(folder)
    assert found is not None and found.step == NEW


def test_another_schema_is_told_apart_from_damage(folder):
    path = folder / folders.name_of(NEW) / manifest.NAME
    path.write_bytes(sealed(json.loads(path.read_bytes()) | {"schema": 2, "news": 1}))
    with pytest.raises(UserError, match="schema 2, this castile reads schema 1"):
        folders.latest(folder)


@pytest.mark.parametrize("name", ["../rank-00000.safetensors", "/dev/zero", "manifest.json", "rank-00001.safetensors"])
def test_a_manifest_names_files_of_its_own_only(name, folder):
    path = folder / folders.name_of(NEW) / manifest.NAME
    tree = json.loads(path.read_bytes())
    tree["files"][0]["name"] = name
    path.write_bytes(sealed(tree))
    with pytest.raises(Damaged, match="no name of a checkpoint's file"):
        open_checkpoint(path.parent)


REGION, PIECE = ("regions", "fc1.w"), ("files", 0, "pieces", 1)
CONTRADICTIONS = (
    (("step",), -1, "counts begin at 0"), (("samples",), -1, "counts begin at 0"),
    ((*REGION, "dtype"), "complex64", "has shape"), ((*REGION, "shape"), [1] * 33, "has shape"),
    ((*REGION, "shape"), [6, -5], "has shape"), ((*PIECE, "region"), "fc9.w", "is of no region"),
    ((*PIECE, "lo"), [0], "is not in shape"), ((*PIECE, "hi"), [3], "is not in shape"),
    ((*PIECE, "lo"), [-1, 0], "is not in shape"), ((*PIECE, "hi"), [7, 5], "is not in shape"),
    ((*PIECE, "lo"), [4, 0], "is not in shape"),
)  # fmt: skip


@pytest.mark.parametrize(("way", "value", "told"), CONTRADICTIONS, ids=str)
def test_a_manifest_whose_parts_contradict_each_other_is_damaged(way, value, told, folder):
    path = folder / folders.name_of(NEW) / manifest.NAME
    inner = tree = json.loads(path.read_bytes())
    assert tree["files"][0]["pieces"][1] | {"hash": ""} == {"region": "fc1.w", "lo": [0, 0], "hi": [3, 5], "hash": ""}
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = value
    path.write_bytes(sealed(tree))
    with pytest.raises(Damaged, match=told):
        open_checkpoint(path.parent)
    found = folders.latest(folder)
    assert found is not None and found.step == OLD


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just(10**40)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))


def places(tree: object, path: tuple = ()) -> list[tuple]:
    found = [path] if path else []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        found += places(value, (*path, key))
    return found


@settings(max_examples=examples(200))
@given(st.data())
def test_no_sealed_manifest_brings_the_reader_down(written, tmp_path_factory, data):
    tree = json.loads((written / folders.name_of(NEW) / manifest.NAME).read_bytes())
    *way, last = data.draw(st.sampled_from(places(tree)))
    inner = tree
    for key in way:
        inner = inner[key]
    if data.draw(st.booleans()):
        inner[last] = data.draw(values)
    else:
        del inner[last]
    copy = tmp_path_factory.mktemp("fuzz") / folders.name_of(NEW)
    shutil.copytree(written / folders.name_of(NEW), copy)
    (copy / manifest.NAME).write_bytes(sealed(tree))
    try:
        reader = open_checkpoint(copy)
        reader.verify()
        for name, region in reader.regions.items():
            reader.read(name, whole(region.shape))
    except (Damaged, UserError) as error:
        assert "\n" not in str(error).replace(repr("\n"), "")
