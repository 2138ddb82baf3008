"""How good plans are: what a search finds on the clusters of FlexFlow's evaluation beside what the paper found there.

    python benchmarks/quality.py [--model alexnet ...] [--cluster flexflow-p100 ...] [--procs 16] [--seconds 60]
                                 [--slowed]

Jia, Zaharia, Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks", MLSys 2019: six networks with 64
samples a processor (AlexNet 256), recurrent ones unrolled over 40 words, on 16 P100 and 64 K80 processors unless
`--procs` says fewer. Each cell is searched for so many seconds: a third by `dynamic`, the rest by `mcmc` from what that
found; evaluating known plans comes before and is not counted. Efficiency is throughput a processor over that of one
processor alone. Simulated data parallelism hides most of its sums of gradients beside backward, which the paper's did
not: with `--slowed` sums over processors take so many times as long, as by a server of parameters, that its efficiency
is the published one. The last figures are the ratios of data parallelism's step to the best plan's, and the best plan's
efficiency, beside the published.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, tell
from castile.launch import models
from castile.planner.cost import CostModel, Priced
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.families.updates import Updates
from castile.planner.known.plans import one_processor
from castile.planner.known.seeds import seed
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.search import search
from castile.planner.strategy import Strategy
from castile.runtime import machine as machines
from castile.runtime.machine import Machine
from castile.runtime.task import CostKey

NODE = 4
# Sums are slowed by so much at the most, and the interval that holds the right part is halved so often.
MOST_SLOWNESS, HALVINGS = 256.0, 10


@dataclass(frozen=True)
class Network:
    """A network of the evaluation.

    published   by cluster: data parallelism's step over that of FlexFlow's plan
    efficiency  by cluster: the published throughput a processor over one processor's, of FlexFlow's plan
    """

    settings: str
    batch: int
    published: dict[str, float]
    efficiency: dict[str, float]


P100, K80 = "flexflow-p100", "flexflow-k80"
CLUSTERS = {P100: 16, K80: 64}


def _network(settings: str, batch: int, p100: tuple[float, float], k80: tuple[float, float]) -> Network:
    return Network(settings, batch, {P100: p100[0], K80: k80[0]}, {P100: p100[1], K80: k80[1]})


# Read off the figures of the paper, within about a hundredth.
NETWORKS = {
    "alexnet": _network("alexnet:dropout=0", 256, (2.47, 0.70), (3.24, 0.47)),
    "inception": _network("inception:norm=False", 64, (1.25, 0.93), (1.56, 0.87)),
    "resnet": _network("resnet:depth=101", 64, (1.04, 0.90), (1.08, 0.83)),
    "rnntc": _network("rnntc", 64, (1.55, 0.66), (1.62, 0.50)),
    "rnnlm": _network("rnnlm", 64, (1.38, 0.67), (1.44, 0.60)),
    "nmt": _network("nmt", 64, (1.42, 0.68), (1.71, 0.58)),
}


@dataclass(frozen=True)
class Cell:
    """What was found for one network on one cluster.

    alone, data_parallel, best   seconds of a step
    search                       what found the best plan: a known plan's name, or mcmc
    slowness                     by which sums over processors were made longer
    """

    network: str
    cluster: str
    procs: int
    alone: float
    data_parallel: float
    best: float
    search: str
    seconds_spent: float
    slowness: float

    @property
    def ratio(self) -> float:
        return self.data_parallel / self.best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=sorted(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--cluster", nargs="+", choices=sorted(CLUSTERS), default=list(CLUSTERS))
    parser.add_argument("--procs", type=int, default=0, help="processors; 0: as many as in the paper")
    parser.add_argument("--seconds", type=float, default=60.0, help="of search for each cell")
    parser.add_argument("--slowed", action="store_true", help="sums as slow as the paper's data parallelism suggests")
    options = parser.parse_args()
    cells = list(table(options.model, options.cluster, options.procs, options.seconds, options.slowed))
    tell([figure for cell in cells for figure in figures(cell)])


def table(names: list[str], clusters: list[str], procs: int, seconds: float, slowed: bool) -> Iterator[Cell]:
    """Print a row for each cell as it is found."""
    print(
        f"{'network':10} {'cluster':14} {'procs':>5} {'alone':>8} {'dp':>8} {'best':>8} {'ratio':>6} {'paper':>6} "
        f"{'dp eff.':>8} {'paper':>6} {'eff.':>6} {'paper':>6} {'spent':>6} {'slower':>7}  search  (ms; spent: s)"
    )
    for cluster in clusters:
        for name in names:
            cell = searched(name, cluster, procs or CLUSTERS[cluster], seconds, slowed)
            paper, efficiency = NETWORKS[name].published[cluster], NETWORKS[name].efficiency[cluster]
            print(
                f"{name:10} {cluster:14} {cell.procs:5} {1e3 * cell.alone:8.1f} {1e3 * cell.data_parallel:8.1f} "
                f"{1e3 * cell.best:8.1f} {cell.ratio:6.2f} {paper:6.2f} {cell.alone / cell.data_parallel:8.2f} "
                f"{efficiency / paper:6.2f} {cell.alone / cell.best:6.2f} {efficiency:6.2f} {cell.seconds_spent:6.0f} "
                f"{cell.slowness:7.1f}  "
                f"{cell.search}",
                flush=True,
            )
            yield cell


def searched(name: str, cluster: str, procs: int, seconds: float, slowed: bool) -> Cell:
    """The best plan found within a budget, on the first nodes of a cluster."""
    network = NETWORKS[name]
    began = perf_counter()
    one = evaluator(network, cluster, 1)
    alone = one.evaluate(Strategy(one_processor(one.lowering.graph))).seconds
    same = evaluator(network, cluster, procs)
    wanted = alone * network.published[cluster] / network.efficiency[cluster]
    slowness = slower(same.lowering, wanted) if slowed else 1.0
    if slowed:
        same = Evaluator(same.lowering, Served(same.lowering.machine, slowness))
    first = search("dynamic", same, f"{seconds / 3:g}s")
    found = search("mcmc", same, f"{2 * seconds / 3:g}s", start={"dynamic": first.strategy})
    return Cell(
        name, cluster, procs, alone, data_parallel(same), found.evaluated.seconds, found.equals or "mcmc",
        perf_counter() - began, slowness,
    )  # fmt: skip


def data_parallel(same: Evaluator) -> float:
    """Seconds of a step."""
    return same.evaluate(Strategy(seed("data_parallel", same.lowering))).seconds


class Served(CostModel):
    """Sums over processors take so many times as long as by the machine's algorithms."""

    def __init__(self, machine: Machine, slowness: float) -> None:
        super().__init__(machine)
        self.slowness = slowness

    def seconds(self, key: CostKey, kind: int | None = None) -> Priced:
        price = super().seconds(key, kind)
        is_sum = key.name.partition(".")[0] in ("all_reduce", "reduce_scatter")
        return Priced(price.seconds * self.slowness, price.source) if is_sum else price


def slower(lowering: Lowering, wanted: float) -> float:
    """How many times as long sums must take so that a step of data parallelism takes as many seconds as wanted."""
    low, high = 1.0, MOST_SLOWNESS
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        if data_parallel(Evaluator(lowering, Served(lowering.machine, middle))) < wanted:
            low = middle
        else:
            high = middle
    return (low * high) ** 0.5


def evaluator(network: Network, cluster: str, procs: int) -> Evaluator:
    """With so many processors of a cluster: whole nodes, or one processor."""
    machine = machines.parse(f"{cluster}:nodes={max(1, procs // NODE)}")
    if procs < NODE:
        assert procs == 1, "parts of a node have links of their own"
        machine = Machine(machine.name, machine.processors[:1], ())
    graph = models.parse(network.settings).graph(network.batch * procs)
    return Evaluator(Lowering(graph, machine, Updates(find("sgd")(momentum=0.9))), CostModel(machine))


def figures(cell: Cell) -> list[Figure]:
    """Ratio and efficiency beside the published ones, to which only the paper's own sizes and links are held."""
    network, cluster = NETWORKS[cell.network], cell.cluster
    is_papers = cell.procs == CLUSTERS[cluster] and cell.slowness == 1
    ratio, efficiency = network.published[cluster], network.efficiency[cluster]
    name = f"quality_{cell.network}_{cluster.rpartition('-')[2]}_{cell.procs}{'' if cell.slowness == 1 else '_slowed'}"
    note = f"published {{:g}} on {CLUSTERS[cluster]}"
    least = ratio if is_papers and cell.network != "resnet" else 1.0
    return [
        Figure(f"{name}_ratio", cell.ratio, least=least, note=note.format(ratio)),
        Figure(
            f"{name}_efficiency",
            cell.alone / cell.best,
            least=efficiency if is_papers else None,
            note=note.format(efficiency),
        ),
    ]


if __name__ == "__main__":
    main()
