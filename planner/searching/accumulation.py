"""Gradient accumulation: the number of microbatches for a batch with which no plan fits into memory.

Forecasts of known plans choose which numbers to try. Whether a plan fits, and its time, are simulated. It does not know
how plans are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf, prod

from castile.planner.bodies.vocabulary import itemsize
from castile.planner.choices.pins import Pins
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.searching.forecasts import Forecaster
from castile.planner.step.program import Program
from castile.planner.strategy import Strategy, parts
from castile.runtime.transfer import TooManyTransfers

# A search may still find a plan that fits where the smallest known plan needs, by its sketch, up to this multiple of
# the memory: searches were seen to save a quarter.
NEARLY_FITS = 1.5


@dataclass(frozen=True)
class Batching:
    """How a step processes its batch: the number of microbatches, and which nodes are recomputed.

    evaluator  for these; its lowering says which nodes are recomputed, its cache has the plans simulated so far
    pins       of all plans
    seconds    step time of the best known plan that was simulated and fits; inf if there is none
    """

    num_microbatches: int
    evaluator: Evaluator
    pins: Pins | None
    seconds: float = inf

    @property
    def fits(self) -> bool:
        """Whether a known plan was simulated and fits."""
        return self.seconds < inf

    @property
    def without_cache(self) -> Batching:
        """The same with empty caches, so that the memory of the old ones can be freed."""
        evaluator = self.evaluator
        return replace(self, evaluator=evaluator.remade(evaluator.objective, lowering=evaluator.lowering.remade()))


def could_fit(evaluator: Evaluator) -> bool:
    """Whether all memory together holds the `kept_bytes`, which every plan keeps. If not, no plan fits."""
    return sum(kept_bytes(evaluator)) <= int(evaluator.capacity.sum())


def kept_bytes(evaluator: Evaluator) -> tuple[int, int]:
    """Bytes of the state carried from step to step, and of a step's inputs, each element counted once."""
    lowering = evaluator.lowering.shortened(2)
    program = lowering.program(lowering.plan({}))
    carried = [flow for flow in program.flows if flow.home is not None]
    return sum(prod(flow.shape) * itemsize(flow.dtype) for flow in carried), _input_bytes(program)


def _input_bytes(program: Program) -> int:
    """Bytes of a step's inputs: of each the part read by the node that reads most of it."""
    graph, volumes = program.graph, dict[str, int]()
    nodes = {step.node.name: step.node for step in program.steps if step.node.name in graph.nodes}
    for node in nodes.values():
        for index, name in enumerate(node.inputs):
            if name in graph.inputs:
                volumes[name] = max(volumes.get(name, 0), parts(node, {})[0].reads(index).volume)
    return sum(volume * itemsize(graph.tensors[name].dtype) for name, volume in volumes.items())


def fitting_batching(
    forecaster: Forecaster, counts: Iterable[int], is_over: Callable[[], bool] = lambda: False,
    is_late: Callable[[], bool] = lambda: False, on_try: Callable[[Batching], None] = lambda batching: None,
) -> Batching | None:  # fmt: skip
    """The number of microbatches with which the best known plan that fits is fastest.

    If no known plan fits: the number with which the smallest one exceeds memory least, if by at most NEARLY_FITS; None
    otherwise. Stops at a number whose forecasts are no faster than a plan simulated before.

    counts    numbers of microbatches, ascending
    is_over   once true, the first number with which a known plan fits is taken
    is_late   once true, no further number is tried
    on_try    called with each number before its known plans are simulated
    """
    least, best = inf, None
    least_share, nearest = NEARLY_FITS, None
    for count, evaluator, pins, forecast in forecaster.candidates(counts, NEARLY_FITS, is_late):
        fitting = forecast.fitting
        if fitting and fitting[0][0] >= least:
            break
        if fitting:
            on_try(Batching(count, evaluator, pins))
        found = next((seconds for _, plan in fitting if (seconds := _step_seconds(evaluator, plan)) < inf), inf)
        if found < least:
            least, best = found, Batching(count, evaluator, pins, found)
        elif best is None and forecast.share < least_share:
            least_share, nearest = forecast.share, Batching(count, evaluator, pins)
        if best is not None and is_over():
            break
    forecaster.cancel()
    return best or nearest


def _step_seconds(evaluator: Evaluator, plan: Strategy) -> float:
    """The step time of a plan; inf if it does not fit or is too large to simulate."""
    try:
        evaluated = evaluator.evaluate(plan) if evaluator.is_small(plan) else None
    except TooManyTransfers:
        return inf
    return evaluated.seconds if evaluated is not None and evaluated.fits else inf
