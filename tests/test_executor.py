"""Laws of the brain and the mappers: order, waits, and that no deviation of times can stop a step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.runtime.executor import Executor, Program, Start, Wait, is_transfer, program
from castile.runtime.mapper import Default, Logging, Mapper, Replay, check
from castile.runtime.task import Kind, TaskGraph
from castile.runtime.timeline import Timeline
from tests.effort import examples
from tests.handmade import Hand, in_order

NO_EDGES = np.empty((0, 2), np.int64)


@st.composite
def graphs(draw) -> TaskGraph:
    """Random tasks on 1-4 processors: computes on random buffers, moves and all-reduces between them."""
    num_procs = draw(st.integers(1, 4))
    hand = Hand(num_procs)
    buffers = [[hand.buffer(f"r{p}.{i}", (3,), p, "carried") for i in range(3)] for p in range(num_procs)]
    for _ in range(draw(st.integers(1, 25))):
        p, i, j = draw(st.integers(0, num_procs - 1)), draw(st.integers(0, 2)), draw(st.integers(0, 2))
        what = draw(st.sampled_from(["compute", "compute", "move", "sum"]))
        if num_procs == 1 or what == "compute":
            hand.compute("relu", [buffers[p][i]], buffers[p][j])
        elif what == "move":
            q = (p + draw(st.integers(1, num_procs - 1))) % num_procs
            hand.move(buffers[p][i], buffers[q][j])
        else:
            group = draw(st.permutations(range(num_procs)))[: draw(st.integers(2, num_procs))]
            hand.all_reduce([buffers[q][i] for q in group], [buffers[q][(i + 1) % 3] for q in group])
    return hand.graph()


def programs(graph: TaskGraph, edges: np.ndarray = NO_EDGES) -> list[Program]:
    timeline = in_order(graph)
    return [program(graph, Default().order(graph, timeline, p), edges) for p in range(graph.num_procs)]


def run(graph: TaskGraph, steps: list[Program], seed: int, finished_needs: bool = True) -> None:
    """Plays all processors, in random turns, transfers ending when all their members have begun and then some."""
    rng = np.random.default_rng(seed)
    executors = [Executor(p) for p in steps]
    for executor in executors:
        executor.begin()
    started = [set() for _ in executors]
    finished = [set() for _ in executors]
    running = set(range(len(executors)))
    for _ in range(10_000):
        if not running:
            break
        p = int(rng.choice(sorted(running)))
        instruction = executors[p].next()
        if instruction is None:
            running.remove(p)
            assert started[p] == set(steps[p].tasks) == finished[p]
        elif isinstance(instruction, Start):
            t = instruction.task
            mine = set(graph.needs_of(t).tolist()) & set(steps[p].tasks)
            assert mine <= finished[p], f"task {t} starts before {mine - finished[p]}"
            started[p].add(t)
            if not instruction.asynchronous:
                finished[p].add(t)
        else:
            ready = [t for t in instruction.tasks if all(t in started[q] for q in graph.tasks[t].procs)]
            if ready and rng.random() < 0.7:
                t = int(rng.choice(ready))
                finished[p].add(t)
                executors[p].finished(t)
    assert not running, "processors wait for each other"


@settings(max_examples=examples(150), deadline=None)
@given(graphs(), st.integers(0, 2**32 - 1))
def test_every_step_ends_and_every_need_is_kept(graph: TaskGraph, seed: int) -> None:
    run(graph, programs(graph), seed)


@settings(max_examples=examples(60), deadline=None)
@given(graphs(), st.data())
def test_a_mapper_that_reorders_computes_cannot_stop_a_step(graph: TaskGraph, data: st.DataObject) -> None:
    timeline = in_order(graph)
    orders = {}
    for p in range(graph.num_procs):
        order = Default().order(graph, timeline, p).tolist()
        for _ in range(data.draw(st.integers(0, 10))):
            at = data.draw(st.integers(0, max(0, len(order) - 2)))
            swapped = [*order[:at], *order[at : at + 2][::-1], *order[at + 2 :]]
            try:
                check(graph, timeline, p, np.array(swapped))
            except ValueError:
                continue
            order = swapped
        orders[p] = order
    replay = Replay(orders)
    steps = [program(graph, replay.order(graph, timeline, p), NO_EDGES) for p in range(graph.num_procs)]
    run(graph, steps, data.draw(st.integers(0, 2**32 - 1)))


def chain() -> TaskGraph:
    """0: compute a on 0; 1: move a to 1; 2: compute b from a on 1; 3: compute c on 0; 4: compute on a again."""
    hand = Hand(2)
    a, b = hand.buffer("a", (3,), 0), hand.buffer("a", (3,), 1)
    c, d = hand.buffer("c", (3,), 0, "carried"), hand.buffer("d", (3,), 1, "carried")
    hand.compute("relu", [c], a)
    hand.move(a, b)
    hand.compute("relu", [b], d)
    hand.compute("relu", [c], c)
    hand.compute("relu", [c], a)
    return hand.graph()


def test_a_transfer_is_waited_for_once_and_only_where_it_is_needed() -> None:
    sender, receiver = programs(chain())
    assert sender == Program((0, 1, 3, 4), (False, True, False, False), ((), (), (), (1,)), (0, 1, 0, 0))
    assert receiver == Program((1, 2), (True, False), ((), (1,)), (0, 0))
    executor = Executor(sender)
    executor.begin()
    assert [executor.next() for _ in range(3)] == [Start(0, 0, False), Start(1, 1, True), Start(2, 3, False)]
    assert executor.next() == Wait((1,)) == executor.next()
    executor.finished(1)
    assert executor.next() == Start(3, 4, False)
    assert executor.next() is None
    executor.begin()
    assert executor.next() == Start(0, 0, False)


def test_a_transfer_starts_as_soon_as_what_it_needs_allows() -> None:
    hand = Hand(2)
    a, b = hand.buffer("a", (3,), 0, "carried"), hand.buffer("a", (3,), 1, "carried")
    c = hand.buffer("c", (3,), 0, "carried")
    hand.compute("relu", [c], c)
    hand.move(a, b)
    executor = Executor(programs(hand.graph())[0])
    executor.begin()
    assert [executor.next() for _ in range(2)] == [Start(1, 1, True), Start(0, 0, False)]


def test_memory_that_is_taken_over_is_waited_for() -> None:
    sender, _ = programs(chain(), np.array([[1, 3]]))
    assert sender.waits == ((), (), (1,), ())


def test_a_step_ends_with_its_last_transfer() -> None:
    hand = Hand(2)
    a, b = hand.buffer("a", (3,), 0, "carried"), hand.buffer("a", (3,), 1, "carried")
    hand.move(a, b)
    executor = Executor(programs(hand.graph())[0])
    executor.begin()
    assert executor.next() == Start(0, 0, True)
    assert executor.next() == Wait((0,))
    executor.finished(0)
    assert executor.next() is None


def test_a_wait_that_points_forward_is_a_fault() -> None:
    with pytest.raises(AssertionError, match="issued before"):
        program(chain(), (1, 0, 3, 4), NO_EDGES)


def test_default_order_is_by_start_and_key() -> None:
    graph = chain()
    timeline = Timeline(np.arange(5), np.array([0, 10, 20, 0, 30]), np.array([1, 11, 21, 1, 31]))
    assert Default().order(graph, timeline, 0).tolist() == [0, 3, 1, 4]
    object.__setattr__(graph, "order", np.array([3, 1, 2, 0, 4]))
    assert Default().order(graph, timeline, 0).tolist() == [3, 0, 1, 4]


def test_what_was_logged_can_be_replayed() -> None:
    graph, timeline = chain(), in_order(chain())
    log = Logging(Default())
    orders = [log.order(graph, timeline, p).tolist() for p in range(2)]
    replay = Replay(log.orders)
    assert [replay.order(graph, timeline, p).tolist() for p in range(2)] == orders
    assert Replay({0: (0, 3, 1, 4)}).order(graph, timeline, 0).tolist() == [0, 3, 1, 4]


class Fixed(Mapper):
    def __init__(self, order: list[int]) -> None:
        self.fixed = np.array(order)

    def order(self, graph: TaskGraph, timeline: Timeline, proc: int) -> np.ndarray:
        return self.fixed


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ((0, 1, 3), "does not hold each of its 4 tasks once"),
        ((0, 1, 3, 3), "does not hold each of its 4 tasks once"),
        ((1, 0, 3, 4), "'move#1' before 'relu#0'"),
        ((0, 1, 4, 3), "'relu#4' before 'relu#3'"),
    ],
)
def test_replay_refuses_what_breaks_a_need(order: tuple[int, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Replay({0: order}).order(chain(), in_order(chain()), 0)


def test_replay_refuses_another_plan_and_a_moved_transfer() -> None:
    with pytest.raises(ValueError, match="no processor 1"):
        Replay({0: (0, 1, 3, 4)}).order(chain(), in_order(chain()), 1)
    hand = Hand(2)
    a, b = hand.buffer("a", (3,), 0, "carried"), hand.buffer("b", (3,), 0, "carried")
    hand.move(a, hand.buffer("a", (3,), 1, "carried"))
    hand.move(b, hand.buffer("b", (3,), 1, "carried"))
    graph = hand.graph()
    with pytest.raises(ValueError, match="only what is computed may be reordered"):
        Replay({0: (1, 0)}).order(graph, in_order(graph), 0)


def test_memory_reuse_binds_a_mapper_too() -> None:
    graph = chain()
    check(graph, in_order(graph), 0, np.array([0, 3, 1, 4]))
    with pytest.raises(ValueError, match="must come first"):
        check(graph, in_order(graph), 0, np.array([0, 3, 1, 4]), np.array([[1, 3]]))


def test_which_tasks_are_transfers() -> None:
    assert [is_transfer(kind) for kind in Kind] == [False, False, False, True, True]
