"""Metrics: lines that survive a kill, files that are mended when resumed, event files for TensorBoard."""

import json
import os
import subprocess
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.launch import metrics
from castile.launch.ranks import UserError
from tests.mpi import CHECKOUT

values = st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(), st.text(max_size=8))
records = st.lists(st.dictionaries(st.text(min_size=1, max_size=5), values, max_size=4), min_size=1, max_size=6)


def write(path, facts, resume=False):
    with metrics.start(str(path), "", resume) as log:
        for number, fact in enumerate(facts):
            log.record("step", step=number, facts=fact)


def read(path):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_bytes().splitlines()]


def as_json(fact):
    return {
        key: None if value != value or value in (float("inf"), float("-inf")) else value for key, value in fact.items()
    }


@given(records)
def test_what_is_recorded_is_read_again(tmp_path_factory, facts):
    path = tmp_path_factory.mktemp("metrics") / "a.jsonl"
    write(path, facts)
    assert [record["facts"] for record in read(path)] == [as_json(fact) for fact in facts]


@given(records, records, st.data())
def test_a_file_cut_anywhere_is_mended_and_appended_to(tmp_path_factory, first, second, data):
    path = tmp_path_factory.mktemp("metrics") / "a.jsonl"
    write(path, first)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    write(path, second, resume=True)
    kept = whole[:cut].count(b"\n")
    # A record that lacks only its line's end is whole.
    kept += cut < len(whole) and whole[cut : cut + 1] == b"\n"
    expected = [as_json(fact) for fact in (*first[:kept], *second)]
    assert [record["facts"] for record in read(path)] == expected


def test_without_resuming_a_file_begins_anew(tmp_path):
    path = tmp_path / "new" / "a.jsonl"
    write(path, [{"a": 1}, {"b": 2}])
    write(path, [{"c": 3}])
    assert [record["facts"] for record in read(path)] == [{"c": 3}]


def test_nothing_is_lost_when_the_process_is_killed(tmp_path):
    path = tmp_path / "a.jsonl"
    code = (
        "import os, sys; from castile.launch import metrics\n"
        f"log = metrics.start({str(path)!r}, '', False)\n"
        "for step in range(1000): log.record('step', step=step)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(CHECKOUT)}, timeout=60)
    assert done.returncode == -9
    assert [record["step"] for record in read(path)] == list(range(1000))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_is_told():
    with metrics.start("/dev/full", "", False) as log, pytest.raises(UserError, match=r"--metrics /dev/full: No space"):
        log.record("step", step=1)


class Writer:
    """What tensorboardX has, as far as it is used."""

    def __init__(self, folder):
        self.folder, self.points, self.closed = folder, [], False
        Writer.last = self

    def add_scalar(self, tag, value, step):
        self.points.append((tag, value, step))

    def close(self):
        self.closed = True


def test_numbers_of_steps_are_points_of_curves(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=Writer))
    with metrics.start("", str(tmp_path), False) as log:
        log.record("run", model="mlp", batch=3)
        log.record("step", step=2, samples=128, loss=0.5, rate=1, norm=None)
        log.record("evaluation", step=4, accuracy=0.75, good=True)
    assert Writer.last.folder == str(tmp_path) and Writer.last.closed
    assert Writer.last.points == [("step/loss", 0.5, 2), ("step/rate", 1.0, 2), ("evaluation/accuracy", 0.75, 4)]


def test_without_a_writer_the_line_that_installs_one_is_told(monkeypatch, tmp_path):
    for name in ("tensorboardX", "tensorboard", "tensorboard.compat.proto.event_pb2"):
        monkeypatch.setitem(sys.modules, name, None)
    path = tmp_path / "a.jsonl"
    with pytest.raises(UserError, match=r"--tensorboard x: neither .* `.* -m pip install tensorboardX`"):
        metrics.start(str(path), "x", False)
    assert not path.exists()


@pytest.mark.parametrize("library", ["tensorboardX", "tensorboard"])
def test_event_files_are_what_the_library_reads(library, monkeypatch, tmp_path):
    pytest.importorskip(library)
    if library == "tensorboard":
        monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with metrics.start("", str(tmp_path), False) as log:
        log.record("step", step=7, loss=0.25)
    (path,) = tmp_path.iterdir()
    assert "tfevents" in path.name and b"step/loss" in path.read_bytes()
