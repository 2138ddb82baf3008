"""Spaces: those of nodes share what they can, and are what each would have by itself."""

from __future__ import annotations

import random

import pytest

from castile.launch import models
from castile.planner.choices.space import degrees, free_axes, space_of, splits
from castile.planner.choices.spaces import Spaces
from castile.planner.cost import CostModel
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import available
from castile.planner.sketch.spaces import SpaceTable
from castile.planner.strategy import Config
from castile.runtime import machine as machines
from tests.effort import rare
from tests.op_cases import cases_of
from tests.op_laws import node_of


@pytest.mark.parametrize("name", available())
def test_a_space_is_that_of_the_axes_however_long_others_of_its_kind_are(name: str) -> None:
    for node in map(node_of, cases_of(name)):
        for num_procs in (1, 2, 3, 8, 64):
            own = splits(free_axes(node), num_procs, degrees(num_procs))
            assert space_of(node, num_procs).splits == own, f"{node} on {num_procs}"


@pytest.mark.parametrize("model", ["alexnet", "gpt", *rare("resnet:depth=18", "nmt")])
@pytest.mark.parametrize("most", [50, 10**6])
def test_what_nodes_share_in_a_table_is_what_each_has_by_itself(model: str, most: int) -> None:
    """Made for one node alone, a table has the same splits, degrees and Configs, in the same order."""
    graph = models.parse(model).graph(8)
    lowering = Lowering(graph, machines.parse("flexflow-k80:nodes=8"))
    num_procs, spaces = lowering.machine.num_procs, Spaces(lowering, CostModel(lowering.machine))
    nodes = list(graph.nodes.values())
    plans = seeds(lowering).values()
    # Of some nodes a Config is known that is none of the space.
    strange = [[Config({a: 3}, 1, (0, 1, 2)) for a, extent in free_axes(node)[:1] if extent > 2] for node in nodes]
    known = [[*(plan.configs[node.name] for plan in plans), *own] for node, own in zip(nodes, strange, strict=True)]
    known[::2] = [of[: len(plans)] for of in known[::2]]
    table = SpaceTable(nodes, [spaces[node.name] for node in nodes], num_procs, known, most)
    arrays = table.arrays()
    for n in random.Random(0).sample(range(len(nodes)), 5):
        alone = SpaceTable([nodes[n]], [spaces[nodes[n].name]], num_procs, [known[n]], most)
        count, first = int(alone.first[-1]), int(table.first[n])
        assert (table.axes[n], table.splits[n], table.cuts[n]) == (alone.axes[0], alone.splits[0], alone.cuts[0])
        assert (table.degree[n] == alone.degree[0]).all() and int(table.first[n + 1]) - first == count
        every = [table.config(n, first + number) for number in range(count)]
        assert every == [alone.config(0, number) for number in range(count)]
        assert [table.find(n, config) for config in known[n]] == [first + every.index(config) for config in known[n]]
        lengths = arrays.proc_ptr[first : first + count + 1]
        assert [tuple(arrays.procs[a:b].tolist()) for a, b in zip(lengths, lengths[1:])] == [c.procs for c in every]
