"""A pattern in Dask, with its scheduler of threads: as quick as any of its schedulers on one host.

It does not know what is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.task_bench import kernel
from benchmarks.task_bench.patterns import Pattern


def is_installed() -> bool:
    return find_spec("dask") is not None


class OnDask:
    """A pattern, ready to run by so many threads of this process."""

    def __init__(self, pattern: Pattern, num_threads: int) -> None:
        from dask.threaded import get

        self._get: Callable[..., Any] = get
        self.pattern, self._num_threads = pattern, num_threads
        self._order = np.zeros(kernel.ORDER, np.int64)
        self._graph = {
            _key(step, point): (self._task, point, reads, *[_key(step - 1, p) for p in reads])
            for step in range(pattern.num_steps)
            for point in pattern.points(step)
            for reads in [pattern.reads(step, point)]
        }
        self._num_runs = 0

    def run(self, num_turns: int) -> None:
        """All tasks once, each of so many turns. Raises WrongInput where one got another token than it reads."""
        self._order[:] = self._num_runs * self.pattern.num_steps, num_turns
        self._num_runs += 1
        # asked for the last step alone, Dask would leave out tasks that nothing there depends on
        self._tokens = dict(zip(self._graph, self._get(self._graph, list(self._graph), num_workers=self._num_threads)))

    def check(self) -> None:
        """Raises WrongInput where the last run did not end with the tokens of its last step."""
        stamp, last = self._num_runs * self.pattern.num_steps - 1, self.pattern.num_steps - 1
        for point in self.pattern.points(last):
            token = self._tokens[_key(last, point)]
            if token.tolist() != [stamp, point]:
                raise kernel.WrongInput(f"the run ended with {token.tolist()} at point {point}")

    def _task(self, point: int, reads: tuple[int, ...], *tokens: np.ndarray) -> np.ndarray:
        out = np.empty(kernel.TOKEN, np.int64)
        kernel.bind(self._order, out, point, list(zip(tokens, reads, strict=True)))()
        return out


def _key(step: int, point: int) -> str:
    """What Dask calls a task; a pair of numbers would also be found among a task's arguments."""
    return f"{step}[{point}]"
