"""Subsets of processors: a plan may leave some of a machine's processors idle, which is faster where links are slow or
a step has little work.

Known plans on fewer processors split samples only, and walks, which change a few layers at a time, seldom move all of a
network off a node or off half of one. It does not know how a search moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby

from castile.planner.bounds.lower_bound import lower_bound
from castile.planner.choices import shares
from castile.planner.choices.pins import Pin, Pins
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known.large import has_many_parts
from castile.planner.searching.results import SearchResult, matching_seed
from castile.planner.strategy import Names
from castile.runtime.machine import Machine

# Half of a node's processors were seen to be better only where they could do a step's work in less than this share of
# the step time that was found: links within a node are fast.
WITHIN_NODE = 0.75
# Each search on a subset may take this share of a time budget in addition.
SUBSET_SHARE = 0.05


def search_subsets(
    evaluator: Evaluator,
    result: SearchResult,
    run_search: Callable[[Pins], SearchResult],
    pins: Pins | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> SearchResult:
    """The given result, or the better one of a search on a subset of the processors; the worse stays a finalist.

    Smaller and smaller `subsets` are tried while they could do a step's work in less than the best time.

    run_search   the search that made the result, with other pins
    pins         of the given result
    is_over      asked before each search
    """
    lowering, machine = evaluator.lowering, evaluator.lowering.machine
    # Where there are many parts a search may take half a minute, and as long again on half of the nodes.
    is_quick = not (has_many_parts(lowering) or result.is_insisted or evaluator.objective == "memory")
    candidates = [*subsets(machine, range(machine.num_procs) if pins is None else pins.procs)] if is_quick else []
    bound = lower_bound(evaluator) if candidates else None
    if bound is None:
        return result
    for procs, most_share in candidates:
        share, seconds = len(procs) / machine.num_procs, result.evaluated.seconds
        if bound.on(share) >= seconds or bound.work_seconds / share >= most_share * seconds or is_over():
            break
        try:
            other = run_search(pins_within(evaluator, procs, pins))
        except ValueError:  # a plan does not fit there, or a pin asks for more
            break
        result = _better(evaluator, result, other)
    return result


def _better(evaluator: Evaluator, result: SearchResult, other: SearchResult) -> SearchResult:
    """The better of two results, with the seeds of the first and the proposals of both."""
    num_proposals = result.num_proposals + other.num_proposals
    better, worse = sorted((result, other), key=lambda one: one.evaluated.rank)
    finalists = (worse.evaluated, *better.finalists)
    equals = matching_seed(evaluator.lowering, result.seeds, better.evaluated)
    return replace(better, finalists=finalists, seeds=result.seeds, equals=equals, num_proposals=num_proposals)


def subsets(machine: Machine, procs: Sequence[int]) -> Iterator[tuple[tuple[int, ...], float]]:
    """Smaller and smaller subsets of these processors, ascending, each with the share of the step time within which it
    must be able to do a step's work to be tried.

    First half of the groups that the farthest links join, again and again, then of those that the next links join, down
    to one node; only groups that have the same processors as each other. Then half of a node's processors, again and
    again where they are equal, down to two: what one processor does alone is a known plan.
    """
    remaining = tuple(procs)
    for level in reversed(machine.levels[:-1]):
        groups = _groups(remaining, level.group)
        equal = _most_uniform(machine, groups)
        while len(groups) > 1:
            groups = equal[: len(groups) // 2]
            remaining = tuple(chain.from_iterable(groups))
            yield remaining, 1.0
    while len(remaining) > 2 and len({*_kinds(machine, remaining)}) == 1:
        remaining = remaining[: (len(remaining) + 1) // 2]
        yield remaining, WITHIN_NODE


def _groups(procs: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """These processors, ascending, by the group of `size` neighbours in which each lies."""
    return [tuple(group) for _, group in groupby(procs, lambda proc: proc // size)]


def _most_uniform(machine: Machine, groups: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The largest set of groups with the same kinds of processors; of equally large sets that of larger groups."""
    by_kinds: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for group in groups:
        by_kinds.setdefault(_kinds(machine, group), []).append(group)
    return max(by_kinds.values(), key=lambda equal: (len(equal), len(equal[0])))


def _kinds(machine: Machine, procs: Sequence[int]) -> tuple[int, ...]:
    return tuple(machine.kind_of[[*procs]].tolist())


def pins_within(evaluator: Evaluator, procs: Iterable[int], pins: Pins | None = None) -> Pins:
    """These pins, and one that keeps all nodes on these processors. Raises ValueError where they contradict it."""
    lowering = evaluator.lowering
    names = Names(lowering.piece.nodes, lowering.names.optional)
    return Pins([*(pins.pins if pins is not None else ()), pin_all_to(procs)], names, lowering.machine.num_procs)


def pin_all_to(procs: Iterable[int]) -> Pin:
    """A pin that keeps all nodes on these processors."""
    return Pin("*", procs=frozenset(procs), everywhere=True)


def faster_subsets(evaluator: Evaluator, procs: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Smaller and smaller subsets of processors of several speeds: without the slowest, then without the next slowest,
    down to the fastest alone.
    """
    speeds = shares.speeds(evaluator.lowering, evaluator.cost)
    for least in sorted({speeds[p] for p in procs})[1:]:
        yield tuple([p for p in procs if speeds[p] >= least])


def could_gain(evaluator: Evaluator, num_procs: int, seconds: float) -> bool:
    """Whether `num_procs` processors could do a step's work in less than `seconds`; true if no bound is known."""
    bound = lower_bound(evaluator)
    return bound is None or bound.on(num_procs / evaluator.lowering.machine.num_procs) < seconds
