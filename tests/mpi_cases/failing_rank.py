"""Run by tests on several ranks: a castile command in which some ranks fail in their third step, in a given way.

failing_rank.py WAY RANKS MARK COMMAND...   RANKS are numbers with commas; MARK.rank is written when that rank fails
"""

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from castile.launch.__main__ import main
from castile.launch.checkpoints import writer
from castile.launch.jobs import execution
from castile.launch.processes import stopping
from castile.launch.processes.ranks import this_world
from castile.runtime import runner, watchdog
from castile.runtime.backends import numpy as backend

way, ranks, mark, *words = sys.argv[1:]
rank = this_world().rank
TASK, STEP = "fc2.W", 3
# Who waits is to say so soon.
TELL_SECONDS, SLOW_SECONDS = 0.5, 8.0
# However late a rank that goes on comes to that, on cores that others use.
LIMIT_SECONDS = 60.0 if way == "pause" else 5.0
# Ranks ask each other after every step whether to stop.
if way == "stop between":
    stopping.ROUND_SECONDS = 0


def tell(text: str) -> None:
    """Tell the user; and who pauses goes on once it is told of."""
    watchdog.say(text)
    for paused in ranks.split(",") if way == "pause" else ():
        os.kill(int(Path(f"{mark}.pid.{paused}").read_text()), signal.SIGCONT)


runner.Watchdog = partial(runner.Watchdog, tell_seconds=TELL_SECONDS, limit_seconds=LIMIT_SECONDS, tell=tell)
Path(f"{mark}.pid.{rank}").write_text(str(os.getpid()))
calls = 0


def fail() -> None:
    global calls
    calls += 1
    if calls == STEP:
        Path(f"{mark}.{rank}").write_text(repr(time.time()))
        if way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "write slowly":
            time.sleep(SLOW_SECONDS)
            return
        if way in ("stop", "stop between", "stop writing", "pause"):
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        raise RuntimeError("the kernel broke")


compute, feed, after = backend.Backend.compute, execution.Execution.feed, stopping.Stopping.after
write = writer.write_share


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


def failing_after(self, step):
    fail()
    return after(self, step)


def failing_write(*args):
    fail()
    return write(*args)


if str(rank) in ranks.split(","):
    if way == "feed":
        execution.Execution.feed = failing_feed
    elif way == "stop between":
        stopping.Stopping.after = failing_after
    elif way in ("stop writing", "write slowly"):
        writer.write_share = failing_write
    else:
        backend.Backend.compute = failing_compute
sys.exit(main(words))
