"""Layer-wise plans, from which walks begin: each node is cut along the axis that suits it, as the additive model says.

After Jia, Lin, Qi, Aiken, "Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks" (ICML 2018). A
walk changes a node or a block at a time, so it seldom gets from layers that split samples to layers that split
channels: each change alone costs transfers on both sides of it. Here all nodes are chosen at once, among few Configs
each. It does not know overlap, nor how a search moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from castile.planner.bounds.additive import Additive
from castile.planner.bounds.tables import MICROBATCHES, MOST_ENTRIES, WEIGHTS, Late, Tables, alike
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
from castile.planner.searching.settling import QUICK_PARTS
from castile.planner.sketch.sieve import num_parts
from castile.planner.strategy import Config, Strategy
from castile.runtime.transfer import TooManyTransfers

NAME = "layer_wise"
# It takes as long as thousands of proposals, so a search of fewer than LEAST does without; of a time it may take SHARE.
LEAST, SHARE = 5000, 0.2


def is_worth(evaluator: Evaluator, search: str, budget: Budget) -> bool:
    """Whether a search of that name and budget begins from a layer-wise plan too: one that walks, for long enough.

    Others make plans of this kind themselves, or look at none but their own.
    """
    is_long = budget.proposals is None or budget.proposals >= LEAST
    is_fast = evaluator.objective != "memory" and num_parts(evaluator) <= QUICK_PARTS
    return is_long and is_fast and walks(search, evaluator.lowering)


def layer_wise(
    evaluator: Evaluator, pins: Pins | None = None, is_over: Callable[[], bool] = lambda: False
) -> dict[str, Strategy]:
    """By its name the fastest of the plans of least price, with transfers weighed in several ways; nothing if it does
    not fit, if elimination could not hold its tables, or if there is no time for them.

    pins      what the plan must have
    is_over   asked before each table is filled
    """
    lowering = evaluator.lowering
    model = Additive(lowering.shortened(MICROBATCHES), evaluator.cost)
    tables = Tables(model, choices(model, Spaces(lowering, evaluator.cost, pins)), is_over)
    if tables.num_entries > MOST_ENTRIES:
        return {}
    found: list[Evaluated] = []
    # A plan that takes too long to price or to simulate is none to begin from.
    with suppress(Late, TooManyTransfers):
        for sync, move in WEIGHTS:
            configs = dict(pinned(tables.optimum(sync, move), pins))
            found.append(evaluator.evaluate(stamped(lowering, configs, NAME)))
    best = min(found, key=lambda one: one.rank, default=None)
    return {NAME: best.strategy} if best is not None and best.fits else {}


def choices(model: Additive, spaces: Spaces) -> dict[str, list[Config]]:
    """By name the Configs that are looked at, on all processors that may be used; one list for nodes alike."""
    found: dict[str, list[Config]] = {}
    for names in alike(model, spaces):
        space = spaces[names[0]]
        found |= dict.fromkeys(names, _everywhere(space, spaces.procs) or [space[0]])
    return found


def _everywhere(space: Space, procs: Sequence[int]) -> list[Config]:
    """The whole node on each of the processors, and each axis in as many parts as there may be; replicas where there
    are fewer parts than processors. Where there are samples for all, rows and columns of images are left: to cut these
    costs halos, and wins nothing that cutting samples does not.
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
