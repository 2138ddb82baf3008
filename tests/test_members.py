"""What a rewrite makes part of a node is known by its name still: to pins, explanations and refusals."""

from pathlib import Path

import pytest

from castile.launch import models
from castile.launch.__main__ import main
from castile.planner import rewrite
from castile.planner import strategy as strategies
from castile.planner.choices.pins import Pins, parse
from castile.planner.step import beside
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine
from tests.answers import answer, sentence
from tests.strategies import SGD, whole_on
from tests.test_models import small

RESNET = "resnet:size=8,width=2,rewrite=fuse"


@pytest.mark.parametrize("text", [small(name) for name in models.available()])
def test_every_node_is_there_or_part_of_one_that_is(text: str) -> None:
    graph = models.parse(text).graph(2)
    made = rewrite.apply("+".join(rewrite.available()), graph)
    names = beside.names(made, SGD)
    members = [member for node in made.nodes.values() for member in node.members]
    params = {p.name for p in graph.params}
    assert len(members) == len(names.within) == len({*members})
    assert {*made.nodes, *members} - params == {*graph.nodes} and not {*members} & {*made.nodes}
    for node in made.nodes.values():
        assert bool(node.members) == (node.op.name == "fused")
        # a bias is no node: it is known by what is read
        assert {*node.members} & params <= {*node.inputs}


def test_a_pin_on_a_member_binds_its_node() -> None:
    graph = models.parse(RESNET).graph(4)
    names = beside.names(graph, SGD)
    node = next(n for n in graph.nodes.values() if len(n.members) > 1)
    axis = node.alignment.axes[0]
    for pattern in (node.name, *node.members):
        pins = Pins([parse(f"{pattern}: {{{axis}: 2}}")], names, 4)
        assert {n for n in names.nodes if pins.need(n)} == {node.name}
        assert pins.apply({node.name: Config()})[node.name].degree(axis) == 2
    with pytest.raises(ValueError, match=rf"{node.name} \(with {', '.join(node.members)}\) has no axis 'q'"):
        Pins([parse(f"{node.members[0]}: {{q: 2}}")], names, 4)
    with pytest.raises(ValueError, match=f"no node has a name like .*did you mean '{node.members[0]}'"):
        Pins([parse(f"{node.members[0]}x: {{{axis}: 2}}")], names, 4)


def test_a_plan_that_names_a_member_is_told_where_it_went() -> None:
    graph = models.parse(RESNET).graph(4)
    node = next(n for n in graph.nodes.values() if n.members)
    plan = Strategy(whole_on(graph).configs | {node.members[0]: Config()})
    with pytest.raises(ValueError, match=f"names a node '{node.members[0]}', here a part of '{node.name}': plan again"):
        strategies.check(plan, beside.names(graph, SGD), graph, machine.local(1))


def test_diff_on_a_machine_shows_members(tmp_path, capfd) -> None:
    graph = models.parse(RESNET).graph(4)
    node = next(n for n in graph.nodes.values() if len(n.members) > 1)
    files = [str(tmp_path / f"{n}.json") for n in range(2)]
    for n, path in enumerate(files):
        configs = whole_on(graph).configs | {node.name: Config(procs=(n,))}
        Path(path).write_bytes(strategies.encode(Strategy(configs, model=RESNET, graph=graph.fingerprint, num_procs=2)))
    given = ["diff", *files, "--machine", "dgx-h100:nodes=1", "--batch", "4"]
    (row,) = answer(capfd, *given)["moved"]
    assert row["nodes"] == [node.name] and row["members"].split() == [*node.members]
    assert main(given) == 0
    assert f"{node.name} (with {' '.join(node.members)})" in capfd.readouterr().out


def test_explain_takes_and_shows_members(tmp_path, capfd) -> None:
    graph, path = models.parse(RESNET).graph(4), str(tmp_path / "plan.json")
    node = next(n for n in graph.nodes.values() if len(n.members) > 1)
    Path(path).write_bytes(strategies.encode(Strategy(whole_on(graph).configs, model=RESNET, graph=graph.fingerprint)))
    given = ["explain", path, "--machine", "dgx-h100:nodes=1", "--batch", "4", "--budget", "5"]
    by_name, by_member = (answer(capfd, *given, "--op", name) for name in (node.name, node.members[-1]))
    assert by_member == by_name and by_name["op"]["name"] == node.name
    assert by_name["op"]["members"].split() == [*node.members]
    assert all(row["members"].split() == [*node.members] for row in by_name["causes"] if row["op"] == "fused")
    assert main([*given, "--op", node.members[0]]) == 0
    assert f"{node.name} (with {' '.join(node.members)})" in capfd.readouterr().out
    assert f"did you mean {node.members[0]!r}" in sentence(capfd, *given, "--op", node.members[0] + "x")
