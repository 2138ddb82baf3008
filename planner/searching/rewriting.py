"""Rewriting: with which rewrites of its graph a network is planned: those that leave a step less work.

Unity (Unger et al., OSDI 2022) looks for substitutions and for splits in one search. What a rewrite here is worth
depends little on the plan: operators on each element take their bytes however they are cut. So rewrites are chosen
first, and a plan is looked for in one graph. It does not know what a rewrite does.
"""

from __future__ import annotations

from castile.planner import rewrite as rewrites
from castile.planner.cost import CostModel
from castile.planner.lower import Lowering
from castile.planner.strategy import Config
from castile.runtime.timeline import PICOSECONDS

# One that saves less of a step's work is not worth other nodes than those that the model names.
WORTH = 0.01

Names = tuple[str, ...]


def least_work(lowering: Lowering) -> tuple[str, Lowering, float]:
    """The rewrites that leave a step least work, as `rewrite.apply` takes them, what they make of the lowering, and the
    share of work that they save; "" where none is worth it.

    By the machine's figures: what was measured of one graph's tasks says nothing of another's. Ever the one that saves
    most of what is left is added, as long as one is worth it.
    """
    taken, names = lowering, Names()
    whole = least = _work(lowering)
    while changed := _changed(taken, names):
        works = {more: _work(other) for more, other in changed.items()}
        best = min(works, key=works.__getitem__)
        if works[best] > (1 - WORTH) * least:
            break
        taken, names, least = changed[best], best, works[best]
    return rewrites.AND.join(names), taken, 1 - least / whole


def _changed(lowering: Lowering, names: Names) -> dict[Names, Lowering]:
    """What one rewrite more makes of a graph with these, where it makes another one, by the names of all."""
    found = {}
    for name in rewrites.available():
        graph = rewrites.apply(name, lowering.graph)
        if graph.fingerprint != lowering.graph.fingerprint:
            found[*names, name] = lowering.remade(graph=graph)
    return found


def _work(lowering: Lowering) -> float:
    """Seconds of a step whose nodes are all whole on one processor."""
    tasks = lowering.lower(lowering.plan(dict.fromkeys(lowering.piece.nodes, Config())))
    return float(CostModel(lowering.machine).picoseconds(tasks.cost_keys)[tasks.cost].sum()) / PICOSECONDS
