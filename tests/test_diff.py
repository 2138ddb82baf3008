"""Differences of plans: none from a plan to itself, negated when turned round, and told to people and programs."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.diff import compare
from castile.planner import strategy as strategies
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.strategy import Config, Predicted, Strategy
from castile.runtime import machine as machines
from tests import strategies as drawn
from tests.answers import answer, sentence

MLP = "mlp:layers=1,width=16"
MACHINE = "dgx-h100:nodes=1"
predictions = st.none() | st.builds(Predicted, st.floats(0, 10), st.integers(0, 10**9), st.integers(0, 10**9))


def moves(facts) -> set[tuple]:
    return {(tuple(sorted(row["nodes"])), row["a"], row["b"]) for row in facts["moved"]}


@settings(max_examples=30)
@given(st.data())
def test_a_plan_does_not_differ_from_itself(data):
    graph = data.draw(drawn.problems(most_layers=3)).graph
    plan = data.draw(drawn.strategies(graph, 3))
    worth = data.draw(predictions)
    facts = compare(plan, plan, worth, worth)
    assert facts["moved"] == [] and facts["settings"] == {} and facts["num_moved"] == 0
    assert worth is None or all(of["delta"] == 0 for of in facts["figures"].values())
    again = strategies.decode(strategies.encode(plan))
    written_out = {name: with_ones(graph, name, config) for name, config in again.configs.items()}
    assert compare(plan, Strategy(written_out), worth, worth)["moved"] == []


def with_ones(graph, name: str, config: Config) -> Config:
    """The same Config with degrees of 1 written out, in another order."""
    axes = graph.nodes[name].alignment.axes if name in graph.nodes else tuple(config.split)
    return Config({axis: config.degree(axis) for axis in reversed(axes)}, config.replicas, config.procs)


@settings(max_examples=30)
@given(st.data())
def test_turned_round_a_difference_is_negated(data):
    graph = data.draw(drawn.problems(most_layers=3)).graph
    a, b = (data.draw(drawn.strategies(graph, 3)) for _ in range(2))
    of_a, of_b = data.draw(predictions), data.draw(predictions)
    there, back = compare(a, b, of_a, of_b), compare(b, a, of_b, of_a)
    assert moves(there) == {(nodes, to, came) for nodes, came, to in moves(back)}
    assert there["num_moved"] == back["num_moved"] and there["num_nodes"] == back["num_nodes"]
    assert (there["figures"] is None) == (of_a is None or of_b is None)
    for name, of in (there["figures"] or {}).items():
        turned = back["figures"][name]
        assert (of["a"], of["b"], of["delta"]) == (turned["b"], turned["a"], -turned["delta"])


@settings(max_examples=30)
@given(st.data())
def test_the_moves_lead_from_one_plan_to_the_other(data):
    graph = data.draw(drawn.problems(most_layers=3)).graph
    a, b = (data.draw(drawn.strategies(graph, 3)) for _ in range(2))
    told = {name: str(msgspec.structs.replace(config, split=dict(sorted(config.split.items()))))
            for name, config in a.configs.items()}  # fmt: skip
    for row in compare(a, b, None, None)["moved"]:
        for name in row["nodes"]:
            assert told.pop(name, None) == row["a"]
            told |= {name: row["b"]} if row["b"] else {}
    assert told.keys() == b.configs.keys()
    for name, config in b.configs.items():
        assert told[name] == str(msgspec.structs.replace(config, split=dict(sorted(config.split.items()))))


@pytest.fixture
def files(tmp_path) -> dict[str, str]:
    """Known plans as files."""
    graph = models.parse(MLP).graph(models.parse(MLP).recipe.batch)
    paths = {}
    for name, plan in seeds(Lowering(graph, machines.parse(MACHINE))).items():
        paths[name] = str(tmp_path / f"{name}.json")
        Path(paths[name]).write_bytes(strategies.encode(msgspec.structs.replace(plan, model=MLP)))
    return paths


def test_both_are_simulated_by_the_same_prices(files, capsys):
    a, b = files["data_parallel"], files["one_processor"]
    facts = answer(capsys, "diff", a, b, "--machine", MACHINE)
    step = facts["figures"]["step_seconds"]
    for side, path in (("a", a), ("b", b)):
        assert step[side] == answer(capsys, "simulate", path, "--machine", MACHINE)["step_seconds"]
    assert step["delta"] == step["b"] - step["a"] and facts["simulated_on"] == MACHINE
    assert [(row["nodes"], row["a"], row["b"]) for row in facts["moved"]] == [
        (["flat", "fc1", "relu1", "head", "loss"], "b:8 on 0-7", "whole on 0")
    ]
    assert facts["settings"] == {"search": {"a": "data_parallel", "b": "one_processor"}}


def test_diff_tells_people_the_same(files, capsys):
    words = ["diff", files["data_parallel"], files["one_processor"]]
    assert answer(capsys, *words)["figures"] is None
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "a file predicts nothing" in out and "5 of 5 nodes lie differently:" in out
    assert "b:8 on 0-7 -> whole on 0  flat fc* relu* head loss" in out.replace("fc1", "fc*").replace("relu1", "relu*")
    for name, step in (("data_parallel", 0.25), ("one_processor", 0.5)):
        known = msgspec.structs.replace(strategies.read(files[name]), predicted=Predicted(step, 1024, 2048))
        Path(files[name]).write_bytes(strategies.encode(known))
    assert answer(capsys, *words)["figures"]["step_seconds"] == {"a": 0.25, "b": 0.5, "delta": 0.25}
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "as their files predict" in out and "250 ms" in out and "500 ms" in out and "+250 ms" in out


def test_machines_are_told_by_their_names(files, capsys):
    """And by their fingerprints only where they have none."""
    a, b = files["data_parallel"], files["one_processor"]
    for path, name, machine in ((a, "left.toml", "0" * 16), (b, "right:nodes=2", "1" * 16)):
        plan = msgspec.structs.replace(strategies.read(path), machine_name=name, machine=machine)
        Path(path).write_bytes(strategies.encode(plan))
    facts = answer(capsys, "diff", a, b)
    assert facts["settings"]["machine_name"] == {"a": "left.toml", "b": "right:nodes=2"}
    assert main(["diff", a, b]) == 0
    out = capsys.readouterr().out
    assert "  machine: left.toml -> right:nodes=2\n" in out and "0" * 16 not in out
    for path in (a, b):
        plan = msgspec.structs.replace(strategies.read(path), machine_name="")
        Path(path).write_bytes(strategies.encode(plan))
    assert main(["diff", a, b]) == 0
    assert f"  machine: {'0' * 16} -> {'1' * 16}\n" in capsys.readouterr().out


def test_plans_of_different_models_are_refused(files, tmp_path, capsys):
    other = str(tmp_path / "other.json")
    plan = msgspec.structs.replace(strategies.read(files["data_parallel"]), graph="0123456789abcdef", model="gpt")
    Path(other).write_bytes(strategies.encode(plan))
    assert "not of one model and batch" in sentence(capsys, "diff", files["data_parallel"], other)


@pytest.mark.parametrize(("more", "part"), [(5, "with 21 samples a step"), (0, "another dtype")])
def test_what_tells_plans_apart_is_told(files, tmp_path, capsys, more, part):
    """Of one model with other samples a step both numbers are; where all that has a name is alike, what else may be."""
    plan = msgspec.structs.replace(strategies.read(files["data_parallel"]), batch=16)
    changed = msgspec.structs.replace(plan, graph="0123456789abcdef", batch=16 + more)
    paths = [str(tmp_path / name) for name in ("plan.json", "changed.json")]
    for path, one in zip(paths, (plan, changed), strict=True):
        Path(path).write_bytes(strategies.encode(one))
    told = sentence(capsys, "diff", *paths)
    assert "with 16 samples a step, the other for " in told and part in told


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--machine", "dgx-h100:nodes=2"], "made for another machine"),
        (["--machine", MACHINE, "--batch", "24"], "give the same model, settings and --batch"),
        (["--batch", "24"], "--batch means nothing without --machine"),
        (["--profile", "x.db"], "--profile means nothing without --machine"),
    ],
)
def test_a_mistake_is_one_sentence(words, part, files, capsys):
    assert part in sentence(capsys, "diff", files["data_parallel"], files["one_processor"], *words)


def test_a_missing_file_is_one_sentence(files, capsys):
    assert "plan none.json: No such file" in sentence(capsys, "diff", files["data_parallel"], "none.json")


def test_help_explains(capsys):
    assert main(["diff", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--machine" in out and "--json" in out and "--profile" in out
