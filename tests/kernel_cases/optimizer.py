"""Cases of the kernels of optimizers."""

from collections.abc import Callable, Iterator
from functools import wraps

import numpy as np

from tests.kernel_cases import MANY, SHAPES, Case, Draw

Cases = Callable[[Draw], Iterator[Case]]


def guarded(length: int) -> Callable[[Cases], Cases]:
    """The cases, of parameters of so many arrays, and the first three again with guards of which every second holds.

    These come seventh, since not all that is tried is tried with every case, but with every second or third.
    """

    def again(cases: Cases) -> Cases:
        @wraps(cases)
        def every(draw: Draw) -> Iterator[Case]:
            found, more = list(cases(draw)), []
            for number, (args, params) in enumerate(found[:3]):
                rows = [args[n : n + length] for n in range(0, len(args), length)]
                flags = (np.array((number + n) % 2, draw.dtype) for n in range(len(rows)))
                guards = tuple(x for row, flag in zip(rows, flags, strict=True) for x in (*row, flag))
                more.append((guards, params | {"guarded": True}))
            yield from (*found[:6], *more, *found[6:])

        return every

    return again


@guarded(4)
def case_sgd(draw: Draw) -> Iterator[Case]:
    params = {"momentum": 0.9, "decay": 0.1, "nesterov": True}
    yield tuple(x for shape in MANY for x in (draw(*shape), draw(*shape), draw(*shape), draw())), params
    for shape in SHAPES:
        for momentum, nesterov in [(0.0, False), (0.9, False), (0.9, True)]:
            params = {"momentum": momentum, "decay": 0.1, "nesterov": nesterov}
            yield (draw(*shape), draw(*shape), draw(*shape), draw()), params


@guarded(6)
def case_adam(draw: Draw) -> Iterator[Case]:
    params = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "decay": 0.1, "decoupled": True}
    arrays = [(*(draw(*shape) for _ in range(3)), positive(draw, *shape), positive(draw)) for shape in MANY]
    yield tuple(x for one in arrays for x in (*one, np.array(3, draw.dtype))), params
    for shape in SHAPES:
        for decoupled, step in [(False, 1), (True, 30)]:
            params = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "decay": 0.1, "decoupled": decoupled}
            w, g, m = (draw(*shape) for _ in range(3))
            yield (w, g, m, positive(draw, *shape), positive(draw), np.array(step, draw.dtype)), params
    # without memory of gradients before
    params |= {"beta1": 0.0}
    yield (w, g, m, positive(draw, *shape), positive(draw), np.array(step, draw.dtype)), params


@guarded(4)
def case_lion(draw: Draw) -> Iterator[Case]:
    params = {"beta1": 0.9, "beta2": 0.99, "decay": 0.1}
    yield tuple(x for shape in MANY for x in (draw(*shape), draw(*shape), draw(*shape), positive(draw))), params
    for shape in SHAPES:
        params = {"beta1": 0.9, "beta2": 0.99, "decay": 0.1}
        yield (draw(*shape), draw(*shape), draw(*shape), positive(draw)), params


@guarded(6)
def case_adafactor(draw: Draw) -> Iterator[Case]:
    def arrays(shape: tuple[int, ...], step: int) -> tuple[np.ndarray, ...]:
        rows = positive(draw, *(shape[:-1] if len(shape) > 1 else shape))
        columns = positive(draw, *shape[:-2], *shape[-1:])
        return draw(*shape), draw(*shape), rows, columns, positive(draw), np.array(step, draw.dtype)

    params = {"beta2_decay": -0.8, "eps1": 1e-7, "eps2": 1e-3, "clip": 1.0, "decay": 0.1}
    some = [shape for shape in (*MANY[:11], (2, 3, 4, 5), (70, 3)) if shape != (0,)]
    yield tuple(x for shape in some for x in arrays(shape, 3)), params
    # Two in turn, as not all that is tried is tried with every case, but with every second or third.
    for number, shape in enumerate([(), *SHAPES]):
        clip, step = [(1.0, 30), (0.1, 1)][number // 2 % 2]
        yield arrays(shape, step), params | {"clip": clip}


def positive(draw: Draw, *shape: int) -> np.ndarray:
    return np.asarray(np.abs(draw(*shape)))
