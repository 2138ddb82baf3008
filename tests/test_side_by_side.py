"""Processes side by side: answers in the order of the questions, a new one for each that dies, none left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from castile.kernels import worker_pool

DOUBLES = """
import os, sys
from castile.kernels import worker_pool
def answer(question):
    if question == "die":
        os._exit(1)
    return os.getpid() if question == "who" else 2 * question
worker_pool.serve(answer)
"""


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "doubles.py").write_text(DOUBLES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return ["doubles"]


@pytest.mark.parametrize("num_processes", [1, 3])
def test_answers_come_in_the_order_of_the_questions(num_processes: int, words: list[str]) -> None:
    with worker_pool.worker_pool(words, num_processes) as ask:
        assert list(ask(range(40))) == [2 * n for n in range(40)]
        assert len(set(ask(["who"] * 40))) <= num_processes, "asked again, the same answer"


def test_only_the_question_that_kills_is_left_without_an_answer(words: list[str]) -> None:
    with worker_pool.worker_pool(words, 2) as ask:
        assert list(ask([1, "die", 2, "die", "die", 3])) == [2, None, 4, None, None, 6]


def test_who_asks_no_more_leaves_no_process_behind(words: list[str]) -> None:
    with pytest.raises(KeyboardInterrupt), worker_pool.worker_pool(words, 2) as ask:
        answers = ask(["who"] * 1000)
        some = {next(answers) for _ in range(4)}
        raise KeyboardInterrupt
    for pid in some:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_processes_end_with_one_that_is_killed(words: list[str]) -> None:
    program = (
        "from castile.kernels import worker_pool\n"
        "with worker_pool.worker_pool(['doubles'], 1) as ask:\n"
        "    print(*ask(['who']), flush=True)\n"
        "    input()\n"
    )
    asks = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert asks.stdout is not None
    pid = int(asks.stdout.readline())
    asks.send_signal(signal.SIGKILL)
    asks.communicate()
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]:
            return
        time.sleep(0.1)
    raise AssertionError("it goes on")
