"""Run by tests on several ranks: a castile command in which some ranks fail in their third step, in a given way.

failing_rank.py WAY RANKS MARK COMMAND...   RANKS are numbers with commas; MARK.rank is written when that rank fails
"""

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from castile.launch import execution
from castile.launch.__main__ import main
from castile.launch.ranks import this_world
from castile.runtime.backends import numpy as backend

way, ranks, mark, *words = sys.argv[1:]
rank = this_world().rank
TASK, STEP = "fc2.W", 3
Path(f"{mark}.pid.{rank}").write_text(str(os.getpid()))
calls = 0


def fail() -> None:
    global calls
    calls += 1
    if calls == STEP:
        Path(f"{mark}.{rank}").write_text(repr(time.time()))
        if way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("the kernel broke")


compute, feed = backend.Backend.compute, execution.Execution.feed


def failing_compute(self, task):
    action = compute(self, task)
    if not task.name.startswith(TASK):
        return action

    def run() -> None:
        fail()
        action()

    return run


def failing_feed(self, *args):
    fail()
    feed(self, *args)


if str(rank) in ranks.split(","):
    if way == "feed":
        execution.Execution.feed = failing_feed
    else:
        backend.Backend.compute = failing_compute
sys.exit(main(words))
