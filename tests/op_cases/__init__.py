"""Cases for the laws of operators: a function `cases_<operator>` for each, found by its name.

A new operator needs one such function and nothing else to be held to every law.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

import numpy as np
import pytest

from castile.planner.op import Op, Tensor, available


@dataclass(frozen=True, eq=False)
class Case:
    """An operator and its operands."""

    op: Op
    tensors: tuple[Tensor, ...]
    arrays: tuple[np.ndarray, ...] = field(repr=False)

    def __str__(self) -> str:
        settings = ",".join(f"{name}={value}" for name, value in self.op.settings)
        shapes = " ".join("x".join(map(str, t.shape)) or "()" for t in self.tensors)
        return f"{self.op.name}({settings}) {shapes}"


WINDOWS = (
    # height, width, kernel, stride, padding
    (6, 5, (3, 3), (1, 1), (1, 1)),
    (7, 5, (3, 2), (2, 1), (1, 0)),
    (9, 4, (2, 1), (3, 1), (0, 0)),
    (5, 8, (1, 1), (2, 3), (0, 0)),
    (5, 6, (5, 3), (1, 2), (4, 2)),
    (8, 8, (4, 4), (4, 4), (0, 0)),
    (11, 5, (3, 3), (5, 2), (2, 1)),
)


def cases_of(name: str) -> list[Case]:
    """The cases of an operator; a KeyError where there is no function for it."""
    return list(_generators()[name](np.random.default_rng(len(name))))


def every_case(law: Callable[[Case], None]) -> Callable[[str], None]:
    """A test of each operator, all of whose cases are held to a law one after the other; what fails tells its case."""

    @pytest.mark.parametrize("name", available())
    def test(name: str) -> None:
        for case in cases_of(name):
            try:
                law(case)
            except BaseException as error:
                error.add_note(f"{case}")
                raise

    test.__name__, test.__doc__ = law.__name__, law.__doc__
    return test


@cache
def _generators() -> dict[str, Callable[[np.random.Generator], Iterator[Case]]]:
    modules = [import_module(f"{__name__}.{info.name}") for info in iter_modules(__path__)]
    found = [pair for module in modules for pair in inspect.getmembers(module, inspect.isfunction)]
    return {name.removeprefix("cases_"): function for name, function in found if name.startswith("cases_")}


def case(op: Op, *operands: tuple[np.ndarray, str]) -> Case:
    """Operands as (array, axes), with a `*` before the axes of a parameter."""
    tensors, arrays = [], []
    for n, (array, axes) in enumerate(operands):
        names = tuple(axes.removeprefix("*").split())
        tensors.append(Tensor(f"x{n}", array.shape, array.dtype.name, names, axes.startswith("*")))
        arrays.append(array)
    return Case(op, tuple(tensors), tuple(arrays))


def elementwise(op: Op, rng):
    for shape, axes in (((5,), "b"), ((4, 7), "b d"), ((3, 1, 5, 2), "b c h w")):
        yield case(op, (rng.normal(size=shape), axes))
