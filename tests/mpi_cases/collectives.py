"""Run by tests on several ranks: every form, many outstanding at once, and begun in another order on each rank."""

import itertools
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from castile.runtime.comm.mpi import world
from castile.runtime.task import AT_ONCE
from tests.collective_cases import DTYPES, FORMS, begin, prepare, random_case

comm = world()
cases = []
for seed in range(60):
    rng = np.random.default_rng(seed)
    group = rng.permutation(comm.size)[: int(rng.integers(2, comm.size + 1))].tolist()
    form = FORMS[seed % len(FORMS)]
    group = group[:2] if form == "move" else group
    cases.append(random_case(rng, form, len(group), DTYPES[seed % len(DTYPES)], group))
mine = [tag for tag, case in enumerate(cases) if comm.rank in case.group]
order = np.random.default_rng(comm.rank).permutation(len(mine))
comm.wait(*[begin(comm, cases[mine[at]], mine[at]) for at in order])
for tag in mine:
    member = cases[tag].group.index(comm.rank)
    assert cases[tag].receive[member].tobytes() == cases[tag].expected[member].tobytes(), f"case {tag}"

# What was prepared is begun again, with other numbers. Several that begin together, under one tag; groups of them side
# by side, begun in another order on each rank.
forms = np.random.default_rng(0).choice(AT_ONCE, (10, 3)).tolist()
groups = [[random_case(np.random.default_rng([n, m]), form, comm.size, DTYPES[n % len(DTYPES)])
           for m, form in enumerate(row)] for n, row in enumerate(forms)]  # fmt: skip
groups += [[case] for case in cases]
mine = [n for n, (case, *_) in enumerate(groups) if comm.rank in case.group]
calls = {n: prepare(comm, groups[n], len(cases) + n) for n in mine}
for time in range(3):
    for case in itertools.chain.from_iterable(groups):
        case.renew(time)
    comm.barrier()
    comm.wait(*[calls[n]() for n in np.random.default_rng([comm.rank, time]).permutation(mine)])
    for case in itertools.chain.from_iterable(groups[n] for n in mine):
        member = case.group.index(comm.rank)
        assert case.receive[member].tobytes() == case.expected[member].tobytes(), case.form

# Longer than what MPI sends at once, so that both sides must make progress.
n = 3_000_001
big = random_case(np.random.default_rng(1), "all_reduce", comm.size, "float32")
counts = (tuple(n // comm.size + (rank < n % comm.size) for rank in range(comm.size)),) * comm.size
data = [np.random.default_rng(rank).standard_normal(n).astype("float32") for rank in range(comm.size)]
total = data[0].copy()
for part in data[1:]:
    total += part
receive, scratch = np.empty(n, "float32"), np.empty((comm.size - 1) * counts[0][comm.rank], "float32")
comm.wait(comm.collective("all_reduce", range(comm.size), data[comm.rank], receive, scratch, counts, 9))
assert receive.tobytes() == total.tobytes()

# A message to oneself, one with no bytes, and the words between ranks.
a, b, none = np.arange(4.0), np.zeros(4), np.zeros(0)
peer = comm.size - 1 - comm.rank
comm.wait(comm.recv(b, comm.rank, 3), comm.send(a, comm.rank, 3), comm.send(none, peer, 4), comm.recv(none, peer, 4))
assert np.array_equal(a, b)
assert comm.bcast_bytes(b"the plan" * 1000 if comm.rank == 0 else None) == b"the plan" * 1000
assert comm.bcast_bytes(b"" if comm.rank == 1 else None, root=1) == b""
words = comm.gather_bytes(b"x" * comm.rank)
assert words == ([b"x" * rank for rank in range(comm.size)] if comm.rank == 0 else None)
assert (comm.host_sizes, comm.host_index, comm.local_size) == ((comm.size,), 0, comm.size) and comm.near is comm
assert comm.local_rank == comm.rank
epoch = comm.epoch_ns
comm.align_clocks()
assert comm.epoch_ns == epoch, "one host has one clock"
print("collectives agree", flush=True)
