"""Microbatches begun ahead: how many processors have begun at once, what that is worth, and how it is told."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.reports import search_report
from castile.planner.cost import CostModel
from castile.planner.evaluation import folding
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known import seeds as known_plans
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.lowering.compose import Layout
from castile.planner.lowering.stages import depths, stages
from castile.planner.searching.results import complete_plan
from castile.planner.strategy import PATH, READY, Strategy, encode, same_tasks, signed
from castile.runtime import machine as presets
from castile.runtime.machine import Level, Machine, Processor
from tests.answers import answer
from tests.cut_batches import piped
from tests.effort import examples
from tests.test_stages import PASS, on, simulated, stack
from tests.training import SGD

EXAMPLES = examples(80)
MODEL, MACHINE = "gpt:layers=2,width=64,heads=2,seq=32,vocab=64", "dgx-h100:nodes=1"


def test_no_processor_has_begun_more_than_it_may(tell: Callable[[str], None]) -> None:
    """However a plan lies, by the times at which its tasks run."""
    seen: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        known, plan = piped(data, st.integers(4, 8))
        # what adds up losses is done once for all microbatches
        steps = [step for step in known.lowering.program(plan).steps if step.form == "F" and step.micro.count > 1]
        of = [plan.configs[step.node.name].procs for step in steps if step.micro.number == 0]
        stage = stages(of)
        for number, depth in enumerate(depths(stage)):
            procs = {p for at, s in zip(of, stage) if s == number for p in at}
            for held in begun(known, plan, procs):
                assert held <= depth + plan.ahead
                seen["all that it may" if held == min(depth + plan.ahead, plan.microbatches) else "fewer"] += 1
                seen["more than without"] += held > depth

    check()
    tell(f"begun: {', '.join(f'{k} {n}' for k, n in seen.most_common())}")
    assert seen["more than without"] > EXAMPLES // 8


def begun(known: Evaluator, plan: Strategy, procs: set[int]) -> list[int]:
    """By processor the most microbatches that it has begun and is not done with, at any time of a step."""
    steps, flows = known.lowering.instances(plan)
    tasks, found = known.simulate(plan)
    assert tasks.num_tasks >= sum(step.num_tasks for step in steps)
    start, end = found.timeline.start, found.timeline.end
    first, last = dict[tuple[int, int], int](), dict[tuple[int, int], int]()
    rows = Layout(steps, flows, known.lowering.catalogue).rows
    for step, base in zip(rows.steps, rows.base.tolist(), strict=False):
        for task, proc in enumerate(rows.procs[base : base + step.num_tasks].tolist(), base):
            key = proc, step.step.micro.number
            if step.step.micro.count > 1 and step.step.form == "F":
                first[key] = min(first.get(key, start[task]), start[task])
            if step.step.micro.count > 1:
                last[key] = end[task]
    spans = [[(first[key], last[key]) for key in first if key[0] == proc] for proc in sorted(procs)]
    return [max(sum(a <= t < b for a, b in of) for t, _ in of) for of in spans]


def test_what_is_sent_for_a_microbatch_goes_beside_anothers_kernels() -> None:
    """Of blocks of a transformer in four stages, whose kernels wait for slow links: the sooner, the more are begun."""
    each = Processor("p", 1e12, 1e12, 1 << 40, task_overhead_seconds=1e-6)
    machine = Machine("m", (each,) * 4, (Level("link", 4, 1e-6, 3e9),))
    graph = models.parse("gpt:layers=4,width=64,heads=2,seq=32,vocab=64").graph(64)
    lowering = Lowering(graph, machine, SGD, microbatches=16)
    known, plan = Evaluator(lowering, CostModel(machine)), seeds(lowering)["pipeline_4"]
    found = [known.evaluate(msgspec.structs.replace(plan, ahead=ahead)) for ahead in range(4)]
    for fewer, more in itertools.pairwise(found):
        assert more.seconds < fewer.seconds and max(more.peak_bytes) > max(fewer.peak_bytes)
        assert more.moved_bytes == fewer.moved_bytes
    assert found[-1].seconds < 0.9 * found[0].seconds


def test_a_large_plan_is_looked_at_once_however_much_is_begun_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """And to ask whether it is small, or what it takes in another order, no more."""
    machine = presets.parse("dgx-h100:nodes=8")
    graph = models.parse("gpt:layers=4,width=64,heads=2,seq=32,vocab=64").graph(128)
    lowering = Lowering(graph, machine, SGD, microbatches=8)
    plan, looked = seeds(lowering, ["pipeline_4"])["pipeline_4"], Mock(side_effect=folding.refine)
    alone = [Evaluator(lowering, CostModel(machine)).evaluate(one) for one in (ahead_in_order(plan, *w) for w in WAYS)]
    monkeypatch.setattr(folding, "refine", looked)
    known = Evaluator(lowering, CostModel(machine))
    assert [known.evaluate(ahead_in_order(plan, *way)) for way in WAYS] == alone
    assert known.is_small(plan) and known.is_small(ahead_in_order(plan, PATH, 0)) and looked.call_count == 1


WAYS = ((READY, 0), (READY, 1), (READY, 3), (PATH, 0), (PATH, 1))


def ahead_in_order(plan: Strategy, order: str, ahead: int) -> Strategy:
    return msgspec.structs.replace(plan, order=order, ahead=ahead)


def test_a_batch_that_is_not_cut_has_nothing_to_begin_ahead() -> None:
    known = Evaluator(Lowering(stack(4, 16), on(4, 1e6), SGD), CostModel(on(4, 1e6)))
    plan = seeds(known.lowering)["data_parallel"]
    (tasks, one), (others, other) = (known.simulate(msgspec.structs.replace(plan, ahead=a)) for a in (0, 3))
    assert (tasks.needs == others.needs).all() and (one.timeline.start == other.timeline.start).all()


def test_a_finished_plan_runs_as_what_was_found() -> None:
    known, plan, *_ = simulated(2, 4, 1, 4 * PASS)
    plan = msgspec.structs.replace(plan, bucket_bytes=300, order=PATH, recompute=("fc1",))
    worth = known.evaluate(plan)
    made = complete_plan(known, worth, known.pack(plan), "mcmc", 0)
    assert not same_tasks(made, msgspec.structs.replace(plan, ahead=0))
    assert same_tasks(made, plan) and made.predicted is not None and made.predicted.step_seconds == worth.seconds


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A pipeline that begins none ahead, one, and two microbatches, as files."""
    lowering = Lowering(models.parse(MODEL).graph(16), presets.parse(MACHINE), microbatches=8)
    plan, paths = signed(seeds(lowering)["pipeline_2"], MODEL, lowering.graph, lowering.machine), []
    for ahead in range(3):
        paths.append(str(tmp_path / f"{ahead}.json"))
        Path(paths[-1]).write_bytes(encode(msgspec.structs.replace(plan, ahead=ahead)))
    return paths


def test_what_is_begun_ahead_is_told(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    none, *others = files
    alone = answer(capsys, "explain", none)
    assert alone["ahead"] is answer(capsys, "simulate", none)["ahead"] is None
    for number, path in enumerate(others, 1):
        facts = answer(capsys, "explain", path)
        row = facts["ahead"]
        assert row == answer(capsys, "simulate", path)["ahead"] and row["microbatches"] == number
        assert (row["live_bytes"], row["live_bytes_without"]) == (facts["live_bytes"], alone["live_bytes"])
        assert row["step_seconds_without"] == alone["step_seconds"] != facts["step_seconds"]
        assert row["live_bytes"] > row["live_bytes_without"]
    told = (None, "1 microbatch begun ahead, beyond", "2 microbatches begun ahead, beyond")
    for path, words, command in zip(files, told, ("explain", "simulate", "explain"), strict=True):
        assert main([command, path]) == 0
        out = capsys.readouterr().out
        assert ("begun ahead" in out) == ("if no microbatch were begun ahead" in out) == (words is not None)
        assert words is None or words in out


def test_what_a_search_found_is_told_with_what_it_begins_ahead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, words = str(tmp_path / "plan.json"), ("--batch", "16", "--search", "pipeline_2", "--accumulate", "8")
    facts = answer(capsys, "plan", MODEL, "--machine", MACHINE, *words, "--out", path)
    assert facts["ahead"] == answer(capsys, "explain", path)["ahead"]
    row = {"microbatches": 2, "step_seconds_without": 0.25, "live_bytes": 4096, "live_bytes_without": 3072}
    for ahead, count in ((None, 0), (row, 1)):
        search_report.tell({**facts, "ahead": ahead}, [])
        out = capsys.readouterr().out
        assert out.count("(250 ms, with 3.0 KiB live instead of 4.0 KiB, if no microbatch were begun ahead)") == count
        assert "a step in 8 microbatches, a pipeline of 2 stages" in out


def test_a_forward_pass_begins_nothing_ahead(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    told = [answer(capsys, "explain", path, "--forward") for path in (files[0], files[2])]
    assert told[0]["ahead"] is told[1]["ahead"] is None and told[0]["step_seconds"] == told[1]["step_seconds"]


def test_plans_are_compared_with_what_they_begin_ahead(
    files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = answer(capsys, "diff", files[0], files[2], "--machine", MACHINE)
    assert facts["settings"] == {"ahead": {"a": 0, "b": 2}} and not facts["moved"]
    assert facts["figures"]["step_seconds"]["delta"] != 0
    assert main(["diff", files[0], files[2]]) == 0
    assert "ahead: none -> 2" in capsys.readouterr().out
    # the plan itself, if it was of that name, which has its name where no pipeline is looked at by itself, too
    monkeypatch.setattr(known_plans, "has_many_parts", lambda lowering, most=0: not most)
    assert answer(capsys, "explain", files[2], "--why-not", "pipeline_2")["why_not"]["times"] == 1
