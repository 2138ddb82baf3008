"""What sketches are made of: many parts at once are as each by itself, and prices are those of the largest parts.

Held for every operator that is found, cut in any way.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from math import prod

import numpy as np
import pytest

from castile.launch import models
from castile.planner.choices.space import space_of, splits
from castile.planner.choices.spaces import Spaces
from castile.planner.cost import CostModel
from castile.planner.costs.snapshot import Environment, Measured, snapshot_of
from castile.planner.families.updates import Updates
from castile.planner.graph import Node
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.lowering.template import Templates
from castile.planner.op import PASSES, Part, available, find
from castile.planner.sketch.largest import Largest
from castile.planner.sketch.layouts import LayoutTable
from castile.planner.sketch.sketch import Sketch
from castile.planner.sketch.spaces import SpaceTable
from castile.planner.strategy import Config, parts
from castile.runtime import machine as machines
from castile.runtime.machine import Machine
from castile.runtime.timeline import PICOSECONDS
from tests import op_laws
from tests.op_cases import Case, cases_of, every_case
from tests.op_laws import node_of
from tests.test_models import small

NUM_PROCS = 6
CASES = [c for name in available() for c in cases_of(name)]


def tables(node: Node) -> tuple[SpaceTable, LayoutTable]:
    table = SpaceTable([node], [space_of(node, NUM_PROCS)], NUM_PROCS, [[]], 50)
    return table, LayoutTable(table, Templates().node_kind)


def largest(node: Node, split: Mapping[str, int]) -> Part:
    """The first part, as long as any; or one as long at the end, where that has more to do."""
    first = parts(node, split)[0]
    ends = node.alignment.extents
    last = Part(node.op, node.alignment, {x: (ends[x] - (hi - lo), ends[x]) for x, (lo, hi) in first.ranges.items()})
    return last if node.op.flops("F", last) > node.op.flops("F", first) else first


@every_case
def test_the_largest_parts_of_all_splits_at_once_are_those_of_each(case: Case) -> None:
    node = node_of(case)
    table, _ = tables(node)
    cut = dict(zip(table.axes[0], table.degree[0].T, strict=True))
    every = Largest([node], cut, [len(table.splits[0])])
    each = [largest(node, split) for split in table.splits[0]]

    def of_each(found: object) -> list:
        return np.broadcast_to(np.asarray(found), len(each)).tolist()

    for role, count in (("x", len(node.inputs)), ("y", len(node.outputs))):
        for index in range(count):
            shapes = [(p.reads(index) if role == "x" else p.writes(index)).shape for p in each]
            found = [of_each(length) for length in every.shape(role == "x", index)]
            assert list(zip(*found, strict=True)) == shapes or (not found and set(shapes) == {()})
    for which in PASSES:
        if case.op.has(which):
            found = of_each(every.flops(which))
            assert found == [case.op.flops(which, part) for part in each]
            for split, most in zip(table.splits[0], found, strict=True):
                assert most >= max(case.op.flops(which, part) for part in parts(node, split))


@every_case
def test_operands_that_follow_the_line_are_read_so(case: Case) -> None:
    node = node_of(case)
    for part in (part for split in op_laws.splits(node) for part in parts(node, split)):
        for n, operand in enumerate(node.alignment.operands):
            assert part.reads(n) == part.shard(operand) or not case.op.follows(n)


def touched(whole: op_laws.Whole, which: str, part: Part) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """What a part's pass reads and makes, by number, and what there is none of to be read or made."""
    recording, arrays = op_laws.recorded(whole.case, which, part, *whole.local(part))
    numbers = op_laws.targets(whole.case, which)
    made = {n for n, one in zip(numbers, recording.results, strict=True) if one is not None}
    boxes = {n: part.writes(n) if which == "F" else part.reads(n) for n in numbers}
    found = {("reads", n) for n in recording.reads} | {("makes", n) for n in made}
    nothing = {("reads", n) for n, array in enumerate(arrays) if array.size == 0}
    return found, nothing | {("makes", n) for n, box in boxes.items() if box.volume == 0}


def test_settings_alone_tell_what_first_parts_touch() -> None:
    seen: dict[object, set[tuple[str, int]]] = {}
    for whole in map(op_laws.Whole, CASES):
        op, a = whole.case.op, whole.node.alignment
        firsts = [parts(whole.node, split)[0] for split in op_laws.splits(whole.node)]
        for which in op_laws.passes(whole.case):
            every, _ = touched(whole, which, whole.node.whole())
            assert seen.setdefault((type(op), op.cost_settings, which, a.operands, a.results), every) == every
            for found, nothing in (touched(whole, which, part) for part in firsts):
                # Who has nothing to make reads nothing.
                assert found <= every and (not found or every <= found | nothing), (whole.case, which)


@every_case
def test_layouts_have_the_blocks_of_every_axis(case: Case) -> None:
    node = node_of(case)
    table, layouts = tables(node)
    ports = [(True, n) for n in range(len(node.inputs))] + [(False, n) for n in range(len(node.outputs))]
    numbers = [layouts.number(node, 0, *port) for port in ports]
    arrays, rank = layouts.arrays(table.first)[0], {degree: n for n, degree in enumerate(table.degrees)}
    for a, axis in enumerate(table.axes[0]):
        for degree in table.cuts[0][a]:
            pieces = parts(node, {axis: degree})
            for (is_operand, index), number in zip(ports, numbers, strict=True):
                for n, part in enumerate(pieces):
                    box = part.reads(index) if is_operand else part.writes(index)
                    for d, pair in enumerate(zip(box.lo, box.hi, strict=True)):
                        mine = arrays.axis[number, d] == a
                        at = arrays.table[number, d, rank[degree] if mine else 0] + (n if mine else 0)
                        assert (arrays.lo[at], arrays.hi[at]) == pair, (axis, degree, is_operand, index, d)


MODELS = {
    "lenet": 64,
    "gpt:layers=2,width=64,heads=4,seq=32,vocab=256": 16,
    "lstm:layers=1,width=32,seq=4,vocab=64": 32,
    "moe:layers=1,width=32,heads=2,experts=4,seq=16,vocab=64": 16,
}


def measured(lowering: Lowering) -> CostModel:
    """A cost model of a machine on which some kernels were measured, of others nothing but what these tell."""
    machine, rng = lowering.machine, random.Random(2)
    tasks, plain = lowering.lower(seeds(lowering)["data_parallel"]), CostModel(machine)
    keys = [key for key in tasks.cost_keys if not key.link and rng.random() < 0.5]
    rows = [Measured(key, plain.seconds(key).seconds * rng.uniform(0.5, 2)) for key in keys]
    return CostModel(machine, snapshot_of(Environment(machine.kinds[0].kind), rows, 1e-6))


ODD = "gpt:layers=1,width=512,heads=4,seq=256,vocab=1003"
# Where rows begin matters on some machines, of numbers of 16 bits, and whether an image's channels lie together.
PRICED = [
    *((model, samples, "flexflow-k80:nodes=1", "float32") for model, samples in MODELS.items()),
    (ODD, 16, "h200:nodes=1", "bfloat16"),
    (f"{ODD},rewrite=classes_first", 16, "dgx-a100:nodes=1", "float16"),
    ("alexnet", 512, "h200:nodes=1", "bfloat16"),
    # Cores bring rows of images to where windows slide over them.
    ("alexnet", 16, "local:procs=4", "float32"),
    (small("resnext"), 16, "local:procs=2", "float32"),
    # And they look for shares of scores.
    ("gpt:layers=1", 8, "local:procs=2", "float32"),
    ("alexnet:rewrite=channels_last", 512, "dgx-h100:nodes=1", "float16"),
]


@pytest.mark.parametrize("is_measured", [False, True])
@pytest.mark.parametrize(("model", "samples", "machine", "dtype"), PRICED)
def test_seconds_are_the_price_of_a_templates_largest_part(
    model: str, samples: int, machine: str, dtype: str, is_measured: bool
) -> None:
    on = machines.parse(machine)
    lowering = Lowering(models.parse(model).graph(samples, dtype), on, Updates(find("adam")()))
    cost = measured(lowering) if is_measured else CostModel(on)
    start = dict(seeds(lowering)["data_parallel"].configs)
    sketch, rng = Sketch(lowering, cost, Spaces(lowering, cost), [start]), random.Random(1)
    dtypes = sketch._works._program.dtypes.__getitem__
    for kind, first in enumerate(sketch._first_of_kind.tolist()):
        node = lowering.piece.nodes[sketch.names[first]]
        cuts = sketch.table.splits[sketch.program.space[first]]
        for split in rng.sample(range(len(cuts)), min(3, len(cuts))):
            number = int(sketch._known_first[kind]) + split
            if not sketch.prices.known[number]:
                sketch._fill(number)
            for s in sketch.program.own[sketch.program.own_ptr[first] : sketch.program.own_ptr[first + 1]].tolist():
                step, config = sketch._draft.steps[s], Config(cuts[split])
                of = config.split if step.node is node else sketch._works.of_param(node, step, config.split)
                at = -1 if largest(step.node, of) != parts(step.node, of)[0] else 0
                key = lowering.templates.get(step, dict(of), dtypes).parts[at].key
                lasts = cost.picoseconds([key], 0)[0] / PICOSECONDS
                assert sketch.prices.seconds[sketch.program.row[s] + split, 0] == lasts, (step.name, cuts[split])


def test_only_what_nothing_is_known_of_is_priced_at_once() -> None:
    on = machines.parse("flexflow-k80:nodes=1")
    lowering = Lowering(models.parse("lenet").graph(64), on, Updates(find("sgd")()))
    start = dict(seeds(lowering)["data_parallel"].configs)
    for cost, at_once in ((CostModel(on), True), (measured(lowering), False)):
        sketch = Sketch(lowering, cost, Spaces(lowering, cost), [start])
        assert sketch._works.is_plain == at_once
        sketch._fill(0)
        assert (sketch.prices.known.sum() > 1) == at_once


@pytest.mark.parametrize("model", models.available())
def test_nodes_of_which_only_extents_differ_are_asked_about_together(model: str) -> None:
    on = machines.parse("flexflow-k80:nodes=1")
    lowering = Lowering(models.parse(small(model)).graph(8), on, Updates(find("adam")()))
    cost = CostModel(on)
    sketch = Sketch(lowering, cost, Spaces(lowering, cost), [seeds(lowering)["data_parallel"].configs])
    alike: dict[object, list[Largest]] = {}
    for number in sketch._first_of_kind.tolist():
        name = sketch.names[number]
        key = sketch._works.together(lowering.piece.nodes[name], sketch._steps[name])
        alike.setdefault(key, []).append(sketch._largest(number, None))
    for every in alike.values():
        joined, node = Largest.joined(every), every[0].node
        for port in [(True, n) for n in range(len(node.inputs))] + [(False, n) for n in range(len(node.outputs))]:
            mine = np.broadcast_to(np.array(joined.size(*port)), joined.count)
            assert mine.tolist() == [n for one in every for n in np.broadcast_to(one.size(*port), one.count).tolist()]
        rows = [np.broadcast_to(one.rows, one.count) for one in every]
        assert np.broadcast_to(joined.rows, joined.count).tolist() == np.concatenate(rows).tolist()
        for which in PASSES:
            if node.op.has(which):
                mine = np.broadcast_to(joined.flops(which), joined.count)
                each = [np.broadcast_to(one.flops(which), one.count) for one in every]
                assert mine.tolist() == np.concatenate(each).tolist()
                looks = [np.broadcast_to(one.looks(which), one.count) for one in every]
                assert np.broadcast_to(joined.looks(which), joined.count).tolist() == np.concatenate(looks).tolist()


@pytest.mark.parametrize("fixed", [{}, {"i": 3}, {"b": 2, "o": 1}])
@pytest.mark.parametrize("room", [1, 4, 6, 12])
def test_splits_are_all_combinations_that_there_is_room_for(room: int, fixed: dict[str, int]) -> None:
    extents = [("b", 6), ("i", 3), ("o", 12)]
    of = {axis: (fixed[axis],) if axis in fixed else range(1, min(room, n) + 1) for axis, n in extents}
    every = [dict(zip(of, degrees, strict=True)) for degrees in itertools.product(*of.values())]
    free = [split for split in every if prod(split.values()) <= room or split == {axis: 1 for axis in of} | fixed]
    found = splits(extents, room, range(1, room + 1), fixed)
    assert found == [{axis: degree for axis, degree in split.items() if degree > 1} for split in free]


def placed(machine: Machine, model: str, most: int) -> SpaceTable:
    lowering = Lowering(models.parse(model).graph(MODELS[model]), machine, Updates(find("sgd")()))
    nodes = list(lowering.piece.nodes.values())
    spaces = Spaces(lowering, CostModel(machine))
    known = [[seed.configs[node.name] for seed in seeds(lowering).values()] for node in nodes]
    known = [[*of, Config({}, 1, (machine.num_procs - 1,))] for of in known]
    table = SpaceTable(nodes, [spaces[node.name] for node in nodes], machine.num_procs, known, most)
    for space, of in enumerate(known):
        found = [table.find(space, config) for config in of]
        assert None not in found and [table.config(space, number) for number in found] == of
    return table


@pytest.mark.parametrize("most", [1, 40, 1000])
@pytest.mark.parametrize("procs", [1, 2])
def test_configs_have_numbers_and_numbers_configs(procs: int, most: int) -> None:
    table = placed(machines.parse(f"flexflow-p100:nodes={procs}"), "lenet", most)
    arrays = table.arrays()
    for space, axes in enumerate(table.axes):
        every = [table.config(space, n) for n in range(table.first[space], table.first[space + 1])]
        assert len(set(every)) == len(every)
        for number, config in enumerate(every, int(table.first[space])):
            assert table.find(space, config) == number
            procs_of = arrays.procs[arrays.proc_ptr[number] : arrays.proc_ptr[number + 1]]
            assert tuple(procs_of.tolist()) == config.procs and arrays.replicas[number] == config.replicas
            assert arrays.degree[number, : len(axes)].tolist() == [config.degree(axis) for axis in axes]
            assert arrays.parts[number] == config.num_parts
    procs, sets = {n: frozenset(table.config(0, n).procs) for n in range(table.first[1])}, arrays.proc_set
    assert all((sets[n] == sets[m]) == (procs[n] == procs[m]) for n in procs for m in list(procs)[:9])
    assert table.find(0, Config({}, 1, (10**6,))) is None and table.find(0, Config({"none": 2}, 1, (0, 1))) is None
