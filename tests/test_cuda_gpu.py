"""Models trained on a real GPU, on poisoned memory: NumPy's losses, captured or timed, and on two processors of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from castile.launch import models
from castile.launch.jobs.execution import Execution, feed_from, prepare
from castile.launch.jobs.jobs import recipe_updates
from castile.planner.cost import CostModel
from castile.planner.graph import Graph
from castile.planner.lower import Lowering
from castile.planner.strategy import Config, Strategy
from castile.runtime.comm.local import LocalWorld
from castile.runtime.machine import Level, Machine, Processor
from tests.strategies import Problem, in_buckets, whole_on
from tests.test_cuda import Plan, Ranks, on_host
from tests.training import difference

pytestmark = pytest.mark.gpu
cuda = pytest.importorskip("castile.runtime.backends.cuda", exc_type=ImportError)
parts = cuda.parts

ONE = Machine("one", (Processor("gpu", 5e13, 4e12, 2**33),), ())
TWO = Machine("two", ONE.processors * 2, (Level("link", 2, 1e-5, 1e10),))
STEPS = 8
# How two processors have one GPU.
WAYS = ("parts", "streams", "by way of the host")
# Events tell half microseconds.
CLOCK_PICOSECONDS = 2_000_000
# a network of batch norms wanders off from step 8 on, NumPy's first
MODELS = {
    "gpt:layers=2,width=64,heads=4,seq=32,vocab=64,dropout=0.1": 4,
    "convnet": 16,
    "resnet": 8,
    "resnet:rewrite=fuse+channels_last": 8,
    "lstm:layers=1,width=64,seq=12,vocab=64": 8,
}


def data(graph: Graph) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(7)

    def fill(name: str) -> np.ndarray:
        tensor = graph.tensors[name]
        whole = rng.integers(0, 10, tensor.shape) if "int" in tensor.dtype else rng.normal(size=tensor.shape)
        return whole.astype(tensor.dtype)

    return [{name: fill(name) for name in graph.inputs} for _ in range(STEPS)]


def started(text: str, machine: Machine, backend: str) -> Execution:
    """On one processor, or with the samples divided among two."""
    model = models.parse(text)
    graph = model.graph(MODELS[text], "float32")
    lowering = Lowering(graph, machine, recipe_updates(model.recipe))
    n = machine.num_procs
    split = {name: Config({"b": n} if "b" in node.alignment.axes else {}, 1) for name, node in graph.nodes.items()}
    placed = {
        name: Config(config.split, 1, tuple(range(n)) if config.split else (0,)) for name, config in split.items()
    }
    whole = {name: Config({}, 1, (0,)) for name in graph.nodes}
    plan = Strategy(placed if n > 1 else whole, num_procs=n)
    prepared = prepare(lowering, plan, CostModel(machine))
    execution = Execution(graph, prepared, LocalWorld(1).communicators[0], range(n), backend=backend, poison=True)
    execution.initialise(0)
    return execution


def any_plan(graph: Graph, number: int) -> Strategy:
    """All cut along any axes and placed anyhow, any of it computed again; the same in all processes."""
    found: list[Strategy] = []

    # What is drawn first is the simplest.
    @settings(max_examples=number + 2, derandomize=True, phases=(Phase.generate,), deadline=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(in_buckets(graph, TWO.num_procs))
    def draw(plan: Strategy) -> None:
        found.append(plan)

    draw()
    return found[-1]


def losses(execution: Execution, step: Callable[[], object]) -> np.ndarray:
    found = []
    for n, arrays in enumerate(data(execution.graph)):
        execution.feed(feed_from(arrays), 0.05, n)
        step()
        found.append(float(execution.output(execution.graph.loss)))
    return np.array(found)


@pytest.mark.parametrize("text", MODELS)
def test_losses_are_numpys(text: str) -> None:
    on_host = started(text, ONE, "numpy")
    expected = losses(on_host, on_host.run)
    captured, timed = (started(text, ONE, "cuda") for _ in range(2))
    found = losses(captured, captured.run)
    assert difference(found, expected) < 1e-4
    assert captured.runner.remarks == []
    assert np.array_equal(losses(timed, lambda: check(timed)), found)


def check(execution: Execution) -> None:
    """A timed step: every task has its time, and none begins before the one before it on the stream has ended."""
    timeline = execution.step()
    begun, ended = np.sort(timeline.start), np.sort(timeline.end)
    assert len(timeline.task) == execution.prepared.tasks.num_tasks
    assert (timeline.end >= timeline.start).all()
    assert (begun[1:] >= ended[:-1] - CLOCK_PICOSECONDS).all()


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("text", ["convnet", "lstm:layers=1,width=64,seq=12,vocab=64"])
def test_two_processors_on_one_gpu_learn_what_one_learns(text: str, divided: bool) -> None:
    """On streams of the whole device, and on parts of it; as one graph, and task by task."""
    one = started(text, ONE, "cuda")
    expected = losses(one, one.run)
    with places_of_their_own():
        if divided:
            parts.split(2)
        captured, timed = started(text, TWO, "cuda"), started(text, TWO, "cuda")
        found = losses(captured, captured.run)
        assert difference(found, expected) < 1e-4
        assert captured.runner.remarks == []
        assert np.array_equal(losses(timed, timed.step), found)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("text", ["convnet", "gpt:layers=2,width=64,heads=4,seq=32,vocab=64,dropout=0.1"])
def test_any_plan_for_two_learns_what_one_processor_learns(text: str, way: str) -> None:
    """Beside definitions on a host: two parts of a GPU, two that share all of it, and two ranks that share it."""
    number, num_ranks = WAYS.index(way), 2 if way == "by way of the host" else 1
    graph = models.parse(text).graph(MODELS[text], "float32")
    problem = Problem(graph, {name: 10 for name in graph.inputs if "int" in graph.tensors[name].dtype})
    expected = on_host(Plan(problem, whole_on(graph), ONE, 1), 3)
    with places_of_their_own():
        if way == "parts":
            parts.split(2)
        found = Ranks(Plan(problem, any_plan(graph, number), TWO, num_ranks), "cuda").train(3)
    assert difference(np.array(found.losses), np.array(expected.losses)) < 1e-4
    assert any(worker.remark for worker in found.workers) == (num_ranks > 1)


def test_a_graph_of_several_streams_is_the_drivers() -> None:
    """It does the same again and again, also when what CuPy captured is held by nobody else."""
    import cupy

    from castile.runtime.backends.cuda.graphs import by_priority

    origin, other = (cupy.cuda.Stream(non_blocking=True, priority=priority) for priority in (0, parts.SOONER))
    with origin:
        x = cupy.zeros(1000, "float32")
        # compiles what is captured
        cupy.add(x, 0, out=x)
    gone, back = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
    origin.begin_capture()
    gone.record(origin)
    other.wait_event(gone)
    with other:
        cupy.add(x, 1, out=x)
    back.record(other)
    origin.wait_event(back)
    captured = origin.end_capture()
    graph = by_priority(captured)
    assert graph is not captured, "the driver refuses it"
    del captured
    for _ in range(3):
        graph.launch(origin)
    assert (x.get(origin) == 3).all()


@contextmanager
def places_of_their_own() -> Iterator[None]:
    """Processors have new streams, as in a process in which none was bound yet."""
    with patch.dict(parts._PLACES, clear=True), patch.dict(parts._PARTS, clear=True):
        yield
