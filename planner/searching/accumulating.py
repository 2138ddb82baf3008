"""Gradient accumulation: into how many microbatches to cut a batch with which no plan fits into memory.

Sketches of known plans choose the numbers to look at; whether a plan fits, and its time, the simulator says. It does
not know how plans are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf, prod

from castile.planner.bodies.vocabulary import itemsize
from castile.planner.choices.pins import Pins
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.searching.foresight import Outlook
from castile.planner.step.program import Program
from castile.planner.strategy import Strategy, parts
from castile.runtime.transfer import TooManyTransfers

# Up to so many times the memory for the smallest known plan, by its sketch, a search may still find a plan that fits:
# searches were seen to save a quarter.
NEAR = 1.5


@dataclass(frozen=True)
class Chosen:
    """A number of microbatches that was chosen, and what is known of it.

    evaluator  for this number; it remembers the plans that were simulated to choose it
    pins       what plans must have
    seconds    the step time of the best known plan that was simulated and fits; inf if there is none
    """

    number: int
    evaluator: Evaluator
    pins: Pins | None
    seconds: float = inf

    @property
    def fits(self) -> bool:
        """Whether a known plan was simulated and fits."""
        return self.seconds < inf

    @property
    def anew(self) -> Chosen:
        """The same with nothing remembered."""
        evaluator = self.evaluator
        return replace(self, evaluator=evaluator.turned(evaluator.objective, lowering=evaluator.lowering.remade()))


def could_fit(evaluator: Evaluator) -> bool:
    """Whether the memory of all processors together holds what every plan keeps (`kept_bytes`); if not, none fits."""
    return sum(kept_bytes(evaluator)) <= int(evaluator.capacity.sum())


def kept_bytes(evaluator: Evaluator) -> tuple[int, int]:
    """Bytes of what is carried from step to step, and of the inputs of all microbatches, counting each element once."""
    lowering = evaluator.lowering.shortened(2)
    program = lowering.program(lowering.plan({}))
    carried = [flow for flow in program.flows if flow.home is not None]
    return sum(prod(flow.shape) * itemsize(flow.dtype) for flow in carried), _given_bytes(program)


def _given_bytes(program: Program) -> int:
    """Bytes of a step's inputs, of each as much as the node reads that reads most of it."""
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
    """Of these numbers of microbatches, ascending, the one with which the best known plan that fits is fastest.

    is_over   once it is true the first number with which a known plan fits is taken
    is_late   once it is true no further number is looked at
    tell      called for each number before known plans are simulated in it
    The search ends at a number for which sketches promise nothing faster than what was simulated. If no known plan
    fits: the number with which the smallest one exceeds memory least, if by at most NEAR; otherwise None.
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
    """The step time of a plan; inf if it does not fit or is too large to simulate."""
    try:
        found = evaluator.evaluate(plan) if evaluator.is_small(plan) else None
    except TooManyTransfers:
        return inf
    return found.seconds if found is not None and found.fits else inf
