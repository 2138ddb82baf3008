"""Exhaustive search: all plans of a small case, without those that a bound rules out.

It does not know moves: its result is the best plan of the space, updates and accumulators left to their defaults.
"""

from __future__ import annotations

from math import prod

from castile.planner.search import Run
from castile.planner.space import Space, space_of
from castile.planner.strategy import Config

# Plans, ruled out or not; about ten minutes of them in the worst case.
BUDGET = "100000"


def search(run: Run) -> None:
    """Branch and bound over the nodes in topological order.

    Raises ValueError where the space holds more plans than the budget, or a budget of seconds ends before it is done.
    """
    graph, num_procs = run.lowering.piece, run.lowering.machine.num_procs
    spaces = {name: space_of(node, num_procs) for name, node in graph.nodes.items()}
    size, most = prod(map(len, spaces.values())), run.budget.proposals
    if most is not None and size > most:
        raise ValueError(
            f"exhaustive search: {graph.name} has {size:,} plans on {num_procs} processors, more than the budget of "
            f"{most:,}: use --search mcmc, or raise --budget"
        )
    _descend(run, spaces, list(spaces), {})


def _descend(run: Run, spaces: dict[str, Space], left: list[str], chosen: dict[str, Config]) -> None:
    if run.best.fits and run.evaluator.bound(chosen) >= run.best.seconds:
        return
    if not left:
        run.propose(chosen)
        _refuse_late(run)
        return
    name, *others = left
    for config in spaces[name].configs:
        _descend(run, spaces, others, {**chosen, name: config})


def _refuse_late(run: Run) -> None:
    if run.budget.seconds is not None and run.spent > 1:
        raise ValueError(
            f"exhaustive search: not done after {run.budget.seconds:g} s and {run.num_proposals:,} plans: use --search "
            "mcmc, or raise --budget"
        )
