"""Fewer processors: a plan that leaves some of a machine's idle is one for the machine, and the faster one where links
are slow, or a step has little to do.

Known plans on fewer processors cut samples only, and walks, which change a few layers at a time, seldom leave a node of
a machine, or half of one. It does not know how a search moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from castile.planner.bounds.lower_bound import lower_bound
from castile.planner.choices import shares
from castile.planner.choices.pins import Pin, Pins
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known.large import has_many_parts
from castile.planner.search import Found, same
from castile.planner.strategy import Names
from castile.runtime.machine import Machine

# Half of a node's processors were seen to be better only where they could do a step's work in so much of its time, as
# links within a node are good.
OF_A_NODE = 0.75
# Of a time that a search was given, so much more may go into each one on fewer processors.
FURTHER = 0.05


def on_fewer(
    evaluator: Evaluator,
    found: Found,
    look: Callable[[Pins], Found],
    pins: Pins | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> Found:
    """What was found, or a better plan that is found on the first of equal processors; the other is a finalist.

    look      the same search with other pins
    pins      those with which it was made
    is_over   asked before each further search

    Ever half as many nodes are tried, then ever half of a node's processors, as long as these can do a step's work in
    less time than the best plan takes.
    """
    lowering, machine = evaluator.lowering, evaluator.lowering.machine
    procs = range(machine.num_procs) if pins is None else pins.procs
    part = machine if len(procs) == machine.num_procs else machine.part(procs)
    # Where there are many parts a search may take half a minute, and as long again on half of the nodes.
    is_quick = not (has_many_parts(lowering) or found.is_insisted or evaluator.objective == "memory")
    sizes = _sizes(part) if is_quick and part is not None and len(part.kinds) == 1 else []
    bound = lower_bound(evaluator) if sizes else None
    if bound is None:
        return found
    for num_procs, worth in sizes:
        share, seconds = num_procs / machine.num_procs, found.evaluated.seconds
        if bound.on(share) >= seconds or bound.work_seconds / share >= worth * seconds or is_over():
            break
        try:
            other = look(within(evaluator, procs[:num_procs], pins))
        except ValueError:  # a plan does not fit there, or a pin asks for more
            break
        num_proposals = found.num_proposals + other.num_proposals
        better, worse = sorted((found, other), key=lambda one: one.evaluated.rank)
        finalists, equals = (worse.evaluated, *better.finalists), same(lowering, found.seeds, better.evaluated)
        found = replace(better, finalists=finalists, seeds=found.seeds, equals=equals, num_proposals=num_proposals)
    return found


def _sizes(machine: Machine) -> list[tuple[int, float]]:
    """On how many of a machine's first processors to look, ever fewer; and in what share of the time that was found
    they must be able to do a step's work for that.
    """
    return [*((size, 1.0) for size in nodes(machine)), *((size, OF_A_NODE) for size in of_a_node(machine))]


def nodes(machine: Machine) -> Iterator[int]:
    """Ever half as many of what the farthest links of a machine join, then of what the next do, down to one node: their
    processors.
    """
    groups = [level.group for level in machine.levels]
    for inner, outer in reversed([*pairwise(groups)]):
        count = outer // inner
        while count > 1:
            count //= 2
            yield inner * count


def of_a_node(machine: Machine) -> Iterator[int]:
    """Ever half of the processors that the nearest links join, of three two: one alone does what a known plan does."""
    count = machine.levels[0].group if machine.levels else 1
    while count > 2:
        count = (count + 1) // 2
        yield count


def within(evaluator: Evaluator, procs: Iterable[int], pins: Pins | None = None) -> Pins:
    """These pins, and that all stays on these processors. Raises ValueError where they contradict that."""
    lowering = evaluator.lowering
    names = Names(lowering.piece.nodes, lowering.names.optional)
    return Pins([*(pins.pins if pins is not None else ()), only(procs)], names, lowering.machine.num_procs)


def only(procs: Iterable[int]) -> Pin:
    """That all stays on these processors."""
    return Pin("*", procs=frozenset(procs), everywhere=True)


def faster(evaluator: Evaluator, procs: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Of these processors ever fewer, where they are of several speeds: without the slowest, then without the slowest
    of the others, down to the fastest.
    """
    speeds = shares.speeds(evaluator.lowering, evaluator.cost)
    for least in sorted({speeds[p] for p in procs})[1:]:
        yield tuple([p for p in procs if speeds[p] >= least])


def could_gain(evaluator: Evaluator, num_procs: int, seconds: float) -> bool:
    """Whether so few processors could do a step's work in less than so many seconds; where no bound is known too."""
    bound = lower_bound(evaluator)
    return bound is None or bound.on(num_procs / evaluator.lowering.machine.num_procs) < seconds
