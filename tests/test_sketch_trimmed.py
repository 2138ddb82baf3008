"""What a walk found, without what gains next to nothing: it costs no more than it may, and is as if worked out anew."""

from __future__ import annotations

import random
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

from castile.planner.sketch import sketch as sketches
from castile.planner.sketch.chains import LITTLE, LITTLE_OF_ALL, Chain, Chains
from castile.planner.sketch.sketch import NUM_DRAWS, NumberedWalk, Sketch
from castile.runtime.machine import Machine
from tests.effort import some
from tests.test_sketch import MACHINES, SMALL, UNEQUAL, capacity, sketched

SHARES = [(0.0, 0.0), (0.01, 0.0), (0.01, 0.02), (0.1, 0.1)]


def walked(sketch: Sketch, first: np.ndarray, count: int = 600) -> NumberedWalk:
    draws = np.random.default_rng(3).random((count, NUM_DRAWS))
    return sketch.walk(first.copy(), draws, np.full(count, 0.05), capacity(sketch))


class Trimmed(NamedTuple):
    least: float
    best: np.ndarray


def trimmed(sketch: Sketch, first: np.ndarray, best: np.ndarray, each: float, every: float) -> Trimmed:
    return Trimmed(*sketch.without_useless_changes(first, best, each, every, capacity(sketch)))


def seconds(sketch: Sketch, plan: np.ndarray) -> float:
    return sketch.seconds(sketch.configs(plan))


@pytest.mark.parametrize(("model", "machine"), some([*product(SMALL, [*MACHINES, UNEQUAL])]))
def test_what_is_told_is_what_the_plan_takes_and_no_more_than_it_may(model: str, machine: Machine | str) -> None:
    sketch, start = sketched(model, machine)
    first = sketch.number(start)
    trail = walked(sketch, first)
    for each, every in SHARES:
        found = trimmed(sketch, first, trail.best, each, every)
        assert found.least == pytest.approx(seconds(sketch, found.best), rel=1e-9)
        assert found.least <= trail.least * (1 + every) * (1 + 1e-9)
        assert ((found.best == first) | (found.best == trail.best)).all()
        again = trimmed(sketched(model, machine)[0], first, trail.best, each, every)
        assert found.least == again.least and (found.best == again.best).all()
    assert (trimmed(sketch, first, trail.best, -1.0, 0.0).best == trail.best).all()
    assert (trimmed(sketch, first, trail.best, np.inf, np.inf).best == first).all()


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize("together", [False, True])
def test_what_gains_less_than_it_may_cost_goes_back_alone_or_with_those_alike(model: str, together: bool) -> None:
    sketch, start = sketched(model)
    first, kinds, rng, counts = sketch.number(start), sketch.program.known, random.Random(4), [0, 0]
    for _ in range(30):
        plan, n = first.copy(), rng.randrange(len(first))
        space = sketch.program.space[n]
        c = rng.randrange(sketch.spaces.first[space], sketch.spaces.first[space + 1])
        plan[(kinds == kinds[n]) & (first == first[n]) if together else n] = c
        gain = seconds(sketch, first) / seconds(sketch, plan) - 1
        for each in (gain - 1e-6, gain + 1e-6):
            found = trimmed(sketch, first, plan, each, np.inf).best
            if each > gain:
                assert (found == first).all()
            elif not together:
                assert (found == plan).all()
        counts[gain > 0] += 1
    assert counts[0]


def test_plain_and_compiled_loops_take_the_same_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sketch, start = sketched("mlp")
    first = sketch.number(start)
    trail = walked(sketch, first)
    fast = trimmed(sketch, first, trail.best, 0.01, 0.02)
    monkeypatch.setattr(sketches, "can_compile", lambda: False)
    sketches._bodies.cache_clear()
    slow = trimmed(sketched("mlp")[0], first, trail.best, 0.01, 0.02)
    sketches._bodies.cache_clear()
    assert (fast.best == slow.best).all() and fast.least == pytest.approx(slow.least, rel=1e-12)


@pytest.mark.parametrize("model", SMALL)
def test_chains_end_without_changes_that_gain_next_to_nothing(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sketch, start = sketched(model)
    asked, room = [Chain(start, False, 400, is_coarse) for is_coarse in (False, True)], capacity(sketch)

    def ends() -> list[sketches.WalkResult]:
        chains = Chains(sketch, room, 0)
        return [chains.walk(chain) for chain in asked]

    found = ends()
    taken = Sketch.without_useless_changes
    monkeypatch.setattr(
        Sketch, "without_useless_changes", lambda self, first, best, *_: taken(self, first, best, -1.0, 0.0, room)
    )
    for end, whole in zip(found, ends(), strict=True):
        assert end.number == whole.number and end.energy <= whole.energy * (1 + LITTLE_OF_ALL) * (1 + 1e-9)
        changed = [name for name, config in end.plan.items() if config != start[name]]
        assert all(end.plan[name] == whole.plan[name] for name in changed)
        # What was taken back first may make others gain less than they did.
        again = sketch.configs(taken(sketch, sketch.number(start), sketch.number(end.plan), LITTLE, 0.0, room)[1])
        assert sum(again[name] != end.plan[name] for name in changed) <= len(changed) / 4 + 1
