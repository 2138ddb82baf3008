"""Cases of operators: optimizer."""

import numpy as np

from castile.planner.op import find
from castile.planner.ops.sgd import Sgd
from tests.op_cases import case


def cases_sgd(rng):
    for settings in ((0.0, 0.0, False), (0.9, 0.0, False), (0.9, 0.01, True)):
        for shape, axes in (((7,), "o"), ((5, 3), "o i")):
            w, g, m = ((rng.normal(size=shape), axes) for _ in range(3))
            yield case(Sgd(*settings), w, g, m, (np.array(0.1), ""))


def cases_adam(rng):
    for settings in ((), (0.8, 0.9, 1e-3, 0.1)):
        yield from _moving(find("adam")(*settings), rng)


def cases_adamw(rng):
    for settings in ((), (0.8, 0.9, 1e-3, 0.1)):
        yield from _moving(find("adamw")(*settings), rng)


def cases_lion(rng):
    for settings in ((), (0.8, 0.9, 0.1)):
        for shape, axes in (((7,), "o"), ((5, 3), "o i")):
            w, g, m = ((rng.normal(size=shape), axes) for _ in range(3))
            yield case(find("lion")(*settings), w, g, m, (np.array(0.1), ""))


def cases_adafactor(rng):
    for settings in ((), (-0.5, 1e-3, 1e-2, 0.25, 0.1)):
        op = find("adafactor")(*settings)
        for shape, axes in (((7,), "o"), ((5, 3), "o i"), ((3, 2, 5), "o i r")):
            w, g = ((rng.normal(size=shape), axes) for _ in range(2))
            labels = [" ".join(op.state_axes(label, tuple(axes.split()))) for label in ("rows", "columns")]
            sizes = shape[:-1] if len(shape) > 1 else shape, shape[:-2] + shape[-1:]
            states = [(rng.uniform(size=size), label) for size, label in zip(sizes, labels, strict=True)]
            yield case(op, w, g, *states, (np.array(0.1), ""), (np.array(3.0), ""))


def _moving(op, rng):
    for shape, axes in (((7,), "o"), ((5, 3), "o i")):
        w, g, m = ((rng.normal(size=shape), axes) for _ in range(3))
        yield case(op, w, g, m, (rng.uniform(size=shape), axes), (np.array(0.1), ""), (np.array(3.0), ""))
