"""Pipelines: what a plan that lies on one group of processors after the other takes, in time and in activations."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from castile.planner.cost import CostModel
from castile.planner.evaluation import evaluator
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.graph import Graph
from castile.planner.known.pipelines import Pipelines, cut, stage_counts
from castile.planner.known.plans import data_parallel
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.lowering.stages import Rows, depths, stages, throttle_edges
from castile.planner.search import search
from castile.planner.simulation.repeats import numbers
from castile.planner.step.program import COMPUTED_AGAIN, Micro
from castile.planner.strategy import Config, Strategy
from castile.runtime.machine import Level, Machine, Processor
from castile.runtime.task import CostKey
from tests.cut_batches import assert_few_say_all, assert_trains_as_the_whole_batch, one_of, piped
from tests.effort import examples, rare
from tests.strategies import in_microbatches, machines, problems, staged
from tests.training import SGD

# The time of a pass of a layer, in seconds; losses and updates of a step together take less than LITTLE of that.
PASS, LITTLE = 1.0, 0.02
EXAMPLES = examples(80)
WIDTH = 1 << 14


def stack(num_layers: int, batch: int) -> Graph:
    """Layers that take as long as each other, and a loss that takes no time beside them."""
    g = Graph("stack", "float32")
    x = g.input("x", (batch, WIDTH), "b i")
    for n in range(num_layers):
        x = g.linear(f"fc{n}", x, features=WIDTH, bias=False)
    g.minimise(g.cross_entropy("loss", x, g.input("label", (batch,), "b", "int64")))
    return g


def on(num_procs: int, per_pass: float, latency: float = 0.0) -> Machine:
    """Processors that need PASS for as many operations, beside which memory takes no time, and links but `latency`."""
    each = Processor("p", per_pass / PASS, 1e30, 1 << 40, task_overhead_seconds=0.0)
    return Machine("m", (each,) * num_procs, (Level("link", num_procs, latency, 1e30),))


def simulated(num_stages: int, microbatches: int, ahead: int = 0, latency: float = 0.0):  # type: ignore[no-untyped-def]
    batch = 256
    graph = stack(num_stages, batch * microbatches)
    machine = on(num_stages, 2.0 * WIDTH**2 * batch, latency)
    lowering = Lowering(graph, machine, SGD, microbatches=microbatches)
    known = Evaluator(lowering, CostModel(machine))
    configs = Pipelines(lowering).once(num_stages, data_parallel(lowering.piece, 1))
    plan = Strategy(configs, microbatches, ahead=ahead)
    assert [plan.configs[f"fc{n}"].procs for n in range(num_stages)] == [(n,) for n in range(num_stages)]
    return known, plan, *known.simulate(plan)


@pytest.mark.parametrize(("num_stages", "microbatches"), [(2, 2), (2, 8), (3, 5), (4, 4), (4, 8), (4, 16), (8, 16)])
def test_a_pipeline_takes_what_one_forward_one_backward_takes_at_most(num_stages: int, microbatches: int) -> None:
    """F, B and W take as long as each other, but the first layer, whose input wants no gradient, has no B."""
    *_, found = simulated(num_stages, microbatches)
    fused = 3 * PASS * (microbatches + num_stages - 1)
    # what no schedule undercuts: all of the last stage's work, behind the first forward pass through the others, and
    # before the last gradient comes through them
    least = PASS * (3 * microbatches + 2 * (num_stages - 1) - 1)
    assert least <= found.seconds <= fused * (1 + LITTLE), (least, found.seconds, fused)


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize(("num_stages", "microbatches"), [(2, 4), (3, 7), (4, 8), (8, 16)])
def test_a_stage_holds_the_activations_of_as_many_microbatches_as_there_are_stages_from_it_on(
    num_stages: int, microbatches: int, ahead: int
) -> None:
    """And of those that it begins ahead; where links are slow the first has begun all before one comes back."""
    *_, tasks, found = simulated(num_stages, microbatches, ahead, 16 * PASS if ahead else 0.0)
    started, ended = np.zeros((2, num_stages, microbatches))
    for task in range(tasks.num_tasks):
        name = tasks.tasks[task].name
        if name.startswith("fc") and "." in name and "@" in name:
            stage, number = int(name[2 : name.index(".")]), int(name.partition("@")[2].split("[")[0])
            if ".F" in name:
                started[stage, number] = found.timeline.start[task]
            ended[stage, number] = max(ended[stage, number], found.timeline.end[task])
    assert (ended > started).all()
    held = [max(int(((began <= t) & (end > t)).sum()) for t in began) for began, end in zip(started, ended)]
    most = [min(num_stages - stage + ahead, microbatches) for stage in range(num_stages)]
    assert held == most if ahead == 0 else held[0] == most[0] and all(a <= b for a, b in zip(held, most))


def test_every_microbatch_of_a_pipeline_is_counted_though_few_are_written_out() -> None:
    known, plan, tasks, found = simulated(4, 64)
    assert known.evaluate(plan).seconds == found.seconds
    assert known.tasks(plan)[1].sum() == tasks.num_tasks > len(known.tasks(plan)[1])
    few, _ = known.tasks(plan)
    assert numbers(known.lowering.program(plan), tasks).max() == 63 and few.num_tasks < tasks.num_tasks / 3


def test_pipelines_train_as_one_processor_does(tell: Callable[[str], None]) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        count, machine = data.draw(st.integers(2, 4)), data.draw(machines())
        problem = data.draw(problems(batch=count * data.draw(st.integers(1, 2))))
        if machine.num_procs == 1:
            reject()
        cut = data.draw(in_microbatches(data.draw(staged(one_of(problem.graph, count), machine.num_procs)), count))
        assert_trains_as_the_whole_batch(problem, machine, cut, data.draw(st.integers(1, machine.num_procs)))
        seen["trained"] += 1
        of_nodes = [cut.configs[name].procs for name in problem.graph.nodes]
        seen[f"{1 + max(stages(of_nodes))} stages"] += 1

    check()
    tell(f"pipelines: {', '.join(f'{k} {n}' for k, n in seen.most_common())}")
    assert seen["trained"] - seen["1 stages"] > EXAMPLES // 3


@pytest.mark.parametrize("folded_from", [pytest.param(1, id="folded"), *rare(pytest.param(64, id="whole"))])
def test_few_microbatches_of_a_pipeline_say_what_all_take(
    monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None], folded_from: int
) -> None:
    monkeypatch.setattr(evaluator, "FOLDED_FROM", folded_from)
    seen: Counter[bool] = Counter()

    @settings(max_examples=2 * EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        known, plan = piped(data, st.integers(9, 24))
        seen[assert_few_say_all(known, plan)] += 1

    check()
    tell(f"pipelines: of {seen.total()} {seen[True]} through few of their microbatches")
    assert seen[True] > EXAMPLES // 6


def test_processors_that_share_nothing_are_stages() -> None:
    assert stages([(0,), (0, 1), (2,), (3, 2), (1,)]) == [0, 0, 1, 1, 0]
    assert stages([(0,), (1,), (0, 1)]) == [0, 0, 0]
    assert depths([0, 0, 1, 2]) == [3, 2, 1]
    # one that is come back to has begun with no more microbatches than there are stages
    assert depths([0, 1, 0, 1]) == [2, 2] and depths([0, 0]) == [1]


class Done(NamedTuple):
    """A task of a program that is drawn: which pass of which microbatch, where, and at which visit of its stage."""

    which: str
    again: bool
    micro: int
    proc: int
    visit: int
    depth: int


@st.composite
def programs(draw: st.DrawFn) -> tuple[Rows, list[Done], int]:
    """Steps with their tasks, of nodes anywhere, forward and in reverse, in several microbatches; what each task does,
    by number; and how many stages there are."""
    count = draw(st.integers(2, 5))
    nodes = draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True), min_size=1, max_size=6))
    stage = stages(nodes)
    begun = np.cumsum([n > 0 and stage[n] != stage[n - 1] for n in range(len(nodes))]).tolist()
    depth = [min(max(stage) + 1, max(begun) + 1 - begun[stage.index(s)]) for s in stage]
    dropped = draw(st.sets(st.sampled_from(range(len(nodes)))))
    rows, done = list[Any](), list[Done]()

    def add(which: str, node: int, micro: int, again: bool = False) -> None:
        named = SimpleNamespace(name=str(node))
        form = COMPUTED_AGAIN if again else which
        kind = {"which": which, "form": form, "again": again, "is_late": again}
        step = SimpleNamespace(**kind, micro=Micro(micro, count), node=named, inputs=())
        row = SimpleNamespace(step=step, config=SimpleNamespace(procs=nodes[node]))
        rows.append(row)
        done.extend(Done(which, again, micro, proc, begun[node], depth[node]) for proc in nodes[node])

    for micro in range(count):
        for node in range(len(nodes)):
            add("F", node, micro)
        for node in reversed(range(len(nodes))):
            for which, again in (("F", True), ("B", False), ("W", False)):
                if node in dropped or not again:
                    add(which, node, micro, again)
    base = np.cumsum([0, *(len(row.config.procs) for row in rows)])
    return Rows(rows, base, np.array([one.proc for one in done])), done, max(stage) + 1


@settings(max_examples=examples(300), derandomize=True, deadline=None)
@given(programs(), st.integers(0, 3))
def test_processors_wait_for_what_turns_say_and_for_nothing_else(
    drawn: tuple[Rows, list[Done], int], ahead: int
) -> None:
    rows, done, num_stages = drawn
    expected = set[tuple[int, int]]()
    for task, one in enumerate(done):
        here = [n for n, other in enumerate(done) if other.proc == one.proc and n != task]
        earlier = [n for n in here if n < task]
        awaited: list[list[int]] = []
        of_visit = [n for n in here if done[n].visit == one.visit and not done[n].again]
        if one.again:
            before = [n for n in earlier if done[n].micro == one.micro and not done[n].again]
            awaited += [[n for n in before if done[n].which == which] for which in "FB"]
        elif one.which == "F":
            awaited.append([n for n in earlier if done[n].micro == one.micro - one.depth - ahead])
            if one.depth + ahead > 1:
                awaited.append([n for n in of_visit if done[n].which == "F" and done[n].micro == one.micro - 1])
        elif one.which == "W" and num_stages > 1:
            awaited.append([n for n in of_visit if done[n].which == "B" and done[n].micro == one.micro])
        expected |= {(task, max(of)) for of in awaited if of}
    assert {(task, before) for task, before in throttle_edges(rows, ahead).tolist()} == expected


def orders(done: Sequence[Done], waiting: Sequence[Sequence[int]]) -> np.ndarray:
    """bool[T, T]: which task comes after which by what waits, where the last of a microbatch comes after its others."""
    after = np.zeros((len(done), len(done)), bool)
    after[tuple(np.array(waiting, np.int64).reshape(-1, 2).T)] = True
    last = {(one.micro, one.proc): task for task, one in enumerate(done)}
    for task, one in enumerate(done):
        after[last[one.micro, one.proc], task] = last[one.micro, one.proc] != task
    for task in range(len(done)):
        after |= np.outer(after[:, task], after[task])
    return after


def test_what_is_begun_ahead_leaves_more_free_and_orders_nothing_else(tell: Callable[[str], None]) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=examples(150), derandomize=True, deadline=None)
    @given(programs(), st.integers(0, 2))
    def check(drawn: tuple[Rows, list[Done], int], ahead: int) -> None:
        rows, done, _ = drawn
        fewer, more = (orders(done, throttle_edges(rows, n).tolist()) for n in (ahead, ahead + 1))
        assert (fewer | more == fewer).all()
        forward = [task for task, one in enumerate(done) if one.which == "F" and not one.again]
        turn = [task for task in forward if done[task].micro >= done[task].depth + ahead]
        assert (more[turn].sum(axis=1) < fewer[turn].sum(axis=1)).all()
        seen["freed" if turn else "the same"] += 1

    check()
    tell(f"begun ahead: {', '.join(f'{k} {n}' for k, n in seen.most_common())}")
    assert seen["freed"] > examples(150) // 4


def test_works_in_a_row_are_cut_so_that_the_slowest_takes_least_and_then_least_is_handed_over() -> None:
    """With what handing over takes on both sides of a cut."""
    random = np.random.default_rng(0)
    for _ in range(200):
        work, rates = random.integers(0, 9, random.integers(2, 9)).astype(float), random.integers(1, 4, 3).astype(float)
        sent = np.append(random.integers(0, 3, len(work)) * random.integers(0, 2), 0.0)
        sent[0] = 0.0
        handed = random.integers(0, 9, len(sent)).astype(float)

        def slowest(found: Sequence[int], work: np.ndarray = work, rates: np.ndarray = rates, sent=sent) -> float:
            ends = np.searchsorted(found, range(len(rates) + 1))
            lasts = [work[a:b].sum() / rate + sent[a] + sent[b] for a, b, rate in zip(ends, ends[1:], rates)]
            return float(max(lasts))

        def over(found: Sequence[int], rates: np.ndarray = rates, handed: np.ndarray = handed) -> float:
            return float(handed[np.searchsorted(found, range(1, len(rates)))].sum())

        found = cut(work, rates, sent, handed)
        assert found == sorted(found) and len(found) == len(work)
        every = [*itertools.combinations_with_replacement(range(len(rates)), len(work))]
        least = min(map(slowest, every))
        assert slowest(found) == pytest.approx(least, rel=1e-4, abs=1e-4)
        as_quick = [one for one in every if slowest(one) <= least * (1 + 1e-9)]
        assert over(found) <= min(map(over, as_quick))
        # of these the last has as much as it may
        ties = [one for one in as_quick if over(one) == over(found)]
        assert found.count(len(rates) - 1) >= max((one.count(len(rates) - 1) for one in ties), default=0)


@pytest.mark.parametrize("speeds", [(1, 3, 3, 3), (3, 1, 1, 1), (1, 1, 3, 3), (2, 1, 2, 4)])
def test_a_group_has_as_much_to_do_as_all_of_it_can(speeds: tuple[int, ...]) -> None:
    """However unlike its processors are."""
    kinds = tuple(Processor(f"p{s}", s * 2.0 * WIDTH**2, 1e30, 1 << 40, task_overhead_seconds=0.0) for s in speeds)
    machine = Machine("m", kinds, (Level("link", 4, 0.0, 1e30),))
    lowering = Lowering(stack(12, 16), machine, SGD, microbatches=4)
    found = Pipelines(lowering).once(2, data_parallel(lowering.piece, 2))
    num = [sum(found[f"fc{n}"].procs == procs for n in range(12)) for procs in ((0, 1), (2, 3))]
    each = [(k / sum(speeds[:2]), (12 - k) / sum(speeds[2:])) for k in range(13)]
    assert sum(num) == 12 and max(each[num[0]]) == min(map(max, each))


def test_stretches_take_alike_by_the_prices_that_are_given() -> None:
    g, names = Graph("two kinds", "float32"), [f"{kind}{n}" for kind in ("act", "fc") for n in range(6)]
    x = g.input("x", (16, WIDTH), "b i")
    for name in names:
        x = g.relu(name, x) if name.startswith("act") else g.linear(name, x, features=WIDTH, bias=False)
    g.minimise(g.cross_entropy("loss", x, g.input("label", (16,), "b", "int64")))
    machine = on(2, 2.0 * WIDTH**2)
    lowering = Lowering(g, machine, SGD, microbatches=2)

    class Dear(CostModel):
        """Of what a machine's figures take for nothing."""

        def picoseconds(self, keys: Sequence[CostKey], kind: int | None = None) -> np.ndarray:
            return np.array([10**15 if key.name.startswith("relu") else 1 for key in keys])

    for cost, first in ((None, 9), (Dear(machine), 3)):
        found = Pipelines(lowering, cost).once(2, data_parallel(lowering.piece, 1))
        assert [found[name].procs for name in names] == [(0,)] * first + [(1,)] * (12 - first)


def test_pipelines_are_known_where_there_are_microbatches_to_fill_them() -> None:
    machine = on(4, 1e6)
    for microbatches, stages_of in ((1, []), (2, [2]), (8, [2, 4])):
        lowering = Lowering(stack(8, 16), machine, SGD, microbatches=microbatches)
        known = [name for name in seeds(lowering) if name.startswith("pipeline_") and name.count("_") == 1]
        assert known == [f"pipeline_{n}" for n in stages_of]


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 40))
def test_no_stage_has_parts_of_several_nodes(num_nodes: int, near: int, most: int) -> None:
    """All of a node or nodes, or equal parts of one: of every such number of stages there is a pipeline."""
    num_procs = num_nodes * near
    node = np.arange(num_procs) // near

    def is_apart(num_stages: int) -> bool:
        rows = [Counter(row) for row in node.reshape(num_stages, -1).tolist()]
        return all(len(row) == 1 or {*row.values()} == {near} for row in rows)

    expected = [n for n in range(2, min(most, num_procs) + 1) if num_procs % n == 0 and is_apart(n)]
    assert stage_counts(num_procs, near, most) == expected


def test_a_search_finds_a_pipeline_where_links_are_slow() -> None:
    """Sums of gradients would cross them, and messages of every layer that is cut."""
    graph = stack(8, 8 * 256)
    machine = Machine("m", on(4, 2.0 * WIDTH**2 * 256).processors, (Level("link", 4, 0.25, 0.8 * WIDTH**2),))
    lowering = Lowering(graph, machine, SGD, microbatches=8)
    found = search("mcmc", Evaluator(lowering, CostModel(machine)), "40", 0)
    of_layers = stages(found.strategy.configs[f"fc{n}"].procs for n in range(8))
    assert max(of_layers) > 0 and found.evaluated.seconds < 0.8 * found.seeds["data_parallel"].seconds


def test_a_config_on_no_other_processors_is_moved_whole() -> None:
    machine = on(4, 1e6)
    lowering = Lowering(stack(4, 16), machine, SGD, microbatches=4)
    moved = Pipelines(lowering).once(2, data_parallel(lowering.piece, 2))
    assert {c.procs for c in moved.values()} == {(0, 1), (2, 3)} and moved["fc0"] == Config({"b": 2}, 1, (0, 1))
