"""Run by tests on several ranks that have GPUs: every form by NCCL, or why NCCL does not take these ranks."""

import sys
import zlib
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import cupy

from castile.runtime.backends.cuda.graphs import Captured
from castile.runtime.comm.base import Side
from castile.runtime.comm.mpi import world
from castile.runtime.comm.nccl import choose
from tests.collective_cases import DTYPES, FORMS, random_case, side

comm = world()
cupy.cuda.Device(comm.local_rank % cupy.cuda.runtime.getDeviceCount()).use()
chosen, why = choose(comm)
if chosen is comm:
    print(f"not by NCCL: {why}", flush=True)
    comm.barrier()
    sys.exit()
stream = cupy.cuda.Stream(non_blocking=True)


def wait() -> None:
    while not stream.done:
        chosen.check()


for seed in range(42):
    rng = np.random.default_rng(seed)
    group = rng.permutation(comm.size)[: int(rng.integers(2, comm.size + 1))].tolist()
    form = FORMS[seed % len(FORMS)]
    group = group[:2] if form == "move" else group
    case = random_case(rng, form, len(group), DTYPES[seed // len(FORMS) % len(DTYPES)], group)
    if comm.rank not in group:
        continue
    member = group.index(comm.rank)
    with stream:
        send, receive = cupy.asarray(case.send[member]), cupy.asarray(case.receive[member])
    mine = side(case, send, receive, None)
    call = chosen.streamed([mine], seed + 1, stream)
    call()
    wait()
    if mine.receive is not None:
        case.check_of(comm.rank, receive.get(stream))
    # Again as a graph of kernels: of one rank alone there would be copies.
    captured = Captured()
    captured.take(stream, call, is_one=False)
    if mine.receive is not None:
        receive.data.memset_async(0xFF, receive.nbytes, stream)
    captured.graph.launch(stream)
    wait()
    if mine.receive is not None:
        case.check_of(comm.rank, receive.get(stream))
    captured.clear()

# A sum has the same bits on every rank, and every time.
n = 1_000_003
with stream:
    send = cupy.asarray(np.random.default_rng(comm.rank).standard_normal(n, np.float32))
    receive = cupy.empty_like(send)
counts = ((n,) + (0,) * (comm.size - 1),) * comm.size
call = chosen.streamed([Side("all_reduce", range(comm.size), send, receive, None, counts)], 99, stream)
sums = set()
for _ in range(3):
    call()
    wait()
    sums.add(zlib.crc32(receive.get(stream).tobytes()))
assert len(sums) == 1
found = comm.gather_bytes(str(sums.pop()).encode())
assert found is None or len(set(found)) == 1, found
comm.barrier()
print("NCCL agrees", flush=True)
