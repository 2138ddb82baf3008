"""Restarts: a job that lost a rank or a host starts again, how often and where, and goes on as if it had not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from castile.launch import launch
from castile.launch.__main__ import main
from castile.launch.processes import hostfile, mpirun
from castile.launch.processes.mpirun import End
from tests import standing
from tests.mpi import CHECKOUT
from tests.runs import MLP, losses

COMMAND = ("train", "mlp", "--checkpoint", "run", "--resume")
ENDS = st.builds(
    End,
    status=st.sampled_from([1, 137]),
    failed=st.just(True),
    left=st.sampled_from(["", "nothing yet", "step-2", "step-4"]),
)


def run_with(ends: Iterator[End], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, list[Sequence[str]]]:
    """The status of a launch whose jobs end so, and the command line of each."""
    started: list[Sequence[str]] = []

    def ended(words: Sequence[str], environment: dict[str, str]) -> End:
        started.append(words)
        return next(ends)

    with monkeypatch.context() as m:
        m.setattr(mpirun, "run", ended)
        m.setattr(launch, "PAUSE_SECONDS", 0)
        return main(["launch", *words, *COMMAND]), started


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    failures=st.lists(ENDS, max_size=8),
    last=st.sampled_from([End(0), End(2), End(143), End(130)]),
    most=st.integers(0, 3),
)
def test_a_job_is_started_again_as_long_as_newer_checkpoints_come(
    failures: list[End], last: End, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given up when it has failed once more than so often with nothing but old words; else its own end is its."""
    pytest.importorskip("mpi4py")
    status, started = run_with(iter([*failures, last]), monkeypatch, "-n", "2", "--restarts", str(most))
    old, given_up = 0, None
    for number, end in enumerate(failures):
        is_news = end.left and end.left not in [before.left for before in failures[:number]]
        old = 1 if is_news else old + 1
        if old > most:
            given_up = number
            break
    if given_up is None:
        assert (status, len(started)) == (last.status, len(failures) + 1)
    else:
        assert (status, len(started)) == (failures[given_up].status, given_up + 1)
    assert len(set(map(tuple, started))) == 1


def test_hosts_that_are_lost_take_no_part_in_the_next_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mpi4py")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setattr(hostfile, "check_apart", lambda hosts: None)
    path, seen = tmp_path / "hosts", []
    path.write_text("a slots=2\nb.cluster slots=2\nc\n")
    lost = [End(1, True, ("b",), "step-2"), End(1, True, (), "step-4"), End(1, True, ("a", "c"), "step-6")]

    def ends() -> Iterator[End]:
        yield from lost

    real = launch.mpirun_words

    def words(num_ranks: int, hosts: Path, program: Sequence[str]) -> list[str]:
        seen.append((num_ranks, hostfile.slots(hosts)))
        return real(num_ranks, hosts, program)

    monkeypatch.setattr(launch, "mpirun_words", words)
    status, started = run_with(ends(), monkeypatch, "-n", "4", "--hostfile", str(path), "--restarts", "1")
    assert seen == [(4, {"a": 2, "b.cluster": 2, "c": 1}), (3, {"a": 2, "c": 1})]
    # with no host left the job ends as it did
    assert (status, len(started)) == (1, 3) and started[1] == started[2] != started[0]
    assert "restart 1 of 1, on 3 ranks" in capsys.readouterr().err


@given(names=st.lists(st.sampled_from(["a", "b.x", "10.0.0.1", "10.0.0.2"]), unique=True))
def test_a_host_is_known_with_and_without_its_domain_and_an_address_as_it_is(names: list[str]) -> None:
    found = {"a.y": 1, "b": 2, "10.0.0.1": 3, "10.0.0.2": 4}
    gone = {{"a": "a.y", "b.x": "b"}.get(name, name) for name in names}
    assert hostfile.without(found, names) == {name: count for name, count in found.items() if name not in gone}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--restarts -1 train mlp --checkpoint run --resume", "--restarts -1: a job is restarted 0 times or more"),
        ("--restarts 1 train mlp --checkpoint run", "give `train ... --checkpoint DIR --resume`"),
    ],
)
def test_restarts_that_could_not_go_on_are_refused(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "-n", "2", *words.split()]) == 2
    assert told in capsys.readouterr().err


# Rank 1 is killed at the 200th sample of each epoch for which there is a file, which goes.
DYING = """
import os, signal
from pathlib import Path
import numpy as np

def samples(seed, epoch):
    random = np.random.default_rng((seed, epoch))
    for index, label in enumerate(random.integers(0, 10, 320)):
        path = Path(__file__).with_name(f"kill-{epoch}")
        if index == 200 and os.environ["OMPI_COMM_WORLD_RANK"] == "1" and path.exists():
            path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        yield {"image": random.normal(label, 1.0, (1, 8, 8)).astype("float32"), "label": label}
"""


@pytest.mark.mpi
def test_a_training_whose_ranks_are_killed_ends_as_if_they_had_not_been(home: dict[str, str], tmp_path: Path) -> None:
    """Killed twice, the second time beyond a newer checkpoint than the first time, and restarted by one restart."""
    (tmp_path / "samples.py").write_text(DYING)

    def words(name: str) -> list[str]:
        how = [*MLP, "--data", f"iterator:file={tmp_path / 'samples.py'}", "--batch", "20", "--steps", "48"]
        files = ["--checkpoint", str(tmp_path / name), "--metrics", str(tmp_path / f"{name}.jsonl")]
        return [*how, *files, "--checkpoint-every", "4", "--resume"]

    status, _, err = standing.run(2, "-m", "castile", *words("whole"), **home)
    assert status == 0, err
    for epoch in (1, 2):
        (tmp_path / f"kill-{epoch}").touch()
    ended = subprocess.run(
        [sys.executable, "-m", "castile", "launch", "-n", "2", "--restarts", "1", *words("broken")],
        env={**os.environ, **home, "PYTHONPATH": str(CHECKOUT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = losses(tmp_path / "broken.jsonl")
    assert found == losses(tmp_path / "whole.jsonl") and len(found) == 48
    assert ended.stderr.count("castile: restart 1 of 1, on 2 ranks\n") == 2 == ended.stderr.count("ended by SIGKILL")
