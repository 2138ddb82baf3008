"""Repeats: of many equal microbatches few are simulated, and what that says of the step is what simulating all says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.planner.cost import CostModel
from castile.planner.evaluation import evaluator as evaluators
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.families.updates import Updates
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.simulate import simulate
from castile.planner.simulation import repeats
from castile.planner.simulation.repeats import Cycle
from castile.planner.strategy import PATH, READY
from castile.runtime import memory
from castile.runtime.task import Lane, TaskGraph
from castile.runtime.timeline import PICOSECONDS
from tests.cut_batches import assert_few_say_all, can_be_cut, one_of
from tests.effort import examples, rare
from tests.graphs import Draft, engine_maps
from tests.little import evaluator, machine, tower
from tests.strategies import in_buckets, in_microbatches, machines, problems
from tests.training import SGD

EXAMPLES = examples(80, 3 / 16)
GPT = "gpt:layers=1,width=16,heads=2,seq=8,vocab=16"
UPDATES = (SGD, Updates(find("adamw")(), clip=1.0))


@pytest.mark.parametrize("folded_from", [pytest.param(1, id="folded"), *rare(pytest.param(64, id="whole"))])
def test_any_plan_takes_what_all_its_microbatches_take(
    monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None], folded_from: int
) -> None:
    monkeypatch.setattr(evaluators, "FOLDED_FROM", folded_from)
    seen: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        count, on, updates = data.draw(st.integers(5, 10)), data.draw(machines()), data.draw(st.sampled_from(UPDATES))
        batch, dtype = count * data.draw(st.integers(1, 3)), data.draw(st.sampled_from(("float64", "bfloat16")))
        # parameters of which several are cast, clipped and updated by one task
        narrow = models.parse(GPT).graph(batch, dtype) if dtype == "bfloat16" else None
        graph = narrow or data.draw(problems(batch=batch)).graph
        plan = data.draw(in_microbatches(data.draw(in_buckets(one_of(graph, count), on.num_procs, updates)), count))
        known = Evaluator(Lowering(graph, on, updates, microbatches=count), CostModel(on))
        if not can_be_cut(known.lowering, plan):
            reject()
        assert_few_say_all(known, plan)

    def watched(*args: Any) -> Cycle | None:
        found = cycle(*args)
        seen["enough" if found else "too few"] += 1
        return found

    cycle = repeats.cycle
    monkeypatch.setattr(repeats, "cycle", watched)
    check()
    tell(f"repeats: {', '.join(f'{k} {n}' for k, n in seen.most_common())}")
    assert seen["enough"] > EXAMPLES // 4


@dataclass(frozen=True)
class Loop:
    """Tasks of one of many microbatches: processor and lane, picoseconds, what it needs of its own, of the one before.

    odd    what those of the first and of the last one take, where that is something else
    more   tasks that the first one has besides.   tail   tasks of none, which need tasks of all
    """

    num_procs: int
    every: list[Any]
    odd: list[list[int] | None]
    more: list[Any]
    tail: list[Any]

    def written(self, count: int) -> tuple[TaskGraph, np.ndarray, np.ndarray]:
        """So many microbatches, of which each task is, and what cost keys take."""
        draft, number, known = Draft(self.num_procs), list[int](), list[list[int]]()
        for n in range(count):
            takes = self.odd[0] if n == 0 else self.odd[1] if n == count - 1 else None
            rows, own = self.every + self.more * (n == 0), list[int]()
            for (lane, lasts, mine, before), other in zip_longest(rows, takes or ()):
                # none begins before the one before it has
                of_before = before if own else {*before, len(self.every) - 1}
                needs = [known[-1][m] for m in of_before if n and m < len(known[-1])]
                own.append(draft.task([lane], [*needs, *(own[m] for m in mine if m < len(own))], other or lasts))
                number.append(n)
            known.append(own[: len(self.every)])
        for lane, lasts, mine, _ in self.tail:
            draft.task([lane], [own[m % len(own)] for own in known for m in mine], lasts)
            number.append(-1)
        graph = draft.graph()
        return graph, np.array(number), np.array([int(key.name[1:]) for key in graph.cost_keys], np.int64)


@st.composite
def loops(draw: st.DrawFn) -> Loop:
    num_procs, some = draw(st.integers(1, 2)), st.sets(st.integers(0, 3), max_size=2)
    lane = st.tuples(st.integers(0, num_procs - 1), st.sampled_from((Lane.COMPUTE, Lane.HOST, Lane.COLLECTIVE)))
    task = st.tuples(lane, st.integers(1, 6), some, some)
    every = draw(st.lists(task, min_size=1, max_size=4))
    takes = st.none() | st.lists(st.integers(1, 9), min_size=len(every), max_size=len(every))
    more = st.lists(task, max_size=2)
    return Loop(num_procs, every, [draw(takes), draw(takes)], draw(more), draw(more))


def test_any_tasks_take_what_all_microbatches_take(tell: Callable[[str], None]) -> None:
    """Whatever the first and the last one have of their own: where few are said to be enough, they are."""
    seen: Counter[int] = Counter()

    @settings(max_examples=250, derandomize=True, deadline=None)
    @given(loops(), engine_maps, st.integers(4, 9))
    def check(loop: Loop, engines: Sequence[int], written: int) -> None:
        def picoseconds(count: int) -> tuple[int, Cycle | None]:
            tasks, number, durations = loop.written(count)
            simulated = simulate(tasks, durations, engines)
            return int(simulated.timeline.end.max()), repeats.cycle(tasks, number, simulated)

        few, cycle = picoseconds(written)
        seen[cycle.microbatches if cycle else 0] += 1
        for times in (1, 3) if cycle else ():
            assert picoseconds(written + times * cycle.microbatches)[0] == few + times * cycle.picoseconds

    check()
    tell(f"steps go on as so many microbatches before: {dict(sorted(seen.items()))}")
    assert seen[1] > 60 and sum(times for apart, times in seen.items() if apart > 1) > 5


def test_what_is_simulated_does_not_grow_with_microbatches() -> None:
    graph = tower(3, batch=320)
    sizes = []
    for count in (repeats.LEAST, 8, 64):
        known = evaluator(graph, machine(1), microbatches=count)
        sizes.append(known.tasks(seeds(known.lowering)["data_parallel"])[0].num_tasks)
    assert len(set(sizes)) == 1


@pytest.mark.parametrize("apart", [2, 3])
@pytest.mark.parametrize("count", [7, 8, 9])
def test_a_few_more_are_written_out_where_those_left_are_no_multiple_of_a_cycle(
    monkeypatch: pytest.MonkeyPatch, apart: int, count: int
) -> None:
    """What is as it was one microbatch before is so several before, too."""
    batch, shown = 16 * count, list[int]()
    everything = evaluator(tower(3, batch=batch), machine(2), microbatches=count)
    plan = seeds(everything.lowering)["data_parallel"]
    whole = float(everything.simulate(plan)[1].timeline.end.max()) / PICOSECONDS

    def longer(tasks: TaskGraph, number: np.ndarray, simulated: Any) -> Cycle | None:
        shown.append(int(number.max()) + 1)
        found = cycle(tasks, number, simulated)
        return found and Cycle(apart * found.microbatches, apart * found.picoseconds, found.until)

    cycle = repeats.cycle
    monkeypatch.setattr(repeats, "cycle", longer)
    assert everything.evaluate(plan).seconds == pytest.approx(whole, rel=1e-12)
    rest = (count - repeats.LEAST) % apart
    assert shown == [repeats.LEAST, *[repeats.LEAST + rest] * (0 < rest < count - repeats.LEAST)]


@pytest.mark.parametrize("enough", [4, 8])
def test_arenas_hold_what_the_host_gives_to_all_microbatches(monkeypatch: pytest.MonkeyPatch, enough: int) -> None:
    """Where few are packed, however few are enough, as where all are; arenas may be longer than what lives at once."""
    known, packed, arenas = evaluator(tower(3, batch=64), machine(2), microbatches=16), list[int](), memory.arenas
    plan = seeds(known.lowering)["data_parallel"]
    whole, cycle = known.pack(plan), repeats.cycle

    def longer(tasks: TaskGraph, *of: Any) -> memory.Packing:
        packed.append(tasks.num_tasks)
        found = arenas(tasks, *of)
        return replace(found, peak_bytes=found.peak_bytes + 4096)

    monkeypatch.setattr(memory, "arenas", longer)
    wanted, num_tasks = tuple(length + 4096 for length in whole), known.evaluate(plan).num_tasks
    assert known.arenas(plan) == wanted and packed == [num_tasks]
    monkeypatch.setattr(repeats, "cycle", lambda *of: cycle(*of) if of[1].max() + 1 >= enough else None)
    monkeypatch.setattr(evaluators, "FOLDED_FROM", 1)
    monkeypatch.setattr(evaluators, "LARGE", 1)
    other = evaluator(tower(3, batch=64), machine(2), microbatches=16)
    assert other.pack(plan) == other.arenas(plan) == wanted
    assert all((few < num_tasks) == (enough == 4) for few in packed[1:])


def test_of_many_microbatches_more_than_half_are_written_out_with_all_the_rest() -> None:
    """Those that seldom say more than the first are a sixteenth of all, unless all cannot be written out."""
    assert shown_of(512, 48) == [48, 96, 192, 512] and shown_of(384, 48) == [48, 96, 192, 384]
    assert shown_of(512, 48, True) == [48, 512] and shown_of(2048, 48, True) == [48, 96, 2048]
    # but for the fewest
    assert shown_of(64, 48) == [48, 64] and shown_of(48, 48) == shown_of(48, 96) == [48]


def test_whether_all_can_be_written_out_is_asked_once_the_first_do_not_say() -> None:
    asked = list[int]()
    looked = repeats.shown(512, 48, lambda: bool(asked.append(1)))
    assert next(looked) == 48 and not asked and next(looked) == 96 and asked


def shown_of(count: int, least: int, can_be_all: bool = False) -> list[int]:
    return list(repeats.shown(count, least, lambda: can_be_all))


def _noted(first: list[int], through: Callable[..., Any], shown: int, *rest: Any) -> Any:
    first.append(shown)
    return through(shown, *rest)


@pytest.mark.parametrize(("count", "shown"), [(24, 12), (23, 23)])
def test_of_pipelines_that_hardly_settle_no_more_than_half_are_tried_before_all(
    monkeypatch: pytest.MonkeyPatch, count: int, shown: int
) -> None:
    """Those in order of PATH, or with microbatches begun ahead, are looked at in IRREGULAR times as many as others."""
    monkeypatch.setattr(evaluators, "FILLING", 1)
    for order, ahead in ((READY, 0), (PATH, 0), (READY, 1)):
        known, first = evaluator(tower(4, batch=2 * count), machine(2), microbatches=count), list[int]()
        plan, through = seeds(known.lowering)["pipeline_2"], known._simulated_through
        monkeypatch.setattr(known, "_simulated_through", partial(_noted, first, through))
        known.evaluate(msgspec.structs.replace(plan, order=order, ahead=ahead))
        assert first[0] == (3 if (order, ahead) == (READY, 0) else shown)


def test_of_a_pipeline_that_all_microbatches_told_all_are_written_out_with_more_begun_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the plan takes what it would."""
    count, of_all, cycle = 64, list[int](), repeats.cycle
    monkeypatch.setattr(evaluators, "FILLING", 4)
    for is_told in (True, False):
        known, first = evaluator(tower(4, batch=2 * count), machine(2), microbatches=count), list[int]()
        plan, through = seeds(known.lowering)["pipeline_2"], known._simulated_through
        monkeypatch.setattr(repeats, "cycle", cycle if is_told else lambda *few: None)
        known.evaluate(plan)
        monkeypatch.setattr(known, "_simulated_through", partial(_noted, first, through))
        of_all.append(known.evaluate(msgspec.structs.replace(plan, ahead=1)).peak_bytes[0])
        assert first[0] < count if is_told else first == [count]
    assert of_all[0] == of_all[1]


def test_a_step_whose_microbatches_do_not_settle_is_not_foretold() -> None:
    known = evaluator(tower(2, batch=16), machine(1), microbatches=8)
    plan = seeds(known.lowering)["data_parallel"]
    few = known.lowering.shortened(4)
    tasks, program = few.lower(plan), few.program(plan)
    cost, number = CostModel(known.lowering.machine), repeats.numbers(program, tasks)
    simulated = simulate(tasks, cost.picoseconds(tasks.cost_keys), known.lowering.machine.engines)
    assert repeats.cycle(tasks, number, simulated)
    moved = simulated.timeline.end.copy()
    moved[np.flatnonzero(number == 2)[0]] = moved.max()
    other = replace(simulated, timeline=replace(simulated.timeline, end=moved))
    assert repeats.cycle(tasks, number, other) is None


def test_of_thousands_of_microbatches_few_are_written_out_or_all() -> None:
    """Who has all written out in the end has looked at few before."""
    for least in (repeats.LEAST, 40):
        for count in (least + 1, 2 * least, 64 * least, 10**6):
            for can_be_all in (False, True):
                *few, every = shown_of(count, least, can_be_all)
                assert every == count and few[0] == least and few == sorted(few)
                assert few[-1] <= max(least, count // 2) and sum(few) < 64 * least
