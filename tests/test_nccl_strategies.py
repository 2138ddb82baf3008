"""Plans on several ranks with NCCL, on a stand-in: one order of transfers on all ranks, and faults that are told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import named_plans, standing
from tests.effort import examples, some
from tests.named_plans import links, network
from tests.stand_in import nccl as fake
from tests.test_cuda import Plan, Ranks, close, device, drawn, on_host, plans, same
from tests.test_nccl import is_one_order

CASES = Path(__file__).parent / "mpi_cases"


def shells(plan: Plan, cupy: Any) -> Ranks:
    """The ranks of a plan, each with a device of its own and NCCL."""
    from castile.runtime.comm.nccl import NcclCommunicator

    return Ranks(plan, "cuda", NcclCommunicator, lambda rank: cupy.cuda.Device(rank).use())


def in_one_order(plan: Plan, seed: int) -> set[str]:
    """Trains, and looks at the order of all that NCCL was asked for; the names of the calls."""
    host = on_host(plan, 2)
    with device(seed) as cupy:
        # timed steps are put onto streams task by task, so that each call is seen
        found = shells(plan, cupy).train(2, timed=True)
        close(found, host)
        assert is_one_order(fake.journal) and not fake.journal.hanging_ends
        streams = {stream for stream, *_ in fake.journal.calls}
        names = {name for *_, words in fake.journal.calls for name in words.split() if name.isalpha()}
    assert len(streams) <= plan.size, "a rank's transfers lie on one stream"
    groups = [set(comm.group) for task in found.prepared.tasks.tasks for comm in task.comms]
    assert bool(streams) == any(len(group) > 1 for group in groups)
    return names


@drawn(examples(15))
@given(plans(each=True), st.integers(0, 2**16))
def test_transfers_of_any_plan_come_in_one_order_on_all_ranks(plan: Plan, seed: int) -> None:
    in_one_order(plan, seed)


@pytest.mark.parametrize("size", [3])
def test_named_plans_come_in_one_order_and_use_all_that_there_is(size: int) -> None:
    problem, seen = network(), set[str]()
    for strategy in some([*named_plans.plans(problem, size).values()]):
        seen |= in_one_order(Plan(problem, strategy, links(size), size), size)
    wanted = {"send", "recv", "allReduce", "reduce", "reduceScatter", "allGather"}
    assert wanted | ({"broadcast"} if size > 2 else set()) <= seen, seen


@drawn(examples(25))
@given(plans(each=True), st.integers(0, 2**16), st.floats(0, 1))
def test_a_fault_at_any_call_ends_the_step_in_words(plan: Plan, seed: int, share: float) -> None:
    with device(seed) as cupy:
        shells(plan, cupy).train(2)
        num_calls = fake.journal.num_calls
    if not num_calls:
        return
    with device(seed) as cupy:
        from castile.runtime.comm.nccl import TransferError

        fake.journal.fails_at = 1 + int(share * (num_calls - 1))
        ranks = None
        with pytest.raises(TransferError, match=r"^rank \d: .* over ranks .*|^rank \d: the meeting of ranks") as caught:
            ranks = shells(plan, cupy)
            ranks.train(2)
        assert "failed: NCCL_ERROR_SYSTEM_ERROR" in str(caught.value)
        # Not even of a graph that was being captured as it failed.
        assert not fake.journal.hanging_ends
        if ranks is None:
            assert "meeting" in str(caught.value)
        else:
            names_its_task(caught.value, ranks)


def names_its_task(error: Any, ranks: Ranks) -> None:
    """A note has the task of the transfer that failed at its call, whatever the rank did since then; of one that failed
    under way the last over these ranks, and that it may be one before.
    """
    (note,) = error.__notes__
    said = re.fullmatch(r"step \d, (at or before )?task (.*), rank (\d)", note)
    assert said and str(error).startswith(f"rank {said[3]}: ")
    (worker,) = ranks.executions[int(said[3])].runner._workers
    tasks = ranks.prepared.tasks.tasks
    moving = [task for task in tasks if task.comms]
    if said[1]:
        over = re.search(r"a transfer over ranks ([\d, ]+) failed", str(error))
        own = [tasks[number] for number in worker.program.tasks if tasks[number].comms]
        wanted = [task for task in own if over and ", ".join(map(str, sorted(task.comms[0].group))) == over[1]][-1]
    else:
        number = re.search(r"\(transfer (\d+)\) failed", str(error))
        assert number
        wanted = moving[int(number[1]) - 1]
    assert said[2] == wanted.name


def on_two() -> Plan:
    """A network on two ranks by data parallelism: its gradients are summed over both."""
    problem = network()
    return Plan(problem, named_plans.plans(problem, 2)["data"], links(2), 2)


@pytest.mark.parametrize("among", [False, True], ids=["one graph", "two graphs"])
@pytest.mark.parametrize("captured", [False, True])
def test_a_transfer_that_fails_under_way_is_named(captured: bool, among: bool) -> None:
    """Of the graph that was run, be there another one over the same ranks that was issued since."""
    plan, others = on_two(), Plan(network(), named_plans.plans(network(), 2)["model"], links(2), 2)
    with device(1) as cupy:
        from castile.runtime.comm.nccl import NcclCommunicator, TransferError

        comms: dict[int, Any] = {}

        def reach(comm: Any) -> Any:
            return comms.setdefault(comm.rank, NcclCommunicator(comm))

        ranks, other = (Ranks(p, "cuda", reach, lambda rank: cupy.cuda.Device(rank).use()) for p in (plan, others))
        ranks.train(1 + captured)
        if among:
            other.train(1, timed=True)
        cupy.cuda.Device(0).use()
        runner = ranks.executions[0].runner
        assert (runner._workers[0]._graph is not None) == captured
        runner.begin(timed=not captured)
        runner.advance()
        comms[0]._groups[0, 1]._error = fake.REMOTE_ERROR
        # the other rank never comes
        with pytest.raises(TransferError, match="a transfer over ranks 0, 1 failed") as caught:
            runner.advance()
        assert "at or before" in caught.value.__notes__[-1]
        names_its_task(caught.value, ranks)


@pytest.mark.parametrize("fails", [False, True])
def test_no_graph_holds_a_communicator_that_ends(fails: bool) -> None:
    """NCCL would wait for it to go."""
    plan = on_two()
    with device(1) as cupy:
        from castile.runtime.comm import nccl

        ranks = shells(plan, cupy)
        ranks.train(3)
        cupy.cuda.Device(0).use()
        runner = ranks.executions[0].runner
        (worker,), comm = runner._workers, runner.comm
        groups = list(comm._groups.values())
        assert worker._graph is not None
        if fails:
            comm._groups[0, 1]._error = fake.REMOTE_ERROR
            with pytest.raises(nccl.TransferError):
                runner.run()
        else:
            nccl._destroy(comm._groups, comm._let_go)
        assert not fake.journal.hanging_ends and worker._graph is None
        assert groups and all(group._aborted for group in groups)


@pytest.mark.mpi
def test_what_ranks_of_gpus_are_asked_to_train_ranks_of_cores_train() -> None:
    status, output, errors = standing.run(2, str(CASES / "steps.py"), "numpy")
    assert status == 0 and output.count("learns what one processor learns") == 3, errors


@drawn(examples(10))
@given(plans(each=True), st.integers(0, 2**16))
def test_the_same_plan_has_the_same_bits(plan: Plan, seed: int) -> None:
    found = []
    for turns in (seed, seed + 1):
        with device(turns) as cupy:
            found.append(shells(plan, cupy).train(2))
    same(*found)


@pytest.mark.parametrize("why", ["a kernel on the host", "what cannot be captured"])
def test_a_step_is_captured_by_all_ranks_or_by_none(why: str) -> None:
    """Whether a call of NCCL's is captured must be alike on all its ranks; only that in the middle knows a reason."""
    problem = network()
    strategy = named_plans.plans(problem, 3)["data"]
    plan = Plan(problem, strategy, links(3), 3)
    host = on_host(plan, 4)
    with device(1) as cupy:
        ranks = shells(plan, cupy)
        workers = [execution.runner._workers[0] for execution in ranks.executions]
        if why == "a kernel on the host":
            workers[1].uncaptured = why
        else:

            def refused() -> None:
                if workers[1]._origin.capture is not None:
                    raise RuntimeError(why)

            workers[1]._calls.insert(len(workers[1]._calls) // 2, (0, refused))
        close(ranks.train(4), host)
        assert [worker._graph for worker in workers] == [None] * 3
        assert why in workers[1].remark
        assert all("another rank's" in workers[rank].remark for rank in (0, 2))
        assert not fake.journal.hanging_ends and not any(graph.nodes for graph in cupy.cuda.world.graphs)


@pytest.mark.parametrize("known", [True, False])
def test_transfers_of_a_captured_step_have_their_priority(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the driver knows none all of it has that of the stream on which it is launched, as in what CuPy makes."""
    plan = on_two()
    with device(1) as cupy:
        if not known:
            monkeypatch.setattr(cupy.cuda.graphs, "BY_NODE", 0)
        ranks = shells(plan, cupy)
        ranks.train(4)
        assert all(execution.runner._workers[0]._graph is not None for execution in ranks.executions)
        done = cupy.cuda.world.priorities
    for name, priority in done:
        assert priority == (-1 if known and name.startswith(("all", "reduce", "send", "recv")) else 0), name
    assert {priority for _, priority in done} == ({-1, 0} if known else {0})
