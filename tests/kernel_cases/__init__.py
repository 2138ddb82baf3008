"""A generator of cases for every kernel, `case_<name>`: small, odd and broken shapes, and one of some size.

It knows no form and no tolerance.
"""

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np

Case = tuple[tuple[Any, ...], dict[str, Any]]


class Draw:
    """Random operands of one dtype."""

    def __init__(self, dtype: str, seed: int = 0) -> None:
        self.dtype, self.random = dtype, np.random.default_rng(seed)

    def __call__(self, *shape: int) -> np.ndarray:
        return np.asarray(self.random.normal(size=shape), self.dtype)

    def ids(self, below: int, *shape: int, dtype: str = "int64") -> np.ndarray:
        return self.random.integers(0, below, shape).astype(dtype)


# The last three have short rows, more of them than work at once, and rows too long to work on at once.
SHAPES = [(1,), (63,), (3, 1), (1, 5, 7), (2, 3, 4, 5), (17, 129), (3, 7, 33, 4), (700, 3), (2, 1030)]
# Several arrays at once: more than one launch takes, of no element, and of more than a program has.
MANY = ((3, 5), (4, 4), (2500,), (0,), (1,), (64,), (7, 9), (2, 3), (5,), (11, 100), (13,)) * 2
IMAGES = [
    ((2, 3, 8, 8), 4, (3, 3), (1, 1), (1, 1, 1, 1)),
    ((1, 1, 5, 7), 2, (1, 1), (1, 1), (0, 0, 0, 0)),
    ((3, 2, 6, 5), 1, (1, 1), (2, 2), (0, 0, 0, 0)),
    ((2, 3, 9, 7), 5, (2, 3), (2, 3), (0, 1, 2, 0)),
    ((1, 2, 3, 1), 3, (3, 1), (1, 1), (2, 2, 0, 0)),
    ((2, 1, 4, 4), 2, (4, 4), (1, 1), (3, 3, 3, 3)),
    ((3, 5, 17, 16), 4, (3, 3), (1, 1), (1, 1, 1, 1)),
    # Parts of images split along the width, whose rows are longer than those of their results.
    ((5, 3, 8, 5), 4, (3, 3), (1, 1), (1, 1, 1, 0)),
    ((2, 3, 6, 40), 2, (3, 3), (1, 1), (0, 1, 0, 1)),
    ((2, 3, 8, 4), 2, (1, 1), (1, 1), (0, 0, 0, 0)),
    # Rows of which every other column is of another phase, and windows whose rows are vectors of few channels.
    ((2, 3, 8, 16), 4, (3, 3), (2, 2), (1, 1, 1, 1)),
    ((2, 3, 9, 16), 4, (7, 7), (2, 2), (3, 3, 3, 3)),
    ((2, 5, 7, 9), 3, (2, 4), (2, 1), (0, 1, 2, 0)),
]


def cases(name: str, dtype: str) -> list[Case]:
    """All cases of one kernel."""
    return list(_generators()[name](Draw(dtype)))


def kernels_with_cases() -> set[str]:
    """Names of the kernels that have a generator in this folder."""
    return set(_generators())


@cache
def _generators() -> dict[str, Callable[[Draw], Iterator[Case]]]:
    modules = [import_module(f"{__name__}.{info.name}") for info in iter_modules(__path__)]
    found = [pair for module in modules for pair in inspect.getmembers(module, inspect.isfunction)]
    return {name.removeprefix("case_"): function for name, function in found if name.startswith("case_")}
