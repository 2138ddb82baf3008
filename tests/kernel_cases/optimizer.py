"""Cases of the kernels of optimizers."""

from collections.abc import Iterator

import numpy as np

from tests.kernel_cases import SHAPES, Case, Draw

# Several parameters at once: more than one launch takes, of no element, and of more than a program has.
MANY = ((3, 5), (4, 4), (2500,), (0,), (1,), (64,), (7, 9), (2, 3), (5,), (11, 100), (13,)) * 2


def case_sgd(draw: Draw) -> Iterator[Case]:
    params = {"momentum": 0.9, "decay": 0.1, "nesterov": True}
    yield tuple(x for shape in MANY for x in (draw(*shape), draw(*shape), draw(*shape), draw())), params
    for shape in SHAPES:
        for momentum, nesterov in [(0.0, False), (0.9, False), (0.9, True)]:
            params = {"momentum": momentum, "decay": 0.1, "nesterov": nesterov}
            yield (draw(*shape), draw(*shape), draw(*shape), draw()), params


def case_adam(draw: Draw) -> Iterator[Case]:
    params = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "decay": 0.1, "decoupled": True}
    arrays = [(*(draw(*shape) for _ in range(3)), positive(draw, *shape), positive(draw)) for shape in MANY]
    yield tuple(x for one in arrays for x in (*one, np.array(3, draw.dtype))), params
    for shape in SHAPES:
        for decoupled, step in [(False, 1), (True, 30)]:
            params = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "decay": 0.1, "decoupled": decoupled}
            w, g, m = (draw(*shape) for _ in range(3))
            yield (w, g, m, positive(draw, *shape), positive(draw), np.array(step, draw.dtype)), params


def case_lion(draw: Draw) -> Iterator[Case]:
    params = {"beta1": 0.9, "beta2": 0.99, "decay": 0.1}
    yield tuple(x for shape in MANY for x in (draw(*shape), draw(*shape), draw(*shape), positive(draw))), params
    for shape in SHAPES:
        params = {"beta1": 0.9, "beta2": 0.99, "decay": 0.1}
        yield (draw(*shape), draw(*shape), draw(*shape), positive(draw)), params


def case_adafactor(draw: Draw) -> Iterator[Case]:
    for shape in [(), *SHAPES]:
        for clip, step in [(1.0, 30), (0.1, 1)]:
            params = {"beta2_decay": -0.8, "eps1": 1e-7, "eps2": 1e-3, "clip": clip, "decay": 0.1}
            rows, columns = (
                positive(draw, *(shape[:-1] if len(shape) > 1 else shape)),
                positive(draw, *shape[:-2], *shape[-1:]),
            )
            yield (draw(*shape), draw(*shape), rows, columns, positive(draw), np.array(step, draw.dtype)), params


def positive(draw: Draw, *shape: int) -> np.ndarray:
    return np.asarray(np.abs(draw(*shape)))
