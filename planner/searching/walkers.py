"""Walkers: forked processes that do Metropolis walks through plans in parallel, each at one temperature.

They do not know who chooses temperatures, nor what is done with the plans that they find.
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
    """A stretch of a walk: its first plan, its temperature as a share of that plan's time, and its number of proposals.

    The seed determines what it draws.
    """

    configs: dict[str, Config]
    heat: float
    num_proposals: int
    seed: int


class Walked(msgspec.Struct, frozen=True):
    """The plan with which a leg ended, and the best plans on its way."""

    configs: dict[str, Config]
    best: list[dict[str, Config]]
    num_proposals: int


class Walkers:
    """Walkers in `num_processes` processes, or in this one for 1; they find the same either way.

    pins      what all plans on their ways must have
    is_over   asked before each plan: once it is true all legs end
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
        self._members: list[Fork[Sequence[Leg], list[Walked]]] = []

    def __enter__(self) -> Walkers:
        for _ in range(self._num_processes if self._num_processes > 1 else 0):
            self._members.append(Fork(self._walked))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self._members:
            member.end(at_once=kind is not None)

    def walk(self, legs: Sequence[Leg]) -> list[Walked]:
        """Walk all legs; what each found, in their order."""
        if not self._members:
            return self._walked(legs)
        count = len(self._members)
        asked = [(member, member.ask(legs[n::count])) for n, member in enumerate(self._members)]
        answers = [member.answer(number) for member, number in asked]
        return [answers[n % count][n // count] for n in range(len(legs))]

    def _walked(self, legs: Sequence[Leg]) -> list[Walked]:
        return [self._walk(leg) for leg in legs]

    def _walk(self, leg: Leg) -> Walked:
        budget = Budget(proposals=leg.num_proposals, is_over=self._is_over)
        run = Run(self._evaluator, budget, random.Random(leg.seed), {})
        begin = self._evaluator.evaluate(run.lowering.plan(leg.configs))
        current = walk(run, self._moves, begin, 1.0, lambda left: leg.heat)
        best = [found.strategy.configs for found in run.finalists[:NUM_BEST]]
        return Walked(current.strategy.configs, best, run.num_proposals)
