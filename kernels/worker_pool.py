"""A pool of worker processes that answer lines with lines, for work that holds Python's lock, such as compiling.

Workers end with the process that asks them, however it ends. It does not know what is asked.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any


@contextmanager
def worker_pool(words: Sequence[str], num_processes: int) -> Iterator[Callable[[Iterable[Any]], Iterator[Any]]]:
    """Start so many of `python -m *words`, each of which is to `serve`; gives what asks them.

    That takes questions and yields answers in their order, both of JSON's kinds; None of a process that dies of its
    question, in whose place another comes.
    """
    idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
    started = [_start(words) for _ in range(num_processes)]
    for process in started:
        idle.put(process)
    is_open = True

    def ask(question: Any) -> Any:
        process = idle.get()
        line = _answer(process, question)
        if not line and is_open:
            process = _start(words)
            started.append(process)
        idle.put(process)
        return json.loads(line) if line else None

    pool = ThreadPoolExecutor(num_processes)
    try:
        yield lambda questions: pool.map(ask, questions)
    finally:
        is_open = False
        for process in started:
            process.kill()
        pool.shutdown(cancel_futures=True)
        for process in started:
            process.kill()
            process.communicate()


def _start(words: Sequence[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-m", *words], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    )


def _answer(process: subprocess.Popen[str], question: Any) -> str:
    """A line, "" where it is dead."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        return process.stdout.readline()
    except OSError:
        return ""


def serve(answer: Callable[[Any], Any]) -> None:
    """Answer each line of standard input, until there is none."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
