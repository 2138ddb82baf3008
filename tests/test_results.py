"""Results: what is written batch by batch is what was given, in every form; nothing is left of what fails."""

from __future__ import annotations

import csv
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from castile.launch.arrays import results
from castile.launch.arrays.results import FORMS, ROW, Column
from castile.launch.processes.ranks import UserError

FEW = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def columns(draw: st.DrawFn, ending: str) -> list[Column]:
    """Such as the form can hold."""
    most = {".npz": 3, ".npy": 1, ".csv": 3}[ending]
    shapes = draw(
        st.lists(st.lists(st.integers(1, 3), max_size=1 if ending == ".csv" else 3), min_size=1, max_size=most)
    )
    dtypes = [draw(st.sampled_from(("float32", "float64", "int32"))) for _ in shapes]
    return [Column(f"out{n}", tuple(shape), dtype) for n, (shape, dtype) in enumerate(zip(shapes, dtypes))]


def read(path: Path, held: list[Column]) -> dict[str, np.ndarray]:
    """What a reader of such files finds."""
    if path.suffix == ".npz":
        with np.load(path) as found:
            return dict(found)
    if path.suffix == ".npy":
        return {held[0].name: np.load(path)}
    with open(path, newline="") as file:
        head, *lines = csv.reader(file)
    cells = np.array(lines).reshape(len(lines), len(head))
    found = {ROW: cells[:, head.index("row")].astype(np.int64)}
    for column in held:
        places = [n for n, name in enumerate(head) if name.partition(".")[0] == column.name]
        found[column.name] = cells[:, places].astype(column.dtype).reshape(len(lines), *column.shape)
    return found


@pytest.mark.parametrize("ending", FORMS)
@FEW
@given(data=st.data())
def test_what_is_read_is_what_came_in_batches(ending: str, data: st.DataObject, tmp_path: Path) -> None:
    held, sizes = data.draw(columns(ending)), data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    random, total = np.random.default_rng(0), sum(sizes)
    whole = {c.name: (100 * random.normal(size=(total, *c.shape))).astype(c.dtype) for c in held}
    rows, path = random.permutation(2 * total)[:total], tmp_path / f"x{ending}"
    results.check("--out", str(path), held, total)
    with results.writing(str(path), held, rows) as add:
        for end, size in zip(np.cumsum(sizes), sizes):
            add({name: array[end - size : end] for name, array in whole.items()})
    found = read(path, held)
    assert found.keys() - {ROW} == whole.keys()
    for name, expected in (whole | {ROW: rows}).items():
        if name in found or ending != ".npy":
            assert found[name].dtype == expected.dtype and np.array_equal(found[name], expected), name
    assert [left.name for left in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", FORMS)
def test_nothing_is_left_of_what_ends_early(ending: str, tmp_path: Path) -> None:
    held = [Column("a", (2,), "float32")] + [Column("b", (), "float32")] * (ending != ".npy")
    (tmp_path / f"x{ending}").write_text("before")
    with pytest.raises(RuntimeError, match="in the middle"), results.writing(
        str(tmp_path / f"x{ending}"), held, np.arange(4)
    ) as add:  # fmt: skip
        add({c.name: np.ones((2, *c.shape), np.float32) for c in held})
        raise RuntimeError("in the middle")
    assert (tmp_path / f"x{ending}").read_text() == "before" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("ending", FORMS)
def test_a_batch_at_a_time_is_held(ending: str, tmp_path: Path) -> None:
    held = [Column(name, (4,), "float64") for name in "ab"[: 1 + (ending != ".npy")]]
    batch, num = {c.name: np.ones((16, 4)) for c in held}, 2000
    tracemalloc.start()
    with results.writing(str(tmp_path / f"x{ending}"), held, np.arange(16 * num)) as add:
        for _ in range(num):
            add(batch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < num * batch["a"].nbytes


def test_what_a_form_cannot_hold_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    one, deep = Column("a", (3,), "float32"), Column("b", (2, 3), "float32")
    with pytest.raises(UserError, match=r"--out x\.txt: a name ends in \.npz"):
        results.check_ending("--out", "x.txt")
    with pytest.raises(UserError, match="holds one array, and there are 2"):
        results.check("--out", "x.npy", [one, deep], 1)
    with pytest.raises(UserError, match="'b' has 2 x 3 numbers a sample"):
        results.check("--out", "x.csv", [one, deep], 1)
    results.check("--out", "x.npz", [one, deep], 1000)
    monkeypatch.setattr("castile.launch.arrays.results.free_bytes", lambda folder: 40_000)
    with pytest.raises(UserError, match=r"take 35\.2 KiB there, and to write them 58\.6 KiB; only 39\.1 KiB are free"):
        results.check("--out", "x.npz", [one, deep], 1000)
