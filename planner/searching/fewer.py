"""Fewer processors: a plan may leave some of a machine's processors idle, and is faster so where links are slow or a
step has little work.

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
from castile.planner.search import Found, same
from castile.planner.strategy import Names
from castile.runtime.machine import Machine

# Half of a node's processors were seen to be better only where they could do a step's work in less than this share of
# the step time that was found: links within a node are fast.
OF_A_NODE = 0.75
# Each search on fewer processors may take this share of a time budget in addition.
FURTHER = 0.05


def on_fewer(
    evaluator: Evaluator,
    found: Found,
    look: Callable[[Pins], Found],
    pins: Pins | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> Found:
    """What was found, or a better plan on the first of several equal nodes or processors; the worse stays a finalist.

    look      the same search with other pins
    pins      those of the search that found it
    is_over   asked before each further search

    Fewer and fewer processors (`parts`) are tried, as long as these could do a step's work in less than the best time.
    """
    lowering, machine = evaluator.lowering, evaluator.lowering.machine
    # Where there are many parts a search may take half a minute, and as long again on half of the nodes.
    is_quick = not (has_many_parts(lowering) or found.is_insisted or evaluator.objective == "memory")
    fewer = [*parts(machine, range(machine.num_procs) if pins is None else pins.procs)] if is_quick else []
    bound = lower_bound(evaluator) if fewer else None
    if bound is None:
        return found
    for procs, worth in fewer:
        share, seconds = len(procs) / machine.num_procs, found.evaluated.seconds
        if bound.on(share) >= seconds or bound.work_seconds / share >= worth * seconds or is_over():
            break
        try:
            other = look(within(evaluator, procs, pins))
        except ValueError:  # a plan does not fit there, or a pin asks for more
            break
        num_proposals = found.num_proposals + other.num_proposals
        better, worse = sorted((found, other), key=lambda one: one.evaluated.rank)
        finalists, equals = (worse.evaluated, *better.finalists), same(lowering, found.seeds, better.evaluated)
        found = replace(better, finalists=finalists, seeds=found.seeds, equals=equals, num_proposals=num_proposals)
    return found


def parts(machine: Machine, procs: Sequence[int]) -> Iterator[tuple[tuple[int, ...], float]]:
    """Ever smaller subsets of these processors, ascending; and within which share of the step time that was found each
    must be able to do a step's work to be tried.

    Half of the groups that the farthest links join, again and again, then of those that the next links join, down to
    one node; only groups that have the same processors as each other. Then half of a node's processors, again and again
    where they are alike, down to two: what one processor alone does is a known plan.
    """
    left = tuple(procs)
    for level in reversed(machine.levels[:-1]):
        groups = _groups(left, level.group)
        alike = _most_uniform(machine, groups)
        while len(groups) > 1:
            groups = alike[: len(groups) // 2]
            left = tuple(chain.from_iterable(groups))
            yield left, 1.0
    while len(left) > 2 and len({*_kinds(machine, left)}) == 1:
        left = left[: (len(left) + 1) // 2]
        yield left, OF_A_NODE


def _groups(procs: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """Those of these processors, ascending, that are in one group of so many, for each group."""
    return [tuple(group) for _, group in groupby(procs, lambda proc: proc // size)]


def _most_uniform(machine: Machine, groups: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The largest set of groups that have the same kinds of processors; of equally large ones that of larger groups."""
    found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for group in groups:
        found.setdefault(_kinds(machine, group), []).append(group)
    return max(found.values(), key=lambda alike: (len(alike), len(alike[0])))


def _kinds(machine: Machine, procs: Sequence[int]) -> tuple[int, ...]:
    return tuple(machine.kind_of[[*procs]].tolist())


def within(evaluator: Evaluator, procs: Iterable[int], pins: Pins | None = None) -> Pins:
    """These pins, and that all stays on these processors. Raises ValueError where they contradict that."""
    lowering = evaluator.lowering
    names = Names(lowering.piece.nodes, lowering.names.optional)
    return Pins([*(pins.pins if pins is not None else ()), only(procs)], names, lowering.machine.num_procs)


def only(procs: Iterable[int]) -> Pin:
    """That all stays on these processors."""
    return Pin("*", procs=frozenset(procs), everywhere=True)


def faster(evaluator: Evaluator, procs: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Ever smaller subsets of processors of several speeds: without the slowest ones, then without the next slowest,
    down to the fastest ones alone.
    """
    speeds = shares.speeds(evaluator.lowering, evaluator.cost)
    for least in sorted({speeds[p] for p in procs})[1:]:
        yield tuple([p for p in procs if speeds[p] >= least])


def could_gain(evaluator: Evaluator, num_procs: int, seconds: float) -> bool:
    """Whether so few processors could do a step's work in less than so many seconds; true if no bound is known."""
    bound = lower_bound(evaluator)
    return bound is None or bound.on(num_procs / evaluator.lowering.machine.num_procs) < seconds
