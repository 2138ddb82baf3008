"""Laws of processors that share a device and a process, on a stand-in of CuPy and of the driver's green contexts.

What they cannot show: that a device runs the parts side by side, nor that it takes a graph over several contexts.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch.jobs.execution import Execution
from castile.planner.strategy import Config, Strategy
from castile.runtime.machine import local
from tests.collective_cases import DTYPES, FORMS, Case, random_case
from tests.device_ranks import TWO, Plan, Ranks, drawn, on_host, plans, same, small
from tests.effort import examples
from tests.late import LateTable, device
from tests.stand_in import green
from tests.strategies import Problem


@drawn(examples(20))
@given(plans(one=True), st.integers(0, 2**16), st.booleans())
def test_any_strategy_on_processors_that_share_a_device(plan: Plan, seed: int, timed: bool) -> None:
    """Their streams meet by events alone: sums are those of the host to the last bit, and a step is one graph."""
    host, num_procs = on_host(plan, 3), plan.machine.num_procs
    with device(seed) as cupy:
        from castile.runtime.backends.cuda import parts

        cupy.cuda.Device(seed % 2).use()
        parts.split(num_procs)
        ranks = Ranks(plan, "cuda")
        found = ranks.train(3, timed)
    same(found, host)
    (worker,) = found.workers
    assert worker.uncaptured == "" and (worker._graph is None) == timed
    places = [ranks.executions[0].runner.backend(proc) for proc in range(num_procs)]
    own = [place.compute_stream.multiprocessors for place in places]
    assert all(own) and len(set().union(*own)) == sum(map(len, own))
    assert [place.traffic.multiprocessors for place in places] == own


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("form", FORMS)
def test_form_equals_its_definition_to_the_last_bit(form: str, size: int) -> None:
    """Sums in the order of the group, whoever makes them."""
    for seed, dtype in enumerate(DTYPES):
        case = random_case(np.random.default_rng([seed, size]), form, size, dtype)
        with device(seed) as cupy:
            from castile.runtime.backends.cuda.within import phases

            members = [member(cupy, case, number) for number in range(len(case.group))]
            cupy.cuda.get_current_stream().synchronize()
            for phase in phases(case.form, members, case.counts):
                for _, call in phase:
                    call()
                for stream, _ in phase:
                    stream.synchronize()
            for one, expected in zip(members, case.expected, strict=True):
                assert one.receive is None or one.receive.on_device.tobytes() == expected.tobytes()


def test_processors_whose_graph_cannot_be_made_run_task_by_task_and_say_why() -> None:
    plan = Plan(small(), apart(small(), 2), TWO, 1)
    host = on_host(plan, 3)
    with device():
        import cupy

        def fails(stream: Any) -> None:
            made(stream)
            raise cupy.cuda.CUDARuntimeError("cudaErrorInvalidContext: nodes of several contexts")

        made = cupy.cuda.Stream.end_capture
        with patch.object(cupy.cuda.Stream, "end_capture", fails):
            found = Ranks(plan, "cuda").train(3)
    same(found, host)
    assert "nodes of several contexts" in found.workers[0].remark


def test_a_device_that_is_divided_anew_has_other_parts() -> None:
    """Processors have a part each, whatever the device was divided into before."""
    with device():
        from castile.runtime.backends.cuda import parts

        whole = parts.place(0)
        assert parts.place(0) is whole and parts.place(1) is not whole
        for num_parts in (2, 4, 3):
            parts.split(num_parts)
            machine = local(num_parts)
            ranks = Ranks(Plan(small(), apart(small(), num_parts), machine, 1), "cuda")
            own = [ranks.executions[0].runner.backend(p).compute_stream.multiprocessors for p in range(num_parts)]
            assert all(own) and len(set().union(*own)) == sum(map(len, own)), num_parts


@settings(max_examples=examples(100))
@given(st.lists(st.integers(8, 40), min_size=1, max_size=6))
def test_a_device_is_divided_into_any_number_of_parts_up_to_the_most(clusters: list[int]) -> None:
    """Whatever its multiprocessors share: the driver makes no group that lies in two clusters of them."""

    def within_clusters(wanted: int, whole: Any, flags: int, least: int) -> tuple[Any, ...]:
        size = -(-least // green.GRAIN) * green.GRAIN
        ends = np.cumsum(clusters)
        starts = [n for end, num in zip(ends, clusters, strict=True) for n in range(end - num, end - size + 1, size)]
        groups = [green.Resource(range(start, start + size)) for start in starts[:wanted]]
        return green.CUresult.CUDA_SUCCESS, groups, len(groups), green.Resource(range(0))

    with (
        patch.object(green, "MULTIPROCESSORS", sum(clusters)),
        patch.object(green, "cuDevSmResourceSplitByCount", within_clusters), device(),
    ):  # fmt: skip
        from castile.runtime.backends.cuda import parts

        most = parts.most()
        assert most == sum(num // green.GRAIN for num in clusters)
        for num_parts in range(1, most + 1):
            assert 0 < parts.split(num_parts) <= 1 / num_parts
        with pytest.raises(ValueError, match=f"at most {most} parts of 8"):
            parts.split(most + 1)


def test_memory_has_been_set_before_anything_is_put_onto_streams() -> None:
    """Transfers into it lie on a stream that knows nothing of the one on which it was set."""
    plan = Plan(small(), apart(small(), 2), TWO, 1)
    with device() as cupy, patch.object(Execution, "initialise"):
        Ranks(plan, "cuda")
        pending = [name for stream in cupy.cuda.world.streams for _, name in stream.queue]
        assert "memset" in [name for _, name in cupy.cuda.world.done] and "memset" not in pending


def apart(problem: Problem, num_procs: int) -> Strategy:
    """Each node on the next processor."""
    return Strategy({name: Config({}, 1, (n % num_procs,)) for n, name in enumerate(problem.graph.nodes)})


def member(cupy: Any, case: Case, number: int) -> Any:
    """A processor's part in a transfer, on a stream of its own."""
    from castile.runtime.backends.cuda.within import Member

    arrays = (case.send[number], case.receive[number])
    send, receive = (None if values is None else cupy.asarray(values) for values in arrays)
    stream = cupy.cuda.Stream(non_blocking=True)

    def add(a: Any, b: Any, out: Any) -> Any:
        with stream:
            return LateTable(stream).bind("add", (a, b), (out,), {})

    return Member(send, receive, stream, add)
