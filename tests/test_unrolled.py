"""Unrolled: a graph of which one microbatch is repeated is the graph in which all are lowered."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.planner.evaluation.copyable import NUM_LOWERED
from castile.planner.evaluation.folding import Folded, Folding
from castile.planner.evaluation.unrolling import unroll
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.simulation import repeats
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine as machines
from castile.runtime.garbage import uncollected
from castile.runtime.task import TaskGraph
from tests import named_plans
from tests.cut_batches import PLANS, can_be_cut, machines_of
from tests.effort import examples, rare
from tests.strategies import problems
from tests.training import SGD

EXAMPLES = examples(60, 1 / 6)
ARRAYS = (
    "kind", "cost", "lane_ptr", "lanes", "need_ptr", "needs", "use_ptr", "uses", "buffer_proc", "buffer_bytes",
    "buffer_first", "private_bytes",
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "folds"), [*((kind, kind == "alike") for kind in PLANS), *rare(*((k, k != "alike") for k in PLANS))]
)
def test_a_graph_is_what_it_is_where_all_microbatches_are_lowered(
    tell: Callable[[str], None], kind: str, folds: bool
) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        count, shown = data.draw(st.sampled_from(((6, 6), (9, 9), (12, 7), (12, 12))))
        on = data.draw(machines_of(kind))
        each = on.num_procs if kind == "alike" else data.draw(st.integers(1, 3))
        graph = data.draw(problems(batch=count * each)).graph
        if kind != "anyhow" and on.num_procs < 2:
            reject()
        ahead = data.draw(st.integers(0, 6))
        plan = msgspec.structs.replace(data.draw(PLANS[kind](graph, on.num_procs)), microbatches=count, ahead=ahead)
        lowering = Lowering(graph, on, SGD, microbatches=count)
        if not can_be_cut(lowering, plan):
            reject()
        few = lowering.shortened(NUM_LOWERED)
        folded = of(few, plan, folds)
        found = unroll(folded, few.program(plan), ahead, shown)
        seen["plans"] += 1
        seen["folded"] += folded.graph.num_procs < on.num_procs
        assert found is not None
        every = lowering.shortened(shown)
        whole = of(every, plan, folds)
        check_alike(found.folded, whole)
        assert found.number.tolist() == repeats.numbers(every.program(plan), whole.graph).tolist()
        names = [[str(task.name) for task in graph.tasks] for graph in (found.folded.graph, whole.graph)]
        assert names[0] == names[1]
        held = [[buffer.region for buffer in graph.buffers] for graph in (found.folded.graph, whole.graph)]
        assert held[0] == held[1]

    check()
    tell(f"unrolled {kind}: {', '.join(f'{what} {n}' for what, n in seen.most_common())}")
    assert seen["folded"] or not folds or kind != "alike"


@pytest.mark.parametrize("model", ["mlp:size=8,width=8", *rare("gpt:layers=2,width=64,heads=2,seq=32,vocab=64")])
def test_a_graph_in_which_others_wait_takes_over_all_else(model: str) -> None:
    """It is what it is from the beginning; and of another number of microbatches what is known of few."""
    count, on = 12, machines.parse("p3.16xlarge")
    lowering = Lowering(models.parse(model).graph(96), on, SGD, microbatches=count)
    few = lowering.shortened(NUM_LOWERED)
    folding, taken_over = Folding(few), Counter[bool]()
    for name in ("data_parallel", "pipeline_2", "pipeline_4"):
        found = None
        for ahead, shown in ((0, 12), (1, 12), (3, 9), (7, 9)):
            plan = msgspec.structs.replace(seeds(lowering)[name], ahead=ahead)
            folded = folding.fold(plan)
            known = found if found is not None and found.differs_only_in_needs(folded) else None
            anew, found = (unroll(folded, few.program(plan), ahead, shown, of) for of in (None, known))
            assert anew is not None and found is not None
            check_alike(found.folded, anew.folded)
            assert found.number.tolist() == anew.number.tolist()
            assert (found.arrays.lowered is known.arrays.lowered) if known is not None else ahead == 0
            taken_over[known is not None and found.arrays is known.arrays] += 1
    assert taken_over[True] == 6
    bucketed = folding.fold(msgspec.structs.replace(plan, bucket_bytes=2**20))
    assert not found.differs_only_in_needs(bucketed) and not found.differs_only_in_needs(Folding(few).fold(plan))


@pytest.mark.parametrize("ahead", range(7))
def test_what_begins_ahead_is_as_what_takes_turns(ahead: int) -> None:
    """Where who holds the parameters does nothing else, what it fetches for the first microbatches waits for nobody."""
    graph, on, count = models.parse("mlp:size=2,width=4").graph(12), named_plans.links(2), 12
    lowering = Lowering(graph, on, SGD, microbatches=count)
    of_params = [name for name in lowering.names.optional if name.endswith("/fetch")]
    configs = {name: Config({}, 1, (1,)) for name in graph.nodes}
    configs |= {name.replace("/fetch", "/update"): Config({}, 1, (0,)) for name in of_params}
    again = (*graph.nodes, *of_params)
    plan = Strategy(configs, count, bucket_bytes=2**20, recompute=again, ahead=ahead)
    few, whole = lowering.shortened(NUM_LOWERED), of(lowering, plan, False)
    found = unroll(of(few, plan, False), few.program(plan), ahead, count)
    assert found is not None
    check_alike(found.folded, whole)


WHOLE, PIECES = Config({}, 1, (0,)), Config({"o": 2}, 1, (0, 1))
# Of one microbatch and of the whole batch: what the last sums, and what the first gathers; what is fetched for each.
BESIDE_THE_BATCH = {
    "sums": ({"flat": WHOLE, "fc1.bias/accumulate": WHOLE}, ()),
    "gathers": (
        {f"head.{param}/{kind}": PIECES for param in ("weight", "bias") for kind in ("update", "fetch")},
        ("head.weight/fetch",),
    ),
}


@pytest.mark.parametrize("which", BESIDE_THE_BATCH)
@pytest.mark.parametrize("ahead", [0, 6])
def test_what_one_transfers_by_itself_does_not_go_with_what_all_do(which: str, ahead: int) -> None:
    graph, count = models.parse("mlp:size=8,width=8").graph(48), 12
    lowering = Lowering(graph, named_plans.links(2), SGD, microbatches=count)
    configs, again = BESIDE_THE_BATCH[which]
    halves = dict.fromkeys(graph.nodes, Config({"b": 2}, 1, (0, 1)))
    plan = Strategy({**halves, **configs}, count, bucket_bytes=2**20, ahead=ahead, recompute=again)
    few = lowering.shortened(NUM_LOWERED)
    found = unroll(of(few, plan, False), few.program(plan), ahead, count)
    assert found is not None
    check_alike(found.folded, of(lowering, plan, False))


@pytest.mark.parametrize("bucket_bytes", [0, 2**20])
def test_a_graph_goes_with_who_holds_it(bucket_bytes: int) -> None:
    """Also where no garbage is looked for, as while plans of many parts are: else all that are tried would stay."""
    on = machines.parse("p3.16xlarge")
    lowering = Lowering(models.parse("mlp:size=8,width=8").graph(96), on, SGD, microbatches=12)
    few = lowering.shortened(NUM_LOWERED)
    plan = msgspec.structs.replace(seeds(lowering)["pipeline_2"], bucket_bytes=bucket_bytes)
    with uncollected():
        folded = Folding(few).fold(plan)
        found = unroll(folded, few.program(plan), 0, 12)
        assert found is not None and found.folded.graph.tasks[0].name and found.folded.graph.buffers[0].region
        held = [weakref.ref(array) for array in (found.folded.graph.order, found.folded.graph.uses, folded.graph.order)]
        del found, folded
        assert [array() is None for array in held] == [True] * 3


def test_what_is_not_as_the_one_before_is_not_repeated() -> None:
    """Whatever of the microbatch that stands for others is changed."""
    graph, on = models.parse("mlp:size=4,width=4").graph(NUM_LOWERED), named_plans.links(2)
    lowering = Lowering(graph, on, SGD, microbatches=NUM_LOWERED)
    plan = seeds(lowering)["data_parallel"]
    folded, program = of(lowering, plan, False), lowering.program(plan)
    assert unroll(folded, program, 0, NUM_LOWERED + 1) is not None
    number = repeats.numbers(program, folded.graph)
    mine, other = (np.flatnonzero(number == n) for n in (NUM_LOWERED - 2, NUM_LOWERED - 3))
    needs = np.repeat(np.arange(folded.graph.num_tasks), np.diff(folded.graph.need_ptr))
    within = np.flatnonzero(np.isin(needs, mine) & np.isin(folded.graph.needs, mine))
    back = np.flatnonzero(np.isin(needs, mine) & np.isin(folded.graph.needs, other))
    touched = np.unique(folded.graph.uses[np.isin(owners(folded.graph), mine)])
    own = next(b for b in touched if np.isin(owners(folded.graph)[folded.graph.uses == b], mine).all())
    changes = {
        "cost": mine[0], "private_bytes": mine[-1], "kind": mine[0], "needs": within[-1], "buffer_bytes": own,
        "lanes": folded.graph.lane_ptr[mine[0]],
    }  # fmt: skip
    for name, at in changes.items():
        assert unroll(changed(folded, name, at), program, 0, NUM_LOWERED + 1) is None, name
    assert len(back) and unroll(changed(folded, "needs", back[0]), program, 0, NUM_LOWERED + 1) is None


def owners(graph: TaskGraph) -> np.ndarray:
    """Who touches what is in `uses`."""
    return np.repeat(np.arange(graph.num_tasks), np.diff(graph.use_ptr))


def changed(folded: Folded, name: str, at: int) -> Folded:
    values = getattr(folded.graph, name).copy()
    values[at] += -1 if name == "needs" else 1
    return replace(folded, graph=replace(folded.graph, **{name: values}))


def of(lowering: Lowering, plan: Strategy, folds: bool) -> Folded:
    folding = Folding(lowering)
    return folding.fold(plan) if folds else folding.whole(plan)


def check_alike(found: Folded, whole: Folded) -> None:
    for name in ARRAYS:
        assert np.array_equal(getattr(found.graph, name), getattr(whole.graph, name)), name
    assert found.graph.cost_keys == whole.graph.cost_keys
    assert np.argsort(found.graph.order).tolist() == np.argsort(whole.graph.order).tolist()
    assert found.count.tolist() == whole.count.tolist() and found.into.tolist() == whole.into.tolist()
    assert found.proc_class.tolist() == whole.proc_class.tolist()
