"""Dynamic programming: exact optima of the additive cost model, by elimination of nodes; the simulator chooses.

After Jia, Lin, Qi, Aiken (ICML 2018), who eliminate nodes with one input and one output; here any node is eliminated,
in an order of little fill, which is a tree decomposition of the graph. Pairs of Configs are priced only where the best
plan so far would use them. It does not know overlap. So it finds optima for several weights of transfers, the simulator
chooses among them, and a local search starts from the best, by changes that cost little more by the model.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from math import prod

from castile.planner.bounds.additive import Additive
from castile.planner.bounds.cost_tables import (
    MICROBATCHES,
    MOST_ENTRIES,
    WEIGHTS,
    CostTables,
    OutOfTime,
    groups_of_equal_nodes,
)
from castile.planner.choices.moves import groups_of
from castile.planner.choices.space import Space
from castile.planner.search import Run
from castile.planner.strategy import Config

BUDGET = "100"
# How many Configs of a node are tried in addition to those of the seeds, by round, on up to FEW_PROCS processors. On
# more processors each takes longer to price, and fewer are tried, but at least LEAST.
ROUNDS = (4, 12, 36)
FEW_PROCS = 16
LEAST = 4
# The local search ends after this many changes in a row without a gain: GPT-2, BERT and Seq2seq had up to 23.
PATIENCE = 30


def search(run: Run) -> None:
    """Propose the optima among more and more Configs of each node, then neighbours of the best plan."""
    run.choose_bucket_size()
    # Without time for its tables there is no optimum.
    with suppress(OutOfTime):
        _descend(run, _rounds(run))


def _rounds(run: Run) -> CostTables:
    """Propose the optima of each round until there are no more Configs; return the tables of the last round."""
    lowering = run.lowering.shortened(MICROBATCHES)
    model, num_procs, tables = Additive(lowering, run.evaluator.cost), run.lowering.machine.num_procs, None
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


def _descend(run: Run, tables: CostTables) -> None:
    """Local search from the best plan, which gives one node, or a group of equal nodes, another Config.

    The cheapest changes by the tables come first, those tried before last. Ends where PATIENCE changes gain nothing.
    """
    number = {name: n for n, name in enumerate(tables.names)}
    equal = groups_of(run.lowering.piece, run.lowering.templates.cost_kind)
    groups = [*((n,) for n in range(len(number))), *(tuple([number[name] for name in group]) for group in equal)]
    tried, best = Counter[tuple[tuple[int, ...], Config]](), None
    while best is not run.best:
        best = run.best
        configs = {name: best.strategy.configs[name] for name in tables.names}
        moves = [(group, *row) for group in groups for row in tables.near(configs, group)]
        for group, config, _ in sorted(moves, key=lambda move: (tried[move[:2]], move[2]))[:PATIENCE]:
            if run.spent >= 1:
                return
            # The reverse change would be the cheapest next: it counts as tried too.
            tried.update([(group, config), *{(group, configs[tables.names[n]]) for n in group}])
            run.propose({**configs, **{tables.names[n]: config for n in group}})
            if run.best is not best:
                break


def _affordable(run: Run, model: Additive, most: int) -> CostTables:
    """Tables of at most `most` new Configs a node, fewer where elimination could not hold them."""
    while True:
        tables = CostTables(model, candidate_configs(run, model, most), lambda: run.spent >= 1)
        if most <= LEAST or tables.num_entries <= MOST_ENTRIES:
            return tables
        most = most * 3 // 4


def candidate_configs(run: Run, model: Additive, most: int) -> dict[str, list[Config]]:
    """The Configs tried for each node, by its name: those of the seeds and of the best plan, then up to `most` others.
    Equal nodes share one list.

    Others are those that cut few axes and leave few processors idle. All start on the first processor that they may:
    the model runs nothing at the same time, so placing nodes elsewhere gains nothing.
    """
    num_procs, configs = len(run.spaces.procs), dict[str, list[Config]]()
    for names in groups_of_equal_nodes(model, run.spaces):
        seeds = (*run.seeds.values(), run.best)
        known = dict.fromkeys(seed.strategy.configs[name] for name in names for seed in seeds)
        others = [config for config in _on_first_procs(run.spaces[names[0]]) if config not in known]
        others.sort(key=lambda config: (len(config.split), num_procs - len(config.procs)))
        one_list = [*known, *others[:most]]
        configs |= dict.fromkeys(names, one_list)
    return configs


def _on_first_procs(space: Space) -> list[Config]:
    """The Configs that start on the first processor of the space."""
    placed = {parts: space.placed(parts) for parts in {prod(split.values()) for split in space.splits}}
    first = min(placement.procs[0] for places in placed.values() for placement in places)
    return [
        Config(dict(split), placement.replicas, placement.procs)
        for split in space.splits
        for placement in placed[prod(split.values())]
        if placement.procs[0] == first
    ]
