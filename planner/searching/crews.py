"""Crews: processes that walk through plans side by side, each a Metropolis walk at one temperature.

They do not know who chooses temperatures, nor what is done with what they find.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from types import TracebackType

import msgspec

from castile.planner.choices.moves import Moves
from castile.planner.choices.pins import Pins
from castile.planner.choices.spaces import Spaces
from castile.planner.search import Budget, Evaluator, Run
from castile.planner.searching.walks import walk
from castile.planner.strategy import Config

# The best plans of a leg that are told.
NUM_BEST = 3


class Leg(msgspec.Struct, frozen=True):
    """A part of a walk: from where, how hot (of the plan's own time), and how many proposals; fixed by a seed."""

    configs: dict[str, Config]
    heat: float
    num_proposals: int
    seed: int


class Walked(msgspec.Struct, frozen=True):
    """Where a leg ended, and the best plans that it met."""

    configs: dict[str, Config]
    best: list[dict[str, Config]]
    num_proposals: int


class Crew:
    """Walkers in so many processes, or in this one; what they find is the same.

    Processes begin as copies of this one, so that they know what the evaluator knows; they hear and tell JSON.
    pins      what all plans that they walk through must have
    is_over   asked before each plan: once it says so legs end
    """

    def __init__(
        self,
        evaluator: Evaluator,
        num_processes: int,
        pins: Pins | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._evaluator, self._is_over = evaluator, is_over
        self._moves = Moves.of(evaluator.lowering, Spaces(evaluator.lowering, evaluator.cost, pins))
        self._num_processes = num_processes
        self._members: list[tuple[Connection, multiprocessing.process.BaseProcess]] = []

    def __enter__(self) -> Crew:
        context = multiprocessing.get_context("fork")
        for _ in range(self._num_processes if self._num_processes > 1 else 0):
            ours, theirs = context.Pipe()
            member = context.Process(target=self._serve, args=(ours, theirs), daemon=True)
            member.start()
            theirs.close()
            self._members.append((ours, member))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection, member in self._members:
            connection.close()
            if kind is not None:
                member.terminate()
            member.join()

    def walk(self, legs: Sequence[Leg]) -> list[Walked]:
        """What became of each leg, in their order."""
        if not self._members:
            return [self._walk(leg) for leg in legs]
        shares = [legs[n :: len(self._members)] for n in range(len(self._members))]
        for (connection, _), share in zip(self._members, shares, strict=True):
            with contextlib.suppress(ConnectionError):
                connection.send_bytes(msgspec.json.encode(share))
        told = [self._heard(connection, share) for (connection, _), share in zip(self._members, shares, strict=True)]
        return [told[n % len(told)][n // len(told)] for n in range(len(legs))]

    def _heard(self, connection: Connection, share: Sequence[Leg]) -> list[Walked]:
        """What a process tells of its legs; they are walked here where it is gone, as where memory ran out."""
        try:
            return msgspec.json.decode(connection.recv_bytes(), type=list[Walked])
        except (EOFError, ConnectionError):
            return [self._walk(leg) for leg in share]

    def _serve(self, others: Connection, connection: Connection) -> None:
        """The life of a process: until no more legs come."""
        # As long as a copy of the other end is open, here or with those that began later, the end is not heard.
        for other in (others, *(earlier for earlier, _ in self._members)):
            other.close()
        # The one that asks may be killed while this walks, and Ctrl-C is for all: it is the one that tells of it.
        with contextlib.suppress(EOFError, ConnectionError, KeyboardInterrupt):
            while True:
                legs = msgspec.json.decode(connection.recv_bytes(), type=list[Leg])
                connection.send_bytes(msgspec.json.encode([self._walk(leg) for leg in legs]))

    def _walk(self, leg: Leg) -> Walked:
        budget = Budget(proposals=leg.num_proposals, is_over=self._is_over)
        run = Run(self._evaluator, budget, random.Random(leg.seed), {})
        begin = self._evaluator.evaluate(run.lowering.plan(leg.configs))
        current = walk(run, self._moves, begin, 1.0, lambda left: leg.heat)
        best = [found.strategy.configs for found in run.finalists[:NUM_BEST]]
        return Walked(current.strategy.configs, best, run.num_proposals)
