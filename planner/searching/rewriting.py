"""Rewriting: chooses the rewrites of a network's graph that save work, before plans are searched.

Unity (Unger et al., OSDI 2022) searches substitutions and splits together. What a rewrite here is worth depends little
on the plan: elementwise operators take their bytes however they are cut. So rewrites are chosen first, and plans are
searched for one graph. It does not know what a rewrite does.
"""

from __future__ import annotations

from castile.planner import rewrite as rewrites
from castile.planner.cost import CostModel
from castile.planner.lower import Lowering
from castile.planner.strategy import Config
from castile.runtime.timeline import PICOSECONDS

# A rewrite that saves less of a step's work is not worth other nodes than those that the model names.
LEAST_SAVING = 0.01

Names = tuple[str, ...]


def choose_rewrites(lowering: Lowering) -> tuple[str, Lowering, float]:
    """The rewrites that leave a step least work, as `rewrite.apply` takes them ("" for none), the lowering of the
    rewritten graph, and the share of work that they save.

    Greedy: adds the rewrite that saves most of the work that is left, as long as one saves LEAST_SAVING of it. Work
    follows from the machine's figures: measurements of one graph's tasks say nothing of another's.
    """
    best, names = lowering, Names()
    before = least = _work_seconds(lowering)
    while candidates := _with_one_more(best, names):
        seconds = {more: _work_seconds(other) for more, other in candidates.items()}
        fastest = min(seconds, key=seconds.__getitem__)
        if seconds[fastest] > (1 - LEAST_SAVING) * least:
            break
        best, names, least = candidates[fastest], fastest, seconds[fastest]
    return rewrites.AND.join(names), best, 1 - least / before


def _with_one_more(lowering: Lowering, names: Names) -> dict[Names, Lowering]:
    """The graphs that one more rewrite makes of the one rewritten by `names`, by the names of all their rewrites."""
    found = {}
    for name in rewrites.available():
        graph = rewrites.apply(name, lowering.graph)
        if graph.fingerprint != lowering.graph.fingerprint:
            found[*names, name] = lowering.remade(graph=graph)
    return found


def _work_seconds(lowering: Lowering) -> float:
    """Seconds of a step whose nodes are all whole on one processor."""
    tasks = lowering.lower(lowering.plan(dict.fromkeys(lowering.piece.nodes, Config())))
    return float(CostModel(lowering.machine).picoseconds(tasks.cost_keys)[tasks.cost].sum()) / PICOSECONDS
