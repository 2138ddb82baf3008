"""Run by tests on several ranks: three hosts with clocks of their own, to which a launcher dealt out ranks in turn."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from castile.runtime.comm import mpi

NUM_HOSTS, SECOND = 3, 10**9
number = MPI.COMM_WORLD.Get_rank()
host, mine = number % NUM_HOSTS, range(number % NUM_HOSTS, MPI.COMM_WORLD.Get_size(), NUM_HOSTS)


class Hosts(MPI.Intracomm):
    """A communicator whose ranks share memory with those of their host alone."""

    def Split(self, color: int = 0, key: int = 0) -> "Hosts":
        return Hosts(super().Split(color, key))

    def Split_type(self, kind: int, key: int = 0) -> "Hosts":
        return self.Split(host, key)


class Library:
    """MPI as it is on these hosts."""

    COMM_WORLD = Hosts(MPI.COMM_WORLD)

    def __getattr__(self, name: str) -> object:
        return getattr(MPI, name)


# each host began so many seconds before the first, or after it
ahead = (0, 5, -2)[host] * SECOND
mpi.MPI = Library()
mpi.time = SimpleNamespace(perf_counter_ns=lambda: time.perf_counter_ns() + ahead, sleep=time.sleep)
comm = mpi.world()

sizes = [len(range(n, comm.size, NUM_HOSTS)) for n in range(NUM_HOSTS)]
assert comm.host_sizes == tuple(sizes) and comm.host_index == host
# those of a host are neighbours, in the order in which they were launched
assert comm.rank == sum(sizes[:host]) + mine.index(number)
assert (comm.local_rank, comm.local_size) == (mine.index(number), len(mine))
assert (comm.near.rank, comm.near.size) == (mine.index(number), len(mine))
assert (comm.near is comm) == (len(mine) == comm.size)
told = comm.near.gather_bytes(str(number).encode())
assert told == ([str(n).encode() for n in mine] if comm.near.rank == 0 else None)

# One moment is the same on all of them, when they begin and when asked again.
for _ in range(2):
    epochs = comm.gather_bytes(str(comm.epoch_ns - ahead).encode())
    if epochs is not None:
        assert max(map(int, epochs)) - min(map(int, epochs)) < SECOND // 100, epochs
    comm.align_clocks()
print("hosts agree", flush=True)
