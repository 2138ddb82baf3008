"""Tables that numbers look rows up in are priced by the rows that are read, not by all that there are."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest

from castile.launch import models
from castile.planner.bounds.lower_bound import lower_bound
from castile.planner.choices.space import space_of
from castile.planner.choices.spaces import Spaces
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.lowering.instances import StepInstance
from castile.planner.op import Part, available, find
from castile.planner.sketch.sketch import Sketch
from castile.planner.strategy import Config, Strategy, parts
from castile.runtime import machine as machines
from tests.effort import examples
from tests.op_cases import Case, cases_of, every_case
from tests.op_laws import node_of, splits

TABLES = [case for name in available() if find(name).looked_up for case in cases_of(name)]
# Far more rows than a batch names, in one table and in many; and sentences that name most of theirs.
MODELS = {"dlrm:sizes=100000+2000+7": 64, "xdl": 64, "nmt:layers=1,width=32,seq=8,vocab=4000": 16}


def looking(rows: int, count: int, features: int = 8) -> Graph:
    g = Graph("looking", "float32")
    ids, y = g.input("ids", (count,), "b", "int32"), g.input("label", (count,), "b", "int32")
    g.minimise(g.cross_entropy("loss", g.embedding("table", ids, rows=rows, features=features), y))
    g.outputs = ["table"]
    return g


def evaluator(graph: Graph, machine: str, mode: str = "train") -> Evaluator:
    on = machines.parse(machine)
    return Evaluator(Lowering(graph, on, Updates(find("sgd")()), mode), CostModel(on))


def passes_of(graph: Graph, name: str, split: dict[str, int]) -> dict[str, StepInstance]:
    """By which it is the passes of a node under a split."""
    lowering = evaluator(graph, "dgx-h100:nodes=1").lowering
    configs = {name: Config(split, 1, tuple(range(prod(split.values()))))}
    every = lowering.instances(Strategy({**{n: Config() for n in graph.nodes}, **configs}))[0]
    return {one.step.which: one for one in every if one.step.node.name == name}


def test_there_are_operators_that_look_rows_up() -> None:
    assert {case.op.name for case in TABLES} >= {"embedding", "embedding_bag"}


@every_case
def test_no_part_touches_more_than_it_reads_and_all_parts_touch_what_the_whole_does(case: Case) -> None:
    node = node_of(case)
    for operand in range(len(node.inputs)):
        whole = node.whole().touches(operand)
        assert whole == node.whole().reads(operand).volume or operand in dict(case.op.looked_up)
        for split in splits(node):
            each = [part.touches(operand) for part in parts(node, split)]
            boxes = [part.reads(operand).volume for part in parts(node, split)]
            assert all(0 <= touched <= volume for touched, volume in zip(each, boxes, strict=True))
            assert operand not in dict(case.op.looked_up) or sum(each) >= whole


@pytest.mark.parametrize("case", TABLES, ids=str)
def test_rows_that_are_read_are_those_that_numbers_name(case: Case) -> None:
    """Of numbers that are spread evenly over all rows, a part reads as many as are told, or one less or more."""
    node = node_of(case)
    for table, numbers in case.op.looked_up:
        axis = dict(case.op.numbering)[numbers]
        rows = node.alignment.extents[axis]
        for part in [part for split in splits(node) for part in parts(node, split)]:
            (lo, hi), count = part.range(axis), part.reads(numbers).volume
            named = {n * rows // count if count < rows else n % rows for n in range(count)}
            features = part.reads(table).volume // (hi - lo)
            assert abs(len(named & {*range(lo, hi)}) - part.touches(table) / features) <= 1


@pytest.mark.parametrize("split", [{}, {"b": 2}, {"v": 4}, {"d": 2}, {"b": 2, "v": 4}])
def test_a_pass_is_priced_by_the_rows_that_it_reads(split: dict[str, int]) -> None:
    """Forward its numbers, the rows that they name, and the results; the gradient is all of the table, as it is
    written."""
    rows, count, features = 4000, 64, 8
    each = passes_of(looking(rows, count, features), "table", split)
    numbers, held, wide = count // split.get("b", 1), rows // split.get("v", 1), features // split.get("d", 1)
    named = -(-numbers // split.get("v", 1))
    keys = {which: {part.key.nbytes for part in one.template.parts} for which, one in each.items()}
    assert keys["F"] == {4 * (numbers + named * wide + numbers * wide)}
    assert keys["W"] == {4 * (numbers + numbers * wide + held * wide)}


def test_tables_of_few_rows_are_read_whole() -> None:
    assert {part.key.nbytes for part in passes_of(looking(10, 64), "table", {})["F"].template.parts} == {
        4 * (64 + 10 * 8 + 64 * 8)
    }


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mode", ["train", "forward"])
def test_no_plan_of_a_model_of_tables_beats_the_bound(model: str, mode: str) -> None:
    same, rng = evaluator(models.parse(model).graph(MODELS[model]), "flexflow-p100:nodes=1", mode), random.Random(0)
    nodes, procs, found = same.lowering.piece.nodes, same.lowering.machine.num_procs, lower_bound(same)
    plans = [plan.configs for plan in seeds(same.lowering, None, same.cost).values()]
    plans += [{name: space_of(node, procs).draw(rng) for name, node in nodes.items()} for _ in range(examples(20))]
    assert 0 < found.seconds <= min(same.evaluate(Strategy(dict(plan))).seconds for plan in plans)


@pytest.mark.parametrize("rows", [10, 4000, 4_000_000])
def test_the_bound_counts_rows_that_are_read(rows: int) -> None:
    same = evaluator(looking(rows, 64), "flexflow-p100:nodes=1", "forward")
    processor = same.lowering.machine.processors[0]
    nbytes = 4 * (64 + min(rows, 64) * 8 + 64 * 8)
    least = processor.task_overhead_seconds + nbytes / processor.bytes_per_second
    assert 4 * lower_bound(same).work_seconds == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_sketches_price_rows_as_the_simulator_does(model: str) -> None:
    same = evaluator(models.parse(model).graph(MODELS[model]), "flexflow-p100:nodes=1", "forward")
    plan = {name: Config() for name in same.lowering.piece.nodes}
    sketch = Sketch(same.lowering, same.cost, Spaces(same.lowering, same.cost), [plan])
    assert sketch.seconds(plan) == pytest.approx(same.evaluate(Strategy(plan)).seconds, rel=1e-6)


def test_what_is_touched_is_found_for_many_parts_at_once() -> None:
    node = looking(4000, 64).nodes["table"]
    each = [parts(node, split)[0] for split in ({}, {"b": 4}, {"v": 5}, {"d": 2})]
    axes = node.alignment.axes
    ends = {axis: np.array([[part.range(axis)[end] for part in each] for end in (0, 1)]) for axis in axes}
    together = Part(node.op, node.alignment, {axis: (lo, hi) for axis, (lo, hi) in ends.items()})
    assert together.touches(1).tolist() == [part.touches(1) for part in each]
