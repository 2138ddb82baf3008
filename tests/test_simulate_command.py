"""The command simulate: what it tells of a plan, and which plans it refuses."""

from math import prod
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from castile.launch import models, simulate
from castile.launch.__main__ import main
from castile.launch.reports import report, throughput
from castile.planner import strategy as strategies
from castile.planner.cost import CostModel
from castile.planner.simulate import simulate as simulated
from castile.planner.strategy import Strategy
from castile.runtime.memory import written as memory_of
from castile.runtime.task import Kind, Lane
from castile.runtime.timeline import PICOSECONDS
from tests.answers import answer, sentence
from tests.graphs import Draft
from tests.little import all_seen
from tests.test_plan_command import MACHINE, MLP


@pytest.fixture
def plan(tmp_path, capsys) -> str:
    path = str(tmp_path / "plan.json")
    assert main(["plan", MLP, "--machine", MACHINE, "--search", "megatron", "--out", path]) == 0
    capsys.readouterr()
    return path


def test_simulate_agrees_with_the_plan(plan, capsys):
    facts = answer(capsys, "simulate", plan, "--machine", MACHINE)
    predicted = strategies.read(plan).predicted
    assert predicted is not None
    assert (facts["step_seconds"], facts["moved_bytes"]) == (predicted.step_seconds, predicted.moved_bytes)
    assert max(row["peak_bytes"] for row in facts["procs"]) == predicted.peak_bytes
    assert answer(capsys, "simulate", MLP, "--plan", plan, "--machine", MACHINE) == facts


def test_simulate_breaks_a_step_down(capsys):
    facts = answer(capsys, "simulate", MLP, "--machine", MACHINE)
    kinds = {row["what"]: row for row in facts["kinds"]}
    assert {"linear", "relu", "sgd", "cross_entropy", "waiting"} <= set(kinds)
    assert any(what.startswith("all_reduce over ") for what in kinds)
    assert sum(row["num_tasks"] for row in kinds.values()) == facts["num_tasks"]
    assert len(facts["procs"]) == facts["num_procs"] == 8
    for row in facts["procs"]:
        assert 0 < row["busy_share"] <= 1 - row["waiting_share"] + 1e-9
        assert row["busy_share"] + row["moving_share"] + row["waiting_share"] == pytest.approx(1)
        assert 0 < row["peak_bytes"] <= row["capacity_bytes"] and len(row["largest"]) == 5
        assert sum(owner["size_bytes"] for owner in row["largest"]) <= row["peak_bytes"]
    compute = sum(row["proc_seconds"] for what, row in kinds.items() if " over " not in what and what != "waiting")
    busy = sum(row["busy_share"] for row in facts["procs"]) * facts["step_seconds"]
    assert compute == pytest.approx(busy, rel=1e-9)


def test_a_forward_pass_has_no_updates_that_were_put_together(plan, capsys):
    for words, is_told in (([], True), (["--forward"], False)):
        assert main(["simulate", plan, "--machine", MACHINE, *words]) == 0
        assert ("updates were put together" in capsys.readouterr().out) == is_told


@pytest.mark.parametrize("nodes, pieces", [(1, 1), (4, 1), (4, 8)])
def test_a_step_does_the_operations_of_its_network_however_it_is_cut(nodes, pieces, tmp_path, capsys):
    """Two for each product of a sample with a weight, in the forward pass and for the gradients of both."""
    words, path = ("mlp:width=1024,layers=4", "--machine", f"dgx-h100:nodes={nodes}"), str(tmp_path / "plan.json")
    cut = ("--batch", "4096", "--accumulate", str(pieces))
    answer(capsys, "plan", *words, "--search", "data_parallel", *cut, "--out", path)
    facts = answer(capsys, "simulate", path)
    sizes = [64, *[1024] * 4, 10]
    products = [a * b for a, b in zip(sizes, sizes[1:])]
    done = facts["flops_per_second"] * facts["step_seconds"] * facts["num_procs"]
    # and little else: the images have no gradient
    assert done == pytest.approx(2 * 4096 * (3 * sum(products) - products[0]), rel=0.05)
    assert facts["samples_per_second"] * facts["step_seconds"] == pytest.approx(4096)
    assert main(["simulate", path]) == 0
    told = f"{throughput.words(facts)}, {report.rate(facts['flops_per_second'])} on each processor\n"
    assert f"\n{told}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "search, more, held, kept",
    [("one_processor", (), 1, 1), ("data_parallel", ("--optimizer", "adamw"), 1, 2),
     ("fsdp", ("--accumulate", "2"), 8, 1),
     ("fsdp", ("--dtype", "bfloat16", "--recompute", "parameters"), 8, 1)],
)  # fmt: skip
def test_memory_is_told_by_what_it_holds(search, more, held, kept, tmp_path, capsys):
    """As a processor has all parameters or an eighth of them, and an optimizer one number or two of each."""
    path, model = str(tmp_path / "plan.json"), "mlp:width=512,layers=3"
    answer(capsys, "plan", model, "--machine", MACHINE, "--search", search, *more, "--out", path)
    facts, live = answer(capsys, "simulate", path), answer(capsys, "explain", path)["live_bytes"]
    fullest = max(facts["procs"], key=lambda row: sum(row["held"].values()))
    assert sum(fullest["held"].values()) == live
    bytes_of = 4 * sum(prod(param.shape) for param in models.parse(model).graph(64).params)
    # places of 64 bytes, and what is gathered of them when most lives, for forward passes and for gradients
    gathered = 0 if held == 1 else 2 * bytes_of
    assert bytes_of / held <= fullest["held"]["parameters_bytes"] <= bytes_of / held * 1.01 + gathered
    assert fullest["held"]["state_bytes"] == pytest.approx(kept * bytes_of / held, rel=0.03)
    assert all(nbytes >= 0 for nbytes in fullest["held"].values()) and fullest["held"]["results_bytes"] > 0
    assert main(["simulate", path]) == 0
    told = max(facts["procs"], key=lambda row: row["peak_bytes"])["held"]
    out = capsys.readouterr().out
    assert f"\nin all: parameters {memory_of(told['parameters_bytes'])}, their gradients " in out
    assert all(memory_of(nbytes) in out for nbytes in told.values() if nbytes)


def test_simulate_tells_people_the_same(capsys):
    words = ["simulate", MLP, "--machine", MACHINE]
    facts = answer(capsys, *words)
    assert main(words) == 0
    out = capsys.readouterr().out
    assert report.duration(facts["step_seconds"]) in out and f"in {facts['num_tasks']} tasks" in out
    for row in facts["kinds"]:
        assert row["what"] in out and report.duration(row["proc_seconds"]) in out
    lines = [line.split() for line in out.splitlines()]
    at = next(number for number, words in enumerate(lines) if words[:1] == ["processor"])
    assert lines[at][1:4] == ["computing", "moving", "waiting"]
    shares = [facts["procs"][0][f"{what}_share"] for what in ("busy", "moving", "waiting")]
    assert lines[at + 1][1:7] == " ".join(map(report.percent, shares)).split()
    assert "processor 0 is fullest" in out and facts["procs"][0]["largest"][0]["name"] in out


def test_a_plan_that_is_unfit_is_refused(plan, tmp_path, capsys):
    assert "needs 8 processors" in sentence(capsys, "simulate", plan, "--machine", "local:procs=2")
    assert "another machine" in sentence(capsys, "simulate", plan, "--machine", "dgx-h100:nodes=2")
    unlike = sentence(capsys, "simulate", "mlp:width=32", "--plan", plan, "--machine", MACHINE)
    assert "give the same model, settings and --batch" in unlike
    other = sentence(capsys, "plan", "mlp:width=32", "--machine", MACHINE, "--from", plan)
    assert f"plan {plan} was made for {MLP} with 64 samples a step, and not for mlp:width=32 with" in other
    later = sentence(capsys, "plan", MLP, "--machine", MACHINE, "--batch", "24", "--from", plan)
    assert "with 24 samples a step as it is here: give the same model, settings and --batch" in later
    moved = sentence(capsys, "plan", MLP, "--machine", "dgx-a100:nodes=1", "--from", plan)
    said = f"plan {plan}: the plan was made for another machine, {MACHINE}, not for dgx-a100:nodes=1"
    assert said in moved
    damaged = tmp_path / "damaged.json"
    damaged.write_text(open(plan).read()[:-40])
    assert "damaged.json is not JSON" in sentence(capsys, "simulate", str(damaged), "--machine", MACHINE)
    nameless = tmp_path / "nameless.json"
    Path(nameless).write_bytes(strategies.encode(Strategy({})))
    assert "does not say its model" in sentence(capsys, "simulate", str(nameless), "--machine", MACHINE)


def test_waiting_is_what_no_lane_works():
    draft = Draft(2)
    a = draft.task([(0, Lane.COMPUTE)], cost=5)
    draft.task([(0, Lane.SEND), (1, Lane.RECEIVE)], cost=3, kind=Kind.MOVE)
    draft.task([(1, Lane.COMPUTE)], [a], cost=2)
    tasks = draft.graph()
    made = simulated(tasks, np.array([2, 3, 5]), tuple(Lane))
    seen = all_seen(tasks, made)
    _, working = simulate.looked_through(seen, CostModel(seen.lowering.machine))
    assert made.timeline.seconds * PICOSECONDS == 7
    # Processor 0 computes while it sends; processor 1 receives for 3, waits for 2, computes for 2.
    np.testing.assert_allclose(working * PICOSECONDS, [5, 5])
    rows = {row["what"]: row for row in simulate.kinds(seen, working)}
    assert rows["waiting"]["proc_seconds"] * PICOSECONDS == pytest.approx(4)


def test_shares_that_add_to_more_than_all_time_say_why(capsys):
    for model, is_more in (("gpt", True), ("mlp", False)):
        words = ["simulate", model, "--machine", "dgx-h100" if is_more else "local:procs=1"]
        shares = [row["share"] for row in answer(capsys, *words)["kinds"]]
        assert (sum(shares) > 1.001) == is_more
        assert main(words) == 0
        assert ("add up to more, as transfers overlap with kernels" in capsys.readouterr().out) == is_more


def test_a_name_of_the_zoo_is_a_model_whatever_files_lie_here(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mlp").write_text("no plan")
    assert answer(capsys, "simulate", "mlp", "--machine", MACHINE)["model"] == "mlp"
    assert "mlp is not JSON" in sentence(capsys, "simulate", "./mlp", "--machine", MACHINE)


def test_the_operations_of_a_large_step_are_more_than_64_bits_hold():
    """Those of kernels, each as often as its task stands for others."""
    kinds = np.array([Kind.COMPUTE, Kind.MOVE, Kind.COMPUTE, Kind.COMPUTE], np.int8)
    keys = [SimpleNamespace(flops=2**61), SimpleNamespace(flops=3)]
    tasks = SimpleNamespace(cost_keys=keys, cost=np.array([0, 0, 0, 1]), kind=kinds)
    assert simulate.flops(SimpleNamespace(tasks=tasks, count=np.array([1, 9, 7, 5]))) == pytest.approx(8 * 2**61)
