"""Filling: in how many microbatches a pipeline is looked for, and what becomes of what two searches found."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cache
from math import inf
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest

from castile.launch import models
from castile.planner.bounds.lower_bound import lower_bound
from castile.planner.choices.pins import Pins
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.evaluation.sizes import variants
from castile.planner.graph import Graph
from castile.planner.known.seeds import PIPELINE, is_pipeline, seeds
from castile.planner.lower import Lowering
from castile.planner.search import search
from castile.planner.searching import forecasts, low_memory, pipelines, screening
from castile.planner.searching.accumulation import Batching
from castile.planner.searching.forecasts import Candidate, Forecast, Forecaster, forecast_known
from castile.planner.searching.low_memory import ROOMY, LowMemoryPlans
from castile.planner.searching.pipelines import (
    AHEAD_GAIN,
    NEAR_BOUND,
    PROMISING,
    SEARCH_GAIN,
    batching_for_pipelines,
    fallback_pipeline,
    improve_with_pipelines,
    pipeline_before_search,
)
from castile.planner.searching.refinement import refine_known
from castile.planner.searching.results import NoPlanFits, SearchResult
from castile.planner.searching.screening import MOST_REFUSED, Alternatives, Effort, fastest_plans, in_best_order
from castile.planner.strategy import ORDERS, READY, Strategy
from castile.runtime import machine as machines
from castile.runtime.machine import Level, Machine, Processor
from castile.runtime.transfer import TooManyTransfers
from tests.training import SGD

SAMPLES, WIDTH = 32, 64
SLOW, FAST = 1e7, 1e11
UNCUT, NUMBERS = 5, (2, 5, 8, 4, 1)
EVEN, UNEVEN, HEAVY = (1,) * 8, (2, 6, 1, 3, 1, 4, 4, 4), (1, 1, 16)


def layers(widths: tuple[int, ...]) -> Graph:
    g = Graph("layers", "float32")
    x = g.input("x", (SAMPLES, WIDTH), "b i")
    for n, width in enumerate(widths):
        x = g.linear(f"fc{n}", x, features=WIDTH * width, bias=False)
    g.minimise(g.cross_entropy("loss", x, g.input("label", (SAMPLES,), "b", "int64")))
    return g


@cache
def at(number: int, widths: tuple[int, ...] = EVEN, rate: float = SLOW) -> tuple[Evaluator, Pins | None]:
    """Over slow links, which gradients take longer to cross than activations; each message has a price of its own."""
    each = Processor("p", 1e9, 1e12, 2**40, task_overhead_seconds=1e-6)
    machine = Machine("m", (each,) * 4, (Level("link", 4, 1e-5, rate),))
    lowering = Lowering(layers(widths), machine, SGD, microbatches=number)
    return Evaluator(lowering, CostModel(machine)), Pins([], lowering.names, 4)


def others(numbers: Sequence[int], at: Callable[[int], tuple[Evaluator, Pins | None]] = at) -> Alternatives:
    return Alternatives(numbers, Forecaster(at, name_filter=is_pipeline), lambda: False)


def uncut(number: int) -> tuple[Evaluator, Pins | None]:
    if number == UNCUT:
        raise ValueError("cannot be cut into as many")
    return at(number)


@cache
def whole(widths: tuple[int, ...] = EVEN) -> tuple[Batching, SearchResult]:
    chosen = Batching(1, *at(1, widths), 1.0)
    return chosen, replace(search("data_parallel", chosen.evaluator), is_insisted=False)


def taking(found: SearchResult, seconds: float, **others: object) -> SearchResult:
    evaluated = replace(found.evaluated, seconds=seconds)
    return replace(found, evaluated=evaluated, **others)  # type: ignore[arg-type]


def quickest(number: int, widths: tuple[int, ...] = EVEN, orders: Sequence[str] = ORDERS, rate: float = SLOW) -> float:
    """What the best of the known pipelines takes in so many microbatches, with as many begun ahead as pay."""
    evaluator = at(number, widths, rate)[0]
    plans = [plan for name, plan in seeds(evaluator.lowering).items() if name.startswith(PIPELINE)]
    return min(one.seconds for plan in plans for one in variants(evaluator, plan, (), orders=orders))


def foreseen(number: int, widths: tuple[int, ...] = EVEN) -> Strategy:
    """The known pipeline that a sketch takes for the best in so many microbatches."""
    evaluator, pins = at(number, widths)
    names = [name for name in seeds(evaluator.lowering) if name.startswith(PIPELINE)]
    return forecast_known(evaluator, names, pins).fitting[0][1]


def test_it_looks_in_the_number_in_which_a_known_pipeline_is_soonest() -> None:
    """In whatever order they come; numbers into which a batch cannot be cut, and those without pipelines, are none."""
    chosen, found = whole()
    looked: list[Batching] = []
    for numbers in (NUMBERS, NUMBERS[::-1]):
        improve_with_pipelines(chosen, found, others(numbers, uncut), lambda other, _: looked.append(other) or found)  # type: ignore[func-returns-value]
    best = min(set(NUMBERS) - {UNCUT, 1}, key=quickest)
    assert [(one.num_microbatches, one.pins, one.fits) for one in looked] == [(best, at(best)[1], True)] * 2
    assert looked[0].evaluator is at(best)[0]


def test_a_pipeline_that_does_not_fit_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever order its kernels go, though a sketch says that it fits: another number is looked in."""
    chosen, found = whole()
    first, second, *_ = sorted(set(NUMBERS) - {UNCUT, 1}, key=quickest)

    def tried(evaluator: Evaluator, *others: Any, **more: Any) -> list[Evaluated]:
        large = 0.5 * (evaluator is at(first)[0])
        return [replace(one, overflow=large) for one in variants(evaluator, *others, **more)]

    monkeypatch.setattr(screening, "variants", tried)
    looked: list[int] = []
    improve_with_pipelines(
        chosen, found, others((first, second)),
        lambda other, _: looked.append(other.num_microbatches) or found,  # type: ignore[func-returns-value]
    )  # fmt: skip
    assert looked == [second]


@pytest.mark.parametrize("too_many", [True, False])
def test_where_the_best_pipeline_cannot_be_looked_at_or_does_not_fit_the_next_is(
    monkeypatch: pytest.MonkeyPatch, too_many: bool
) -> None:
    number = 8
    evaluator, pins = at(number)
    names = [name for name in seeds(evaluator.lowering) if name.startswith(PIPELINE)]
    first, second, *_ = [plan for _, plan in forecast_known(evaluator, names, pins).fitting]
    tried: list[Strategy] = []

    def refused(evaluator: Evaluator, plan: Strategy, *others: Any, **more: Any) -> list[Evaluated]:
        tried.append(plan)
        if plan.configs != first.configs:
            return variants(evaluator, plan, *others, **more)
        if too_many:
            raise TooManyTransfers
        return [replace(one, overflow=0.5) for one in variants(evaluator, plan, *others, **more)]

    monkeypatch.setattr(screening, "variants", refused)
    monkeypatch.setattr(pipelines, "has_many_parts", lambda lowering: True)
    chosen = Batching(1, *at(1, EVEN), 1e3)
    looked: list[Strategy | None] = []
    pipeline_before_search(chosen, others([number]), lambda other, plan: looked.append(plan) or whole()[1])  # type: ignore[func-returns-value]
    assert [plan.configs for plan in tried] == [first.configs, second.configs]
    assert looked and looked[0] is not None and looked[0].configs == second.configs


def test_known_plans_that_are_no_pipelines_are_no_reason_to_look() -> None:
    """Where links are fast and one layer is most of all, data parallelism is quicker; a plan between the two stays."""
    evaluator = at(2, HEAVY, FAST)[0]
    alike, piped = evaluator.evaluate(seeds(evaluator.lowering)["data_parallel"]).seconds, quickest(2, HEAVY, rate=FAST)
    assert alike < 0.9 * piped
    chosen, found = Batching(1, *at(1, HEAVY, FAST), 1.0), taking(whole()[1], 0.99 / SEARCH_GAIN * piped)
    piped_too = others((2,), lambda number: at(number, HEAVY, FAST))
    assert improve_with_pipelines(chosen, found, piped_too, pytest.fail) == (chosen, found)


def test_a_pipeline_is_as_quick_as_its_kernels_are_in_the_best_order() -> None:
    """Where stages have layers of many sizes: it is looked for beside all plans that take longer, or hardly less."""
    chosen, found = whole(UNEVEN)
    best, ready = quickest(8, UNEVEN), quickest(8, UNEVEN, [READY])
    assert best < 0.997 * ready
    looked: list[Batching] = []
    for seconds in (best, (best + ready) / 2):
        improve_with_pipelines(
            chosen, taking(found, seconds / SEARCH_GAIN), others((8,), lambda number: at(number, UNEVEN)),
            lambda other, _: looked.append(other) or found,  # type: ignore[func-returns-value]
        )  # fmt: skip
        assert bool(looked) == (seconds > best)


@pytest.mark.parametrize("times", [0.5, 1.0, 2.0])
def test_the_better_is_left_and_what_was_proposed_for_both_is_told(times: float) -> None:
    chosen, found = whole()
    other = taking(found, times * found.evaluated.seconds, seeds={}, num_proposals=30)
    both = found.num_proposals + 30
    number, left = improve_with_pipelines(chosen, found, others((2,)), lambda *_: other)
    assert left == replace(other if times < 1 else found, seeds=found.seeds, num_proposals=both)
    assert number.num_microbatches == (2 if times < 1 else 1)


def test_where_no_plan_fits_what_was_proposed_is_told() -> None:
    def look(_: Batching, plan: Strategy | None) -> SearchResult:
        raise NoPlanFits("none", 7)

    chosen, found = whole()
    told = replace(found, num_proposals=found.num_proposals + 7)
    assert improve_with_pipelines(chosen, found, others((2,)), look) == (chosen, told)


def test_none_is_looked_for_beside_a_plan_that_is_insisted_on_or_that_hardly_anything_beats() -> None:
    chosen, found = whole()
    bound = lower_bound(chosen.evaluator)
    assert bound is not None
    for one in (replace(found, is_insisted=True), taking(found, NEAR_BOUND * bound.work_seconds)):
        assert improve_with_pipelines(chosen, one, others((2, 4, 8), pytest.fail), pytest.fail) == (chosen, one)
    as_quick = taking(found, min(map(quickest, (2, 4, 8))) / SEARCH_GAIN)
    assert improve_with_pipelines(chosen, as_quick, others((2, 4, 8)), pytest.fail) == (chosen, as_quick)


def named(number: int) -> tuple[str, float]:
    """The name of what is foreseen, and what it takes."""
    plan = foreseen(number)
    return plan.search, at(number)[0].evaluate(plan).seconds


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many parts that searches look at no pipeline."""
    monkeypatch.setattr(pipelines, "has_many_parts", lambda lowering: True)


def looking(looked: list[tuple[int, str]]) -> Any:
    def look(chosen: Batching, plan: Strategy) -> SearchResult:
        looked.append((chosen.num_microbatches, plan.search))
        found = search(plan.search, chosen.evaluator, seeds=[plan.search], pins=chosen.pins)
        return replace(found, is_insisted=False)

    return look


def refusing(
    num_refused: int, found: SearchResult, looked: list[Batching]
) -> Callable[[Batching, Strategy | None], SearchResult]:
    """Finds half of what was found, but in the first places; remembers where it looked."""

    def look(chosen: Batching, plan: Strategy | None) -> SearchResult:
        looked.append(chosen)
        if len(looked) <= num_refused:
            raise NoPlanFits("arenas do not fit", 7)
        return taking(found, 0.5 * found.evaluated.seconds)

    return look


def test_where_arenas_do_not_fit_the_next_in_time_is_taken() -> None:
    """What was computed of it was let go of, and is computed anew to the same end."""
    (chosen, found), looked = whole(), list[Batching]()
    taken, best = improve_with_pipelines(chosen, taking(found, 1e3), others((2, 4, 8, 16)), refusing(1, found, looked))
    first, second = looked
    assert taken is second and best.num_proposals == 2 * found.num_proposals + 7
    assert first.evaluator is at(first.num_microbatches)[0] and second.evaluator is not at(second.num_microbatches)[0]
    assert first.seconds == quickest(first.num_microbatches) < second.seconds == quickest(second.num_microbatches)
    plans = [plan for name, plan in seeds(second.evaluator.lowering).items() if name.startswith(PIPELINE)]
    assert second.seconds == min(
        one.seconds for plan in plans for one in variants(second.evaluator, plan, (), orders=ORDERS)
    )


@pytest.mark.parametrize("num_refused", [*range(MOST_REFUSED + 1)])
def test_of_those_whose_arenas_do_not_fit_not_many_are_looked_at(
    num_refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (chosen, found), looked = whole(), list[Batching]()
    places = [(replace(chosen, num_microbatches=number, seconds=number), None) for number in range(2, MOST_REFUSED + 4)]
    monkeypatch.setattr(pipelines, "_fastest_pipelines", lambda *_: places)
    taken, best = improve_with_pipelines(chosen, taking(found, 1e3), others(()), refusing(num_refused, found, looked))
    assert looked == [one for one, _ in places[: min(num_refused + 1, MOST_REFUSED)]]
    is_found = num_refused < MOST_REFUSED
    assert taken is (looked[-1] if is_found else chosen)
    assert best.num_proposals == found.num_proposals * (1 + is_found) + 7 * min(num_refused, MOST_REFUSED)


def test_of_plans_of_many_parts_one_pipeline_is_simulated_before_anything_is_searched(large: None) -> None:
    chosen, found = whole()
    looked: list[tuple[int, str]] = []
    known = replace(chosen, seconds=found.evaluated.seconds)
    piped = pipeline_before_search(known, others((2, 4, 8)), looking(looked))
    assert piped is not None and len(looked) == 1
    (number, name), (other, plan) = looked[0], piped
    assert (name, plan.evaluated.seconds) == named(number) and other.num_microbatches == number and other.fits
    assert plan.evaluated.seconds < found.evaluated.seconds and not plan.is_insisted
    # It is not looked for again once it was found, or none was.
    assert improve_with_pipelines(*piped, others((2, 4, 8)), pytest.fail) == piped
    assert improve_with_pipelines(known, found, others((2, 4, 8)), pytest.fail) == (known, found)
    # Where no known plan was known to fit it is, beside what a search found.
    other, plan = improve_with_pipelines(replace(chosen, seconds=inf), found, others((2, 4, 8)), looking(looked))
    assert other.num_microbatches == number and plan.evaluated == piped[1].evaluated and plan.seeds == found.seeds
    assert plan.num_proposals == found.num_proposals + 1


def test_beside_a_quick_plan_of_many_parts_none_is_looked_for(large: None) -> None:
    chosen, _ = whole()
    bound = lower_bound(chosen.evaluator)
    assert bound is not None
    for seconds in (inf, NEAR_BOUND * bound.work_seconds):
        assert pipeline_before_search(replace(chosen, seconds=seconds), others((2, 4, 8)), pytest.fail) is None
    quick = replace(chosen, seconds=min(quickest(number, orders=[READY]) for number in (2, 4, 8)))
    assert pipeline_before_search(quick, others((2, 4, 8)), pytest.fail) is None


def test_of_plans_of_many_parts_numbers_are_looked_at_until_more_gain_little(
    large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, _ = whole()
    known, asked = replace(chosen, num_microbatches=2, seconds=1e3), list[int]()

    def watched(number: int) -> tuple[Evaluator, Pins | None]:
        asked.append(number)
        return at(number)

    for little, last in ((0.3, 4), (1.0, 32)):
        monkeypatch.setattr(pipelines, "CLEARLY_FASTER", little)
        asked.clear()
        assert pipeline_before_search(known, others((1, 4, 8, 16, 32), watched), looking([])) is not None
        assert asked == [2, 1, *(n for n in (4, 8, 16, 32) if n <= last)]


def test_of_plans_of_many_parts_fewer_microbatches_are_looked_at_while_pipelines_fit(
    large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other plans may need more microbatches than these do."""
    (chosen, _), asked = whole(), list[int]()

    def watched(evaluator: Evaluator, *given: Any) -> Forecast:
        asked.append(number := evaluator.lowering.microbatches)
        seen = forecast_known(evaluator, *given)
        return replace(seen, fitting=()) if number == 4 else seen

    monkeypatch.setattr(forecasts, "forecast_known", watched)
    known = replace(chosen, num_microbatches=16, seconds=1e3)
    piped = pipeline_before_search(known, others((2, 4, 8)), looking([]))
    assert asked == [16, 8, 4] and piped is not None and piped[0].num_microbatches in (8, 16)
    late = replace(others((2, 4, 8)), is_late=lambda: True)
    assert pipeline_before_search(known, late, pytest.fail) is None


def test_where_nothing_of_many_parts_was_found_to_fit_the_soonest_pipeline_that_does_is_taken(
    large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the best known plan was foreseen to take, if one was foreseen to fit."""
    chosen, _ = whole()
    looked: list[tuple[int, str]] = []
    for seconds in (1e-9, inf):
        piped = fallback_pipeline(replace(chosen, seconds=seconds), others((2, 4, 8)), looking(looked))
        assert piped is not None
        assert (looked[-1][1], piped[1].evaluated.seconds) == named(piped[0].num_microbatches)
        assert piped[0].fits and piped[1].evaluated.fits
    assert len(looked) == 2

    def tried(*others: Any, **more: Any) -> list[Evaluated]:
        return [replace(one, overflow=0.5) for one in variants(*others, **more)]

    def refused(*_: object) -> SearchResult:
        raise NoPlanFits("none", 7)

    assert fallback_pipeline(chosen, others((2, 4, 8)), refused) is None
    # None of them is looked at for a search, which would not come upon it.
    slow = replace(chosen, seconds=1e9)
    assert batching_for_pipelines(slow, others((2, 4, 8), pytest.fail)) == slow
    monkeypatch.setattr(screening, "variants", tried)
    assert fallback_pipeline(chosen, others((2, 4, 8)), pytest.fail) is None


def test_plans_of_few_parts_are_searched_first() -> None:
    chosen, found = whole()
    known = replace(chosen, seconds=found.evaluated.seconds)
    assert pipeline_before_search(known, others((2, 4, 8)), pytest.fail) is None
    assert fallback_pipeline(chosen, others((2, 4, 8)), pytest.fail) is None


def test_a_time_is_spent_on_the_number_in_which_a_known_pipeline_is_soonest() -> None:
    """Beside a known plan that fits and takes longer; as long as there is time to look at numbers."""
    chosen, found = whole()
    known = replace(chosen, seconds=found.evaluated.seconds)
    taking = {n: min(one.seconds for one in variants(at(n)[0], foreseen(n), ())) for n in (2, 4, 8)}
    best = min(taking, key=taking.__getitem__)
    other = batching_for_pipelines(known, others((2, 4, 8)))
    assert other == Batching(best, *at(best), taking[best]) and other.seconds < known.seconds
    bound = lower_bound(chosen.evaluator)
    assert bound is not None
    for seconds in (inf, NEAR_BOUND * bound.work_seconds):
        quick = replace(chosen, seconds=seconds)
        assert batching_for_pipelines(quick, others((2, 4, 8), pytest.fail)) == quick
    assert batching_for_pipelines(known, others(())) == known
    assert batching_for_pipelines(other, others((2, 4, 8))) == other


@pytest.mark.parametrize(("most", "count"), [(0, 1), (1, 2), (1000, 3)])
def test_once_a_time_is_over_the_best_pipeline_so_far_is_taken(
    most: int, count: int, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is simulated in any case; and what was begun ahead of it is kept where there is no time to see more."""
    looked, asked, taken = list[Evaluated](), iter(range(1000)), list[tuple[Batching, Strategy]]()

    def tried(*given: Any, **more: Any) -> list[Evaluated]:
        every = variants(*given, **more)
        looked.extend(every)
        return every

    monkeypatch.setattr(screening, "variants", tried)
    chosen, found = whole()
    known = replace(chosen, seconds=found.evaluated.seconds)
    timed = replace(others((4, 8, 16)), is_over=lambda: next(asked) >= most)
    pipeline_before_search(known, timed, lambda other, plan: taken.append((other, plan)))  # type: ignore[arg-type, func-returns-value, return-value]
    ((other, plan),) = taken
    assert len({one.strategy.ahead for one in looked}) == count
    assert plan == min(looked, key=lambda one: one.seconds).strategy
    settled = refine_known(other.evaluator, plan, None, lambda: True, (READY,))
    assert settled.strategy.ahead == plan.ahead and settled.evaluated.seconds == other.evaluator.evaluate(plan).seconds
    assert settled.seeds[plan.search].strategy == plan


def test_what_is_gathered_is_simulated_where_it_is_taken_for_little_more_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evaluator, pins = at(1)
    plan, looked = seeds(evaluator.lowering)["data_parallel"], list[Strategy]()
    seconds = evaluator.evaluate(plan).seconds

    def simulated(evaluator: Evaluator, plan: Strategy, *_: object) -> Evaluated:
        looked.append(plan)
        return evaluator.evaluate(plan)

    one = Candidate(1, evaluator, pins, Forecast(1.0, ((PROMISING * seconds, plan),), 0.0))
    monkeypatch.setattr(Alternatives, "candidates", lambda others, to_beat: iter([one]))
    monkeypatch.setattr(screening, "in_best_order", simulated)
    gathering = LowMemoryPlans((others((1,)),))
    assert gathering.fastest(0.9 * seconds) == [] and not looked
    ((best, found),) = gathering.fastest(1.1 * seconds)
    assert best is not None and best.seconds == seconds and found == plan and len(looked) == 1
    assert gathering.fastest(2 * seconds) == [(best, found)] and gathering.fastest(0.9 * seconds) == []
    assert len(looked) == 1


def test_what_gathers_takes_the_place_of_a_search_that_would_not_make_up_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a tenth; where a search takes a minute and gains a percent, if it is faster at all."""
    evaluator, pins = at(1)
    plan = seeds(evaluator.lowering)["data_parallel"]
    seconds = evaluator.evaluate(plan).seconds
    one = Candidate(1, evaluator, pins, Forecast(1.0, ((seconds, plan),), 0.0))
    monkeypatch.setattr(Alternatives, "candidates", lambda others, to_beat: iter([one]))
    found, looked = whole()[1], list[Strategy | None]()
    for most, limit in ((low_memory.SEARCHED_PARTS, AHEAD_GAIN), (0, 1.0)):
        monkeypatch.setattr(low_memory, "SEARCHED_PARTS", most)
        for times, is_taken in ((0.999, False), (1.001, True)):
            chosen = Batching(2, evaluator, pins, times * limit * seconds)
            taken = LowMemoryPlans((others((1,)),)).replace_search(chosen, lambda _, plan: looked.append(plan) or found)  # type: ignore[func-returns-value]
            assert (taken is not None) == is_taken
    assert looked == [None, plan]


def test_what_computes_for_longer_than_was_found_is_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """In no order is it done sooner, however many microbatches are begun ahead."""
    evaluator, pins = at(4)
    plan, looked = foreseen(4), list[float]()
    busy = evaluator.bound(plan.configs)

    def simulated(evaluator: Evaluator, plan: Strategy, *_: object) -> Evaluated:
        looked.append(least)
        return evaluator.evaluate(plan)

    monkeypatch.setattr(screening, "in_best_order", simulated)
    for least in (busy, 1.01 * busy):
        one = Candidate(4, evaluator, pins, Forecast(1.0, ((least, plan),), 0.0))
        fastest_plans(iter([one]), least, ORDERS, Effort(PROMISING, 1, 1), lambda: False)
    assert looked == [1.01 * busy]
    assert all(one.seconds >= busy for one in variants(evaluator, plan, (), orders=ORDERS))


def test_what_takes_far_longer_is_tried_neither_in_other_orders_nor_with_more_begun_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evaluator, _ = at(8)
    plan, asked, within = foreseen(8), list[Strategy](), evaluator.evaluate_within
    alone = evaluator.evaluate(plan)
    monkeypatch.setattr(evaluator, "evaluate_within", lambda plan, most: asked.append(plan) or within(plan, most))
    assert in_best_order(evaluator, plan, ORDERS, lambda: False, 0.99 * alone.seconds) == alone
    assert {(one.order, one.ahead) for one in asked} == {(READY, 0)}
    best = in_best_order(evaluator, plan, ORDERS, lambda: False, alone.seconds)
    assert best == min(variants(evaluator, plan, (), orders=ORDERS), key=attrgetter("seconds")) != alone
    assert {one.order for one in asked} == {*ORDERS} and any(one.ahead for one in asked)


@pytest.mark.parametrize(
    ("share", "rows", "looked"),
    [
        (1.0, [{1: (2.0, False)}, {1: (1.0, True)}], [(0, 1)]),
        (1.0, [{1: (1.0, False), 2: (2.0, False), 4: (2.0, True)}, {1: (1.1, True)}], [(0, 1), (0, 2), (1, 1)]),
        (1.0, [{1: (1.0, False), 2: (1.1, True), 4: (1.1, True)}, {1: (1.1, True)}], [(0, 1), (0, 2), (1, 1)]),
        # in as many microbatches only where it may be mistaken in that the first fits
        (1.0, [{2: (1.0, True)}, {1: (1.1, False), 2: (1.1, True)}], [(0, 2), (1, 1), (1, 2)]),
        (ROOMY, [{2: (1.0, True)}, {1: (1.1, False), 2: (1.1, True)}], [(0, 2), (1, 1)]),
    ],
)
def test_what_is_gathered_is_sketched_until_even_what_does_not_fit_takes_too_long(
    share: float,
    rows: list[dict[int, tuple[float, bool]]],
    looked: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """rows: by way what is sketched in so many microbatches, how long it is taken for at least, and whether it fits.

    share   of the memory for which all are taken
    """
    evaluator, pins = at(1)
    plan, seen = seeds(evaluator.lowering)["data_parallel"], list[tuple[int, int]]()
    ways = [replace(others(tuple(row)), is_over=way) for way, row in enumerate(rows)]  # type: ignore[arg-type]

    def sketched(others: Alternatives, to_beat: float) -> Iterator[Candidate]:
        for number in others.counts:
            way: Any = others.is_over
            least, fits = rows[way][number]
            seen.append((way, number))
            yield Candidate(number, evaluator, pins, Forecast(share, ((least, plan),) if fits else (), least))

    monkeypatch.setattr(Alternatives, "candidates", sketched)
    LowMemoryPlans(ways).fastest(1.5 / PROMISING)
    assert seen == looked


@pytest.mark.parametrize("are_many", [False, True])
def test_numbers_that_were_looked_at_are_let_go_of(are_many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds all that was worked out of its plans. Where there are many parts none other is expected then."""
    held, alive, told = list[weakref.ref[Evaluator]](), list[int](), list[str]()

    def places(numbers: Sequence[int], most: float, is_late: object, to_beat: float) -> Iterator[Candidate]:
        for number in numbers:
            same = copy(evaluator)
            held.append(weakref.ref(same))
            yield Candidate(number, same, None, Forecast(0.5, ((1 + 0.01 * number, Strategy({})),), 1.0))

    def ordered(*others: object) -> None:
        alive.append(sum(each() is not None for each in held))

    lowering = Lowering(models.parse("mlp").graph(8), machines.local(2))
    evaluator = Evaluator(lowering, CostModel(lowering.machine))
    outlook = SimpleNamespace(candidates=places, prefetch=lambda *numbers: None, cancel=lambda: told.append("no more"))
    monkeypatch.setattr(pipelines, "has_many_parts", lambda lowering: are_many)
    monkeypatch.setattr(screening, "in_best_order", ordered)
    others = Alternatives([2, 4, 8], outlook, lambda: False)  # type: ignore[arg-type]
    assert pipelines._fastest_pipelines(Batching(2, evaluator, None), inf, others) == []
    assert alive == [*range(len(held), 0, -1)] and len(held) == 3 - are_many and told == ["no more"] * are_many
