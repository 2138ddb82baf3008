"""The exact optimum of the additive cost model, by elimination of nodes and edges, judged by the simulator.

After Jia, Lin, Qi, Aiken (ICML 2018), who eliminate nodes with one input and one output; here any node is eliminated,
in an order of little fill, which is a tree decomposition of the graph. Pairs of Configs are priced only where the best
plan so far would use them. It does not know overlap: that is why it finds plans for several weights of transfers, and
the simulator chooses; and why it descends from the best of these, by what costs little more as by the model.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from math import prod

from castile.planner.bounds.additive import Additive
from castile.planner.bounds.tables import MICROBATCHES, MOST_ENTRIES, WEIGHTS, Late, Tables, alike
from castile.planner.choices.moves import groups_of
from castile.planner.choices.space import Space
from castile.planner.search import Run
from castile.planner.strategy import Config

BUDGET = "100"
# How many Configs of a node are looked at beside those of the seeds, in rounds, on few processors; with more of them
# each costs more to price.
ROUNDS = (4, 12, 36)
FEW_PROCS = 16
LEAST = 4
# The descent ends when so many changes in a row made nothing better: GPT-2, BERT and Seq2seq met 23 between two.
PATIENCE = 30


def search(run: Run) -> None:
    """The optima among more and more Configs of each node, then what is near the best, until the budget is spent."""
    run.settle()
    # Without time for its tables there is no optimum.
    with suppress(Late):
        _descend(run, _rounds(run))


def _rounds(run: Run) -> Tables:
    """Propose the optima until there are no more Configs; gives the last tables."""
    few = run.lowering.shortened(MICROBATCHES)
    model, num_procs, tables = Additive(few, run.evaluator.cost), run.lowering.machine.num_procs, None
    for most in ROUNDS:
        wider = _affordable(run, model, max(LEAST, most * FEW_PROCS // max(FEW_PROCS, num_procs)))
        if tables is not None and wider.num_configs == tables.num_configs:
            continue
        tables = wider
        for sync, move in WEIGHTS:
            run.propose(tables.optimum(sync, move))
            if run.spent >= 1:
                return tables
    assert tables is not None
    return tables


def _descend(run: Run, tables: Tables) -> None:
    """From the best plan on one node, or nodes alike, get another Config, the cheapest by the tables first; what was
    tried before comes last. Ends where none of these is better.
    """
    number = {name: n for n, name in enumerate(tables.names)}
    alike = groups_of(run.lowering.piece, run.lowering.templates.cost_kind)
    groups = [*((n,) for n in range(len(number))), *(tuple([number[name] for name in group]) for group in alike)]
    tried, best = Counter[tuple[tuple[int, ...], Config]](), None
    while best is not run.best:
        best = run.best
        configs = {name: best.strategy.configs[name] for name in tables.names}
        moves = [(group, *row) for group in groups for row in tables.near(configs, group)]
        for group, config, _ in sorted(moves, key=lambda move: (tried[move[:2]], move[2]))[:PATIENCE]:
            if run.spent >= 1:
                return
            # The way back is the cheapest.
            tried.update([(group, config), *{(group, configs[tables.names[n]]) for n in group}])
            run.propose({**configs, **{tables.names[n]: config for n in group}})
            if run.best is not best:
                break


def _affordable(run: Run, model: Additive, most: int) -> Tables:
    """Tables of at most so many Configs a node, fewer where elimination could not hold what they need."""
    while True:
        tables = Tables(model, choices(run, model, most), lambda: run.spent >= 1)
        if most <= LEAST or tables.num_entries <= MOST_ENTRIES:
            return tables
        most = most * 3 // 4


def choices(run: Run, model: Additive, most: int) -> dict[str, list[Config]]:
    """By name the Configs that are looked at: those of the seeds and of the best plan, then the plainest; one list for
    nodes alike.

    Plain is what cuts few axes and leaves few processors idle. All begin on the first processor that they may: nothing
    is won by elsewhere where nothing runs beside anything.
    """
    num_procs, found = len(run.spaces.procs), dict[str, list[Config]]()
    for names in alike(model, run.spaces):
        seeds = (*run.seeds.values(), run.best)
        known = dict.fromkeys(seed.strategy.configs[name] for name in names for seed in seeds)
        plain = [config for config in _plain(run.spaces[names[0]]) if config not in known]
        plain.sort(key=lambda config: (len(config.split), num_procs - len(config.procs)))
        one_list = [*known, *plain[:most]]
        found |= dict.fromkeys(names, one_list)
    return found


def _plain(space: Space) -> list[Config]:
    placed = {parts: space.placed(parts) for parts in {prod(split.values()) for split in space.splits}}
    first = min(placement.procs[0] for places in placed.values() for placement in places)
    return [
        Config(dict(split), placement.replicas, placement.procs)
        for split in space.splits
        for placement in placed[prod(split.values())]
        if placement.procs[0] == first
    ]
