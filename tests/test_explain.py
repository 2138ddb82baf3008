"""Explanations: their parts add up to the step; the command tells people and programs the same."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.reports import report
from castile.launch.reports.explanation_report import folded
from castile.planner import alternatives as alternatives_of
from castile.planner import strategy as strategies
from castile.planner.alternatives import alternatives, differences, pattern, plain, switches
from castile.planner.choices.space import space_of
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.evaluation.traffic import moved_bytes
from castile.planner.explanation import Cause, Labels, account, explain
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.search import Budget
from castile.planner.simulate import simulate
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine as machines
from castile.runtime.task import Kind, Lane
from castile.runtime.timeline import PICOSECONDS
from tests import strategies as drawn
from tests.answers import answer, sentence
from tests.effort import examples
from tests.graphs import Draft, engine_maps, task_graphs, timings
from tests.little import all_seen

MLP = "mlp:layers=1,width=16"
MACHINE = "dgx-h100:nodes=1"


def accounted(tasks, durations, engines):
    """The account of a task graph in which every task has a cause of its own."""
    made = simulate(tasks, durations, engines, "plain")
    causes = tuple(Cause(f"task{t}", "F") for t in range(tasks.num_tasks))
    labels = Labels(causes, np.arange(tasks.num_tasks), {}, ({},) * tasks.num_tasks)
    return account(seen := all_seen(tasks, made, engines), labels, CostModel(seen.lowering.machine)), made


def check_sums(found) -> None:
    """What a processor does and waits for adds up to the step, and so does the longest chain."""
    whole = found.spent.sum(axis=1) + found.awaited.sum(axis=1) + found.idle
    assert whole.tolist() == [found.makespan] * len(whole)
    assert found.chain.sum() == found.makespan
    for part in (found.spent, found.awaited, found.idle, found.chain):
        assert part.min(initial=0) >= 0
    assert (found.spent.sum(axis=0) <= found.total).all()


@settings(max_examples=examples(100))
@given(st.data())
def test_parts_add_up_on_any_task_graph(data):
    tasks = data.draw(task_graphs())
    engines = data.draw(engine_maps)
    found, made = accounted(tasks, data.draw(timings(tasks)), engines)
    check_sums(found)
    assert found.makespan == made.timeline.end.max(initial=0)
    computing = [t for t in range(tasks.num_tasks) if (tasks.lanes_of(t) % len(Lane) == Lane.COMPUTE).all()]
    busy = np.rint(made.busy_seconds * PICOSECONDS)
    np.testing.assert_array_equal(found.spent[:, computing].sum(axis=1), busy)


@settings(max_examples=examples(100))
@given(st.data())
def test_the_chain_has_no_gap(data):
    tasks = data.draw(task_graphs())
    found, made = accounted(tasks, data.draw(timings(tasks)), tuple(Lane))
    links = sorted(np.flatnonzero(found.chain), key=lambda t: made.timeline.start[t])
    bounds = [0, *(int(made.timeline.end[t]) for t in links)]
    assert [int(made.timeline.start[t]) for t in links] == bounds[:-1] and bounds[-1] == found.makespan


@settings(max_examples=30)
@given(st.data())
def test_parts_add_up_on_any_plan(data):
    on = data.draw(drawn.machines())
    graph = data.draw(drawn.problems(most_layers=3)).graph
    plan = data.draw(drawn.in_buckets(graph, on.num_procs))
    evaluator = Evaluator(Lowering(graph, on), CostModel(on))
    found = explain(evaluator, plan)
    check_sums(found)
    tasks, simulated = evaluator.simulate(plan)
    assert found.makespan == round(simulated.seconds * PICOSECONDS)
    assert found.num_tasks.sum() == tasks.num_tasks and found.moved_bytes.sum() == moved_bytes(tasks)
    computing = found.of_kind("compute") | found.of_kind("copy")
    np.testing.assert_array_equal(found.spent[:, computing].sum(axis=1), np.rint(simulated.busy_seconds * PICOSECONDS))
    for cause, moved, levels in zip(found.causes, found.moved_bytes, found.labels.crossings, strict=True):
        assert bool(levels) == bool(cause.algorithm) == (cause.kind == "transfer") and cause.link in {"", *levels}
        assert (cause.name in found.labels.edges) == cause.is_transfer or cause.name in graph.nodes
        assert not cause.is_transfer or all(found.labels.edges[cause.name])
        assert not moved or cause.kind == "transfer"


def test_each_task_is_its_nodes_or_its_regions():
    graph = models.parse(MLP).graph(64)
    on = machines.parse(MACHINE)
    evaluator = Evaluator(Lowering(graph, on), CostModel(on))
    found = explain(evaluator, seeds(evaluator.lowering)["data_parallel"])
    rows = {(c.name, c.form): n for c, n in zip(found.causes, found.num_tasks.tolist(), strict=True)}
    assert rows["fc1", "F"] == rows["fc1", "W"] == rows["fc1.weight/update", "F"] == 8
    assert rows["fc1.weight/grad", "all_reduce"] == 1
    edge = found.labels.edges["fc1.weight/grad"]
    assert (edge.makers, edge.readers) == (("fc1",), ("fc1.weight/update",))
    assert found.labels.edges["fc1.weight"].makers == ("fc1.weight/update",)


def test_a_task_for_several_is_for_all_of_them():
    graph = models.parse(MLP).graph(64)
    on = machines.parse(MACHINE)
    evaluator = Evaluator(Lowering(graph, on), CostModel(on))
    found = explain(evaluator, msgspec.structs.replace(seeds(evaluator.lowering)["data_parallel"], bucket_bytes=2**20))
    (bucket,) = (cause.name for cause in found.causes if cause.form == "all_reduce" and cause.name != "loss")
    assert bucket.endswith("/grad and 3 more")
    edge = found.labels.edges[bucket]
    assert sorted(edge.makers) == ["fc1", "head"]
    assert sorted(edge.readers) == [f"{name}.{kind}/update" for name in ("fc1", "head") for kind in ("bias", "weight")]
    updates = {cause.name: n for cause, n in zip(found.causes, found.num_tasks.tolist()) if cause.op == "sgd"}
    assert list(updates.values()) == [8] and next(iter(updates)).endswith("/update and 3 more")


def test_what_is_computed_hides_what_is_sent():
    draft = Draft(2)
    a = draft.task([(0, Lane.COMPUTE)], cost=0)
    draft.task([(0, Lane.COMPUTE)], [a], cost=1)
    moved = draft.task([(0, Lane.SEND), (1, Lane.RECEIVE)], [a], cost=2, kind=Kind.MOVE)
    draft.task([(1, Lane.COMPUTE)], [moved], cost=0)
    found, _ = accounted(draft.graph(), np.array([2, 3, 5]), tuple(Lane))
    # Processor 0 computes for 2 and 3, beside which it sends for 5; processor 1 waits 2, receives 5, computes 2.
    assert found.spent.tolist() == [[2, 3, 2, 0], [0, 0, 5, 2]]
    assert found.awaited.tolist() == [[0, 0, 0, 0], [2, 0, 0, 0]] and found.idle.tolist() == [2, 0]
    assert found.chain.tolist() == [2, 0, 5, 2]


def test_microbatches_are_one_cause():
    graph = models.parse(MLP).graph(64)
    on = machines.parse(MACHINE)
    evaluator = Evaluator(Lowering(graph, on, microbatches=4), CostModel(on))
    plan = seeds(evaluator.lowering)["data_parallel"]
    found = explain(evaluator, plan)
    check_sums(found)
    assert not [cause for cause in found.causes if "@" in cause.name]
    assert {c.name: n for c, n in zip(found.causes, found.num_tasks, strict=True) if c.form == "F"}["fc1"] == 4 * 8


# Alternatives.


def desk(num_procs: int = 4) -> Evaluator:
    graph = models.parse(MLP).graph(16)
    on = machines.parse(f"local:procs={num_procs}")
    return Evaluator(Lowering(graph, on), CostModel(on))


def test_alternatives_are_the_best_of_all():
    evaluator = desk(2)
    plan = seeds(evaluator.lowering)["data_parallel"]
    found = alternatives(evaluator, plan, "fc1", Budget(proposals=10**6))
    assert found.chosen == plan.configs["fc1"] and len(found.best) == 3
    assert found.num_simulated + found.num_excluded == found.num_layouts
    worth = []
    for config in space_of(evaluator.lowering.graph.nodes["fc1"], 2).configs:
        # a layout stands as near as it goes, of equally near places at the first
        is_first = config.procs == tuple(range(len(config.procs)))
        if is_first and (plain(config).split, config.replicas) != (plain(found.chosen).split, 1):
            worth.append(evaluator.evaluate(msgspec.structs.replace(plan, configs={**plan.configs, "fc1": config})))
    assert found.best[0][1].rank == min(w.rank for w in worth)
    assert [w.rank for _, w in found.best] == sorted(w.rank for _, w in found.best)
    for config, told in found.best:
        again = evaluator.evaluate(msgspec.structs.replace(plan, configs={**plan.configs, "fc1": config}))
        assert again.seconds == told.seconds


def test_a_bound_never_changes_what_is_found():
    evaluator = desk()
    plan = seeds(evaluator.lowering)["data_parallel"]
    for name in ("fc1", "head", "fc1.weight/update"):
        every = alternatives(evaluator, plan, name, Budget(proposals=10**6), most=10**6)
        three = alternatives(evaluator, plan, name, Budget(proposals=10**6))
        assert len(every.best) == every.num_layouts and every.num_excluded == 0
        assert [w.seconds for _, w in three.best] == [w.seconds for _, w in every.best[:3]]


def test_the_budget_is_kept():
    evaluator = desk()
    plan = seeds(evaluator.lowering)["data_parallel"]
    found = alternatives(evaluator, plan, "fc1", Budget(proposals=5))
    assert found.num_simulated == 5 < found.num_layouts
    assert alternatives(evaluator, plan, "fc1", Budget(seconds=1e-9)).num_simulated == 0


def test_a_switch_of_every_part_is_the_other_plan():
    evaluator = desk()
    known = seeds(evaluator.lowering)
    plan, other = known["data_parallel"], known["one_processor"]
    every = switches(evaluator, plan, other, Budget(proposals=100))
    found = every.best
    assert every.num_left == every.num_refused == 0
    assert sorted(n for s in found for n in s.names) == sorted(plan.configs)
    changed = {name: config for s in found for name, config in s.there.items()}
    assert evaluator.evaluate(Strategy(changed)).seconds == evaluator.evaluate(other).seconds
    assert [s.evaluated.rank for s in found] == sorted(s.evaluated.rank for s in found)
    few = switches(evaluator, plan, other, Budget(proposals=2))
    assert len(few.best) == 2 and few.num_left == len(found) - 2


def test_what_is_cut_alike_on_other_stages_switches_together(monkeypatch):
    """Where there are many parts; all of them are the other plan all the same."""
    on = machines.parse("local:procs=8")
    lowering = Lowering(models.parse("mlp:layers=9,width=16").graph(64), on, microbatches=8)
    evaluator, known = Evaluator(lowering, CostModel(on)), seeds(lowering)
    plan, other = known["pipeline_8"], known["pipeline_4"]
    apart = differences(plan.configs, other.configs)
    assert len(switches(evaluator, plan, other, Budget(proposals=1000)).best) == len(apart)
    monkeypatch.setattr(alternatives_of, "MOST_APART", len(apart) - 1)
    found = switches(evaluator, plan, other, Budget(proposals=1000)).best
    kinds = [{(pattern(name), s.here[name].cuts, s.there[name].cuts) for name in s.names} for s in found]
    assert len(apart) > len(found) and all(len(kind) == 1 for kind in kinds)
    assert len({one for kind in kinds for one in kind}) == len(found)
    changed = {name: config for s in found for name, config in s.there.items()}
    assert evaluator.evaluate(msgspec.structs.replace(plan, configs=plan.configs | changed)) == evaluator.evaluate(
        msgspec.structs.replace(plan, configs=other.configs)
    )


def test_layers_of_a_kind_differ_together():
    here = {"block1.q": Config({"b": 2, "o": 1}, 1, (0, 1)), "block2.q": Config({"b": 2}, 1, (0, 1)), "out": Config()}
    there = {"block1.q": Config({}, 2, (0, 1)), "block2.q": Config({}, 2, (0, 1)), "out": Config({"b": 1})}
    ((kind, names),) = differences(here, there).items()
    assert kind[0] == "block*.q" and names == ["block1.q", "block2.q"]
    assert folded([*names, "out"]) == "block*.q out"


# The command.


@pytest.fixture
def plan(tmp_path, capsys) -> str:
    """Data parallelism as a file."""
    graph = models.parse(MLP).graph(models.parse(MLP).recipe.batch)
    known = seeds(Lowering(graph, machines.parse(MACHINE)))["data_parallel"]
    path = tmp_path / "plan.json"
    Path(path).write_bytes(strategies.encode(msgspec.structs.replace(known, model=MLP)))
    return str(path)


def test_explain_accounts_for_the_step(plan, capsys):
    facts = answer(capsys, "explain", plan, "--machine", MACHINE)
    step = facts["step_seconds"]
    assert facts["step_seconds"] == answer(capsys, "simulate", plan, "--machine", MACHINE)["step_seconds"]
    assert len(facts["procs"]) == facts["num_procs"] == 8
    for row in facts["procs"]:
        assert sum(seconds for what, seconds in row.items() if what != "proc") == pytest.approx(step)
    assert sum(row["chain_seconds"] for row in facts["causes"]) == pytest.approx(step)
    assert sum(row["chain_share"] for row in facts["causes"]) == pytest.approx(1)
    assert sum(row["mean_seconds"] for row in facts["spans"]) == pytest.approx(step)
    assert sum(row["num_tasks"] for row in facts["causes"]) == facts["num_tasks"]
    assert sum(row["moved_bytes"] for row in facts["causes"]) == facts["moved_bytes"]
    pays = next(row for row in facts["causes"] if row["name"] == "fc1.weight/grad" and row["kind"] == "transfer")
    assert (pays["from"], pays["to"]) == ("fc1", "fc1.weight/update")
    assert (pays["form"], pays["link"], len(pays["levels"])) == ("all_reduce", "nvlink", 1)
    assert pays["algorithm"] in ("ring", "tree")
    (level,) = pays["levels"]
    assert pays["proc_seconds"] / 8 == pytest.approx(level["latency_seconds"] + level["transfer_seconds"])


def test_explain_tells_people_the_same(plan, capsys):
    words = ["explain", plan, "--machine", MACHINE, "--why-not", "one_processor"]
    facts = answer(capsys, *words)
    assert main(words) == 0
    out = capsys.readouterr().out
    assert report.duration(facts["step_seconds"]) in out and f"in {facts['num_tasks']} tasks" in out
    for row in facts["spans"]:
        assert report.duration(row["mean_seconds"]) in out and report.percent(row["share"]) in out
    # what `plan` tells of that plan is with buckets and an order of its own
    took = report.duration(facts["why_not"]["step_seconds"])
    assert f"the layouts of one_processor, all else equal, take {took}, " in out
    assert f"({facts['why_not']['times']:.2f} times as long)" in out
    for row in facts["why_not"]["switches"]:
        line = next(line for line in out.splitlines() if line.startswith(row["name"] + " ") and row["there"] in line)
        assert report.duration(row["step_seconds"]) in line and f"{row['times']:.3f}" in line


def test_a_budget_is_for_other_plans(plan, capsys):
    assert main(["explain", plan, "--machine", MACHINE, "--budget", "20"]) == 2
    said = "castile: --budget means nothing without --op or --why-not: give one of them too\n"
    assert capsys.readouterr().err == said


def test_op_tells_of_one_node(plan, capsys):
    words = ["explain", plan, "--machine", MACHINE, "--op", "fc1", "--budget", "20"]
    facts = answer(capsys, *words)
    op = facts["op"]
    assert op["config"] == "b:8 on 0-7" and op["num_simulated"] == 20 and len(op["alternatives"]) == 3
    evaluator = Evaluator(
        Lowering(models.parse(MLP).graph(64), machines.parse(MACHINE)), CostModel(machines.parse(MACHINE))
    )
    found = alternatives(evaluator, strategies.read(plan), "fc1", Budget(proposals=20))
    for row, (config, worth) in zip(op["alternatives"], found.best, strict=True):
        assert row["step_seconds"] - facts["step_seconds"] == pytest.approx(row["longer_seconds"])
        assert row["times"] == pytest.approx(row["step_seconds"] / facts["step_seconds"])
        told = [row[name] for name in ("config", "step_seconds", "live_bytes", "moved_bytes", "fits")]
        assert told == [str(config), worth.seconds, max(worth.peak_bytes), worth.moved_bytes, worth.fits]
    for row in facts["causes"]:
        assert "fc1" in (row["name"], row.get("from"), row.get("to"))
    assert main(words) == 0
    out = capsys.readouterr().out
    assert all(row["config"] in out for row in op["alternatives"])
    assert len(answer(capsys, *words[:-2])["op"]["alternatives"]) == 3
    update = answer(capsys, *words[:4], "--op", "fc1.weight/update", "--budget", "4")["op"]
    assert update["config"] == "whole x8 on 0-7"


def test_why_not_adds_up(plan, capsys):
    facts = answer(capsys, "explain", plan, "--machine", MACHINE, "--why-not", "one_processor")
    why = facts["why_not"]
    assert sum(row["longer_seconds"] for row in why["causes"]) == pytest.approx(why["longer_seconds"])
    assert why["step_seconds"] - facts["step_seconds"] == pytest.approx(why["longer_seconds"])
    assert sorted(n for row in why["switches"] for n in row["nodes"]) == ["fc1", "flat", "head", "loss", "relu1"]
    same = answer(capsys, "explain", plan, "--machine", MACHINE, "--why-not", "data_parallel")["why_not"]
    assert (same["longer_seconds"], same["times"], same["causes"], same["switches"]) == (0, 1, [], [])


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--machine", "dgx-h100:nodes=2"], "made for another machine"),
        (["--machine", "local:procs=2"], "needs 8 processors"),
        (["--machine", MACHINE, "--batch", "24"], "give the same model, settings and --batch"),
        (["--machine", MACHINE, "--model", "mlp:width=32"], "give the same model, settings and --batch"),
        (["--machine", MACHINE, "--op", "fc2"], "no node 'fc2' (did you mean 'fc1'"),
        (["--machine", MACHINE, "--why-not", "data_paralel"], "plan 'data_paralel' (did you mean 'data_parallel'"),
        (["--machine", MACHINE, "--budget", "ten"], "budget 'ten': give a number"),
        (["--machine", MACHINE, "--profile", "none.db"], "profile database none.db: no such file"),
        (["--machine", MACHINE, "--batch", "0"], "--batch 0: give 1 or more"),
    ],
)
def test_a_mistake_is_one_sentence(words, part, plan, capsys):
    assert part in sentence(capsys, "explain", plan, *words)


def test_a_plan_that_does_not_say_its_model_is_given_one(plan, capsys):
    known = strategies.read(plan)
    Path(plan).write_bytes(strategies.encode(msgspec.structs.replace(known, model="")))
    assert "give it with --model" in sentence(capsys, "explain", plan, "--machine", MACHINE)
    assert answer(capsys, "explain", plan, "--machine", MACHINE, "--model", MLP)["model"] == MLP


def test_a_plan_in_microbatches_is_explained_as_it_is(plan, capsys):
    known = strategies.read(plan)
    Path(plan).write_bytes(strategies.encode(msgspec.structs.replace(known, microbatches=2)))
    facts = answer(capsys, "explain", plan, "--machine", MACHINE, "--op", "fc1", "--why-not", "data_parallel")
    assert facts["microbatches"] == 2 and facts["why_not"]["times"] == 1 and len(facts["op"]["alternatives"]) == 3
    for words in ((), ("--forward",)):
        told, simulated = (answer(capsys, name, plan, "--machine", MACHINE, *words) for name in ("explain", "simulate"))
        assert (told["step_seconds"], told["num_tasks"]) == (simulated["step_seconds"], simulated["num_tasks"])
        assert (told["num_tasks"] > facts["num_tasks"] / 2) is (not words)


def test_other_prices_than_the_files_are_told(plan, capsys):
    known = strategies.read(plan)
    predicted = strategies.Predicted(0.5, 1, 1)
    Path(plan).write_bytes(strategies.encode(msgspec.structs.replace(known, predicted=predicted)))
    assert answer(capsys, "explain", plan, "--machine", MACHINE)["predicted_step_seconds"] == 0.5
    assert main(["explain", plan, "--machine", MACHINE]) == 0
    assert "by the prices of its file 500 ms" in capsys.readouterr().out


def test_a_plan_for_latency_is_explained_as_what_it_was_found_for(tmp_path, capsys):
    """Every command that takes a plan says the same of its forward pass; who asks for a step is told that there is
    more to ask for.
    """
    path, on = str(tmp_path / "plan.json"), ("--machine", MACHINE)
    found = answer(capsys, "plan", MLP, *on, "--objective", "latency", "--budget", "20", "--out", path)["found"]
    told = answer(capsys, "explain", path, *on, "--forward", "--op", "fc1.weight/update", "--why-not", "data_parallel")
    compared = answer(capsys, "diff", path, path, *on, "--forward")["figures"]
    simulated = answer(capsys, "simulate", path, *on, "--forward")
    for name in ("step_seconds", "moved_bytes"):
        assert found[name] == told[name] == simulated[name] == compared[name]["a"] == compared[name]["b"]
    assert told["live_bytes"] == found["live_bytes"]
    assert {row["form"] for row in told["causes"]}.isdisjoint("BW")
    assert main(["explain", path, *on, "--forward"]) == 0
    out = capsys.readouterr().out
    assert "a forward pass takes" in out and "step" not in out
    assert main(["explain", path, *on]) == 0
    assert "--forward explains" in capsys.readouterr().out


def test_help_explains(capsys):
    assert main(["explain", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--why-not" in out and "--op" in out and "--json" in out
