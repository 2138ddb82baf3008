"""Signals that `castile launch` gets: whatever ends it ends its ranks too."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from castile.launch.checkpoints.folder import checkpoints, latest
from tests.effort import rare
from tests.mpi import CHECKOUT, is_running
from tests.runs import MLP

SLEEPER = """
import os, sys
from castile.launch import launch
from castile.launch.processes import mpirun
program = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
words = launch.mpirun_words(2, None, [sys.executable, "-c", program])
sys.exit(mpirun.run(words, os.environ | launch.variables()).status)
"""
PATIENCE_SECONDS = 20


def begun(program, scratch, words=(), **more):
    return subprocess.Popen(
        [sys.executable, "-c", program, *words],
        text=True,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT), "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        process_group=0,
        **more,
    )


@pytest.mark.mpi
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGKILL])
def test_a_signal_ends_the_ranks_too(number, tmp_path):
    """Ranks that have not met in MPI yet, and so see nothing of each other's end."""
    process = begun(SLEEPER, tmp_path)
    assert process.stdout is not None
    with process:
        pids = [int(process.stdout.readline()) for _ in range(2)]
        process.send_signal(number)
        status = process.wait(PATIENCE_SECONDS)
    assert status == 130 if number == signal.SIGINT else status != 0
    # Who is killed outright ends nothing any more: mpirun is told of it when that is gone.
    end = time.monotonic() + (PATIENCE_SECONDS if number == signal.SIGKILL else 0)
    while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
    # of what it kept nothing lies anywhere, killed or not
    assert not list(tmp_path.glob("castile*"))


@pytest.mark.mpi
@pytest.mark.parametrize("delay", [0.0, *rare(0.05, 0.2)])
def test_whoever_presses_ctrl_c_again_and_again_gets_its_status_and_no_traceback(delay, tmp_path):
    process = begun(SLEEPER, tmp_path, stderr=subprocess.PIPE)
    assert process.stdout is not None
    with process:
        for _ in range(2):
            process.stdout.readline()
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.01 + delay)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    # one that comes after all is said meets Python as it ends
    assert process.returncode in (130, -signal.SIGINT) and err == ""
    assert not list(tmp_path.glob("castile*"))


LEAVING = """
import os, sys
from castile.launch import launch
from castile.launch.processes import mpirun
program = '''
import sys, time
from castile.launch.processes import interrupts, ranks
def body():
    with interrupts.ending_with("half of it is kept"):
        print("begun", flush=True)
        time.sleep(60)
sys.exit(ranks.main_guard(body))
'''
words = launch.mpirun_words(1, None, [sys.executable, "-c", program])
sys.exit(mpirun.run(words, os.environ | launch.variables()).status)
"""


@pytest.mark.mpi
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_there_is_when_a_signal_ends_a_launch_is_told_once(number, tmp_path):
    """Whether the rank said it, or mpirun ended it before it could."""
    process = begun(LEAVING, tmp_path, stderr=subprocess.PIPE)
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 128 + number
    assert err == "castile: half of it is kept\n"


KILLED = """
import os, sys
from castile.launch import launch
from castile.launch.processes import mpirun
program = '''
import os, signal, sys, time
from castile.launch.processes import interrupts, ranks
def body():
    rank = ranks.this_world().rank
    with interrupts.ending_with("half of it is kept"):
        ranks.this_world().communicator.barrier()
        if rank == 1:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
sys.exit(ranks.main_guard(body))
'''
words = launch.mpirun_words(3, None, [sys.executable, "-c", program])
sys.exit(mpirun.run(words, os.environ | launch.variables()).status)
"""


@pytest.mark.mpi
def test_what_there_is_when_a_rank_is_killed_is_told_once(tmp_path):
    """Also where others, which mpirun then ends, say it themselves."""
    with begun(KILLED, tmp_path, stderr=subprocess.PIPE) as process:
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 128 + signal.SIGKILL
    assert err.count("half of it is kept") == 1 and err.count("rank 1 on ") == 1 and err.count("\n") <= 2


SAVING = """
import os, sys
from castile.launch import launch
from castile.launch.processes import mpirun
program = '''
import sys, time
from castile.launch.__main__ import main
from castile.launch.checkpoints.disk import Disk
write = Disk.write
def slowly(*args):
    time.sleep(0.04)
    return write(*args)
Disk.write = slowly
sys.exit(main(sys.argv[1:]))
'''
words = launch.mpirun_words(2, None, [sys.executable, "-c", program, *sys.argv[1:]])
sys.exit(mpirun.run(words, os.environ | launch.variables()).status)
"""


def family(pid):
    """The process and all that came of it."""
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [pid, *(one for child in children.split() for one in family(int(child)))]


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("number", "many"), [(signal.SIGINT, False), (signal.SIGTERM, True), *rare((signal.SIGTERM, False))]
)
def test_a_save_that_is_under_way_becomes_a_checkpoint_when_a_launch_is_to_end(number, many, tmp_path):
    """By Ctrl-C, by what a batch system sends to it, and by what that sends to every process of the job."""
    folder = tmp_path / "run"
    words = [*MLP, "--steps", "1000000", "--checkpoint", str(folder), "--checkpoint-every", "50"]
    with begun(SAVING, tmp_path, words, stderr=subprocess.PIPE) as process:
        while not checkpoints(folder) or not (parts := list(folder.glob("*.part"))):
            assert process.poll() is None
            time.sleep(0.01)
        # the first rank has begun to write: the others are about to
        time.sleep(0.2)
        for pid in family(process.pid) if many else [process.pid]:
            os.kill(pid, number)
        out, err = process.communicate(timeout=4 * PATIENCE_SECONDS)
    found = latest(folder)
    assert found is not None and not found.warnings and not list(folder.glob("*.part"))
    if number == signal.SIGINT:
        assert process.returncode == 130 and found.path.name == parts[0].stem
        left = f"with --resume the same command goes on from {found.path}"
        assert re.search(rf"^castile: ended after step \d+: {left}$", err, re.MULTILINE)
    else:
        # there was time for the latest state too
        assert process.returncode == 0 and found.path.name > parts[0].stem, err
        # and not that which mpirun passes on in its place
        assert f"stopped by {number.name} after step" in out


TALKING = """
import os, sys
from castile.launch import launch
from castile.launch.processes import mpirun
program = "import sys, time\\nfor n in range(10**6): print('line', n, flush=True); time.sleep(0.001)"
words = launch.mpirun_words(2, None, [sys.executable, "-c", program])
sys.exit(mpirun.run(words, os.environ | launch.variables()).status)
"""


@pytest.mark.mpi
def test_a_launch_whose_output_nobody_reads_any_more_ends_as_any_program(tmp_path):
    with begun(TALKING, tmp_path, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE_SECONDS) == 128 + signal.SIGPIPE
        assert process.stderr.read() == ""
