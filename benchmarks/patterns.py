"""Known good plans, found without being told: a search that starts from data parallelism alone is held to them.

    python benchmarks/patterns.py [--only alexnet mlp2 gpt bert wide] [--proposals 100]

alexnet   convolutions by sample, dense layers by channel (Krizhevsky, "One weird trick", 2014), which is what FlexFlow
          finds too: 64 images for each of 4 K80 processors
mlp2      784-512-10 with 64 samples on 2 processors, where a plan that sums partial results moves 131,072 elements and
          data parallelism 813,056 (Unger et al., "Unity", OSDI 2022, figure 2)
gpt bert  GPT-2 of 124 million parameters (12 blocks) and BERT-Large (24), 4 texts of 128 words on 4 P100 processors: in
          each block heads and the columns of the wide layer cut (Shoeybi et al., "Megatron-LM", 2019). Of 8 texts the
          attention of GPT-2 is faster by samples
wide      eight layers of width 2304 with 16,384 samples on 4 processors, where FlexFlow's plan was slower than data
          parallelism (issue 217 of flexflow-train)
Each is searched by `dynamic` with its own budget, then by `mcmc` with so many proposals from what that found; budgets
of proposals repeat bit for bit. Last come the figures.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.figures import Figure, tell
from castile.launch import models
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.families.updates import Updates
from castile.planner.known.seeds import seed, seeds
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.search import search
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine as machines
from castile.runtime.machine import Level, Machine

DATA_PARALLEL = "data_parallel"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--proposals", type=int, default=100)
    options = parser.parse_args()
    tell([figure for name in options.only for figure in CASES[name](options.proposals)])


def alexnet(proposals: int) -> list[Figure]:
    same = evaluator("alexnet:dropout=0", 256, machines.parse("flexflow-k80:nodes=1"))
    found = best(same, proposals)
    configs = found.strategy.configs
    hybrid = [configs[name].split.keys() == {"b"} for name in configs if same_op(same, name, "conv2d")]
    hybrid += ["b" not in configs[name].split for name in configs if same_op(same, name, "linear")]
    return [
        Figure("patterns_alexnet_hybrid_share", float(np.mean(hybrid)), least=1.0, note="of layers with parameters"),
        _beside("patterns_alexnet_over_one_weird_trick", same, found, "one_weird_trick"),
        _beside("patterns_alexnet_over_data_parallel", same, found, DATA_PARALLEL),
    ]


def mlp2(proposals: int) -> list[Figure]:
    p100 = machines.parse("flexflow-p100:nodes=1")
    two = Machine("p100x2", p100.processors[:2], (Level("nvlink", 2, 0.0, p100.levels[0].bytes_per_second),))
    same = evaluator("mlp:layers=1,width=512,size=28", 64, two)
    found = best(same, proposals)
    whole = same.evaluate(seeds(same.lowering)[DATA_PARALLEL])
    return [
        Figure("patterns_mlp2_moved_elements", found.moved_bytes / 4, most=131_072, note="published 131,072"),
        Figure("patterns_mlp2_data_parallel_elements", whole.moved_bytes / 4, note="published 813,056, without biases"),
        _beside("patterns_mlp2_over_data_parallel", same, found, DATA_PARALLEL),
    ]


def gpt(proposals: int) -> list[Figure]:
    return _transformer("gpt:size=124m,seq=128", proposals)


def bert(proposals: int) -> list[Figure]:
    return _transformer("bert:size=large,seq=128", proposals)


def wide(proposals: int) -> list[Figure]:
    same = evaluator("mlp:layers=8,width=2304,size=48", 16_384, machines.parse("flexflow-p100:nodes=1"))
    return [_beside("patterns_wide_over_data_parallel", same, best(same, proposals), DATA_PARALLEL)]


CASES = {"alexnet": alexnet, "mlp2": mlp2, "gpt": gpt, "bert": bert, "wide": wide}


def evaluator(model: str, batch: int, machine: Machine) -> Evaluator:
    graph = models.parse(model).graph(batch)
    return Evaluator(Lowering(graph, machine, Updates(find("sgd")(momentum=0.9))), CostModel(machine))


def best(same: Evaluator, proposals: int) -> Evaluated:
    """What is found from data parallelism alone."""
    first = search("dynamic", same, seeds=[DATA_PARALLEL])
    return search("mcmc", same, str(proposals), start={"dynamic": first.strategy}, seeds=[DATA_PARALLEL]).evaluated


def same_op(same: Evaluator, name: str, op: str) -> bool:
    node = same.lowering.piece.nodes.get(name)
    return node is not None and node.op.name == op


def _transformer(model: str, proposals: int) -> list[Figure]:
    same, name = evaluator(model, 4, machines.parse("flexflow-p100:nodes=1")), model.partition(":")[0]
    found = best(same, proposals)
    blocks = {node.partition(".")[0] for node in found.strategy.configs if node.startswith("block")}
    cut = [_is_paired(found.strategy.configs, f"{block}.") for block in sorted(blocks)]
    return [
        Figure(f"patterns_{name}_paired_share", float(np.mean(cut)), least=1.0, note="of half layers"),
        _beside(f"patterns_{name}_over_megatron", same, found, "megatron"),
        _beside(f"patterns_{name}_over_data_parallel", same, found, DATA_PARALLEL),
    ]


def _is_paired(configs: dict[str, Config], block: str) -> list[bool]:
    """Of a block's attention and of its wide layers: whether what is between two matrices stays where it is."""

    def degrees(**axes: str) -> set[int]:
        return {configs[block + name].degree(axis) for name, axis in axes.items()}

    halves = degrees(q="o", k="o", v="o", attention="h", o="i"), degrees(up="o", gelu="o", down="i")
    return [len(half) == 1 and half != {1} for half in halves]


def _beside(name: str, same: Evaluator, found: Evaluated, known: str) -> Figure:
    """Seconds of a known plan over those of the plan found."""
    seconds = same.evaluate(Strategy(seed(known, same.lowering))).seconds
    return Figure(f"{name}_ratio", seconds / found.seconds, least=1.0)


if __name__ == "__main__":
    main()
