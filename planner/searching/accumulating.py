"""Accumulating: into how many microbatches to cut a batch of which no plan fits, as known plans in sketches tell.

It does not know how plans are found; whether one fits, and what it takes, the simulator says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf, prod

from castile.planner.bodies.vocabulary import itemsize
from castile.planner.choices.pins import Pins
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.searching.foresight import Outlook
from castile.planner.step.program import Program
from castile.planner.strategy import Strategy, parts
from castile.runtime.transfer import TooManyTransfers

# A search may find a plan that fits where a sketch takes the smallest known one for so many times the memory: searches
# were seen to save a quarter.
NEAR = 1.5


@dataclass(frozen=True)
class Chosen:
    """A number of microbatches, and what is known of it.

    evaluator  for so many; it knows the plans that were simulated to find the number
    pins       what plans must have
    seconds    what the best known plan takes that was simulated and fits; inf where none was
    """

    number: int
    evaluator: Evaluator
    pins: Pins | None
    seconds: float = inf

    @property
    def fits(self) -> bool:
        """Whether a known plan was simulated and fits."""
        return self.seconds < inf


def could_fit(evaluator: Evaluator) -> bool:
    """Whether all memory together has room for what any plan keeps: else none fits, however little it keeps beside."""
    return sum(kept_bytes(evaluator)) <= int(evaluator.capacity.sum())


def kept_bytes(evaluator: Evaluator) -> tuple[int, int]:
    """The bytes, each element once, of what is carried from step to step, and of what the host gives to all
    microbatches.
    """
    lowering = evaluator.lowering.shortened(2)
    program = lowering.program(lowering.plan({}))
    carried = [flow for flow in program.flows if flow.home is not None]
    return sum(prod(flow.shape) * itemsize(flow.dtype) for flow in carried), _given_bytes(program)


def _given_bytes(program: Program) -> int:
    """What the host gives to a step, each input as far as the node reads it that reads most of it."""
    graph, most = program.graph, dict[str, int]()
    for node in {step.node.name: step.node for step in program.steps if step.node.name in program.graph.nodes}.values():
        for index, name in enumerate(node.inputs):
            if name in graph.inputs:
                most[name] = max(most.get(name, 0), parts(node, {})[0].reads(index).volume)
    return sum(size * itemsize(graph.tensors[name].dtype) for name, size in most.items())


def enough(
    outlook: Outlook, numbers: Iterable[int], is_over: Callable[[], bool] = lambda: False,
    is_late: Callable[[], bool] = lambda: False, tell: Callable[[Chosen], None] = lambda near: None,
) -> Chosen | None:  # fmt: skip
    """Of these numbers of microbatches, ascending, the one in which the best known plan that fits takes least.

    is_over   once it says so one in which a known plan fits will do
    is_late   once it says so no further one is looked at
    tell      is told of each before known plans are simulated in it
    When none is taken for less than one that was simulated, no more are looked at. Where no known plan fits, the number
    in which the smallest lacks least, if it comes so near that a search may find one; else None.
    """
    least, best = inf, None
    share, nearest = NEAR, None
    for number, evaluator, pins, foreseen in outlook.places(numbers, NEAR, is_late):
        fitting = foreseen.fitting
        if fitting and fitting[0][0] >= least:
            break
        if fitting:
            tell(Chosen(number, evaluator, pins))
        found = next((seconds for _, plan in fitting if (seconds := _seconds(evaluator, plan)) < inf), inf)
        if found < least:
            least, best = found, Chosen(number, evaluator, pins, found)
        elif best is None and foreseen.share < share:
            share, nearest = foreseen.share, Chosen(number, evaluator, pins)
        if best is not None and is_over():
            break
    outlook.forget()
    return best or nearest


def _seconds(evaluator: Evaluator, plan: Strategy) -> float:
    """What a plan takes, infinitely much where it does not fit or cannot be looked at."""
    try:
        found = evaluator.evaluate(plan) if evaluator.is_small(plan) else None
    except TooManyTransfers:
        return inf
    return found.seconds if found is not None and found.fits else inf
