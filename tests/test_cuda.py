"""Laws of the backend for GPUs, on a stand-in of CuPy whose streams do their work late and in any order they may.

What they cannot show: that a real device does as the stand-in does, and how long anything takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castile.kernels import choice, tuning
from castile.kernels.choice import Choice
from castile.kernels.form import Refused
from castile.kernels.table import Table, forms, native_accumulate
from castile.launch.jobs.execution import Execution
from castile.launch.measuring.tuning import names
from castile.planner.strategy import Config, Strategy
from castile.runtime.machine import Machine
from tests.device_ranks import ONE, TWO, Plan, Ranks, close, drawn, on_host, plans, same, small
from tests.effort import examples
from tests.late import LateTable, device
from tests.stand_in import nccl
from tests.strategies import Problem, batches, problems, whole_on


@drawn(15)
@given(problems(), st.integers(0, 2**16), st.booleans())
def test_one_device_trains_as_the_host_does(problem: Problem, seed: int, timed: bool) -> None:
    plan = Plan(problem, whole_on(problem.graph), ONE, 1)
    host = on_host(plan, 4)
    with device(seed):
        found = Ranks(plan, "cuda").train(4, timed)
    same(found, host)
    (worker,) = found.workers
    assert worker.uncaptured == "" and (worker._graph is None) == timed


@drawn(examples(15))
@given(plans(), st.integers(0, 2**16), st.booleans())
def test_any_strategy_by_way_of_the_host(plan: Plan, seed: int, timed: bool) -> None:
    host = on_host(plan, 3)
    with device(seed):
        same(Ranks(plan, "cuda").train(3, timed), host)


@drawn(examples(18))
@given(plans(each=True), st.integers(0, 2**16), st.booleans())
def test_any_strategy_on_streams(plan: Plan, seed: int, timed: bool) -> None:
    host = on_host(plan, 3)
    with device(seed) as cupy:
        from castile.runtime.comm.nccl import NcclCommunicator

        found = Ranks(plan, "cuda", NcclCommunicator, lambda rank: cupy.cuda.Device(rank).use()).train(3, timed)
    close(found, host)
    assert all(worker.uncaptured == "" for worker in found.workers)
    assert all((worker._graph is None) == timed for worker in found.workers)


@drawn(examples(15))
@given(plans(each=True) | plans(one=True))
def test_what_is_put_onto_streams_lies_where_others_wait_for_it(plan: Plan) -> None:
    """Events are of the stream that a piece of a step names: what lay on another nobody would wait for."""
    with device() as cupy:
        from castile.runtime.backends.cuda import parts
        from castile.runtime.comm.nccl import NcclCommunicator

        if plan.size == 1:
            parts.split(plan.machine.num_procs)
        ranks = Ranks(plan, "cuda", NcclCommunicator, lambda rank: cupy.cuda.Device(rank).use())
        for execution in ranks._turns():
            for piece in (piece for worker in execution.runner._workers for piece in worker._pieces):
                before = [len(stream.queue) for stream in cupy.cuda.world.streams]
                piece.action()
                grown = zip(cupy.cuda.world.streams, before, strict=True)
                assert {stream for stream, num in grown if len(stream.queue) > num} <= {piece.stream}
                assert piece.stream.non_blocking


def test_what_is_timed_lies_between_its_events_and_clocks_are_set_on_an_idle_device() -> None:
    with device() as cupy:
        from castile.runtime.backends.cuda.clocks import Clocks

        stream, at = cupy.cuda.Stream(non_blocking=True), list[int]()
        clocks = Clocks([stream] * 3, stream)
        work = partial(stream.enqueue, lambda: at.append(cupy.cuda.world.clock), "work")
        actions = clocks.around([work] * 3)
        before = time.perf_counter_ns()
        clocks.start()
        after = time.perf_counter_ns()
        assert not stream.queue
        for action in actions:
            action()
        stream.synchronize()
        begun, ended = ([event.marker.time for event in side] for side in zip(*clocks._events, strict=True))
        assert all(first <= moment < last for first, moment, last in zip(begun, at, ended, strict=True))
        told = np.stack(clocks.read()) - np.stack([clocks._moments(0), clocks._moments(1)])
        assert (told == told[0, 0]).all() and before <= told[0, 0] <= after, "the host's clock as it was set"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_steps_in_fewer_bits_are_captured_too(dtype: str) -> None:
    """Scales, casts and skipped steps are carried in arrays, so that a replay sees them change."""
    plan = Plan(small(dtype), whole_on(small(dtype).graph), ONE, 1)
    host = on_host(plan, 5)
    with device():
        found = Ranks(plan, "cuda").train(5)
    same(found, host)
    assert found.workers[0].remark == "" and len(set(found.losses)) == 5


@contextmanager
def with_libraries() -> Iterator[list[str]]:
    """A device on which libraries do what they can; the kernels that they did."""
    done: list[str] = []

    class LibraryTable(LateTable):
        def bind(
            self, name: str, args: Any, outs: Any, params: Any, scratch: Any = None, accumulate: bool = False
        ) -> Any:
            form = forms("cupy").get(name)
            if form is None or (accumulate and not native_accumulate(form)):
                return super().bind(name, args, outs, params, scratch, accumulate)
            words = {"accumulate": accumulate, "scratch": None} if native_accumulate(form) else {}
            call = form(outs[0], *args, **params, **words)
            done.extend([name] * (call is not None))
            return call or super().bind(name, args, outs, params, scratch, accumulate)

    with device(), patch("castile.runtime.backends.cuda.DeviceTable", LibraryTable):
        yield done


@pytest.mark.parametrize("machine", [ONE, TWO])
def test_what_libraries_do_is_captured_with_the_rest(machine: Machine) -> None:
    """On the streams of several processors too, each of which has its handle."""
    problem = small()
    split = {name: Config({"b": 2}, 1, (n % 2, 1 - n % 2)) for n, name in enumerate(problem.graph.nodes)}
    plan = Plan(problem, Strategy(split) if machine is TWO else whole_on(problem.graph), machine, 1)
    host = on_host(plan, 5)
    with with_libraries() as done:
        found = Ranks(plan, "cuda").train(5)
    close(found, host)
    assert "contract" in done
    assert all(worker.remark == "" and worker._graph is not None for worker in found.workers)


@drawn(6)
@given(plans(one=True))
def test_all_that_is_bound_is_compiled_before_by_its_name(plan: Plan) -> None:
    pytest.importorskip("triton")
    with device():
        from castile.runtime.backends.cuda import kernels

        def formed(listed: Any, table: Table) -> None:
            made(listed, table)
            listed.forms = forms("triton")

        told: list[list[tuple[str, Choice | None]]] = []
        made, bound = kernels.Listed.__init__, LateTable.bind

        def bind(*call: Any) -> Any:
            assert told, "nothing is bound before"
            return bound(*call)

        ahead = patch.object(kernels.tuning, "precompile", lambda calls, tell: told.append(calls))
        with patch.object(kernels.Listed, "__init__", formed), patch.object(LateTable, "bind", bind), ahead:
            tasks = Ranks(plan, "cuda").prepared.tasks
    (calls,) = told
    assert len(calls) == len(dict(calls)) and set(dict(calls).values()) == {None}
    assert dict(calls).keys() == set(names(Table("triton"), tasks, range(tasks.num_tasks)))


def test_a_library_that_leads_is_taken_where_nothing_was_measured_and_the_device_takes_it() -> None:
    pytest.importorskip("triton")
    xs = [tuning.dense((64, 64), "bfloat16") for _ in range(3)]
    outs, args, params = (xs[0],), ("ik,kj->ij", *xs[1:]), dict[str, Any]()
    named = tuning.call_key(Table("triton"), "contract", outs, args, params, False)
    there = tuning.operands(choice.call_of(named), tuning.dataless)
    tried, refused, first = list[Choice | None](), list[Choice](), Choice("triton", "first")

    def bind(table: Any, *call: Any) -> Any:
        tried.append(call[-1])
        if call[-1] in refused:
            raise Refused("too little memory")
        return len(tried)

    with device(), patch.object(Table, "bind", bind), patch.object(Table, "choices", lambda *call: [first]):
        from castile.runtime.backends.cuda import kernels

        for known, lacking, expected in (
            ({}, [], [Choice("cupy")]),
            ({named: first}, [], [None]),
            ({}, [Choice("cupy")], [Choice("cupy"), first]),
        ):
            tried.clear()
            refused[:] = lacking
            with patch.object(kernels.choice, "_chosen", known):
                kernels.DeviceTable(None).bind("contract", there.args, there.outs, params)
                assert tried == expected
                with patch.object(kernels.tuning, "precompile") as ahead:
                    kernels.compile_ahead([named])
                assert ahead.call_args.args[0] == [(named, None if known else Choice("cupy"))]


@contextmanager
def without_forms() -> Iterator[None]:
    """A device for which no kernel has a form."""
    with nccl.installed():
        from castile.runtime.backends.cuda import kernels

        def empty(table: Any, stream: Any) -> None:
            made(table, stream)
            table.forms, table.library = {}, {}

        made = kernels.DeviceTable.__init__
        with patch.object(kernels.DeviceTable, "__init__", empty):
            yield


@drawn(6)
@given(plans())
def test_kernels_without_a_form_run_on_the_host_and_are_told(plan: Plan) -> None:
    host = Ranks(plan, "numpy").train(3)
    with without_forms():
        found = Ranks(plan, "cuda").train(3)
    # copies lie dense, whatever they are copies of, and NumPy sums what lies dense in another order
    close(found, host)
    tasks = found.prepared.tasks.tasks
    for worker in found.workers:
        kernels = {call.kernel for task in worker.program.tasks for call in tasks[task].body.calls}
        assert bool(worker.remark) == bool(worker.program.tasks)
        # where transfers go by way of the host, that is reason enough
        assert "by way of the host" in worker.remark or all(name in worker.remark for name in kernels)


def test_memory_is_what_the_packing_says_and_what_kernels_took_is_told_apart() -> None:
    problem = small()
    with device():
        ranks = Ranks(Plan(problem, whole_on(problem.graph), ONE, 1), "cuda")
        (execution,) = ranks.executions
        assert execution.runner.nbytes == ranks.prepared.packing.peak_bytes.sum()
        ranks.train(1)
        inputs = execution.runner.persistent("input").values()
        assert execution.runner.workspace_bytes == sum(array.nbytes for array in inputs)


def test_what_no_task_wrote_is_nan_on_a_device_too() -> None:
    problem = small()
    with device():
        (execution,) = Ranks(Plan(problem, whole_on(problem.graph), ONE, 1), "cuda").executions
        outputs = execution.runner.persistent("output")
        assert outputs and all(np.isnan(execution.runner.backend(0).read(array)).all() for array in outputs.values())


def test_a_kernel_that_fails_is_named_with_its_step_and_rank() -> None:
    problem = small()
    with device():
        (execution,) = Ranks(Plan(problem, whole_on(problem.graph), ONE, 1), "cuda").executions
        (worker,) = execution.runner._workers
        at = len(worker.program.tasks) // 2
        calls = [(n, partial(int, "no number") if n == at else call) for n, call in worker._calls]
        with patch.object(worker, "_calls", calls), pytest.raises(ValueError, match="no number") as caught:
            execution.run()
        name = execution.prepared.tasks.tasks[worker.program.tasks[at]].name
        assert caught.value.__notes__ == [f"step 1, task {name}, rank 0"]


def test_a_step_that_cannot_be_captured_runs_all_the_same_and_says_why() -> None:
    problem = small()
    host = on_host(Plan(problem, whole_on(problem.graph), ONE, 1), 3)
    with device():
        import cupy

        ranks = Ranks(Plan(problem, whole_on(problem.graph), ONE, 1), "cuda")
        (worker,) = ranks.executions[0].runner._workers
        # what takes memory cannot be captured
        calls = [*worker._calls, (0, partial(cupy.cuda.Memory, 64))]
        with patch.object(worker, "_calls", calls):
            same(ranks.train(3), host)
        assert "memory cannot be allocated" in worker.remark and worker._graph is None


def test_numbers_of_the_next_step_come_while_this_one_runs() -> None:
    """They reach the device beside the step, which never sees them, and the host does not wait for the step."""
    problem = small()
    with device(3):
        ranks = Ranks(Plan(problem, whole_on(problem.graph), ONE, 1), "cuda")
        (execution,), fed = ranks.executions, iter(enumerate(batches(problem, 6, exact=False)))
        (worker,) = execution.runner._workers
        ranks._feed(fed)
        for _ in range(5):
            execution.runner.begin(False)
            execution.runner.advance()
            ranks._feed(fed)
            assert not worker._spans[0][1].marker.done
            ((supply, _),) = worker._ends
            # the step's first pieces take the numbers before, and then there is room
            for _ in range(1000):
                if not supply._stream.queue:
                    break
                if not supply._stream.do_one():
                    execution.runner.backend(0).compute_stream.do_one()
            assert not worker._spans[0][1].marker.done
            assert all(place.came.marker.done for place in supply._pending.values())
            ranks._run()


def test_a_transfer_that_fails_ends_the_wait() -> None:
    problem = small()
    names = list(problem.graph.nodes)
    apart = Strategy({name: Config({}, 1, (n % 2,)) for n, name in enumerate(names)})
    with device():
        import cupy

        from castile.runtime.comm.nccl import NcclCommunicator

        failing = patch.object(NcclCommunicator, "check", side_effect=RuntimeError("the link is down"))
        with failing:
            plan = Plan(problem, apart, TWO, 2)
            ranks = Ranks(plan, "cuda", NcclCommunicator, lambda rank: cupy.cuda.Device(rank).use())
            ranks._feed(iter(enumerate(batches(problem, 1, exact=False))))
            cupy.cuda.Device(0).use()
            # the other rank never comes
            with pytest.raises(RuntimeError, match="the link is down"):
                ranks.executions[0].run()


def test_a_device_without_room_is_told_before_anything_is_allocated() -> None:
    problem = small()
    with device():
        from cupy.cuda import runtime

        few = patch.object(runtime, "memGetInfo", lambda: (100, 2**30))
        # another rank may have enough, so it is not as of a plan that fits nowhere
        with few, pytest.raises(MemoryError, match="has 100 bytes left"):
            Ranks(Plan(problem, whole_on(problem.graph), ONE, 1), "cuda")


def test_transfers_come_before_kernels_that_could_begin_too() -> None:
    problem = small()
    with device():
        (execution,) = Ranks(Plan(problem, whole_on(problem.graph), ONE, 1), "cuda").executions
        memory = execution.runner.backend(0)
        assert memory.traffic.priority < memory.compute_stream.priority


def test_graphs_of_a_processor_share_its_streams_and_what_is_carried() -> None:
    problem = small()
    with device():
        ranks = Ranks(Plan(problem, whole_on(problem.graph), ONE, 1), "cuda")
        (first,) = ranks.executions
        second = Execution(problem.graph, ranks.prepared, first.comm, [0], first.state, backend="cuda", poison=True)
        both = [execution.runner.backend(0) for execution in (first, second)]
        assert both[0].compute_stream is both[1].compute_stream
        ranks.train(2)
        expected = first.saved()
        assert all(np.array_equal(values, expected[key]) for key, values in second.saved().items())


@pytest.mark.parametrize("taken", ["second", "third", ""])
def test_a_kernel_that_the_device_refuses_runs_in_the_next_way(taken: str) -> None:
    ways = [Choice("triton", text) for text in ("first", "second", "third")]

    def bind(table: Table, *call: Any) -> Any:
        chosen = call[6] if len(call) > 6 else None
        if table.form == "triton" and (chosen is None or chosen.setting != taken):
            raise Refused("too little shared memory")
        return plain(table, *call) if table.form == "numpy" else partial(bound.append, chosen.setting)

    plain, bound = Table.bind, []
    with nccl.installed(), patch.object(Table, "bind", bind), patch.object(Table, "choices", lambda *call: ways):
        import cupy

        from castile.runtime.backends.cuda.kernels import DeviceTable

        x, out = (cupy.asarray(np.arange(4.0)) for _ in range(2))
        table = DeviceTable(cupy.cuda.get_current_stream())
        table.bind("add", (x, x), (out,), {})()
        assert bound == [taken] * bool(taken) and table.on_host == ({"add"} if not taken else set())
        assert out.get().tolist() == ([0, 1, 2, 3] if taken else [0, 2, 4, 6])
