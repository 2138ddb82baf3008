"""Simulated steps: a step through few processors and few microbatches says what writing out all of it says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from castile.launch import models, simulate
from castile.launch.__main__ import main
from castile.planner import strategy as strategies
from castile.planner.cost import CostModel
from castile.planner.evaluation import evaluator as evaluators
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.evaluation.simulated_step import SimulatedStep
from castile.planner.explanation import Explanation, account, label
from castile.planner.known.seeds import seeds, stamped
from castile.planner.lower import Lowering
from castile.planner.lowering.stages import num_stages
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine as presets
from castile.runtime.task import NUM_LANES
from castile.runtime.timeline import PICOSECONDS
from tests.answers import answer
from tests.cut_batches import PLANS, can_be_cut, machines_of, one_of
from tests.effort import examples
from tests.little import evaluator, machine
from tests.strategies import in_microbatches, problems
from tests.training import SGD

EXAMPLES = examples(60)


@pytest.mark.parametrize("kind", PLANS)
def test_few_processors_and_microbatches_tell_what_all_would(
    monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None], kind: str
) -> None:
    monkeypatch.setattr(evaluators, "FOLDED_FROM", 1)
    # Pipelines as short as these are seen to go on from so few on; from fewer or later hardly any with stages are.
    monkeypatch.setattr(evaluators, "FILLING", 9)
    monkeypatch.setattr(evaluators, "IRREGULAR", 1)
    seen: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        # Of those in several many are refused, and a batch that is whole has no stages at work together.
        counts = (24, 7) if kind == "in stages" else (24, 7, 1, 24)
        count, on = data.draw(st.sampled_from(counts)), data.draw(machines_of(kind))
        each = on.num_procs if kind == "alike" else data.draw(st.integers(1, 3))
        graph = data.draw(problems(batch=count * each)).graph
        if kind != "anyhow" and on.num_procs < 2:
            reject()
        plan = data.draw(in_microbatches(data.draw(PLANS[kind](one_of(graph, count), on.num_procs)), count))
        known = Evaluator(Lowering(graph, on, SGD, microbatches=count), CostModel(on))
        if not can_be_cut(known.lowering, plan):
            reject()
        few, whole = looked_at(known, plan, large=1), looked_at(known, plan, large=2**20)
        assert whole.tasks.num_tasks == whole.count.sum() == few.count.sum() and not whole.is_short
        seen["processors"] += few.tasks.num_procs < whole.tasks.num_procs
        seen["microbatches"] += few.is_short
        seen["microbatches of stages"] += few.is_short and num_stages(plan, graph.nodes) > 1
        check_alike(known, few, whole)

    def looked_at(known: Evaluator, plan: Strategy, large: int) -> SimulatedStep:
        monkeypatch.setattr(evaluators, "LARGE", large)
        return known.step_of(plan)

    check()
    tell(f"seen {kind}: fewer {', '.join(f'{what} in {n}' for what, n in seen.most_common())} plans")
    assert seen["microbatches"] > EXAMPLES // 20
    assert seen["processors"] > EXAMPLES // 20 or kind != "alike"


def check_alike(known: Evaluator, few: SimulatedStep, whole: SimulatedStep) -> None:
    """All that is told of a step, but which of several things that end at one time something waits for."""
    assert few.seconds == whole.seconds and few.peak_bytes.tolist() == whole.peak_bytes.tolist()
    assert few.busy_seconds[few.role].tolist() == whole.busy_seconds.tolist()
    mine, all_of_it = (simulate.looked_through(of, known.cost)[1] for of in (few, whole))
    np.testing.assert_allclose(mine[few.role], all_of_it, rtol=0, atol=0.5 / PICOSECONDS)
    rows, every = (
        {row["what"]: row for row in simulate.kinds(of, working)} for of, working in ((few, mine), (whole, all_of_it))
    )
    assert rows.keys() == every.keys()
    for what, row in rows.items():
        assert row["num_tasks"] == every[what]["num_tasks"]
        assert row["proc_seconds"] == pytest.approx(every[what]["proc_seconds"], rel=1e-9, abs=1e-12)
    found, other = (account(of, label(of, known.cost), known.cost) for of in (few, whole))
    check_explained_alike(found, other)


def check_explained_alike(found: Explanation, whole: Explanation) -> None:
    assert found.makespan == whole.makespan == found.chain.sum()
    assert sorted(found.causes) == sorted(whole.causes)
    of, to = (np.array(sorted(range(len(e.causes)), key=e.causes.__getitem__)) for e in (found, whole))
    for name in ("num_tasks", "moved_bytes", "total"):
        assert getattr(found, name)[of].tolist() == getattr(whole, name)[to].tolist(), name
    assert found.idle[found.role].tolist() == whole.idle.tolist()
    assert found.awaited.sum(axis=1)[found.role].tolist() == whole.awaited.sum(axis=1).tolist()
    computing = np.array([cause.kind != "transfer" for cause in whole.causes], bool)[to]
    spent, all_spent = found.spent[found.role][:, of], whole.spent[:, to]
    assert spent[:, computing].tolist() == all_spent[:, computing].tolist()
    assert spent.sum(axis=1).tolist() == all_spent.sum(axis=1).tolist()
    assert found.on_all(found.spent).sum() == whole.on_all(whole.spent).sum()
    for mine, theirs in zip(of.tolist(), to.tolist(), strict=True):
        here, there = found.labels.crossings[mine], whole.labels.crossings[theirs]
        assert here.keys() == there.keys()
        for level, crossing in here.items():
            np.testing.assert_allclose(crossing, there[level], rtol=1e-9)


# Commands.

MODEL, MACHINE = "gpt:layers=2,width=32,heads=2,seq=8,vocab=32", "dgx-h100:nodes=8"


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A plan for a large machine, of many microbatches, whose tasks nobody may write out."""
    lowering = Lowering(models.parse(MODEL).graph(64 * 16), presets.parse(MACHINE), microbatches=16)
    plan = stamped(lowering, seeds(lowering)["data_parallel"].configs, "data_parallel")
    path = tmp_path / "plan.json"
    path.write_bytes(strategies.encode(strategies.signed(plan, MODEL, lowering.graph, lowering.machine)))
    monkeypatch.setattr(Lowering, "contracted", None)
    return str(path)


def test_a_large_plan_is_told_of_without_being_written_out(
    large: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, picture = tmp_path / "trace.json", tmp_path / "picture.svg"
    told = answer(capsys, "simulate", large, "--trace", str(trace), "--picture", str(picture))
    explained = answer(capsys, "explain", large, "--op", "block1.q", "--budget", "2")
    compared = answer(capsys, "diff", large, large, "--machine", MACHINE)["figures"]
    for name in ("step_seconds", "moved_bytes"):
        assert told[name] == explained[name] == compared[name]["a"]
    assert told["num_tasks"] == explained["num_tasks"] > 64 * 16 * 50
    assert len(told["procs"]) == len(explained["procs"]) == 64
    assert sum(row["mean_seconds"] for row in explained["spans"]) == pytest.approx(told["step_seconds"])
    rows = {event["tid"] for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"}
    assert {row // NUM_LANES for row in rows} < set(range(64))
    drawn = picture.read_text()
    assert "of 16 microbatches 5 drawn" in drawn
    assert main(["simulate", large]) == 0
    out = capsys.readouterr().out
    assert any(line.split()[0] == "0-63" for line in out.splitlines() if line) and ">0-63<" in drawn


def test_too_many_microbatches_are_neither_packed_nor_looked_at_one_by_one() -> None:
    """A batch that is cut into a hundred million pieces was written out before its arenas were packed: for ever."""
    count = 10**8
    graph = models.parse("mlp:layers=1,width=8").graph(2 * count)
    known = evaluator(graph, machine(1, memory=2**50), SGD, microbatches=count)
    plan = known.lowering.plan({name: Config() for name in graph.nodes})
    assert known.step_of(plan).is_long and max(known.pack(plan)) >= max(known.evaluate(plan).peak_bytes)
