"""Run by tests on several ranks: the heat example, each rank a block or two of rows."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from castile.runtime import machine
from castile.runtime.comm.mpi import world
from tests.stencil import heat, jacobi, random_plate

comm = world()
for procs in (comm.size, 2 * comm.size):
    plate = random_plate(17, 9)
    mine = heat.spread(machine.local(procs), plate, 4, 3, [comm])
    held = ~np.isnan(mine)
    assert held.any() and np.array_equal(mine[held], jacobi(plate, 12)[held])
print("plates agree", flush=True)
