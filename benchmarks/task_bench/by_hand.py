"""A pattern by hand in mpi4py: non-blocking messages, one for each pair of ranks and step.

It knows neither castile's runtime nor what is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from benchmarks.task_bench import kernel
from benchmarks.task_bench.patterns import Pattern, owner

Message = tuple[Callable[..., MPI.Request], np.ndarray, int]  # what begins it, its tokens, and the other rank


@dataclass(frozen=True)
class Step:
    """This rank's part of a step: messages that bring what it reads, tasks that need none of them, and the others."""

    messages: tuple[Message, ...]
    early: tuple[Callable[[], Any], ...]
    late: tuple[Callable[[], Any], ...]


class ByHand:
    """A pattern, ready to run by all ranks of a communicator."""

    def __init__(self, pattern: Pattern, comm: MPI.Comm) -> None:
        self.pattern = pattern
        self._comm, self._rank, self._size = comm, comm.Get_rank(), comm.Get_size()
        self._order = np.zeros(kernel.ORDER, np.int64)
        self._tokens = np.zeros((pattern.num_steps, pattern.width, kernel.TOKEN), np.int64)
        self._steps = [self._step(number) for number in range(pattern.num_steps)]
        self._num_runs = 0

    def run(self, num_turns: int) -> None:
        """All tasks once, each of so many turns. Raises WrongInput where one got another token than it reads."""
        self._order[:] = self._num_runs * self.pattern.num_steps, num_turns
        self._num_runs += 1
        for number, step in enumerate(self._steps):
            under_way = [begin(tokens, peer, number) for begin, tokens, peer in step.messages]
            for call in step.early:
                call()
            MPI.Request.Waitall(under_way)
            for call in step.late:
                call()

    def check(self) -> None:
        """Raises WrongInput where the last run did not end with the tokens of its last step."""
        stamp = self._num_runs * self.pattern.num_steps - 1
        for point in self._mine(self.pattern.num_steps - 1):
            if self._tokens[-1, point].tolist() != [stamp, point]:
                raise kernel.WrongInput(f"the run ended with {self._tokens[-1, point].tolist()} at point {point}")

    def _mine(self, step: int, rank: int | None = None) -> list[int]:
        rank = self._rank if rank is None else rank
        return [p for p in self.pattern.points(step) if owner(p, self.pattern.width, self._size) == rank]

    def _step(self, number: int) -> Step:
        mine = self._mine(number)
        local = [owner(p, self.pattern.width, self._size) == self._rank for p in range(self.pattern.width)]
        early = [p for p in mine if all(local[q] for q in self.pattern.reads(number, p))]
        late = [p for p in mine if p not in early]
        return Step(
            tuple(self._messages(number)),
            tuple(self._task(number, p) for p in early),
            tuple(self._task(number, p) for p in late),
        )

    def _task(self, step: int, point: int) -> Callable[[], Any]:
        inputs = [(self._tokens[step - 1, p], p) for p in self.pattern.reads(step, point)]
        return kernel.bind(self._order, self._tokens[step, point], point, inputs)

    def _messages(self, step: int) -> list[Message]:
        """What comes for this step's tasks and what goes to others': runs of tokens, so that nothing is packed."""
        messages: list[Message] = []
        for peer in range(self._size):
            if peer != self._rank and step > 0:
                messages += [(self._comm.Irecv, tokens, peer) for tokens in self._run(step, peer, self._rank)]
                messages += [(self._comm.Isend, tokens, peer) for tokens in self._run(step, self._rank, peer)]
        return messages

    def _run(self, step: int, source: int, destination: int) -> list[np.ndarray]:
        """The tokens of the step before on one rank, from the first to the last that another rank reads; or none."""
        there = set(self._mine(step - 1, source))
        wanted = sorted(there & {q for p in self._mine(step, destination) for q in self.pattern.reads(step, p)})
        return [self._tokens[step - 1, wanted[0] : wanted[-1] + 1]] if wanted else []
