"""NCCL and transfers by way of the host on a real GPU: one rank alone, and ranks that share it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from castile.runtime.comm.base import Side
from castile.runtime.comm.local import LocalWorld
from tests.collective_cases import DTYPES, FORMS, random_case
from tests.mpi import mpirun

pytestmark = pytest.mark.gpu
CASES = Path(__file__).parent / "mpi_cases"


def test_one_rank_by_nccl_issued_and_captured() -> None:
    import cupy

    from castile.runtime.comm.nccl import NcclCommunicator

    end, stream = NcclCommunicator(LocalWorld(1).communicators[0]), cupy.cuda.Stream(non_blocking=True)
    for seed, form in enumerate(FORMS[1:]):
        for dtype in DTYPES:
            case = random_case(np.random.default_rng(seed), form, 1, dtype, (0,))
            with stream:
                send, receive = cupy.asarray(case.send[0]), cupy.asarray(case.receive[0])
            call = end.streamed([Side(form, (0,), send, receive, None, case.counts)], seed + 1, stream)
            assert call is not None
            call()
            case.check_of(0, receive.get(stream))
            stream.begin_capture()
            call()
            graph = stream.end_capture()
            receive.data.memset_async(0, receive.nbytes, stream)
            graph.launch(stream)
            case.check_of(0, receive.get(stream))
            end.check()


def test_after_an_abort_the_failure_is_told() -> None:
    import cupy

    from castile.runtime.comm.nccl import NcclCommunicator, TransferError

    end, stream = NcclCommunicator(LocalWorld(1).communicators[0]), cupy.cuda.Stream(non_blocking=True)
    array = cupy.zeros(4, np.float32)
    call = end.streamed([Side("all_reduce", (0,), array, array, None, ((4,),))], 1, stream)
    assert call is not None
    end._groups[0,].abort()
    for _ in range(2):
        with pytest.raises(TransferError, match="failed: NCCL_ERROR_INVALID_ARGUMENT"):
            call()


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_share_the_gpu_by_way_of_the_host(num_ranks: int) -> None:
    status, output = mpirun(num_ranks, str(CASES / "staged.py"), "device")
    assert status == 0, output
    assert output.count("staged transfers agree") == num_ranks


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_by_nccl_where_it_takes_them(num_ranks: int) -> None:
    status, output = mpirun(num_ranks, str(CASES / "nccl.py"), NCCL_MULTI_RANK_GPU_ENABLE="1", NCCL_MAX_CTAS="4")
    assert status == 0, output
    if "not by NCCL" in output:
        pytest.skip(output.splitlines()[0])
    assert output.count("NCCL agrees") == num_ranks


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_known_plans_train_over_nccl(num_ranks: int) -> None:
    """As one graph and task by task with the same bits, and as one processor does."""
    import cupy

    if num_ranks > max(2, num_gpus := cupy.cuda.runtime.getDeviceCount()):
        pytest.skip(f"{num_ranks} ranks want as many GPUs, and there are {num_gpus}")
    sharing = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"} if num_gpus < num_ranks else {}
    status, output = mpirun(num_ranks, str(CASES / "steps.py"), "cuda", timeout=90, **sharing)
    assert status == 0, output
    if "not by NCCL" in output:
        pytest.skip(output.splitlines()[0])
    assert output.count("learns what one processor learns") == 3
