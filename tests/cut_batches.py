"""Plans that cut the batch into microbatches: what holds of each of them, whoever drew it."""

from __future__ import annotations

from hypothesis import reject
from hypothesis import strategies as st

from castile.planner.cost import CostModel
from castile.planner.evaluation import evaluator as evaluators
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.graph import Graph
from castile.planner.lower import Lowering
from castile.planner.step import samples
from castile.planner.strategy import Strategy
from castile.runtime.machine import Machine
from tests.named_plans import links
from tests.one_device import on_one_and_many
from tests.strategies import Problem, in_buckets, in_groups, in_microbatches, machines, problems, staged
from tests.training import SGD, apart, difference

TOLERANCE = 1e-10
# How the plans of a graph may lie on so many processors, of which there are several but for the first.
PLANS = {
    "anyhow": in_buckets,
    "alike": lambda graph, num_procs: st.builds(Strategy, in_groups(graph, num_procs)),
    "in stages": staged,
}


def machines_of(kind: str) -> st.SearchStrategy[Machine]:
    """What such plans are drawn for: processors are alike where plans are to make them so."""
    return st.sampled_from((3, 4)).map(links) if kind == "alike" else machines()


def piped(data: st.DataObject, counts: st.SearchStrategy[int]) -> tuple[Evaluator, Strategy]:
    """A plan in stages of a batch of so many microbatches of one sample, and what evaluates it."""
    count, machine = data.draw(counts), data.draw(machines())
    graph = data.draw(problems(batch=count)).graph
    if machine.num_procs == 1:
        reject()
    plan = data.draw(in_microbatches(data.draw(staged(one_of(graph, count), machine.num_procs)), count))
    known = Evaluator(Lowering(graph, machine, SGD, microbatches=count), CostModel(machine))
    if not can_be_cut(known.lowering, plan):
        reject()
    return known, plan


def one_of(graph: Graph, count: int) -> Graph:
    """The graph of one of so many microbatches: no plan that is drawn for it cuts samples into more parts than one has
    samples. Rejects an example that cannot be cut.

    Of plans that are drawn for the whole batch five in six are refused, once all else was drawn.
    """
    try:
        return samples.piece(graph, count)
    except ValueError as error:
        _check_refusal(error)
        reject()


def can_be_cut(lowering: Lowering, plan: Strategy) -> bool:
    """Whether the graph can be cut as the plan asks; what cannot is refused in words. No task is made for that."""
    try:
        lowering.check(plan)
    except ValueError as error:
        _check_refusal(error)
        return False
    return True


def assert_trains_as_the_whole_batch(problem: Problem, on: Machine, plan: Strategy, size: int) -> None:
    """On so many ranks, as one processor does with the batch whole; rejects an example that cannot be cut."""
    try:
        (losses, carried), many = on_one_and_many(problem, on, plan, size, steps=2, exact=False, rate=2**-7)
    except ValueError as error:
        _check_refusal(error)
        reject()
    assert difference(many.losses, losses) < TOLERANCE
    for name in carried:
        assert apart(many.carried, carried, name) < TOLERANCE, name


def _check_refusal(error: ValueError) -> None:
    assert "microbatches" in str(error), error


def assert_few_say_all(known: Evaluator, plan: Strategy) -> bool:
    """What is told of a plan is what simulating all of its microbatches says; gives whether fewer were simulated."""
    tasks, all_of_it = known.simulate(plan)
    found, (few, count) = known.evaluate(plan), known.tasks(plan)
    assert found.seconds == all_of_it.seconds
    assert found.peak_bytes == tuple(all_of_it.peak_bytes.tolist())
    assert found.moved_bytes == evaluators.moved_bytes(tasks)
    assert count.sum() == tasks.num_tasks
    return few.num_tasks < tasks.num_tasks
