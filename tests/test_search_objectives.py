"""What searches make small: time, latency or memory; and the front between time and memory."""

import random
from dataclasses import dataclass
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.launch import models
from castile.planner.bodies.vocabulary import itemsize, wide
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import OBJECTIVES, Evaluator
from castile.planner.evaluation.frontier import Frontier
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.search import Budget, search
from castile.planner.searching import fronts
from castile.planner.searching.fronts import Point, front_of, search_front
from castile.planner.searching.refinement import refine
from castile.planner.strategy import Config, decode, encode
from castile.runtime import machine as machines
from castile.runtime.machine import Level, Machine, Processor
from castile.runtime.processor import NARROW


def network(batch: int = 16, width: int = 48) -> Graph:
    g = Graph("network", "float32")
    x, y = g.input("x", (batch, width), "b i"), g.input("label", (batch,), "b", "int32")
    for n in range(2):
        x = g.relu(f"act{n}", g.linear(f"fc{n}", x, features=width))
    g.minimise(g.cross_entropy("loss", g.linear("head", x, features=8), y))
    g.outputs = ["head"]
    return g


def machine(procs: int = 4, latency: float = 3e-6, rate: float = 5e8, memory: int = 2**30) -> Machine:
    levels = (Level("link", procs, latency, rate),) if procs > 1 else ()
    return Machine("test", (Processor("p", 1e9, 1e10, memory, 0, 1e-7),) * procs, levels)


def evaluator(on: Machine, objective: str = "time", mode: str = "train", microbatches: int = 1) -> Evaluator:
    lowering = Lowering(network(), on, Updates(find("adam")()), mode, microbatches)
    return Evaluator(lowering, CostModel(on), objective=objective)


def test_memory_takes_less_memory_and_time_less_time():
    fast, small = (search("mcmc", evaluator(machine(), objective), "150").evaluated for objective in ("time", "memory"))
    assert max(small.peak_bytes) < max(fast.peak_bytes) and fast.seconds < small.seconds
    assert small.energy == max(small.peak_bytes) and fast.energy == fast.seconds
    seeds_too = search("mcmc", evaluator(machine(), "memory"), "5").seeds.values()
    assert max(small.peak_bytes) <= min(max(seed.peak_bytes) for seed in seeds_too)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_parameters_that_are_served_lie_as_they_are_used(dtype):
    """And those of a forward pass within training as training keeps them, which are cast each time."""
    graph, on = models.parse("gpt:layers=1,width=32,heads=4,seq=8,vocab=64").graph(2, dtype), machine()
    held = {}
    for served in (True, False):
        lowering = Lowering(graph, on, Updates(find("adam")(), served=served), "forward")
        plan = lowering.plan({name: Config() for name in graph.nodes})
        tasks = lowering.lower(plan)
        held[served] = sum(b.box.volume * itemsize(b.dtype) for b in tasks.buffers if b.role == "carried")
        casts = [task for task in tasks.tasks if "/fetch" in task.name]
        assert bool(casts) == (not served and dtype in NARROW)
    size = sum(prod(param.shape) for param in graph.params)
    assert held[True] == size * itemsize(dtype) and held[False] == size * itemsize(wide(dtype))


def test_latency_is_that_of_a_forward_pass():
    on = machine()
    stepwise, forward = evaluator(on), evaluator(on, "latency", "forward")
    found = search("mcmc", forward, "60")
    assert found.evaluated.seconds < search("mcmc", stepwise, "60").evaluated.seconds
    # Where links are slow, samples are for evaluation alone: no gradient crosses them.
    slow = machine(rate=1e7, latency=0.0)
    wins = [
        min(seeds(same.lowering), key=lambda n: same.evaluate(seeds(same.lowering)[n]).seconds)
        for same in (evaluator(slow), evaluator(slow, "latency", "forward"))
    ]
    assert wins == ["one_processor", "data_parallel"]
    assert found.strategy.predicted is None and decode(encode(found.strategy)) == found.strategy
    stepwise.evaluate(found.strategy)


def test_an_evaluator_turns_without_forgetting():
    same = evaluator(machine())
    plan = seeds(same.lowering)["megatron"]
    first = same.evaluate(plan)
    other = same.remade("memory", most_bytes=max(first.peak_bytes) // 2)
    other.simulate = None  # type: ignore[method-assign,assignment]
    again = other.evaluate(plan)
    assert (again.seconds, again.peak_bytes) == (first.seconds, first.peak_bytes)
    assert first.fits and again.overflow == pytest.approx(1.0, abs=0.01) and same.evaluate(plan) == first
    assert again.rank > first.rank and same.remade("time").evaluate(plan) == first
    assert other.bound(plan.configs) == 0.0 < same.bound(plan.configs)


def test_an_objective_that_there_is_not_is_refused():
    same = evaluator(machine())
    with pytest.raises(ValueError, match=r"no objective 'memry' \(did you mean 'memory'"):
        same.remade("memry")
    with pytest.raises(ValueError, match="takes a lowering of mode 'forward'"):
        same.remade("latency")
    forward = Lowering(network(), machine(), mode="forward")
    assert same.remade("latency", lowering=forward).lowering is forward
    assert set(OBJECTIVES) == {"time", "latency", "memory"}


def test_proposals_are_made_for_the_microbatches_of_the_lowering():
    found = search("mcmc", evaluator(machine(2), microbatches=4), "40")
    fresh = evaluator(machine(2), microbatches=4).evaluate(found.strategy)
    assert found.strategy.microbatches == 4 and fresh.seconds == found.evaluated.seconds
    assert fresh.peak_bytes == found.evaluated.peak_bytes


@dataclass(frozen=True)
class Worth:
    seconds: float
    peak_bytes: tuple[int, ...]


worths = st.lists(st.builds(Worth, st.integers(0, 12).map(float), st.tuples(st.integers(0, 12), st.integers(0, 12))))


@given(worths, st.integers(3, 12))
def test_the_frontier_is_what_none_beats(seen, capacity):
    frontier: Frontier[Worth] = Frontier(np.array([capacity, capacity]))
    for worth in seen:
        frontier.add(worth)
    of = {(w.seconds, max(w.peak_bytes)) for w in seen if max(w.peak_bytes) <= capacity}
    wanted = {a for a in of if not any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in of)}
    kept = [(w.seconds, max(w.peak_bytes)) for w in frontier.points]
    assert kept == sorted(wanted)


@given(worths, st.floats(0, 0.9))
def test_a_thinned_frontier_keeps_its_ends(seen, gain):
    frontier: Frontier[Worth] = Frontier(np.array([100, 100]))
    for worth in seen:
        frontier.add(worth)
    kept = frontier.thinned(gain)
    assert [p for p in frontier.points if p in kept] == kept and bool(kept) == bool(seen)
    if kept:
        assert (kept[0], kept[-1]) == (frontier.points[0], frontier.points[-1])
    assert frontier.thinned(0.0) == frontier.points
    for point in frontier.points:
        # What is left out is hardly smaller than one that is faster.
        faster = [max(one.peak_bytes) for one in kept if one.seconds <= point.seconds]
        assert (1 - gain) * min(faster) <= max(point.peak_bytes)


@given(worths, worths, st.floats(1, 3))
def test_what_is_left_behind_is_so_in_both_time_and_memory(seen, others, times):
    frontier: Frontier[Worth] = Frontier(np.array([100, 100]))
    for worth in seen:
        frontier.add(worth)
    for one in others:
        near = [w for w in seen if w.seconds >= one.seconds / times or max(w.peak_bytes) >= max(one.peak_bytes) / times]
        assert frontier.dominates_by(one, times) == (len(near) < len(seen))


arenas = st.lists(st.tuples(st.integers(1, 12).map(float), st.integers(90, 110)), min_size=1, max_size=12)


@given(arenas, st.tuples(st.integers(1, 12).map(float), st.integers(90, 110)))
def test_what_was_found_is_in_the_front_unless_it_is_beaten(seen, last):
    def point(seconds, nbytes):
        return Point(None, Worth(seconds, (0,)), (nbytes, 1))

    def told(points):
        return [(one.evaluated.seconds, max(one.arena_bytes)) for one in points]

    found = SimpleNamespace(strategy=None, evaluated=Worth(last[0], (0,)), arena_bytes=(last[1], 1))
    front = told(front_of([point(*one) for one in seen], found))
    every = [*seen, last]
    assert front[0] == min(every)
    assert not [a for a in front for b in every if b != a and b[0] <= a[0] and b[1] <= a[1]]
    assert front[-1][1] == min(nbytes for _, nbytes in every)


@pytest.mark.parametrize("objective", ["time", "memory"])
def test_the_front_goes_from_the_fastest_to_the_smallest(objective):
    same = evaluator(machine(), objective)
    found, points = search_front("mcmc", same, "210", 1)
    seconds = [point.evaluated.seconds for point in points]
    nbytes = [max(point.evaluated.peak_bytes) for point in points]
    assert len(points) > 1 and seconds == sorted(set(seconds)) and nbytes == sorted(set(nbytes), reverse=True)
    end = points[0] if objective == "time" else points[-1]
    rank = refine(same, found).evaluated.rank
    assert rank[:2] == (0.0, end.evaluated.seconds if objective == "time" else nbytes[-1])
    assert found.num_proposals <= 210 and found.seeds.keys() == seeds(same.lowering).keys()
    for point in points:
        fresh = evaluator(machine()).evaluate(point.strategy)
        assert (fresh.seconds, fresh.peak_bytes) == (point.evaluated.seconds, point.evaluated.peak_bytes)
        assert point.evaluated.fits and point.evaluated.objective == objective
        assert point.strategy.predicted is not None and max(point.arena_bytes) == point.strategy.predicted.peak_bytes
        assert max(point.arena_bytes) >= max(point.evaluated.peak_bytes)


def test_the_front_goes_farther_than_one_search_sees(monkeypatch):
    """Of a model that is large for its proposals, unless chance helps; on little ones a search sees most of the front
    by itself."""

    def smallest(seed):
        graph = models.parse("gpt:layers=2,width=256,heads=4,seq=64,vocab=512").graph(16)
        on = machines.parse("flexflow-p100:nodes=1")
        same = Evaluator(Lowering(graph, on, Updates(find("adam")())), CostModel(on))
        return min(max(point.evaluated.peak_bytes) for point in search_front("mcmc", same, "35", seed)[1])

    limited = max(map(smallest, (1, 3)))
    monkeypatch.setattr(fronts, "NUM_LIMITS", 0)
    # where chance does not help
    assert limited < smallest(1)


def test_the_front_keeps_to_the_memory_that_there_is():
    roomy = search_front("mcmc", evaluator(machine()), "140", 1)[1]
    limit = max(roomy[1].arena_bytes) + 1024
    assert all(max(seed.peak_bytes) > limit for seed in search("random", evaluator(machine()), "1").seeds.values())
    tight = search_front("mcmc", evaluator(machine(memory=limit)), "140", 1)[1]
    assert tight and all(max(point.arena_bytes) <= limit for point in tight)


def test_a_front_repeats_and_tells_its_progress():
    told: list[float] = []
    first = search_front("mcmc", evaluator(machine(2)), "70", 4, lambda spent, best, _: told.append(spent))
    again = search_front("mcmc", evaluator(machine(2)), "70", 4)
    assert encode(first[0].strategy) == encode(again[0].strategy)
    assert [encode(p.strategy) for p in first[1]] == [encode(p.strategy) for p in again[1]]
    assert told == sorted(told) and told[0] == 0.0 < told[1] and told[-1] <= 1.0


def test_a_budget_may_be_given_as_one():
    found = search("random", evaluator(machine(2)), Budget(proposals=7), random.Random(0).randrange(10))
    assert found.num_proposals == 7
