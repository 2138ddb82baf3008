"""A plan's file says what it was made for, so that it is enough to look at the plan again; a node is a line of it."""

import json
from pathlib import Path

import pytest

from castile.launch.__main__ import main
from castile.planner import strategy as strategies

MACHINE, BATCH = "p3.16xlarge:nodes=2", 48
OWN = """
nodes = 2
[[processor]]
count = 2
kind = "card"
flops_per_second = 1e12
bytes_per_second = 1e11
memory_bytes = 1_000_000_000
[[level]]
name = "link"
latency_seconds = 1e-5
bytes_per_second = 1e9
"""

MINE = """
from castile.planner.graph import Graph
def build(batch=None, dtype="float32"):
    g = Graph("mine", dtype)
    x = g.linear("fc", g.input("x", (batch or 16, 8), "b c"), features=8)
    g.minimise(g.mean("loss", x))
    return g
"""


def made(capsys, *words: str) -> dict:
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def plan(alone, capsys) -> str:
    words = ["plan", "mlp:width=32", "--machine", MACHINE, "--batch", str(BATCH), "--search", "data_parallel"]
    made(capsys, *words, "--out", "p.json")
    return "p.json"


@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_the_file_is_enough(command: str, plan: str, capsys):
    found = made(capsys, command, plan)
    assert (found["model"], found["machine"], found["batch_samples"]) == ("mlp:width=32", MACHINE, BATCH)
    assert found["step_seconds"] == strategies.read(plan).predicted.step_seconds


def test_files_say_the_batch_of_plans_that_are_compared(plan: str, capsys):
    figures = made(capsys, "diff", plan, plan, "--machine", MACHINE)["figures"]
    assert figures["step_seconds"]["a"] == strategies.read(plan).predicted.step_seconds


def test_plans_of_a_front_and_of_a_training_say_it_too(alone, capsys):
    words = ["--machine", "local:procs=2", "--batch", "2", "--budget", "5", "--front", "--out", "f.json"]
    made(capsys, "plan", "mlp", *words)
    made(capsys, "train", "mlp", "--steps", "2", "--search", "data_parallel", "--batch", "32", "--out", "t.json")
    fronts = [strategies.read(path) for path in alone.glob("f*.json")]
    assert len(fronts) > 1 and {(p.machine_name, p.batch) for p in fronts} == {("local:procs=2", 2)}
    trained = strategies.read("t.json")
    assert (trained.machine_name, trained.batch) == ("local:procs=1", 32)


def test_of_an_earlier_and_longer_front_nothing_is_left(alone, capsys):
    words = ["plan", "mlp", "--machine", "local:procs=2", "--batch", "2", "--budget", "5", "--front", "--out", "f.json"]
    first = made(capsys, *words)
    count = len(first["front"])
    plan = Path("f-1.json").read_bytes()
    assert not first["removed"] and count > 1
    # one that is no plan is somebody's own, and what lies behind it is nothing of castile's front
    for number in (1, 2, 4):
        Path(f"f-{count + number}.json").write_bytes(plan)
    Path(f"f-{count + 3}.json").write_text("{}")
    again = made(capsys, *words)
    assert again["removed"] == [f"f-{count + number}.json" for number in (1, 2)]
    left = {*alone.glob("f-*.json")} - {alone / row["file"] for row in again["front"]}
    assert left == {alone / f"f-{count + number}.json" for number in (3, 4)}
    # told to people too, and a plan that is no front removes nothing
    Path(f"f-{count + 1}.json").write_bytes(plan)
    assert main([word for word in words if word != "--front"]) == 0
    assert Path(f"f-{count + 1}.json").exists() and "removed" not in capsys.readouterr().out
    assert main(words) == 0
    assert f"removed, of an earlier front: f-{count + 1}.json\n" in capsys.readouterr().out


def test_a_machine_that_is_gone_is_told(alone, capsys):
    (alone / "cards.toml").write_text(OWN)
    made(capsys, "plan", "mlp", "--machine", "cards.toml", "--search", "data_parallel", "--out", "p.json")
    assert made(capsys, "simulate", "p.json")["machine"] == "cards.toml"
    (alone / "cards.toml").rename(alone / "renamed.toml")
    assert main(["simulate", "p.json"]) == 2
    err = capsys.readouterr().err
    assert "plan p.json was made for cards.toml: " in err and "name it with --machine" in err and err.count("\n") == 1
    assert made(capsys, "explain", "p.json", "--machine", "renamed.toml")["num_procs"] == 4


def test_a_model_that_has_changed_since_is_told(alone, capsys):
    """Its name and batch are those of the plan, which would say nothing."""
    (alone / "mine.py").write_text(MINE)
    made(capsys, "plan", "mine.py", "--machine", MACHINE, "--search", "data_parallel", "--out", "p.json")
    # of another length, as Python tells a file that changed within a second by that
    (alone / "mine.py").write_text(MINE.replace("features=8", "features=16"))
    for words in (["simulate", "p.json"], ["plan", "mine.py", "--machine", MACHINE, "--from", "p.json"]):
        assert main(words) == 2
        err = capsys.readouterr().err
        assert "p.json was made for mine.py with 32 samples a step as it was then: it has changed since" in err, err
        assert "plan again" in err and err.count("\n") == 1


def test_a_node_is_a_line(plan: str):
    lines = [line.rstrip(",") for line in open(plan).read().splitlines()]
    read = strategies.read(plan)
    assert all(any(line.startswith(f'  "{name}": {{') and line[-1] == "}" for line in lines) for name in read.configs)
    assert strategies.decode(strategies.encode(read)) == read


@pytest.mark.parametrize(
    "field, value", [("step_seconds", -1.0), ("peak_bytes", -5), ("moved_bytes", -1), ("clip", -0.5)]
)
def test_what_a_file_foretells_is_not_below_0(field, value):
    told = strategies.Predicted(1.0, 1, 1)
    plan = json.loads(strategies.encode(strategies.Strategy({}, num_procs=1, predicted=told)))
    where, holder = ("clip", plan) if field == "clip" else (f"predicted.{field}", plan["predicted"])
    holder[field] = value
    with pytest.raises(ValueError, match=f"{where} is {value}"):
        strategies.decode(json.dumps(plan).encode())
