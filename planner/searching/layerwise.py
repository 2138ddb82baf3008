"""Layer-wise plans, from which walks start: each node is cut along the axis that suits it, by the additive cost model.

After Jia, Lin, Qi, Aiken, "Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks" (ICML 2018). A
walk changes a node or a block at a time, so it seldom gets from layers that split samples to layers that split
channels: each change alone costs transfers on both sides of it. Here all nodes are chosen at once, among few Configs
each. It does not know overlap, nor how a search moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from castile.planner.bounds.additive import Additive
from castile.planner.bounds.cost_tables import (
    MICROBATCHES,
    MOST_ENTRIES,
    WEIGHTS,
    CostTables,
    OutOfTime,
    groups_of_equal_nodes,
)
from castile.planner.choices.pins import Pins, pinned
from castile.planner.choices.space import Space
from castile.planner.choices.spaces import Spaces
from castile.planner.evaluation.budget import Budget
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.families.windows import Sliding
from castile.planner.known.heads import SAMPLES
from castile.planner.known.seeds import stamped
from castile.planner.searches import walks
from castile.planner.searching.refinement import QUICK_PARTS
from castile.planner.sketch.sketched_plans import num_parts
from castile.planner.strategy import Config, Strategy
from castile.runtime.transfer import TooManyTransfers

NAME = "layer_wise"
# It takes as long as thousands of proposals, so a search of fewer than LEAST_PROPOSALS does without; of a budget of
# time it may take TIME_SHARE.
LEAST_PROPOSALS, TIME_SHARE = 5000, 0.2


def is_worthwhile(evaluator: Evaluator, search: str, budget: Budget) -> bool:
    """Whether a search of this name and budget also starts from a layer-wise plan: one that walks, for long enough.

    Other searches make plans of this kind themselves, or propose only their own.
    """
    is_long = budget.proposals is None or budget.proposals >= LEAST_PROPOSALS
    is_fast = evaluator.objective != "memory" and num_parts(evaluator) <= QUICK_PARTS
    return is_long and is_fast and walks(search, evaluator.lowering)


def layer_wise_plan(
    evaluator: Evaluator, pins: Pins | None = None, is_over: Callable[[], bool] = lambda: False
) -> dict[str, Strategy]:
    """The fastest of the plans that cost least by the model, for several weights of transfers, by its NAME.

    Empty if it does not fit, if elimination cannot hold its tables, or if there is no time for them.

    pins      of the plan
    is_over   asked before each table is filled
    """
    lowering = evaluator.lowering
    model = Additive(lowering.shortened(MICROBATCHES), evaluator.cost)
    tables = CostTables(model, candidate_configs(model, Spaces(lowering, evaluator.cost, pins)), is_over)
    if tables.num_entries > MOST_ENTRIES:
        return {}
    found: list[Evaluated] = []
    # A plan that takes too long to price or to simulate is no start.
    with suppress(OutOfTime, TooManyTransfers):
        for sync, move in WEIGHTS:
            configs = dict(pinned(tables.optimum(sync, move), pins))
            found.append(evaluator.evaluate(stamped(lowering, configs, NAME)))
    best = min(found, key=lambda one: one.rank, default=None)
    return {NAME: best.strategy} if best is not None and best.fits else {}


def candidate_configs(model: Additive, spaces: Spaces) -> dict[str, list[Config]]:
    """The Configs tried for each node, by its name, on all processors that may be used. Equal nodes share one list."""
    configs: dict[str, list[Config]] = {}
    for names in groups_of_equal_nodes(model, spaces):
        space = spaces[names[0]]
        configs |= dict.fromkeys(names, _on_all(space, spaces.procs) or [space[0]])
    return configs


def _on_all(space: Space, procs: Sequence[int]) -> list[Config]:
    """The whole node on each of the processors, and each axis alone in as many parts as there may be, with replicas
    where there are fewer parts than processors.

    Where there are samples for all processors, rows and columns of images are left out: cutting these costs halos and
    gains nothing over cutting samples.
    """
    widest: dict[str, Config] = {}
    for split in (split for split in space.splits if len(split) <= 1):
        axis, parts = next(iter(split.items()), ("", 1))
        placed = next((p for p in space.placed(parts) if {*p.procs} == {*procs}), None)
        if placed is not None and (axis not in widest or parts > widest[axis].split[axis]):
            widest[axis] = Config(dict(split), placed.replicas, placed.procs)
    is_image = widest.keys() >= {SAMPLES, *Sliding.made}
    if is_image and widest[SAMPLES].split[SAMPLES] == len(procs):
        return [config for axis, config in widest.items() if axis not in Sliding.made]
    return [*widest.values()]
