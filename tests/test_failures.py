"""Failures: a rank that fails or dies ends the whole job soon, the first one tells why, and no measurement is lost."""

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from castile.launch import models
from castile.planner import strategy as strategies
from castile.planner.costs.database import Database
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.runtime import machine as machines
from tests import homes, standing
from tests.answers import answer
from tests.effort import rare
from tests.mpi import CHECKOUT, is_running, mpirun_apart

CASE = str(CHECKOUT / "tests" / "mpi_cases" / "failing_rank.py")
SECONDS = 2.0


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return homes.make(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def profile(tmp_path_factory, home):
    """A profile database that an undisturbed run has filled."""
    path = tmp_path_factory.mktemp("profile") / "profile.db"
    words = ["train", "mlp", "--steps", "2", "--budget", "5", "--profile", str(path), "--json"]
    status, _, err = standing.run(2, "-m", "castile", *words, **home)
    assert status == 0, err
    return path


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    lowering = Lowering(models.parse("mlp").graph(), machines.local(2))
    Path(path).write_bytes(strategies.encode(seeds(lowering)["data_parallel"]))
    return path


def rows(path):
    """Every measurement that the file holds."""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    found = connection.execute("SELECT * FROM measurement ORDER BY 1, 2, 3").fetchall()
    connection.close()
    return found


def run_failing(way, who, plan, mark, home, *more):
    """Status, stderr, and the seconds from the first failure to the job's end."""
    words = ["train", "mlp", "--steps", "100000", "--plan", str(plan), *more]
    status, _, err = mpirun_apart(2, CASE, way, who, str(mark), *words, **home)
    ended = time.time()
    failed = [float(path.read_text()) for path in mark.parent.glob(f"{mark.name}.[0-9]")]
    assert failed, err
    return status, err, ended - min(failed)


@pytest.mark.mpi
@pytest.mark.parametrize("who", ["0,1", *rare("1")])
def test_a_failing_task_ends_the_job_with_one_traceback(who, plan, profile, home, tmp_path):
    before = rows(profile)
    status, err, seconds = run_failing("raise", who, plan, tmp_path / "failed", home, "--profile", str(profile))
    assert status == 1, err
    assert seconds < SECONDS
    assert err.count("Traceback (most recent call last)") == 1 and err.count("RuntimeError: the kernel broke") == 1
    head = re.search(r"castile: rank (\d) of 2 on (\S+) failed\n", err)
    assert head is not None and head[2] == socket.gethostname() and head[1] in who
    note = re.search(r"^step (\d+), task (\S+), rank (\d)$", err, re.MULTILINE)
    assert note is not None, err
    assert note[1] == "3" and note[2].startswith("fc2.W") and note[3] == head[1]
    assert rows(profile) == before


@pytest.mark.mpi
def test_a_failure_between_steps_ends_the_job_too(plan, profile, home, tmp_path):
    status, err, seconds = run_failing("feed", "1", plan, tmp_path / "failed", home, "--profile", str(profile))
    assert status == 1 and seconds < SECONDS
    assert err.count("Traceback (most recent call last)") == 1 and "castile: rank 1 of 2 on " in err


def check_gone(folder):
    """No rank of the job that left its marks there is left."""
    pids = [int(path.read_text()) for path in folder.glob("failed.pid.*")]
    assert len(pids) == 2
    # mpirun may be gone a moment before its ranks are.
    deadline = time.time() + SECONDS
    while any(map(is_running, pids)) and time.time() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, pids))


@pytest.mark.mpi
def test_a_killed_rank_ends_the_job(plan, profile, home, tmp_path):
    before = rows(profile)
    status, err, seconds = run_failing("kill", "1", plan, tmp_path / "failed", home, "--profile", str(profile))
    assert status != 0 and seconds < SECONDS
    assert "Traceback" not in err
    check_gone(tmp_path)
    assert rows(profile) == before
    Database(profile)


LAUNCHED = """
import os, sys
from castile.launch import launch
from castile.launch.processes import mpirun
words = launch.mpirun_words(2, None, [sys.executable, *sys.argv[1:]])
sys.exit(mpirun.run(words, os.environ | launch.variables()).status)
"""


@pytest.mark.mpi
def test_who_launched_a_rank_that_is_killed_tells_which_and_what_there_is(plan, home, tmp_path):
    words = ["train", "mlp", "--plan", str(plan), "--checkpoint", str(tmp_path / "run"), "--resume"]

    def told(who):
        failing = [CASE, "kill", who, str(tmp_path / "failed"), *words, "--steps", "100000"]
        environment = {**os.environ, **home, "PYTHONPATH": str(CHECKOUT)}
        program = [sys.executable, "-c", LAUNCHED, *failing]
        ended = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
        check_gone(tmp_path)
        host = re.escape(socket.gethostname())
        sentence = rf"castile: rank {who} on {host} was ended by SIGKILL \(.*\), and the job with it: (.*)\n"
        found = re.fullmatch(sentence, homes.but_for_compiling(ended.stderr))
        assert ended.returncode == 128 + signal.SIGKILL and found is not None, ended.stderr
        return found[1]

    assert told("0").startswith("nothing is saved yet: saves come after every 100000 steps, ")
    status, _, err = standing.run(2, "-m", "castile", *words, "--steps", "2", **home)
    assert status == 0, err
    assert told("1") == f"with --resume the same command goes on from {tmp_path}/run/step-00000002"


DYING = """
import contextlib, os, signal, sys
from castile.launch.__main__ import main
from castile.planner.costs import database

real, begun = database._transaction, 0

@contextlib.contextmanager
def dying(connection):
    global begun
    with real(connection):
        yield
        begun += 1
        if begun == {number}:
            # Rows are written, but not yet committed.
            os.kill(os.getpid(), signal.SIGKILL)

database._transaction = dying
sys.exit(main(["profile", "mlp", "--profile", sys.argv[1]]))
"""


def test_a_profile_that_was_killed_is_taken_up_where_it_stopped(home, tmp_path, monkeypatch, capsys):
    path = tmp_path / "profile.db"
    again = ["profile", "mlp", "--profile", str(path)]
    environment = {**os.environ, **home, "PYTHONPATH": str(CHECKOUT)}
    # The first transaction makes the tables, the ninth would have kept the eighth key.
    died = subprocess.run([sys.executable, "-c", DYING.format(number=9), str(path)], env=environment)
    assert died.returncode == -signal.SIGKILL
    assert len(rows(path)) == 7

    for name, value in home.items():
        monkeypatch.setenv(name, value)
    resumed = answer(capsys, *again)
    assert resumed["num_new_keys"] == resumed["num_keys"] - 7 > 0
    assert len(rows(path)) == resumed["num_keys"]
    assert answer(capsys, *again)["num_new_keys"] == 0


FAILING = """
import sys, time
from castile.launch.processes import ranks

def body():
    world = ranks.this_world()
    assert world.size == 3 and world.local_rank == world.rank and world.host_index == 0
    world.communicator.barrier()
    {statement}
    world.communicator.barrier()
    time.sleep(30 * {sleeps})
    return 0

sys.exit(ranks.main_guard(body))
"""


@pytest.mark.mpi
def test_a_rank_that_fails_before_it_knows_its_place_does_not_wait():
    code = """
import os, sys, time
from castile.launch.processes import ranks

def body():
    if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        raise RuntimeError("boom")
    time.sleep(30)
    return ranks.this_world().rank

sys.exit(ranks.main_guard(body))
"""
    began = time.perf_counter()
    status, _, err = mpirun_apart(2, "-c", code)
    assert status == 1 and err.count("Traceback") == 1
    assert time.perf_counter() - began < 20


def failing(statement: str, sleeps: int = 0) -> tuple[int, str, str, float]:
    began = time.perf_counter()
    answer = mpirun_apart(3, "-c", FAILING.format(statement=statement, sleeps=sleeps))
    return *answer, time.perf_counter() - began


@pytest.mark.mpi
@pytest.mark.parametrize(
    "statement",
    ["if world.rank == 1: raise ranks.UserError('no such plan')", "raise ranks.UserError('no such plan')"],
)
def test_a_users_mistake_is_one_sentence_from_one_rank(statement):
    status, out, err, _ = failing(statement)
    assert (status, out) == (2, "")
    assert err.count("castile: no such plan\n") == 1 and "Traceback" not in err


@pytest.mark.mpi
@pytest.mark.parametrize("who", ["world.rank == 1", "True", *rare("world.rank >= 1")])
def test_a_fault_is_one_traceback_and_ends_the_job(who):
    status, _, err, _ = failing(f"if {who}: raise RuntimeError('boom')", sleeps=1)
    assert status == 1
    assert err.count("Traceback") == 1 and err.count("RuntimeError: boom") == 1
    assert " of 3 on " in err


@pytest.mark.mpi
def test_the_job_ends_soon_after_a_fault():
    code = "if world.rank == 2: print(time.time(), flush=True); raise RuntimeError('boom')"
    status, out, _, _ = failing(code, sleeps=1)
    assert status == 1
    assert time.time() - float(out) < 2


@pytest.mark.mpi
def test_an_exit_status_passes_through():
    assert failing("if world.rank == 1: sys.exit(7)")[0] == 7


@pytest.mark.mpi
def test_a_usage_error_is_told_once():
    status, _, err = mpirun_apart(2, "-m", "castile", "doctor", "--nonsense")
    assert status == 2
    assert err.count("--nonsense") == 1 and "Traceback" not in err


@pytest.mark.mpi
def test_help_and_an_unknown_command_are_told_once():
    status, out, _ = standing.run(3, "-m", "castile", "--help")
    assert status == 0 and out.count("usage: castile") == 1
    status, _, err = mpirun_apart(2, "-m", "castile", "docter")
    assert status == 2 and err.count("did you mean") == 1
