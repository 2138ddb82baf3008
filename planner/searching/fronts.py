"""Pareto fronts: searches under several limits of memory, for the plans that no other beats in both time and memory.

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
from castile.planner.search import Found, NoPlanFits, Progress, budget_of, finished, search
from castile.planner.searching.settling import SETTLING, pieced
from castile.planner.strategy import ORDERS, Strategy

# Limits between the memory of the smallest plan and that of the fastest, each so many times the one before.
NUM_LIMITS = 5
# A point of the front needs at least this share less memory than the one before.
GAIN = 0.02
# A plan that takes so many times as long as one on the front, and so many times its memory, is not tried with buckets,
# in other orders or with microbatches begun ahead: these gain less.
FARTHEST = 1.25


@dataclass(frozen=True)
class Point:
    """A plan of the front, what it is worth, and the bytes of each processor's arena."""

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
) -> tuple[Found, list[Point]]:
    """What `search` finds for the evaluator's objective, and the front from the fastest plan to the smallest.

    The budget is shared by searches for the fastest plan, for the smallest, and for the fastest within limits of memory
    between the two; each starts from what those before it found. The other parameters are those of `search`, which
    raises ValueError. Plans of the front are tried with buckets of all `sizes` and none, in every order, and with
    updates whole and in pieces.

    dropping   sets of nodes: plans of the front are also tried with the results of each recomputed
    """
    frontier: Frontier[Evaluated] = Frontier(evaluator.capacity)
    budget = budget_of(name, evaluator.lowering, budget)
    is_over, is_settled = budget.begun().is_over, budget.begun(1 + SETTLING).is_over
    look = partial(search, name, seed=seed, frontier=frontier, num_processes=num_processes, seeds=seeds, pins=pins)
    turns = _Turns(look, budget, progress, start or {}, frontier)
    fastest = "time" if evaluator.lowering.mode == "train" else "latency"
    others = [objective for objective in ("memory", fastest) if objective != evaluator.objective]
    for objective in others:
        turns.search(evaluator.turned(objective))
    for limit in takewhile(lambda _: not is_over(), _limits(frontier)):
        # Within a limit there may be no plan.
        with contextlib.suppress(ValueError):
            turns.search(evaluator.turned(fastest, most_bytes=limit))
    found = turns.search(evaluator)
    found = replace(found, num_proposals=turns.num_proposals, elapsed_seconds=turns.elapsed_seconds)
    known = (*frontier.points, found.evaluated, *found.seeds.values(), *found.finalists)
    for worth in [one for one in known if not frontier.leaves_behind(one, FARTHEST)]:
        for one in variants(evaluator, worth.strategy, sizes, is_settled, ORDERS):
            frontier.add(one)
    for worth in tuple(frontier.points):
        for one in () if is_settled() else pieced(evaluator, worth, sizes, pins):
            frontier.add(one)
    for worth, recompute in product(tuple(frontier.points), dropping):
        if not is_settled():
            frontier.add(evaluator.evaluate(msgspec.structs.replace(worth.strategy, recompute=recompute)))
    # So that settling what was found compares it with all of the front.
    return replace(found, finalists=tuple(frontier.points)), _packed(evaluator, frontier, name, seed)


@dataclass
class _Turns:
    """Searches one after another, each with its share of the budget.

    look    `search`, with all that each of them is given alike
    start   the plans that each begins with, beside those of the frontier
    """

    look: Callable[..., Found]
    budget: Budget
    progress: Progress | None
    start: Mapping[str, Strategy]
    frontier: Frontier[Evaluated]
    number: int = 0
    num_proposals: int = 0
    elapsed_seconds: float = 0.0

    def search(self, evaluator: Evaluator) -> Found:
        """One more search, from the plans that are kept."""
        first, count = self.number, NUM_LIMITS + 2
        self.number += 1

        def tell(spent: float, best: Evaluated, num_new: int) -> None:
            if self.progress is not None:
                self.progress((first + spent) / count, best, num_new)

        kept = {f"front {n + 1}": point.strategy for n, point in enumerate(self.frontier.thinned(GAIN))}
        share = self.budget.share(count)
        try:
            found = self.look(evaluator, share, progress=tell, start={**self.start, **kept})
        except NoPlanFits as error:
            self.num_proposals += error.num_proposals
            raise
        self.num_proposals += found.num_proposals
        self.elapsed_seconds += found.elapsed_seconds
        seeds = {label: worth for label, worth in found.seeds.items() if label not in kept}
        return replace(found, seeds=seeds, equals="" if found.equals in kept else found.equals)


def _limits(frontier: Frontier[Evaluated]) -> list[int]:
    """Bytes between those of the smallest plan and those of the fastest, from the tightest on."""
    if len(frontier.points) < 2:
        return []
    most, least = (max(frontier.points[n].peak_bytes) for n in (0, -1))
    return [round(least * (most / least) ** (n / (NUM_LIMITS + 1))) for n in range(1, NUM_LIMITS + 1)]


def front_of(points: Sequence[Point], found: Found) -> list[Point]:
    """The plans among these points and what was found that none beats in both seconds and bytes of the fullest arena,
    from the fastest on; of those that need nearly the same memory only the fastest, but always the smallest of all.
    """

    def nbytes(point: Point) -> int:
        return max(point.arena_bytes)

    every = [*points, Point(found.strategy, found.evaluated, found.arena_bytes)]
    ordered = sorted(every, key=lambda point: (point.evaluated.seconds, nbytes(point)))
    unbeaten = [one for n, one in enumerate(ordered) if all(nbytes(one) < nbytes(other) for other in ordered[:n])]
    return thinned(unbeaten, nbytes, GAIN)


def _packed(evaluator: Evaluator, frontier: Frontier[Evaluated], name: str, seed: int) -> list[Point]:
    """The points whose arenas fit too."""
    points = []
    for found in frontier.thinned(GAIN):
        # It may have been found within another limit of memory.
        worth = evaluator.evaluate(found.strategy)
        with contextlib.suppress(ValueError):
            arena = evaluator.pack(worth.strategy)
            points.append(Point(finished(evaluator, worth, arena, name, seed), worth, arena))
    return points
