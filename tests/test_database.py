"""The profile database: what goes in comes out, a crash loses only what was not finished, faulty files are kept."""

import itertools
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from math import isfinite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from castile.planner.cost import CostModel
from castile.planner.costs import database as databases
from castile.planner.costs.database import Database, Way
from castile.planner.costs.snapshot import Environment, Measured, Snapshot, snapshot_of
from castile.runtime.machine import parse
from castile.runtime.task import CostKey
from tests.effort import examples

HERE = Environment("cpu", 1, 2, "abc", "numpy 2")
ELSEWHERE = Environment("cpu", 1, 4, "abc", "numpy 2")

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
keys = st.builds(CostKey, texts, texts, st.sampled_from(["float32", "int64"]), st.integers(0, 2**62),
                 st.integers(0, 2**62), st.sampled_from(["", "host"]), st.integers(1, 1024))  # fmt: skip
rows = st.lists(
    st.builds(Measured, keys, st.floats(1e-9, 1e6), st.floats(0, 1), st.integers(1, 9)),
    max_size=8, unique_by=lambda row: row.key)  # fmt: skip


def some(num, seconds=1.0, environment=HERE):
    made = [Measured(CostKey(f"op{i}.F", "8", "float32", i, i), seconds) for i in range(num)]
    return structs.replace(snapshot_of(environment, made, 1e-6), meeting_seconds=seconds / 7, num_meetings=num)


@settings(max_examples=examples(100))
@given(rows, rows, st.floats(0, 1))
def test_round_trip_of_each_environment_alone(tmp_path_factory, here, elsewhere, overhead):
    path = tmp_path_factory.mktemp("db") / "profile.db"
    Database(path).add(snapshot_of(ELSEWHERE, elsewhere, 0.5))
    Database(path).add(snapshot_of(HERE, here, overhead))
    database = Database(path)
    assert database.snapshot(HERE) == snapshot_of(HERE, here, overhead)
    assert database.snapshot(ELSEWHERE) == snapshot_of(ELSEWHERE, elsewhere, 0.5)
    assert database.num_others(HERE) == len(elsewhere)
    nowhere = Environment("gpu")
    assert database.snapshot(nowhere) == Snapshot(nowhere)
    assert database.num_others(nowhere) == len(here) + len(elsewhere)


def test_newer_measurement_replaces_the_older_and_adding_twice_changes_nothing(tmp_path):
    database = Database(tmp_path / "profile.db")
    database.add(some(3, seconds=1.0))
    database.add(some(2, seconds=2.0))
    once = database.snapshot(HERE)
    assert [row.seconds for row in once.rows] == [2.0, 2.0, 1.0]
    database.add(once)
    assert database.snapshot(HERE) == once


ways = st.lists(
    st.builds(Way, texts, texts, texts, st.floats(1e-9, 1e6)), max_size=8,
    unique_by=lambda way: (way.call, way.form, way.setting))  # fmt: skip


@settings(max_examples=20)
@given(ways, ways)
def test_ways_are_kept_by_device_and_a_call_timed_again_replaces_all_of_it(tmp_path_factory, first, second):
    path = tmp_path_factory.mktemp("db") / "profile.db"
    database, other = Database(path), Environment("gpu", 1, 2, "abc", "numpy 2")
    database.add_ways(other, second)
    database.add_ways(HERE, first)
    assert set(database.ways(HERE)) == set(first) and set(database.ways(other)) == set(second)
    database.add_ways(HERE, second)
    anew = {way.call for way in second}
    found = database.ways(HERE)
    assert set(found) == {*second, *(way for way in first if way.call not in anew)}
    for one, two in itertools.pairwise(found):
        assert one.call < two.call or (one.call == two.call and one.seconds <= two.seconds)
    # Which way is fastest on a device does not hang on its neighbours; on sources and libraries it does.
    assert database.ways(ELSEWHERE) == found
    parts = {name: getattr(HERE, name) for name in HERE.__struct_fields__}
    assert not any(database.ways(Environment(**parts | {name: "?"})) for name in ("device", "kernels", "libraries"))


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_failed_measurement_is_no_way(seconds):
    with pytest.raises(ValueError, match="not a choice"):
        Way("call", "form", "", seconds)


@pytest.mark.parametrize("schema, tables", [(1, 2), (2, 3)])
def test_an_older_file_keeps_what_it_holds_and_learns_what_came_later(tmp_path, schema, tables):
    path = tmp_path / "profile.db"
    Database(path).add(some(3))
    with sqlite3.connect(path) as connection:
        for table in databases._TABLES[tables:]:
            connection.execute(f"DROP TABLE {table.split()[2]}")
        connection.execute(f"PRAGMA user_version = {schema}")
    database = Database(path)
    assert database.snapshot(HERE) == structs.replace(some(3), meeting_seconds=0.0, num_meetings=0)
    assert database.ways(HERE) == ()
    database.add_ways(HERE, [Way("call", "form", "", 1.0)])
    database.add(some(3))
    assert Database(path).snapshot(HERE) == some(3) and len(Database(path).ways(HERE)) == 1


@pytest.mark.parametrize("field", ["device", "threads", "active_ranks", "kernels", "libraries"])
def test_every_part_of_the_environment_counts(tmp_path, field):
    other = {"device": "gpu", "threads": 2, "active_ranks": 9, "kernels": "x", "libraries": "numpy 3"}[field]
    parts = {name: getattr(HERE, name) for name in HERE.__struct_fields__} | {field: other}
    database = Database(tmp_path / "profile.db")
    database.add(some(2))
    assert database.snapshot(Environment(**parts)).rows == ()


def run(script, *words):
    """Run Python in another process; its exit status."""
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(script), *map(str, words)])


def test_a_process_that_dies_within_a_transaction_loses_only_that(tmp_path):
    path = tmp_path / "profile.db"
    Database(path).add(some(5))
    killed = run(
        """
        import os, signal, sqlite3, sys
        connection = sqlite3.connect(sys.argv[1], isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE measurement SET seconds = 99")
        connection.execute("DELETE FROM measurement WHERE name = 'op0.F'")
        os.kill(os.getpid(), signal.SIGKILL)
        """, path)  # fmt: skip
    assert killed.wait(60) == -9
    assert Database(path).snapshot(HERE) == some(5)


def test_an_exception_within_add_leaves_nothing_of_it(tmp_path):
    database = Database(tmp_path / "profile.db")
    database.add(some(2))
    too_large = Measured(CostKey("z", "", "float32", 2**70, 0), 1.0)
    with pytest.raises(OverflowError):
        database.add(snapshot_of(HERE, [*some(9, seconds=7.0).rows, too_large]))
    assert database.snapshot(HERE) == some(2)


def test_several_processes_write_and_read_at_once(tmp_path):
    path = tmp_path / "profile.db"
    script = """
        import sys
        from castile.planner.costs.database import Database
        from castile.planner.costs.snapshot import Environment, Measured, snapshot_of
        from castile.runtime.task import CostKey
        path, rank = sys.argv[1], int(sys.argv[2])
        here = Environment("cpu")
        for i in range(10):
            Database(path).add(snapshot_of(here, [Measured(CostKey(f"op{rank}.{i}", "", "float32", 0, 0), 1.0)]))
            assert len(Database(path).snapshot(here).rows) > i
        """
    assert [process.wait(120) for process in [run(script, path, rank) for rank in range(3)]] == [0, 0, 0]
    assert len(Database(path).snapshot(Environment("cpu")).rows) == 30


def test_a_reader_is_not_blocked_by_a_writer(tmp_path):
    path = tmp_path / "profile.db"
    database = Database(path)
    database.add(some(2))
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM measurement")
    assert database.snapshot(HERE) == some(2)
    writer.execute("ROLLBACK")
    writer.close()


def test_nothing_lies_beside_the_file_that_only_one_host_would_see(tmp_path):
    path = tmp_path / "profile.db"
    with Database(path)._connection() as older:
        assert older.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    database = Database(path)
    with database._connection() as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM environment").fetchall()
        assert list(tmp_path.iterdir()) == [path]
        connection.execute("COMMIT")
    database.add(some(2))
    assert list(tmp_path.iterdir()) == [path] and database.snapshot(HERE) == some(2)


def refused(path, *words):
    """The file is refused with these words in one sentence, and not changed by a byte."""
    before = path.read_bytes()
    with pytest.raises(ValueError) as caught:
        Database(path).snapshot(HERE)
    text = str(caught.value)
    assert str(path) in text and "\n" not in text and all(word in text for word in words), text
    assert path.read_bytes() == before


def filled(path, num=400):
    """A database of several pages."""
    Database(path).add(some(num))
    return path


def test_foreign_and_newer_files_are_refused(tmp_path):
    text = tmp_path / "notes.db"
    text.write_text("dear diary " * 50)
    refused(text, "no profile database")
    short = tmp_path / "short.db"
    short.write_bytes(b"SQLite format 3\0")
    refused(short, "damaged")
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    refused(other, "another program")
    newer = filled(tmp_path / "newer.db")
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    refused(newer, "schema 7")


def test_a_disk_that_is_full_is_told_and_nothing_is_lost(tmp_path, monkeypatch):
    path, connect = filled(tmp_path / "profile.db"), sqlite3.connect

    def on_a_full_disk(*args, **settings):
        connection = connect(*args, **settings)
        connection.execute("PRAGMA max_page_count = 1")
        return connection

    monkeypatch.setattr(sqlite3, "connect", on_a_full_disk)
    for add in (lambda: Database(path).add(some(4000)), lambda: Database(tmp_path / "new.db").add(some(400))):
        with pytest.raises(ValueError, match=r"profile database .*: database or disk is full; choose another path"):
            add()
    assert len(Database(path).snapshot(HERE).rows) == 400
    # where there was no file there is none, and one that lies there stays
    assert not (tmp_path / "new.db").exists()
    (tmp_path / "new.db").touch()
    with pytest.raises(ValueError, match="full"):
        Database(tmp_path / "new.db")
    assert (tmp_path / "new.db").exists()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_truncated_file_is_refused(tmp_path, share):
    path = filled(tmp_path / "profile.db")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    refused(path, "damaged")


def test_overwritten_pages_are_refused(tmp_path):
    path = filled(tmp_path / "profile.db")
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)
    refused(path, "damaged")


def test_text_that_is_none_is_refused(tmp_path):
    path = filled(tmp_path / "profile.db")
    connection = sqlite3.connect(path)
    with connection:
        changed = connection.execute("UPDATE measurement SET name = CAST(x'ff41' AS TEXT)").rowcount
    connection.close()
    assert changed
    refused(path, "damaged")


@pytest.mark.parametrize("table", ["environment", "measurement", "way"])
def test_a_table_that_was_made_otherwise_is_refused(tmp_path, table):
    """As where a byte of its definition is another: what is no key holds no number of an environment."""
    path = filled(tmp_path / "profile.db")
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'REAL', 'REAM') WHERE name = ?", (table,))
    connection.close()
    refused(path, "damaged", "move it away")


WRONG = ("x", b"\xff", -1, -1.5, float("inf"), 0)


@pytest.mark.parametrize("table", ["environment", "measurement", "way"])
def test_a_value_that_nobody_measured_is_told_with_its_file_or_harms_nobody(tmp_path, table):
    """In any column: what is read can be priced with, or it is said which file is damaged."""
    whole, path, told = filled(tmp_path / "whole.db", 3), tmp_path / "profile.db", 0
    Database(whole).add_ways(HERE, [Way("call", "triton", "", 1e-6)])
    with sqlite3.connect(whole) as connection:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[1] != "id"]
    connection.close()
    for column, value in itertools.product(columns, WRONG):
        shutil.copy(whole, path)
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", (value,))
        connection.close()
        try:
            database = Database(path)
            prices, ways = CostModel(parse("virtual:procs=2"), database.snapshot(HERE)), database.ways(HERE)
        except ValueError as error:
            told += 1
            assert str(path) in str(error) and "damaged" in str(error) and "\n" not in str(error), error
        else:
            assert all(isfinite(prices.seconds(row.key).seconds) for row in some(3).rows), (column, value)
            assert all(isfinite(way.seconds) and isinstance(way.call, str) for way in ways), (column, value)
    assert told


def test_path_that_cannot_be_opened_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere" / "profile.db"):
        with pytest.raises(ValueError, match="another path"):
            Database(path)


def test_empty_file_is_a_new_database(tmp_path):
    path = tmp_path / "profile.db"
    path.touch()
    Database(path).add(some(1))
    assert Database(path).snapshot(HERE) == some(1)
