"""Pareto fronts of time and memory: searches under several memory limits, and the plans that no other plan dominates.

They do not know how a search moves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product, takewhile

import msgspec

from castile.planner.choices.pins import Pins
from castile.planner.evaluation.budget import Budget
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.evaluation.frontier import Frontier, thinned
from castile.planner.evaluation.sizes import SIZES, variants
from castile.planner.search import Progress, budget_of, search
from castile.planner.searching.refinement import REFINEMENT_SHARE, with_updates_in_pieces
from castile.planner.searching.results import NoPlanFits, SearchResult, complete_plan
from castile.planner.strategy import ORDERS, Strategy

# How many memory limits, in a geometric series, lie between the memory of the smallest plan and that of the fastest.
NUM_LIMITS = 5
# A point of the front needs at least this share less memory than the one before.
GAIN = 0.02
# A plan that takes this many times as long as one on the front, and this many times its memory, is not tried with
# buckets, in other orders or with microbatches begun ahead: these gain less.
MOST_DISTANCE = 1.25


@dataclass(frozen=True)
class Point:
    """A plan of the front, as it was simulated, and the bytes of each processor's arena."""

    strategy: Strategy
    evaluated: Evaluated
    arena_bytes: tuple[int, ...]


def search_front(
    name: str,
    evaluator: Evaluator,
    budget: str | Budget = "",
    seed: int = 0,
    progress: Progress | None = None,
    start: Mapping[str, Strategy] | None = None,
    num_processes: int = 1,
    seeds: Sequence[str] | None = None,
    pins: Pins | None = None,
    sizes: Sequence[int] = SIZES,
    dropping: Sequence[tuple[str, ...]] = (),
) -> tuple[SearchResult, list[Point]]:
    """The result of `search` for the evaluator's objective, and the front from the fastest plan to the smallest.

    The budget is shared by searches for the fastest plan, for the smallest, and for the fastest within memory limits
    between the two. Each starts from the plans that those before it found. Plans of the front are then tried with
    buckets of all `sizes` and none, in every order, and with updates whole and in pieces.

    Parameters are those of `search`, which raises ValueError, and:
    dropping   sets of nodes: plans of the front are also tried with the nodes of each set recomputed
    """
    frontier: Frontier[Evaluated] = Frontier(evaluator.capacity)
    budget = budget_of(name, evaluator.lowering, budget)
    is_over, is_refined = budget.begun().is_over, budget.begun(1 + REFINEMENT_SHARE).is_over
    run_search = partial(
        search, name, seed=seed, frontier=frontier, num_processes=num_processes, seeds=seeds, pins=pins
    )
    series = _Series(run_search, budget, progress, start or {}, frontier)
    fastest = "time" if evaluator.lowering.mode == "train" else "latency"
    others = [objective for objective in ("memory", fastest) if objective != evaluator.objective]
    for objective in others:
        series.search(evaluator.remade(objective))
    for limit in takewhile(lambda _: not is_over(), _limits(frontier)):
        # Within a limit there may be no plan.
        with contextlib.suppress(ValueError):
            series.search(evaluator.remade(fastest, most_bytes=limit))
    result = series.search(evaluator)
    result = replace(result, num_proposals=series.num_proposals, elapsed_seconds=series.elapsed_seconds)
    known = (*frontier.points, result.evaluated, *result.seeds.values(), *result.finalists)
    for point in [one for one in known if not frontier.dominates_by(one, MOST_DISTANCE)]:
        for one in variants(evaluator, point.strategy, sizes, is_refined, ORDERS):
            frontier.add(one)
    for point in tuple(frontier.points):
        for one in () if is_refined() else with_updates_in_pieces(evaluator, point, sizes, pins):
            frontier.add(one)
    for point, recompute in product(tuple(frontier.points), dropping):
        if not is_refined():
            frontier.add(evaluator.evaluate(msgspec.structs.replace(point.strategy, recompute=recompute)))
    # So that refinement compares the result with all of the front.
    return replace(result, finalists=tuple(frontier.points)), _packed(evaluator, frontier, name, seed)


@dataclass
class _Series:
    """Searches one after another, each with an equal share of the budget.

    run_search   `search` with the arguments that all of them share
    start        plans from which each starts, in addition to those of the frontier
    """

    run_search: Callable[..., SearchResult]
    budget: Budget
    progress: Progress | None
    start: Mapping[str, Strategy]
    frontier: Frontier[Evaluated]
    number: int = 0
    num_proposals: int = 0
    elapsed_seconds: float = 0.0

    def search(self, evaluator: Evaluator) -> SearchResult:
        """The result of one more search, which also starts from the plans of the frontier."""
        first, count = self.number, NUM_LIMITS + 2
        self.number += 1

        def report(spent: float, best: Evaluated, num_new: int) -> None:
            if self.progress is not None:
                self.progress((first + spent) / count, best, num_new)

        front = {f"front {n + 1}": point.strategy for n, point in enumerate(self.frontier.thinned(GAIN))}
        share = self.budget.share(count)
        try:
            result = self.run_search(evaluator, share, progress=report, start={**self.start, **front})
        except NoPlanFits as error:
            self.num_proposals += error.num_proposals
            raise
        self.num_proposals += result.num_proposals
        self.elapsed_seconds += result.elapsed_seconds
        seeds = {label: seed for label, seed in result.seeds.items() if label not in front}
        return replace(result, seeds=seeds, equals="" if result.equals in front else result.equals)


def _limits(frontier: Frontier[Evaluated]) -> list[int]:
    """Memory limits, in bytes, between the smallest plan and the fastest, the tightest first."""
    if len(frontier.points) < 2:
        return []
    most, least = (max(frontier.points[n].peak_bytes) for n in (0, -1))
    return [round(least * (most / least) ** (n / (NUM_LIMITS + 1))) for n in range(1, NUM_LIMITS + 1)]


def front_of(points: Sequence[Point], result: SearchResult) -> list[Point]:
    """The plans among the points and the result that none dominates in seconds and bytes of the fullest arena, the
    fastest first.

    Of plans that need nearly the same memory only the fastest is kept, but the smallest of all always.
    """

    def nbytes(point: Point) -> int:
        return max(point.arena_bytes)

    every = [*points, Point(result.strategy, result.evaluated, result.arena_bytes)]
    ordered = sorted(every, key=lambda point: (point.evaluated.seconds, nbytes(point)))
    front = [one for n, one in enumerate(ordered) if all(nbytes(one) < nbytes(other) for other in ordered[:n])]
    return thinned(front, nbytes, GAIN)


def _packed(evaluator: Evaluator, frontier: Frontier[Evaluated], name: str, seed: int) -> list[Point]:
    """The points of the frontier whose arenas fit too."""
    points = []
    for found in frontier.thinned(GAIN):
        # It may have been evaluated with another memory limit.
        point = evaluator.evaluate(found.strategy)
        with contextlib.suppress(ValueError):
            arena = evaluator.pack(point.strategy)
            points.append(Point(complete_plan(evaluator, point, arena, name, seed), point, arena))
    return points
