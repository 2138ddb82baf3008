"""Walkers: forked processes that make Metropolis walks through plans in parallel, each walk at one temperature.

They do not know how temperatures are chosen, nor what is done with the plans that they find.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import TracebackType

import msgspec

from castile.planner.choices.moves import Moves
from castile.planner.choices.pins import Pins
from castile.planner.choices.spaces import Spaces
from castile.planner.search import Budget, Evaluator, Run
from castile.planner.searching.forks import Fork
from castile.planner.searching.walks import walk
from castile.planner.strategy import Config

# How many of its best plans a leg reports.
NUM_BEST = 3


class Leg(msgspec.Struct, frozen=True):
    """A stretch of a walk.

    configs       of the plan with which it starts
    temperature   as a share of a plan's time
    seed          of its random draws
    """

    configs: dict[str, Config]
    temperature: float
    num_proposals: int
    seed: int


class LegResult(msgspec.Struct, frozen=True):
    """The plan with which a leg ended, the best plans along it, and the number of its proposals."""

    configs: dict[str, Config]
    best: list[dict[str, Config]]
    num_proposals: int


class Walkers:
    """Walkers in `num_processes` processes, or in this one for 1. What they find does not depend on how many.

    pins      of all plans
    is_over   asked before each plan: once true, all legs end
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
        self._forks: list[Fork[Sequence[Leg], list[LegResult]]] = []

    def __enter__(self) -> Walkers:
        for _ in range(self._num_processes if self._num_processes > 1 else 0):
            self._forks.append(Fork(self._walk_all))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fork in self._forks:
            fork.end(at_once=kind is not None)

    def walk(self, legs: Sequence[Leg]) -> list[LegResult]:
        """Walk all legs; return their results, in the same order."""
        if not self._forks:
            return self._walk_all(legs)
        count = len(self._forks)
        asked = [(fork, fork.ask(legs[n::count])) for n, fork in enumerate(self._forks)]
        answers = [fork.answer(number) for fork, number in asked]
        return [answers[n % count][n // count] for n in range(len(legs))]

    def _walk_all(self, legs: Sequence[Leg]) -> list[LegResult]:
        return [self._walk(leg) for leg in legs]

    def _walk(self, leg: Leg) -> LegResult:
        budget = Budget(proposals=leg.num_proposals, is_over=self._is_over)
        run = Run(self._evaluator, budget, random.Random(leg.seed), {})
        start = self._evaluator.evaluate(run.lowering.plan(leg.configs))
        current = walk(run, self._moves, start, 1.0, lambda left: leg.temperature)
        best = [found.strategy.configs for found in run.finalists[:NUM_BEST]]
        return LegResult(current.strategy.configs, best, run.num_proposals)
