"""A machine, keys of what it does, and what that is measured to take."""

import math

import numpy as np
from hypothesis import strategies as st

from castile.planner.cost import CostModel
from castile.planner.costs.snapshot import Environment, Measured, snapshot_of
from castile.runtime.machine import Level, Machine, Processor
from castile.runtime.task import CostKey

HERE = Environment("test")
CPU = Processor("cpu", 5e10, 1e10, 2**30, task_overhead_seconds=5e-6, float64_flops_per_second=2.5e10)
MACHINE = Machine("m", (CPU,) * 4, (Level("host", 4, 1e-5, 8e9),), (0,) * 5)
FORMS = ("move", "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")
SOURCES = ("measured", "interpolated", "learned", "roofline")


def product(b, i, o, name="linear.F", dtype="float32"):
    return CostKey(name, f"{b}x{i},{o}x{i}", dtype, 2 * b * i * o, 4 * (b * i + i * o + b * o))


def sized(flops, nbytes, name="linear.F"):
    return CostKey(name, f"{flops},{nbytes}", "float32", flops, nbytes)


def transfer(form, nbytes, members=2, link="host"):
    return CostKey(form, "", "float32", 0, nbytes, link, members)


def truth(key):
    """Another machine than the model thinks, seconds."""
    if key.link:
        return 4e-5 + key.nbytes / 2.5e9
    return 3e-6 + key.flops / 9e10 + key.nbytes / 2.5e10


def measured(keys, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    return snapshot_of(HERE, [Measured(key, truth(key) * math.exp(rng.normal(0, noise))) for key in keys])


def model(keys, **of):
    return CostModel(MACHINE, measured(keys, **of))


sizes = st.integers(1, 10**10)
keys = st.one_of(
    st.builds(sized, sizes, sizes, st.sampled_from(["linear.F", "linear.B", "relu.F", "pack", "fold"])),
    st.builds(transfer, st.sampled_from(FORMS), sizes, st.sampled_from([2, 3, 4])),
)
