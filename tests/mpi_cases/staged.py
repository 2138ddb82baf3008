"""Run by tests on several ranks: every form by way of the host, many at once, on a stand-in of the device.

With the word "device" on the first real one, which the ranks share.
"""

import importlib
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from castile.runtime.comm.mpi import world
from tests import stand_in
from tests.collective_cases import DTYPES, FORMS, random_case, side

comm = world()
real = "device" in sys.argv[1:]
with nullcontext(importlib.import_module("cupy")) if real else stand_in.installed(comm.rank) as cupy:
    from castile.runtime.comm.staged import StagedEnd

    compute, traffic = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    end = StagedEnd(comm, compute, traffic)
    requests, results = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        group = rng.permutation(comm.size)[: int(rng.integers(2, comm.size + 1))].tolist()
        form = FORMS[seed % len(FORMS)]
        group = group[:2] if form == "move" else group
        case = random_case(rng, form, len(group), DTYPES[seed % len(DTYPES)], group)
        if comm.rank not in group:
            continue
        member = group.index(comm.rank)
        with compute:
            send, receive, scratch = (
                None if values is None else cupy.asarray(values)
                for values in (case.send[member], case.receive[member], case.scratch[member])
            )
        mine = side(case, send, receive, scratch)
        requests.append(end.prepared([mine], seed + 1)())
        results.append((seed, mine.receive, case.expected[member]))
    comm.wait(*requests)
    for seed, receive, expected in results:
        assert receive is None or receive.get(compute).tobytes() == expected.tobytes(), f"case {seed}"
comm.barrier()
print("staged transfers agree", flush=True)
