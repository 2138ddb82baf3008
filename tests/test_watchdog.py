"""The watchdog: of ranks that wait in any way one names those that do not answer, and the job ends when none comes."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.launch import models
from castile.planner import strategy as strategies
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.runtime import machine as machines
from castile.runtime import watchdog
from castile.runtime.comm.base import Aside
from castile.runtime.watchdog import Unanswered, Waits, Watchdog
from tests import homes
from tests.effort import rare
from tests.mpi import CHECKOUT, mpirun_apart

TELL_SECONDS, LIMIT_SECONDS, TICK_SECONDS = 10.0, 40.0, 0.3
# Than any rank of a job that fails by itself may be silent.
LONGER_SECONDS = 5.0
# What is told of a job that would save after all of its steps.
NOTHING = "nothing is saved yet: saves come after every 100000 "


class Office(Aside):
    """A rank's notes, which come at once, also to ranks that do not read them."""

    def __init__(self, boxes: list[dict[int, bytes]], rank: int) -> None:
        self.boxes, self.rank = boxes, rank
        self.hosts = tuple(f"host{n // 2}" for n in range(len(boxes)))

    def tell(self, note: bytes) -> None:
        for peer, box in enumerate(self.boxes):
            if peer != self.rank:
                box[self.rank] = note

    def received(self) -> dict[int, bytes]:
        found = dict(self.boxes[self.rank])
        self.boxes[self.rank].clear()
        return found


@dataclass
class Job:
    """Ranks by the clock of a test: waits[rank] are the ranks for which it waits, None for one that is stopped."""

    waits: list[set[int] | None]
    said: list[tuple[int, str]] = field(default_factory=list)
    ended: dict[int, str] = field(default_factory=dict)
    now: float = 100.0

    def __post_init__(self) -> None:
        boxes: list[dict[int, bytes]] = [{} for _ in self.waits]
        self.dogs = [
            Watchdog(Office(boxes, rank), 0.01, TELL_SECONDS, LIMIT_SECONDS, self.saying(rank))
            for rank in range(len(self.waits))
        ]

    def saying(self, rank: int) -> Callable[[str], None]:
        return lambda text: self.said.append((rank, text))

    def run(self, seconds: float, progress: Callable[[int], object] = lambda rank: 0) -> None:
        """Let time go by: each rank looks when it is due."""
        until = self.now + seconds
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(watchdog, "perf_counter", lambda: self.now)
            while self.now < until:
                self.now += TICK_SECONDS
                for rank, ranks in enumerate(self.waits):
                    if ranks is not None and rank not in self.ended and self.now >= self.dogs[rank].due:
                        self.look(rank, ranks, progress(rank))

    def look(self, rank: int, ranks: set[int], progress: object) -> None:
        try:
            self.dogs[rank].look(progress, lambda: Waits(ranks, f"step 7, task sum of rank {rank}"))
        except Unanswered as error:
            self.ended[rank] = str(error)


@st.composite
def stopped(draw: st.DrawFn) -> list[set[int] | None]:
    """Ranks of which some are stopped and the others wait, each for some others."""
    size = draw(st.integers(2, 6))
    still = draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 1))
    peers = [st.sets(st.sampled_from([n for n in range(size) if n != rank]), min_size=1) for rank in range(size)]
    return [None if rank in still else draw(peers[rank]) for rank in range(size)]


def named(text: str) -> list[int]:
    """The ranks that are said not to answer."""
    return [int(n) for n in re.findall(r"rank (\d+) on host\d", text.partition(" not answered")[0])]


@given(stopped())
def test_those_that_all_wait_for_in_the_end_are_named_and_end_the_job(waits: list[set[int] | None]) -> None:
    job, living = Job(waits), [rank for rank, ranks in enumerate(waits) if ranks is not None]
    still = sorted(set().union(*(ranks for ranks in waits if ranks is not None)) - set(living))
    job.run(TELL_SECONDS - 1)
    assert not job.said
    job.run(LIMIT_SECONDS - TELL_SECONDS - 1)
    ((rank, text),) = job.said
    assert rank == living[0] and not job.ended
    assert (named(text) == still) if still else "all wait for each other" in text
    assert f"step 7, task sum of rank {rank}" in text and re.search(r"ends if nothing goes on for another \d+ s", text)
    job.run(3)
    assert sorted(job.ended) == living and all(named(text) == still for text in job.ended.values())


@given(stopped(), st.floats(0.5, 0.9 * TELL_SECONDS))
def test_nothing_is_said_where_all_goes_on(waits: list[set[int] | None], every: float) -> None:
    """However long steps take, and whoever waits the while."""
    job = Job([ranks or set() for ranks in waits])
    job.run(3 * LIMIT_SECONDS, lambda rank: job.now // every)
    assert not job.said and not job.ended


def test_whoever_was_stopped_itself_has_not_waited() -> None:
    """A laptop that is shut, a job that is suspended: nobody is to blame when it goes on."""
    job = Job([{1}, {0}])
    job.run(1)
    job.now += 1e5
    job.run(1)
    assert not job.said and not job.ended


def test_a_step_that_takes_long_by_itself_may_keep_others_waiting_longer() -> None:
    job = Job([{1}, None])
    job.dogs[0] = Watchdog(Office([{}, {}], 0), 1000.0, tell=job.saying(0))
    job.run(10_000)
    assert not job.said and not job.ended


def test_who_goes_on_after_all_ends_nothing() -> None:
    """And who hangs again is told again."""
    job = Job([{1}, None])
    job.run(LIMIT_SECONDS - 2, lambda rank: "first")
    job.run(LIMIT_SECONDS - 2, lambda rank: "second")
    assert len(job.said) == 2 and not job.ended


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return homes.make(tmp_path_factory.mktemp("home"))


def ran(
    way: str, steps: int, folder: Path, home: dict[str, str], *more: str, num_ranks: int = 2
) -> tuple[int, str, float]:
    """Status, stderr, and seconds since rank 1 stopped in the third step of a training."""
    lowering = Lowering(models.parse("mlp").graph(), machines.local(num_ranks))
    plan, mark = folder / "plan.json", folder / "failed"
    plan.write_bytes(strategies.encode(seeds(lowering)["data_parallel"]))
    case = str(CHECKOUT / "tests" / "mpi_cases" / "failing_rank.py")
    words = ["train", "mlp", "--steps", str(steps), "--plan", str(plan), *more]
    status, _, err = mpirun_apart(num_ranks, case, way, "1", str(mark), *words, timeout=120, **home)
    return status, err, time.time() - float(Path(f"{mark}.1").read_text())


@pytest.mark.mpi
@pytest.mark.parametrize(("way", "steps", "where", "left"), [
    ("stop", 100_000, r"step 3, task \S.*", NOTHING),
    # The first of them holds all that is saved: those that are left make a checkpoint of it.
    ("stop writing", 3, "what ranks tell each other after step 3", r"with --resume the same .* from \S*step-\S*3"),
    *rare(("stop between", 100_000, "what ranks tell each other after step 3", NOTHING)),
])  # fmt: skip
def test_a_rank_that_is_stopped_is_named_and_ends_the_job(
    way: str, steps: int, where: str, left: str, home: dict[str, str], tmp_path: Path
) -> None:
    more = ["--checkpoint-every", "1"] if way == "stop writing" else []
    folder = ("--checkpoint", str(tmp_path / "run"))
    status, err, seconds = ran(way, steps, tmp_path, home, *folder, *more, num_ranks=3)
    host, waits = re.escape(socket.gethostname()), rf"and rank \d on \S+ waits in {where} \(a step should"
    sentence = rf"castile: rank 1 on {host} has not answered for \d+ s, {waits}.*far too slow"
    told = re.findall(sentence, err)
    assert status == 1 and len(told) == 2 and "Traceback" not in err, err
    assert err.count("; the job ends if nothing goes on for another") == 1
    assert re.search(f"and the job ends with it: {left}", err), err
    assert seconds < 60


@pytest.mark.mpi
def test_a_rank_that_writes_for_long_is_waited_for(home: dict[str, str], tmp_path: Path) -> None:
    more = ["--checkpoint", str(tmp_path / "run"), "--checkpoint-every", "1"]
    status, err, seconds = ran("write slowly", 3, tmp_path, home, *more)
    assert status == 0 and "has not answered" not in err, err
    assert seconds > LONGER_SECONDS


@pytest.mark.mpi
def test_a_rank_that_goes_on_in_time_is_told_of_and_ends_nothing(home: dict[str, str], tmp_path: Path) -> None:
    status, err, _ = ran("pause", 5, tmp_path, home)
    assert status == 0 and err.count("castile: rank 1 on") == 1 and "has not answered" in err, err
