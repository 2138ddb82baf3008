"""Rewriting: with which rewrites of its graph a network is planned: those that leave a step less work.

Unity (Unger et al., OSDI 2022) looks for substitutions and for splits in one search. What a rewrite here is worth
depends little on the plan: operators on each element take their bytes however they are cut. So rewrites are chosen
first, and a plan is looked for in one graph. It does not know what a rewrite does.
"""

from __future__ import annotations

from castile.planner import rewrite as rewrites
from castile.planner.bounds.lower_bound import lower_bound
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.lower import Lowering

# One that saves less of a step's work is not worth other nodes than those that the model names.
WORTH = 0.01


def least_work(lowering: Lowering) -> tuple[str, float]:
    """The rewrites that leave a step least work on all processors, as `rewrite.apply` takes them, and the share of it
    that they save; "" where none is worth it.

    By the machine's figures: what was measured of one graph's tasks says nothing of another's. Ever the one that saves
    most of what is left is added, as long as one is worth it.
    """
    whole = least = _work(lowering)
    names: tuple[str, ...] = ()
    while left := [(*names, name) for name in rewrites.available() if name not in names]:
        works = {more: _work(_rewritten(lowering, more)) for more in left}
        best = min(works, key=works.__getitem__)
        if works[best] > (1 - WORTH) * least:
            break
        names, least = best, works[best]
    return rewrites.AND.join(names), 1 - least / whole


def _rewritten(lowering: Lowering, names: tuple[str, ...]) -> Lowering:
    return lowering.remade(graph=rewrites.apply(rewrites.AND.join(names), lowering.graph))


def _work(lowering: Lowering) -> float:
    bound = lower_bound(Evaluator(lowering, CostModel(lowering.machine)))
    assert bound is not None, "by a machine's figures every bound is known"
    return bound.work_seconds
