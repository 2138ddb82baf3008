"""Rewrites that are Python files of the user's own: they are used where they compute what they were made of."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.arrays import equal
from castile.planner import rewrite as rewrites
from castile.planner.graph import Graph
from castile.planner.ops.linear import Linear
from castile.planner.rewrite import made_of
from tests.test_own import FILES
from tests.test_rewrites import EXACT, RATE, apart, original, trained, values

SMALL = "convnet:channels=3,width=5"
MACHINE = "dgx-h100:nodes=1"
BEGIN = """
from dataclasses import replace
from castile.planner.ops.gelu import Gelu
from castile.planner.rewrite import made_of

def rewrite(graph):
    rows = {name: (name, node.op, node.inputs) for name, node in graph.nodes.items()}
"""
WRONG = {
    "rows['relu1'] = 'relu1', Gelu(), ('conv1',); return made_of(graph, rows.values())": "changes what the network",
    "graph.nodes.pop('loss'); return graph": "changes the graph that it is given",
    "return replace(graph, outputs=[])": "changes the graph's outputs, which has to stay",
    "return rows": "gives dict, and not a Graph",
    "del rows['loss']; return made_of(graph, rows.values())": "changes 'loss', which has to stay as it is",
    "del rows['relu1']; return made_of(graph, rows.values())": "conv2 reads 'relu1', which no node before it gives",
    "return replace(graph, nodes=dict(reversed(graph.nodes.items())))": "which no node before it gives",
    "return graph.nowhere": "failed: AttributeError: a graph has no layer 'nowhere'",
}


@pytest.fixture
def later(alone: Path) -> Path:
    """The rewrite that docs/own.md shows: what is the largest of rectified numbers is rectified instead."""
    (alone / "later.py").write_text(FILES["later.py"])
    return alone


def test_it_computes_the_same_with_less_work(later: Path) -> None:
    graph, made = (models.parse(f"{SMALL}{more}").graph(2, "float64") for more in ("", ",rewrite=later.py"))
    assert made.nodes["pool"].op.name == "relu" and made.nodes["relu2"].op.name == "max_pool2d"
    assert made.fingerprint != graph.fingerprint == original(SMALL, dtype="float64").fingerprint
    known = values(graph)
    assert apart(trained(graph, known), trained(made, known), RATE) < EXACT
    work = [sum(n.op.flops("F", n.whole()) for n in g.nodes.values()) for g in (graph, made)]
    assert work[1] < work[0]


def test_it_goes_with_others_and_with_plans(later: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", f"{SMALL},rewrite=later.py+fuse", "--machine", MACHINE, "--search", "data_parallel", "--json"]
    assert main([*words, "--out", "plan.json"]) == 0
    assert json.loads(capsys.readouterr().out)["rewrite"] == "later.py+fuse"
    assert main(["explain", "plan.json", "--json"]) == 0
    capsys.readouterr()
    words = ["train", f"{SMALL},rewrite=later.py", "--steps", "2", "--search", "data_parallel", "--json"]
    assert main([*words, "--checkpoint", "run"]) == 0 and main(["train", SMALL, *words[2:]]) == 0
    one, other = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert np.allclose(one["losses"], other["losses"], rtol=1e-6)


@pytest.mark.parametrize("body", WRONG)
def test_one_that_computes_something_else_is_refused(alone: Path, body: str) -> None:
    (alone / "wrong.py").write_text(f"{BEGIN}    {body}\n")
    with pytest.raises(ValueError, match=WRONG[body]):
        models.parse(f"{SMALL},rewrite=wrong.py").graph(2)


def test_a_file_that_is_none_is_refused(alone: Path) -> None:
    (alone / "empty.py").write_text("")
    with pytest.raises(ValueError, match=r"rewrite file empty.py has no function rewrite\(graph\)"):
        models.parse("mlp:rewrite=empty.py")
    with pytest.raises(ValueError, match=r"no rewrite 'fus' .did you mean 'fuse'.* or name a Python file with rewrite"):
        models.parse("mlp:rewrite=fus")


@pytest.mark.parametrize("name", rewrites.available())
@pytest.mark.parametrize("text", [SMALL, "gpt:layers=1,width=8,heads=2,seq=4", "resnet"])
def test_castiles_own_pass_the_same_look(text: str, name: str) -> None:
    graph = original(text)
    made = rewrites.apply(name, graph)
    assert equal.difference(graph, made) == ""
    assert rewrites._wrong(graph, made) == ""


def test_nodes_that_stay_make_the_same_graph() -> None:
    """With the orders of their dims, and what they are made of; a constant that is off by little is seen."""
    graph = rewrites.apply("channels_last", rewrites.apply("fuse", original("resnet")))
    rows = [(name, node.op, node.inputs) for name, node in graph.nodes.items()]
    made = made_of(graph, rows)
    assert made.nodes == graph.nodes and made.fingerprint == graph.fingerprint and made is not graph
    g = Graph("two")
    x = g.input("x", (2, 3), "b i")
    g.minimise(g.mean("loss", g.scale("y", g.linear("fc", x, features=4), 2.0)))
    rows = [(n.name, n.op, n.inputs) for n in g.nodes.values()]
    assert isinstance(g.nodes["fc"].op, Linear) and equal.difference(g, made_of(g, rows)) == ""
    changed = [(n, g.nodes["y"].op.__class__(2.0001) if n == "y" else op, i) for n, op, i in rows]
    assert equal.difference(g, made_of(g, changed)).startswith("loss is ")
