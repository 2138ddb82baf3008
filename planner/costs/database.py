"""The profile database: measurements of many environments in one SQLite file, shared by runs.

It does not know how measurements are made or used; it takes snapshots in and gives snapshots out. Beside them it holds
what each way to run a kernel call took, where there are several.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path

import msgspec

from castile.planner.costs.snapshot import Environment, Measured, Snapshot, with_rows
from castile.runtime.task import CostKey

SCHEMA = 3
# "cast" in ASCII, where SQLite keeps the number of the application that a file belongs to.
APPLICATION = 0x63617374
WAIT_SECONDS = 30.0

_TABLES = (
    """CREATE TABLE environment (
        id INTEGER PRIMARY KEY, device TEXT NOT NULL, threads INTEGER NOT NULL, active_ranks INTEGER NOT NULL,
        kernels TEXT NOT NULL, libraries TEXT NOT NULL, overhead_seconds REAL NOT NULL,
        UNIQUE (device, threads, active_ranks, kernels, libraries))""",
    """CREATE TABLE measurement (
        environment INTEGER NOT NULL REFERENCES environment, name TEXT NOT NULL, shapes TEXT NOT NULL,
        dtype TEXT NOT NULL, flops INTEGER NOT NULL, nbytes INTEGER NOT NULL, link TEXT NOT NULL,
        members INTEGER NOT NULL, seconds REAL NOT NULL CHECK (seconds > 0), spread_seconds REAL NOT NULL,
        count INTEGER NOT NULL, measured_at REAL NOT NULL,
        PRIMARY KEY (environment, name, shapes, dtype, flops, nbytes, link, members)) WITHOUT ROWID""",
    # Schema 2. Neither neighbours nor threads of the host change which way is fastest on a device.
    """CREATE TABLE way (
        device TEXT NOT NULL, kernels TEXT NOT NULL, libraries TEXT NOT NULL, call TEXT NOT NULL, form TEXT NOT NULL,
        setting TEXT NOT NULL, seconds REAL NOT NULL CHECK (seconds > 0), measured_at REAL NOT NULL,
        PRIMARY KEY (device, kernels, libraries, call, form, setting)) WITHOUT ROWID""",
    # Schema 3.
    """CREATE TABLE meeting (
        environment INTEGER PRIMARY KEY REFERENCES environment, seconds REAL NOT NULL, count INTEGER NOT NULL)""",
)
# How many of the tables a file of each schema has.
_NUM_TABLES = {0: 0, 1: 2, 2: 3, SCHEMA: len(_TABLES)}
_FIND = """SELECT id, overhead_seconds FROM environment
    WHERE device = ? AND threads = ? AND active_ranks = ? AND kernels = ? AND libraries = ?"""


class Way(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a kernel call took with one form and setting; `call` names the kernel, and its operands without their data.

    Both texts are those of the kernels' own.
    """

    call: str
    form: str
    setting: str
    seconds: float

    def __post_init__(self) -> None:
        if not (isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"{self.form} {self.setting} of {self.call} took {self.seconds} seconds; "
                             "a failed measurement is not a choice")  # fmt: skip


class Database:
    """A profile database file, made if it is not there; every call is a transaction, so nothing is half written.

    Several processes may read and write at once. Raises ValueError in one sentence for a file that is damaged, belongs
    to another program or has a newer schema; such a file is left as it is.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        _refuse_foreign(self.path)
        was_there = self.path.exists()
        with self._connection() as connection, self._nothing_left(was_there):
            if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise sqlite3.DatabaseError("its pages do not fit together")
            _create(connection)
            if _tables(connection) != {" ".join(table.split()) for table in _TABLES}:
                raise sqlite3.DatabaseError("its tables are not those that were made")
            # A log beside the file would be shared memory of one host, and homes are shared by many; files of an older
            # castile have one.
            connection.execute("PRAGMA journal_mode = DELETE")

    @contextmanager
    def _nothing_left(self, was_there: bool) -> Iterator[None]:
        """A block that makes the file; where the disk is full, what there is of it then is no database."""
        try:
            yield
        except sqlite3.OperationalError as error:
            # what another process may be making at the same time is not empty, or the disk is full for both
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL and not was_there and not self.path.stat().st_size:
                self.path.unlink()
            raise

    def add(self, snapshot: Snapshot) -> None:
        """Keep the snapshot's rows, each in place of an older one of its key and environment; all of them or none.

        A snapshot learned from what `snapshot` gave holds the older measurements already.
        """
        now = time.time()
        with self._connection() as connection, _transaction(connection):
            environment = _environment(connection, snapshot)
            connection.executemany(
                "INSERT OR REPLACE INTO measurement VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(environment, *_fields(row.key), row.seconds, row.spread_seconds, row.count, now)
                 for row in snapshot.rows],
            )  # fmt: skip
            met = (environment, snapshot.meeting_seconds, snapshot.num_meetings)
            connection.execute("INSERT OR REPLACE INTO meeting VALUES (?, ?, ?)", met)

    def snapshot(self, environment: Environment) -> Snapshot:
        """What was measured in that environment, and nothing else."""
        with self._connection() as connection:
            found = connection.execute(_FIND, _identity(environment)).fetchone()
            if found is None:
                return Snapshot(environment)
            rows = connection.execute(
                """SELECT name, shapes, dtype, flops, nbytes, link, members, seconds, spread_seconds, count
                FROM measurement WHERE environment = ?""", found[:1]).fetchall()  # fmt: skip
            met = connection.execute("SELECT seconds, count FROM meeting WHERE environment = ?", found[:1]).fetchone()
            beside = msgspec.convert((found[1], *(met or (0.0, 0))), tuple[float, float, int])
            return with_rows(Snapshot(environment, (), *beside), map(_measured, rows))

    def add_ways(self, environment: Environment, ways: Iterable[Way]) -> None:
        """Keep what ways to run kernel calls took, in place of all older ones of these calls; all of them or none."""
        now, where = time.time(), _device(environment)
        rows = [(*where, w.call, w.form, w.setting, w.seconds, now) for w in ways]
        with self._connection() as connection, _transaction(connection):
            connection.executemany(
                "DELETE FROM way WHERE device = ? AND kernels = ? AND libraries = ? AND call = ?",
                {row[:4] for row in rows},
            )
            connection.executemany("INSERT INTO way VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def ways(self, environment: Environment) -> tuple[Way, ...]:
        """What was timed on that device with these kernels and libraries; of each call the fastest first."""
        with self._connection() as connection:
            rows = connection.execute(
                """SELECT call, form, setting, seconds FROM way WHERE device = ? AND kernels = ? AND libraries = ?
                ORDER BY call, seconds, form, setting""", _device(environment)).fetchall()  # fmt: skip
            return tuple([msgspec.convert(dict(zip(Way.__struct_fields__, row, strict=True)), Way) for row in rows])

    def num_others(self, environment: Environment) -> int:
        """How many measurements `snapshot` leaves out because they were made in other environments."""
        with self._connection() as connection:
            found = connection.execute(_FIND, _identity(environment)).fetchone() or (-1,)
            query = "SELECT count(*) FROM measurement WHERE environment <> ?"
            return int(connection.execute(query, found[:1]).fetchone()[0])

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection in which SQLite's own errors, and values that nobody can have measured, become one sentence
        about the file."""
        try:
            connection = sqlite3.connect(self.path, timeout=WAIT_SECONDS, isolation_level=None)
            # SQLite's own way calls text that is none a mistake of the caller
            connection.text_factory = bytes.decode
            try:
                yield connection
            finally:
                connection.close()
        except sqlite3.OperationalError as error:
            raise ValueError(f"profile database {self.path}: {error}; choose another path or free this one") from error
        except (sqlite3.DatabaseError, ValueError, msgspec.ValidationError) as error:
            what = " ".join(str(error).split())
            raise ValueError(f"profile database {self.path} is damaged ({what}); "
                             "move it away, and a new one will be made and filled") from error  # fmt: skip


def _refuse_foreign(path: Path) -> None:
    """Look at the file's header alone: opening a file of another program could change it."""
    try:
        header = path.open("rb").read(100) if path.exists() else b""
    except OSError as error:
        raise ValueError(f"profile database {path}: {error.strerror}; choose another path") from error
    if not header:
        return
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise ValueError(f"{path} is no profile database, or a damaged one; move it away or choose another path")
    if int.from_bytes(header[68:72], "big") != APPLICATION:
        raise ValueError(f"{path} is a database of another program; choose another path")
    if (schema := int.from_bytes(header[60:64], "big")) not in _NUM_TABLES:
        raise ValueError(f"profile database {path} has schema {schema}, this castile reads up to {SCHEMA}; "
                         "choose another path, or the castile that made it")  # fmt: skip


def _create(connection: sqlite3.Connection) -> None:
    """Make the tables that are missing; one of an older schema keeps what it holds."""
    if _schema(connection) == SCHEMA:
        return
    with _transaction(connection):
        # Asked inside the transaction: another process may have made the tables just before.
        if (schema := _schema(connection)) != SCHEMA:
            for table in _TABLES[_NUM_TABLES[schema] :]:
                connection.execute(table)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {SCHEMA}")


def _tables(connection: sqlite3.Connection) -> set[str]:
    """How the tables that there are were made."""
    made = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table'").fetchall()
    return {" ".join(sql.split()) for (sql,) in made}


def _schema(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of what is written inside, or on an exception none of it; writers queue for their turn."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        # SQLite has done so itself where the disk is full
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _environment(connection: sqlite3.Connection, snapshot: Snapshot) -> int:
    """The number of the snapshot's environment, with its overhead brought up to date."""
    identity = _identity(snapshot.environment)
    connection.execute(
        """INSERT INTO environment (device, threads, active_ranks, kernels, libraries, overhead_seconds)
        VALUES (?, ?, ?, ?, ?, ?)
        ON CONFLICT DO UPDATE SET overhead_seconds = excluded.overhead_seconds""",
        (*identity, snapshot.overhead_seconds),
    )
    return int(connection.execute(_FIND, identity).fetchone()[0])


def _identity(environment: Environment) -> tuple[str, int, int, str, str]:
    e = environment
    return (e.device, e.threads, e.active_ranks, e.kernels, e.libraries)


def _device(environment: Environment) -> tuple[str, str, str]:
    return (environment.device, environment.kernels, environment.libraries)


def _measured(row: Sequence[object]) -> Measured:
    """A row as `snapshot` asks for it. Raises ValueError or msgspec.ValidationError for what can be none."""
    names, num_of_key = (*CostKey.__struct_fields__, *Measured.__struct_fields__[1:]), len(CostKey.__struct_fields__)
    values = list(zip(names, row, strict=True))
    return msgspec.convert({"key": dict(values[:num_of_key]), **dict(values[num_of_key:])}, Measured)


def _fields(key: CostKey) -> tuple[str, str, str, int, int, str, int]:
    return (key.name, key.shapes, key.dtype, key.flops, key.nbytes, key.link, key.members)
