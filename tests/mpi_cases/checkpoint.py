"""Run by tests on several ranks: saves in the background of steps, is polled after each, and reads across the ranks."""

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from castile.launch.checkpoints import folder as folders
from castile.launch.checkpoints.checkpointer import Checkpointer
from castile.runtime.comm.mpi import world
from castile.runtime.region import slices
from tests.checkpoints import BATCH, FACTS, PLAN, cut, state

comm = world()
saver = Checkpointer(sys.argv[1], comm, 5, 2, FACTS)
saver.prepare(cut(state(0), comm.rank, comm.size), PLAN)
told = []
for step in range(1, 21):
    time.sleep(0.002 * comm.rank)
    if saver.due(step):
        saver.save(step, step * BATCH, cut(state(step), comm.rank, comm.size), PLAN)
    told.append(saver.poll())
told.append(saver.close())
assert [o.step for o in told if o is not None and o.complete] == [5, 10, 15, 20], told
comm.barrier()
found = folders.latest(sys.argv[1])
assert found is not None and found.step == 20 and list(folders.checkpoints(sys.argv[1])) == [15, 20]
reader = found.open()
# another cut than the one that wrote
for (region, box, _), array in cut(state(20), comm.rank, comm.size + 1).items():
    assert np.array_equal(reader.read(region, box), array), (region, box)
    assert np.array_equal(array, state(20)[region][slices(box)])
print("checkpoint agrees", flush=True)
