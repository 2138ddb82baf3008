"""Metrics: lines that survive a kill, files that are mended when resumed, event files for TensorBoard."""

import errno
import json
import os
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.launch.processes.ranks import UserError
from castile.launch.training import metrics, tensorboard
from tests.mpi import CHECKOUT

values = st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(), st.text(max_size=8))
records = st.lists(st.dictionaries(st.text(min_size=1, max_size=5), values, max_size=4), min_size=1, max_size=6)


def write(path, facts, resume=False):
    with metrics.start(metrics.Lines(str(path)), "", resume) as log:
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


def test_two_runs_do_not_write_one_file(tmp_path):
    path = tmp_path / "a.jsonl"
    with metrics.start(metrics.Lines(str(path)), "", False) as log:
        log.record("step", step=1)
        for resume in (False, True):
            with pytest.raises(UserError, match=r"--metrics .*a.jsonl: another run writes there; wait for its end or"):
                metrics.start(metrics.Lines(str(path)), "", resume)
        log.record("step", step=2)
    assert [record["step"] for record in read(path)] == [1, 2]
    write(path, [{}])
    assert [record["step"] for record in read(path)] == [0]


def test_a_file_that_is_held_stays_as_it_is_until_records_begin(tmp_path):
    """Of one that was not there, and to which nothing was written, nothing is left."""
    path, new = tmp_path / "a.jsonl", tmp_path / "new.jsonl"
    write(path, [{}])
    before = path.read_bytes()
    for file in (path, new):
        with metrics.held(str(file)), pytest.raises(UserError, match="another run writes there"):
            metrics.Lines(str(file))
    assert path.read_bytes() == before and not new.exists()
    with metrics.held(str(new)) as lines, metrics.start(lines, "", False) as log:
        log.record("step", step=1)
    assert [record["step"] for record in read(new)] == [1]


@given(records, records, st.booleans(), st.data())
def test_a_file_cut_anywhere_is_mended_and_appended_to(tmp_path_factory, first, second, is_long, data):
    """Also before and behind a line's end, and where the last of these begins a block of those that are looked at."""
    path = tmp_path_factory.mktemp("metrics") / "a.jsonl"
    first[-1] |= {"long": "x" * 5000} if is_long else {}
    write(path, first)
    whole = path.read_bytes()
    ends = [at for at, byte in enumerate(whole) if byte == ord("\n")]
    odd = [at + more for at in ends for more in (0, 1, 4096) if at + more <= len(whole)]
    cut = data.draw(st.sampled_from(odd) | st.integers(0, len(whole)))
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
        "import os, sys; from castile.launch.training import metrics\n"
        f"log = metrics.start(metrics.Lines({str(path)!r}), '', False)\n"
        "for step in range(1000): log.record('step', step=step)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(CHECKOUT)}, timeout=60)
    assert done.returncode == -9
    assert [record["step"] for record in read(path)] == list(range(1000))


class Small:
    """A disk with room for so many bytes, wherever they are written."""

    def __init__(self, monkeypatch, room):
        self.room, self._write = room, os.write
        monkeypatch.setattr(metrics.os, "write", self.write)

    def write(self, file, data):
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = self._write(file, data[: self.room])
        self.room -= done
        return done


@given(st.integers(0, 3000), st.integers(0, 10))
def test_what_there_is_no_room_for_is_lost_told_once_and_nothing_else(tmp_path_factory, room, later):
    """Of each record all is there or nothing, and those that come when there is room again are there."""
    folder, told = tmp_path_factory.mktemp("metrics"), []
    log = metrics.start(metrics.Lines(str(folder / "a")), str(folder), False, told.append)
    with pytest.MonkeyPatch.context() as patch, log:
        disk = Small(patch, room)
        for step in range(20):
            if step == 10 + later:
                disk.room = 10**6
            log.record("step", step=step, loss=step / 4)
    lines, (path,) = read(folder / "a"), folder.glob("*tfevents*")
    for steps, option in (
        ([line["step"] for line in lines], f"--metrics {folder / 'a'}: No space"),
        ([step for step, _, _ in points(path.read_bytes())], f"--tensorboard {folder}: No space"),
    ):
        assert steps == sorted(set(steps)) and set(range(10 + later, 20)) <= set(steps)
        assert sum(text.startswith(option) for text in told) == (len(steps) < 20)
    assert all("training goes on" in text for text in told) and len(told) <= 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_does_not_end_a_training():
    told = []
    with metrics.start(metrics.Lines("/dev/full"), "", False, told.append) as log:
        log.record("step", step=1)
        log.record("step", step=2)
    assert len(told) == 1 and told[0].startswith("--metrics /dev/full: No space left on device; training goes on")


def varint(data, at):
    """The number that begins there, and where it ends."""
    number = shift = 0
    while True:
        number, shift = number | (data[at] & 0x7F) << shift, shift + 7
        at += 1
        if not data[at - 1] & 0x80:
            return number, at


def fields(data):
    """A message of protocol buffers: numbers of its fields, and what they hold."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            found, at = varint(data, at)
        else:
            length, at = varint(data, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
            found, at = data[at : at + length], at + length
        yield key >> 3, found


def messages(data):
    """What the records of a file hold."""
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        whole = data[: 16 + length]
        assert whole == tensorboard.record(whole[12:-4])
        yield dict(fields(whole[12:-4]))
        data = data[len(whole) :]


def points(data):
    """The points of all curves of a file: step, name and value."""
    head, *rest = messages(data) if data else ({3: b"brain.Event:2"},)
    assert head[3] == b"brain.Event:2" and 3 not in head.keys() - {1, 3}
    for message in rest:
        for number, value in fields(message[5]):
            assert number == 1
            point = dict(fields(value))
            yield message[2], point[1].decode(), struct.unpack("<f", point[2])[0]


def test_records_have_the_checksums_that_others_give_them():
    """RFC 3720's figure for the digits; and the beginning of all files that TensorFlow writes."""
    assert tensorboard.crc32c(b"123456789") == 0xE3069283
    assert tensorboard.record(tensorboard.first(0.0))[:12].hex() == "1800000000000000a37f4b22"


def test_numbers_of_steps_are_points_of_curves(tmp_path):
    with metrics.start(None, str(tmp_path), False) as log:
        log.record("run", model="mlp", batch=3)
        log.record("step", step=2, samples=128, loss=0.5, rate=1, norm=None)
        log.record("evaluation", step=300, accuracy=1e99, good=True, others={"years": {"loss": 0.25, "auc": None}})
    (path,) = tmp_path.iterdir()
    found = [(2, "step/loss", 0.5), (2, "step/rate", 1.0), (300, "evaluation/accuracy", float("inf"))]
    found.append((300, "evaluation/others/years/loss", 0.25))
    assert list(points(path.read_bytes())) == found


def test_event_files_are_what_tensorboard_reads(tmp_path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    with metrics.start(None, str(tmp_path), False) as log:
        log.record("step", step=7, loss=0.25)
    (path,) = tmp_path.iterdir()
    head, event = loader.LegacyEventFileLoader(str(path)).Load()
    assert head.file_version == "brain.Event:2" and event.step == 7
    assert [(value.tag, value.simple_value) for value in event.summary.value] == [("step/loss", 0.25)]
