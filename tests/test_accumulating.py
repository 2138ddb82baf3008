"""Batches of which no plan fits are cut in time: into those in which known ones are fastest, or as many as are said."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from math import inf, prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from castile.launch import models
from castile.launch import plan as planning
from castile.launch.__main__ import main
from castile.launch.jobs import escalation
from castile.launch.jobs import request as requests
from castile.launch.reports import search_report
from castile.planner import strategy as strategies
from castile.planner.bodies.vocabulary import itemsize
from castile.planner.choices.pins import Pins
from castile.planner.evaluation import budget as budgets
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.graph import Graph
from castile.planner.known.pipelines import divisors
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.search import search
from castile.planner.searching import accumulation, forecasts, low_memory
from castile.planner.searching.accumulation import Batching
from castile.planner.searching.forecasts import Forecast, Forecaster
from castile.planner.searching.pipelines import AHEAD_GAIN
from castile.planner.searching.results import NoPlanFits, SearchResult
from castile.planner.searching.screening import Alternatives
from castile.planner.step.recompute import Recomputation
from castile.runtime.memory import written
from tests.effort import rare
from tests.little import described, evaluator, machine, tower
from tests.training import SGD

MODEL = "gpt:layers=1,width=32,heads=2,seq=32,vocab=64"
BATCH = 8
# Room for parameters, their gradients and what updates keep, and for the activations of some of the samples.
MEMORY = 400_000
SMALL = described(MEMORY)
FOUR = """
nodes = 1
shared_lanes = [["send", "collective"]]

[[processor]]
count = 4
kind = "gpu"
flops_per_second = 2.25e13
bytes_per_second = 2.25e12
memory_bytes = 37_353_932
task_overhead_seconds = 4e-6

[[level]]
name = "link"
latency_seconds = 1e-6
bytes_per_second = 4.5e10
"""
TWELVE = """
nodes = 3
shared_lanes = [["send", "collective"]]

[[processor]]
count = 4
kind = "gpu"
flops_per_second = 3.27e12
bytes_per_second = 3.27e11
memory_bytes = 4_313_004
task_overhead_seconds = 1e-7

[[level]]
name = "near"
latency_seconds = 5e-6
bytes_per_second = 1.21e11
group = 4

[[level]]
name = "far"
latency_seconds = 2e-5
bytes_per_second = 5.15e9
shared_by = 4
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "small.toml").write_text(SMALL)
    on = str(tmp_path / "small.toml")
    return ["plan", MODEL, "--machine", on, "--batch", str(BATCH), "--budget", "5", "--out", str(tmp_path / "p.json")]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) != 0
    return capsys.readouterr().err


def test_numbers_divide_the_batch_and_double() -> None:
    assert divisors(1024) == tuple(2**n for n in range(11))
    # Of 1,792 samples 64 processors share pieces of 64 evenly, which 28 pieces have, and none of 56, which 32 have.
    assert divisors(1792)[:9] == (1, 2, 4, 7, 8, 14, 16, 28, 32) and divisors(7) == (1, 7)
    # at once, however large the batch
    assert divisors(2**40) == tuple(2**n for n in range(41))
    for batch in range(1, 200):
        found = divisors(batch)
        assert found[0] == 1 and all(batch % n == 0 for n in found) and found[-1] in (1, batch)
        assert all(a < b for a, b in zip(found, found[1:])) and all(batch // n in found for n in found)
        doubled = [1]
        while more := [n for n in range(2 * doubled[-1], batch + 1) if batch % n == 0]:
            doubled.append(more[0])
        assert {*found} == {*doubled, *(batch // n for n in doubled)}


@pytest.mark.parametrize("is_dear", [True, False])
def test_where_nothing_fits_pipelines_are_asked_for_with_more_and_more_computed_again(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_dear: bool
) -> None:
    """Of each once; where a search would take long to say that nothing fits, before that."""
    (tmp_path / "small.toml").write_text(SMALL.replace(str(MEMORY), str(MEMORY // 30)))
    asked: list[tuple[int, tuple[str, ...]]] = []
    searched: list[int] = []

    def instead(chosen: Batching, *others: Any) -> None:
        asked.append((chosen.num_microbatches, chosen.evaluator.lowering.recompute))

    def counted(*args: Any, **more: Any) -> Any:
        searched.append(len(asked))
        return search(*args, **more)

    monkeypatch.setattr(escalation, "fallback_pipeline", instead)
    monkeypatch.setattr(escalation, "search", counted)
    monkeypatch.setattr(requests, "has_many_parts", lambda lowering, most=0: is_dear)
    monkeypatch.setattr(accumulation, "could_fit", lambda evaluator: True)
    monkeypatch.setattr(forecasts, "FAR", 1.0)
    told = refused(capsys, *words)
    assert "no plan fits; the nearest one: " in told
    assert told.endswith("; nor was one found in microbatches, or with results computed again\n")
    ways = len(Recomputation(models.parse(words[1]).graph(BATCH), SGD).rising())
    at = 1 if is_dear else len(asked) - ways
    numbers, dropped = zip(*asked[at : at + ways])
    assert asked[0] == (1, ()) and {*numbers} == {2} and 0 < len(dropped[0]) and [*dropped] == sorted(dropped, key=len)
    assert searched[0] == (1 + ways if is_dear else 0) and len(asked) == len({*asked})


def test_where_no_plan_of_a_whole_batch_fits_it_is_cut(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words += ["--recompute", "none"]
    told = refused(capsys, *words, "--accumulate", "1")
    facts = answer(capsys, *words)
    count = facts["microbatches"]
    assert count > 1 and facts["is_cut_to_fit"] and facts["found"]["fits"]
    assert f"--accumulate {count}" in told and "no plan fits" in told
    plan = strategies.read(str(tmp_path / "p.json"))
    assert plan.microbatches == count and max(facts["found"]["arena_bytes"]) <= MEMORY
    asked = answer(capsys, *words, "--accumulate", str(count))
    assert not asked["is_cut_to_fit"] and asked["found"] == facts["found"]
    search_report.tell(facts, [])
    assert f"{count} microbatches, one after another: no known plan of a whole batch" in capsys.readouterr().out
    simulated = answer(capsys, "simulate", str(tmp_path / "p.json"), *words[2:6])
    assert simulated["step_seconds"] == facts["found"]["step_seconds"]


@pytest.mark.parametrize(
    ("budget", "each", "shares"),
    [
        ("10s", 4.0, [5.0, 6.0, 2.0]),
        ("10s", 8.0, [5.0, 2.0, escalation.LEAST_SECONDS]),
        ("5", 4.0, [None, None, None]),
    ],
)
def test_searches_that_find_nothing_share_the_time_with_the_next(
    budget: str,
    each: float,
    shares: list[float | None],
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, given = [100.0], []

    def searched(name, evaluator, limits, *rest, **more):
        given.append(limits)
        clock[0] += each
        if len(given) < len(shares):
            raise NoPlanFits("no plan fits", 7)
        return search(name, evaluator, "5", *rest, **more)

    monkeypatch.setattr(escalation, "search", searched)
    monkeypatch.setattr(escalation, "LowMemoryPlans", lambda ways, has_few_parts=False: low_memory.LowMemoryPlans(()))
    monkeypatch.setattr(budgets, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    # Whether other tests have read the loops that were compiled already, or not.
    monkeypatch.setattr(budgets, "compiling_seconds", lambda: 0.0)
    words[words.index("--budget") + 1] = budget
    facts = answer(capsys, *words)
    assert [limits.seconds for limits in given] == (shares if shares[0] is None else pytest.approx(shares))
    assert len({limits.proposals for limits in given}) == 1
    assert [limits.before for limits in given] == ([0] * 3 if shares[0] is None else [0, each, 2 * each])
    assert facts["elapsed_seconds"] == pytest.approx(each * len(shares)) and facts["is_cut_to_fit"]
    # What was proposed in vain counts too.
    assert facts["num_proposals"] == 7 + 7 + 5


def nothing_fits(monkeypatch: pytest.MonkeyPatch, looked: Callable[[], None] = lambda: None) -> None:
    """Nothing is found, and known plans are taken to come near fitting, in any microbatches, without a sketch of them.

    looked   called for each number of microbatches in which known plans are looked at
    """

    def foreseen(*_: object) -> Forecast:
        looked()
        return Forecast(1.5, (), 1.0)

    def searched(*_: object, **__: object) -> None:
        raise NoPlanFits("no plan fits", 7)

    for module in (forecasts, requests):
        monkeypatch.setattr(module, "forecast_known", foreseen)
    monkeypatch.setattr(escalation, "search", searched)


@pytest.mark.parametrize(("budget", "most"), [("1s", 11.0), ("30s", 60.0), ("5", inf)])
def test_what_fits_is_looked_for_until_soon_after_the_time(
    budget: str, most: float, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """As long again, and ten seconds at least; a number of proposals is no time."""
    clock = [100.0]

    def passed() -> None:
        clock[0] += 2.0

    nothing_fits(monkeypatch, passed)
    monkeypatch.setattr(accumulation, "could_fit", lambda evaluator: True)
    monkeypatch.setattr(budgets, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(budgets, "compiling_seconds", lambda: 0.0)
    words[words.index("--budget") + 1] = budget
    # in many numbers of microbatches
    told = refused(capsys, *words, "--batch", "32")
    assert "no plan fits" in told and ("raise --budget" in told) == (most < inf)
    assert min(most, 70.0) <= clock[0] - 100.0 < most + 3 * 2.0


def test_where_no_time_is_left_a_known_plan_is_found(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(escalation, "remaining", lambda limits, *_: replace(limits, seconds=escalation.LEAST_SECONDS))
    words[words.index("--budget") + 1] = "10s"
    facts = answer(capsys, *words)
    assert facts["found"]["fits"] and facts["is_cut_to_fit"]


@pytest.mark.parametrize("more", [(), ("--seeds", "data_parallel"), ("--accumulate", "4"), ("--objective", "memory")])
def test_where_a_search_finds_nothing_in_its_time_a_pipeline_is_looked_for_unless_another_plan_was_asked_for(
    more: tuple[str, ...], words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_fits(monkeypatch)
    asked: list[int] = []
    monkeypatch.setattr(escalation, "fallback_pipeline", lambda chosen, *_: asked.append(chosen.num_microbatches))
    words[words.index("--budget") + 1] = "1s"
    assert "no plan fits" in refused(capsys, *words, *more)
    assert bool(asked) == (not more)


def test_where_no_known_plan_of_many_parts_fits_pipelines_come_before_what_gathers(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a plan that gathers would be taken whatever pipelines take; it is looked at beside the soonest of these."""
    nothing_fits(monkeypatch)
    looked = list[str]()

    def piped(chosen: Batching, *_: object) -> tuple[Batching, SearchResult]:
        looked.append("pipelines")
        roomy = chosen.evaluator.remade("time")
        roomy.capacity = 100 * roomy.capacity
        found = search("data_parallel", roomy, "1")
        cut = replace(chosen, num_microbatches=2, evaluator=roomy, seconds=found.evaluated.seconds)
        return cut, replace(found, is_insisted=False)

    def beside(self: object, chosen: Batching, found: SearchResult, look: object) -> tuple[Batching, SearchResult]:
        looked.append("beside")
        return chosen, found

    monkeypatch.setattr(requests.Request, "is_dear", True)
    monkeypatch.setattr(escalation, "fallback_pipeline", piped)
    monkeypatch.setattr(low_memory.LowMemoryPlans, "replace_search", lambda *_: pytest.fail("a pipeline fits"))
    monkeypatch.setattr(low_memory.LowMemoryPlans, "improve", beside)
    answer(capsys, *words)
    assert looked[0] == "pipelines" and {*looked[1:]} == {"beside"}


@pytest.mark.parametrize(("seconds", "is_near"), [(0.99, True), (1.01 / AHEAD_GAIN, True), (0.99 / AHEAD_GAIN, False)])
def test_where_what_gathers_is_little_faster_than_what_would_be_searched_pipelines_are_looked_at_too(
    seconds: float,
    is_near: bool,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In all numbers of microbatches, also the one that is not searched, with what was computed again there."""
    looked = list[tuple[int, tuple[str, ...], list[int]]]()

    def place(self: escalation.Escalation, number: int, way: str, seconds: float) -> Batching:
        return Batching(number, *self.request.at(self.request.dropped(way), number), seconds)

    def gathered(self: object, chosen: Batching, look: object) -> tuple[Batching, SearchResult]:
        roomy = chosen.evaluator.remade("time", lowering=chosen.evaluator.lowering.remade(microbatches=4))
        roomy.capacity = 100 * roomy.capacity
        found = replace(search("data_parallel", roomy, "1"), is_insisted=False)
        return replace(chosen, num_microbatches=4, evaluator=roomy, seconds=seconds), found

    def filled(
        first: Batching, found: SearchResult, others: Alternatives, look: object
    ) -> tuple[Batching, SearchResult]:
        looked.append((first.num_microbatches, first.evaluator.lowering.recompute, [*others.counts]))
        return first, found

    monkeypatch.setattr(escalation.Escalation, "_batchings", lambda self: iter([place(self, 2, "selective", 1.0)]))
    monkeypatch.setattr(escalation, "search", lambda *_, **__: pytest.fail("nothing is searched"))
    monkeypatch.setattr(escalation, "improve_with_pipelines", filled)
    monkeypatch.setattr(low_memory.LowMemoryPlans, "replace_search", gathered)
    monkeypatch.setattr(low_memory.LowMemoryPlans, "improve", lambda self, chosen, found, look: (chosen, found))
    facts = answer(capsys, *words)
    assert facts["microbatches"] == 4 and len(looked) == is_near
    for number, recompute, numbers in looked:
        assert number == 2 and recompute and {2, 4} <= {*numbers}


def test_more_pieces_need_less_memory(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    few, many = (answer(capsys, *words, "--accumulate", n, "--search", "data_parallel") for n in ("4", "8"))
    assert (few["microbatches"], many["microbatches"]) == (4, 8) and not few["is_cut_to_fit"]
    assert many["found"]["live_bytes"] < few["found"]["live_bytes"]
    assert many["found"]["step_seconds"] > few["found"]["step_seconds"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--accumulate", "0"), "--accumulate 0: give 1 or more"),
        (("--accumulate", "3"), "--accumulate 3: a batch of 8 samples does not make as many equal pieces"),
        (("--accumulate", "2", "--objective", "latency"), "--accumulate means nothing for --objective latency"),
        (("--recompute", "full", "--objective", "latency"), "--recompute means nothing for --objective latency"),
        (("--recompute", "ful"), "--recompute: 'ful' is no node of"),
    ],
)
def test_what_cannot_be_cut_is_refused(more, words, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, "plan", MODEL, "--machine", "dgx-h100", "--batch", str(BATCH), *more)
    assert words in told and told.count("\n") == 1


def test_a_given_plan_says_its_own_number(tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, *words, "--accumulate", "8")
    path = str(tmp_path / "p.json")
    assert answer(capsys, *words, "--from", path)["microbatches"] == 8
    told = refused(capsys, *words, "--from", path, "--accumulate", "4")
    assert "cuts the batch into 8; give that, or leave --from out" in told


def test_a_forward_pass_from_a_plan_takes_the_whole_batch(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """In however many microbatches the plan trains, and whatever it computes again."""
    (tmp_path / "small.toml").write_text(SMALL.replace(str(MEMORY), str(100 * MEMORY)))
    alone = answer(capsys, *words, "--objective", "latency")
    answer(capsys, *words, "--accumulate", "8", "--recompute", "selective")
    found = answer(capsys, *words, "--objective", "latency", "--from", str(tmp_path / "p.json"))
    assert found["microbatches"] == 1 and found["num_recomputed"] == 0
    assert found["seeds"]["data_parallel"] == alone["seeds"]["data_parallel"]
    ways = [answer(capsys, command, str(tmp_path / "p.json"), "--forward") for command in ("simulate", "explain")]
    assert ways[0]["step_seconds"] == ways[1]["step_seconds"] > 0


def test_where_the_batch_may_not_be_cut_results_are_computed_again(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """As little as lets a plan fit; a plan that is given says what it computes again."""
    words[1] = words[1].replace("layers=1", "layers=4")
    graph, path = models.parse(words[1]).graph(BATCH), str(tmp_path / "p.json")
    roomy = [word.replace("small.toml", "roomy.toml") for word in words]
    (tmp_path / "roomy.toml").write_text(SMALL.replace(str(MEMORY), str(100 * MEMORY)))
    whole = [*roomy, "--accumulate", "1", "--objective", "memory", "--recompute"]
    ways = (answer(capsys, *whole, way) for way in ("none", "full"))
    memory = sum(max(facts["found"]["arena_bytes"]) for facts in ways) // 2
    (tmp_path / "roomy.toml").write_text(SMALL.replace(str(MEMORY), str(memory)))
    refused(capsys, *roomy, "--accumulate", "1", "--recompute", "none")
    facts = answer(capsys, *roomy, "--accumulate", "1")
    assert facts["microbatches"] == 1 and facts["found"]["fits"] and facts["is_recomputed_to_fit"]
    assert 0 < facts["num_recomputed"] < facts["num_nodes"] == len(graph.nodes)
    search_report.tell(facts, [])
    assert f"{facts['num_recomputed']} of {len(graph.nodes)} nodes are computed again" in capsys.readouterr().out
    given = answer(capsys, *roomy, "--from", path)
    assert given["num_recomputed"] == facts["num_recomputed"] and not given["is_recomputed_to_fit"]
    told = refused(capsys, *roomy, "--from", path, "--recompute", "none")
    assert "says itself which" in told and "nodes are computed again; leave --recompute out" in told
    simulated, explained = (answer(capsys, command, path, *roomy[2:4]) for command in ("simulate", "explain"))
    assert simulated["step_seconds"] == explained["step_seconds"] == facts["found"]["step_seconds"]
    assert explained["num_recomputed"] == facts["num_recomputed"]


def test_what_is_advised_where_a_given_plan_does_not_fit_is_not_refused(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path, large = tmp_path / "p.json", tmp_path / "large.toml"
    large.write_text(SMALL.replace(str(MEMORY), str(100 * MEMORY)))
    answer(capsys, *[str(large) if word.endswith("small.toml") else word for word in words])
    told = refused(capsys, *words, "--from", str(path))
    assert "no plan fits" in told
    advice = re.search(r"; or leave --from out and give (--accumulate) ([0-9]+), with which", told)
    assert advice is not None, told
    assert answer(capsys, *words, *advice.groups())["found"]["fits"]


def on(memory: int, microbatches: int) -> tuple[Evaluator, Pins | None]:
    return evaluator(tower(3, batch=64), machine(2, memory=memory), microbatches=microbatches), None


def given_bytes(graph: Graph) -> int:
    return sum(prod(graph.tensors[name].shape) * itemsize(graph.tensors[name].dtype) for name in graph.inputs)


def test_of_what_the_host_gives_as_much_has_room_as_is_read() -> None:
    graph = Graph("halved", "float32")
    x = graph.slice("half", graph.input("x", (64, 8), "b i"), 1, 0, 4)
    graph.minimise(graph.sum("loss", graph.linear("fc", x, 1)))
    nbytes = 2 * sum(prod(t.shape) * 4 for t in graph.params) + given_bytes(graph) // 2
    could = [accumulation.could_fit(evaluator(graph, machine(1, memory=nbytes - less))) for less in (0, 1)]
    assert could == [True, False]


def test_what_the_host_gives_has_no_room_in_any_microbatches(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So none are looked at."""
    seen: list[int] = []
    foresee = forecasts.forecast_known

    def noted(known: Evaluator, *others: Any) -> Any:
        seen.append(known.lowering.microbatches)
        return foresee(known, *others)

    monkeypatch.setattr(forecasts, "forecast_known", noted)
    monkeypatch.setattr(requests, "forecast_known", noted)
    told = refused(capsys, *words, "--batch", str(2**20))
    assert not {*seen} - {1}
    # Who is refused is told how much memory would be needed at least, and how much there is.
    graph = models.parse(words[1]).graph(2**20)
    carried, given = 2 * sum(prod(t.shape) * itemsize(t.dtype) for t in graph.params), given_bytes(graph)
    assert f"; none can: parameters and what updates them take {written(carried)} and the samples of a step " in told
    assert told.endswith(f"a step {written(given)}, each kept but once, of {written(2 * MEMORY)} in all\n")


@pytest.mark.parametrize("procs", [1, 2, 4])
def test_where_what_is_carried_has_no_room_no_plan_fits(procs: int) -> None:
    """Parameters, as much of momentum, and what the host gives; a plan that fits is never told that it could not."""
    graph = tower(3, batch=4)
    nbytes = 2 * sum(prod(t.shape) * 4 for t in graph.params) + given_bytes(graph)
    for memory in (nbytes // procs - 1, -(-nbytes // procs), 2 * nbytes, 20 * nbytes):
        known = evaluator(graph, machine(procs, memory=memory))
        could = accumulation.could_fit(known)
        assert could == (memory * procs >= nbytes)
        fits = [known.evaluate(plan).fits for plan in seeds(known.lowering).values()]
        assert could or not any(fits)
    assert any(fits)


@pytest.mark.parametrize(("layers", "batch", "procs"), [(3, 64, 1), (10, 8, 1), (20, 4, 1), (20, 4, 4), (40, 2, 1)])
def test_where_a_known_plan_just_fits_none_is_called_far(layers: int, batch: int, procs: int) -> None:
    graph = tower(layers, batch)
    for count in (1, 2):
        roomy = evaluator(graph, machine(procs), microbatches=count)
        least = min(max(roomy.evaluate(plan).peak_bytes) for plan in seeds(roomy.lowering).values())
        full = forecasts.forecast_known(evaluator(graph, machine(procs, memory=least), microbatches=count))
        assert 2 * full.share < forecasts.FAR and not full.is_far
        tight = forecasts.forecast_known(evaluator(graph, machine(procs, memory=least // 8), microbatches=count))
        assert tight.is_far and not tight.fitting


def number(memory: int, numbers: tuple[int, ...]) -> int | None:
    chosen = accumulation.fitting_batching(Forecaster(lambda n: on(memory, n)), numbers)
    return None if chosen is None else chosen.num_microbatches


def test_the_number_is_that_in_which_known_plans_are_best() -> None:
    assert number(10**6, (2, 4, 8)) == 2
    assert number(100, (2, 4, 8)) is None
    numbers = (1, 2, 4, 8, 16, 32)
    every = [on(15_000, n)[0] for n in numbers]
    fits = [any(known.evaluate(plan).fits for plan in seeds(known.lowering).values()) for known in every]
    assert number(15_000, numbers) == numbers[fits.index(True)] > 1


def test_where_the_best_known_plans_do_not_fit_the_smallest_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    same = on(10**6, 2)[0]
    monkeypatch.setattr(forecasts, "MOST_FASTEST", 1)
    few = forecasts.forecast_known(same)
    (_, best), (_, smallest) = few.fitting
    others = [name for name in seeds(same.lowering) if name != best.search]
    assert smallest.search == min(others, key=lambda name: forecasts.forecast_known(same, [name]).share)
    tried = []
    monkeypatch.setattr(accumulation, "_step_seconds", lambda evaluator, plan: tried.append(plan) or inf)
    assert accumulation.fitting_batching(Forecaster(lambda n: (same, None)), (2,)) is not None
    assert tried == [plan for _, plan in few.fitting]


def choose(
    monkeypatch: pytest.MonkeyPatch, known: dict[int, tuple[float, float, float]], is_over: bool = False
) -> Batching | None:
    """What is chosen where the best plan of each number has that share, sketched seconds and simulated ones."""

    def foresee(number: int, *_: object) -> Forecast:
        share, sketched, _ = known[number]
        return Forecast(share, ((sketched, number),) if share <= 1 else (), sketched)

    monkeypatch.setattr(forecasts, "forecast_known", foresee)
    monkeypatch.setattr(accumulation, "_step_seconds", lambda evaluator, number: known[number][2])
    return accumulation.fitting_batching(Forecaster(lambda n: (n, None)), known, is_over=lambda: is_over)


def test_the_fewest_pieces_that_fit_are_not_always_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {2: (1.2, 1.0, inf), 4: (0.9, 5.0, 5.0), 8: (0.8, 3.0, 3.0), 16: (0.7, 4.0, 1.0)}
    assert choose(monkeypatch, known) == Batching(8, 8, None, 3.0)
    # Once time is over the first that will do does.
    assert choose(monkeypatch, known, is_over=True) == Batching(4, 4, None, 5.0)


def test_where_no_known_plan_fits_the_nearest_number_is_left_to_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {2: (1.4, 1.0, inf), 4: (1.2, 1.0, inf), 8: (1.2, 1.0, inf)}
    assert choose(monkeypatch, known) == Batching(4, 4, None)
    # What a sketch takes to fit and the simulator does not is as near.
    assert choose(monkeypatch, known | {8: (0.9, 1.0, inf)}) == Batching(8, 8, None)
    assert choose(monkeypatch, {n: (1.01 * accumulation.NEARLY_FITS, 1.0, inf) for n in known}) is None


def test_who_wants_an_end_waits_for_no_further_number(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    monkeypatch.setattr(planning, "ending_early", lambda what: nullcontext(lambda: True))
    monkeypatch.setattr(forecasts, "forecast_known", lambda *given: looked.append(given))
    told = refused(capsys, *words)
    assert "no plan fits" in told and not looked


def test_what_lets_samples_meet_is_not_cut() -> None:
    graph, two = models.parse("resnet:depth=18,size=32").graph(8), machine(2)
    whole = evaluator(graph, two)

    def at(count: int) -> tuple[Evaluator, Pins | None]:
        return whole.remade("time", lowering=Lowering(graph, two, microbatches=count)), None

    assert accumulation.fitting_batching(Forecaster(at), (2, 4)) is None


def test_where_memory_is_short_parameters_are_gathered_for_each_pass_instead_of_cutting_the_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on, path = tmp_path / "short.toml", str(tmp_path / "p.json")
    text = re.sub(r"memory_bytes = \d+", "memory_bytes = 4_200_000", SMALL.replace("count = 2", "count = 4"))
    on.write_text(re.sub(r"1e1?\d", "1e12", text).replace("latency_seconds = 1e-6", "latency_seconds = 1e-7"))
    model = "gpt:layers=4,width=128,heads=4,seq=32,vocab=256"
    words = ["plan", model, "--machine", str(on), "--batch", "8", "--budget", "50", "--out", path]
    facts, kept = answer(capsys, *words), answer(capsys, *words[:-2], "--recompute", "none")
    assert facts["microbatches"] == 1 and facts["found"]["fits"] and facts["num_gathered_again"] > 0
    assert kept["num_gathered_again"] == 0 and kept["found"]["step_seconds"] > facts["found"]["step_seconds"]
    search_report.tell(facts, [])
    told = f"{facts['num_gathered_again']} of {facts['num_params']} parameters are gathered for each pass"
    assert told in capsys.readouterr().out
    simulated, explained = (answer(capsys, command, path, *words[2:4]) for command in ("simulate", "explain"))
    assert simulated["step_seconds"] == explained["step_seconds"] == facts["found"]["step_seconds"]
    assert explained["num_gathered_again"] == facts["num_gathered_again"]


def test_though_a_plan_fits_that_gives_nothing_up_parameters_are_gathered_where_that_is_sooner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As data parallelism would be, which lacks memory: else nobody looks."""
    text = re.sub(r"memory_bytes = \d+", "memory_bytes = 18_000_000", SMALL.replace("count = 2", "count = 4"))
    processors, level = re.sub(r"1e10", "1e12", text).replace("1e-6", "1e-7").split("[[level]]")
    (tmp_path / "short.toml").write_text(f"{processors}[[level]]{level.replace('1e9', '1e11')}")
    model, on = "gpt:layers=8,width=128,heads=4,seq=32,vocab=256", str(tmp_path / "short.toml")
    words = ["plan", model, "--machine", on, "--batch", "16", "--budget", "50", "--out", str(tmp_path / "p.json")]
    monkeypatch.setattr(escalation.Escalation, "_recomputing_plans", low_memory.LowMemoryPlans(()))
    facts = answer(capsys, *words)
    monkeypatch.setattr(SearchResult, "is_limited_by_memory", False)
    before = answer(capsys, *words)
    assert facts["microbatches"] == before["microbatches"] == 1
    assert facts["num_gathered_again"] > before["num_gathered_again"] == 0
    assert facts["found"]["step_seconds"] < 0.98 * before["found"]["step_seconds"] and before["found"]["fits"]
    assert facts["seeds"].keys() == before["seeds"].keys()
    assert not before["seeds"]["data_parallel"]["fits"]
    assert before["seeds"]["data_parallel"]["step_seconds"] < before["found"]["step_seconds"]


def test_where_memory_is_short_more_is_computed_again_though_a_plan_fits_in_more_microbatches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step is not told to take longer than with any way to compute again that might be said."""
    text = described(19_671_617).replace("1e10", "5e13", 1).replace("1e10", "2e12").replace("1e9", "5e10")
    (tmp_path / "short.toml").write_text(text.replace("1e-6", "1e-5"))
    words = ["plan", "gpt", "--machine", str(tmp_path / "short.toml"), "--batch", "16", "--optimizer", "adamw"]
    words += ["--dtype", "bfloat16", "--budget", "100"]
    facts = answer(capsys, *words)
    kept, full = (answer(capsys, *words, "--recompute", way) for way in ("none", "full"))
    assert facts["num_recomputed"] and facts["is_recomputed_to_fit"] and facts["found"]["fits"]
    assert facts["found"]["step_seconds"] < 0.9 * kept["found"]["step_seconds"]
    assert facts["found"]["step_seconds"] <= full["found"]["step_seconds"]


@pytest.mark.parametrize(
    ("machine", "model", "batch"),
    [
        # of four processors parameters that are gathered take the place of a search
        (FOUR, "gpt:layers=4,width=128,heads=4,seq=64,vocab=500", 64),
        # of twelve what computes more again is far from what was found, as long as nothing searched from it
        *rare((TWELVE, "vit:layers=2,width=64,heads=4,hidden=128,size=32,patch=4,classes=10", 128)),
    ],
    ids=["gathered", *rare("far")],
)
def test_where_memory_is_short_what_computes_more_again_is_searched_from_beside_what_was_found(
    machine: str, model: str, batch: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.toml").write_text(machine)
    words = ["plan", model, "--machine", str(tmp_path / "short.toml"), "--batch", str(batch), "--budget", "50"]
    facts, said = answer(capsys, *words), answer(capsys, *words, "--recompute", "selective")
    assert facts["found"]["step_seconds"] <= said["found"]["step_seconds"] and said["found"]["fits"]


def test_a_batch_that_nothing_but_its_samples_divides_is_cut_into_these_for_a_pipeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over slow links three stages do three samples sooner than three processors do one each and sum gradients."""
    text = described(10**9).replace("count = 2", "count = 3").replace("1e9", "3e7")
    (tmp_path / "row.toml").write_text(text)
    model = "gpt:layers=6,width=64,heads=2,seq=64,vocab=64"
    words = ["plan", model, "--machine", str(tmp_path / "row.toml"), "--batch", "3", "--budget", "500"]
    facts, whole = answer(capsys, *words), answer(capsys, *words, "--accumulate", "1")
    assert facts["microbatches"] == facts["num_stages"] == 3
    assert facts["found"]["step_seconds"] < 0.9 * whole["found"]["step_seconds"]
