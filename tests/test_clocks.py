"""Clocks of a device: what events add to calls is left out, and the host is ahead of steps that are timed."""

from __future__ import annotations

import gc
from functools import cache
from math import ceil, inf
from types import ModuleType
from typing import Any
from weakref import WeakSet

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.device_ranks import ONE, Plan, Ranks, small
from tests.late import LateTable, device
from tests.strategies import whole_on

Calls = tuple[np.ndarray, np.ndarray, list[int]]


@cache
def clocks() -> ModuleType:
    """The module, which imports CuPy."""
    with device():
        from castile.runtime.backends.cuda import clocks

        return clocks


@st.composite
def calls(draw: st.DrawFn) -> Calls:
    """Calls of a few streams, each after the one before it on its stream, as they come."""
    free, rows = dict.fromkeys(range(draw(st.integers(1, 3))), 0), []
    for _ in range(draw(st.integers(1, 12))):
        stream = draw(st.sampled_from(sorted(free)))
        begun = free[stream] + draw(st.integers(0, 5000))
        free[stream] = begun + draw(st.integers(1, 20_000))
        rows.append((begun, free[stream], stream))
    begun, ended, streams = zip(*rows, strict=True)
    return np.array(begun), np.array(ended), list(streams)


def in_order(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether what is not later by the one is not later by the other, but for the least that can be told."""
    return bool((np.diff(other[np.argsort(one, kind="stable")]) >= -1).all())


@settings(max_examples=200, deadline=None)
@given(calls(), st.integers(0, 200_000))
def test_what_events_add_is_left_out_until_calls_take_what_they_do_without(found: Calls, within: int) -> None:
    begun, ended, streams = found
    firsts, lasts = clocks().without_events(within, begun, ended, streams)
    assert in_order(np.concatenate([begun, ended]), np.concatenate([firsts, lasts]))
    took, takes = ended - begun, lasts - firsts
    assert (0 < takes).all() and (takes <= took).all() and (lasts <= ended).all()
    total = lasts.max() - firsts.min()
    cost = int((took - clocks().RESOLUTION_NS).clip(0).max())
    least = clocks().shortened(cost, begun, ended, streams)
    if total > within:
        # Then nothing more could be left out.
        assert np.array_equal(lasts, least[1]) and np.array_equal(firsts, least[0])
    if len(set(streams)) == 1:
        assert (takes >= np.minimum(took, clocks().RESOLUTION_NS)).all()
        lost = took - takes
        # As much of each, but for those that would take next to nothing.
        assert (lost[takes > clocks().RESOLUTION_NS] == lost.max()).all()
    assert all(map(np.array_equal, clocks().without_events(inf, *found), (begun, ended)))


def test_calls_in_a_row_take_what_is_known_of_all_of_them() -> None:
    ended = np.cumsum([9000, 7000, 6000, 12_000])
    begun = ended - [9000, 7000, 6000, 12_000]
    firsts, lasts = clocks().without_events(14_000, begun, ended, [1] * 4)
    assert (lasts - firsts).tolist() == [4000, 2000, 1000, 7000] and firsts.tolist() == [0, 4000, 6000, 7000]
    assert [len(of) for of in clocks().without_events(0, begun[:0], ended[:0], [])] == [0, 0]


def test_the_device_is_busy_until_the_host_is_ahead(set_aside: None) -> None:
    with device() as cupy:
        from castile.runtime.backends.cuda import lead

        def short(stream: Any) -> Any:
            few, others = (cupy.empty(4, np.float32) for _ in range(2))
            held.update((few.data.mem, others.data.mem))
            return LateTable(stream).bind("copy", (few,), (others,), {})

        held = WeakSet[Any]()
        made, stream = lead.Lead.of(short), cupy.cuda.Stream(non_blocking=True)
        for count in (1, 300, 10**9):
            before = len(cupy.cuda.world.done)
            made.begin(stream, count)
            stream.synchronize()
            launches = ceil(min(lead.MOST_SECONDS, count * lead.CALL_SECONDS) / made.seconds)
            done = [name for one, name in cupy.cuda.world.done[before:] if one is stream]
            assert done.count("copy") == lead.NUM_LAUNCHES * launches > 0
        # A graph of CUDA's keeps no memory.
        made = made._replace(graph=None)
        gc.collect()
        assert len(held) == 2, "what the graph reads and writes is nobody else's"


def test_steps_that_are_timed_begin_behind_a_lead_once_they_are_graphs() -> None:
    plan = Plan(small("float32"), whole_on(small("float32").graph), ONE, 1)
    with device() as cupy:
        from castile.runtime.backends import cuda

        ranks = Ranks(plan, "cuda")
        ranks.train(1, timed=True)
        assert not cuda._LEADS
        ranks.train(2)
        (worker,) = (worker for execution in ranks.executions for worker in execution.runner._workers)
        assert len(worker._lasted_ns) == 2
        ranks.train(1, timed=True)
        assert list(cuda._LEADS) == [cupy.cuda.runtime.getDevice()]
        _, begun, ended = worker.times()
        raw = worker._clocks.read()
        assert (ended - begun).sum() < (raw[1] - raw[0]).sum()
