"""What an operator body may call: each kernel's result shapes, its working memory, and what it refuses, in words.

The kernels' own entries are the functions of planner/shapes, found by walking that folder. It knows no kernel's code,
no machine and no memory layout: bytes do not depend on strides.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import prod
from pkgutil import iter_modules
from typing import Any

import msgspec
import numpy as np

from castile.runtime.processor import NARROW

Shape = tuple[int, ...]
Pair = tuple[int, int]
Pads = tuple[int, int, int, int]

ALIGNMENT = 64


class Spec(msgspec.Struct, frozen=True):
    """Shape and dtype (by name, such as "float32") of an array."""

    shape: Shape
    dtype: str

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return itemsize(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array, dense."""
        return prod(self.shape) * itemsize(self.dtype)


@cache
def itemsize(dtype: str) -> int:
    """Bytes of one element of a dtype."""
    return int(np.dtype(dtype).itemsize)


Results = tuple[Spec, ...]


@dataclass(frozen=True)
class Entry:
    """One kernel: its result specs, the bytes it works in, and whether it can add into its result by itself.

    casts   whether it writes results of another floating dtype as gladly, rounded or widened
    many    whether one call takes the arrays of several, one call's after the other's, and gives all their results
    sums    whether one call takes the arrays of several, and gives the sum of their results
    onto    whether it takes one more array, the last, to which it adds its only result
    """

    results: Callable[..., Results]
    working: Callable[..., int]
    adds: bool
    casts: bool
    many: bool
    sums: bool
    onto: bool


_ENTRIES: dict[str, Entry] = {}


def results(name: str, args: tuple[Any, ...], params: dict[str, Any]) -> Results:
    """Specs of the results of kernel `name` on args (Specs or literals); ValueError for what it cannot take."""
    entry = _entry(name)
    try:
        return entry.results(*args, **params)
    except TypeError as error:
        raise ValueError(f"kernel {name}: {error}") from None


def workspace(
    name: str, args: tuple[Any, ...], outs: tuple[Spec, ...], params: dict[str, Any], accumulate: bool
) -> int:
    """Bytes of scratch memory, a multiple of 64, that kernel `name` gets, for adding into its results if so asked."""
    entry = _entry(name)
    held = sum(round_up(out.nbytes) for out in outs) if accumulate and not entry.adds else 0
    return round_up(entry.working(outs, accumulate, *args, **params)) + held


def casts(name: str) -> bool:
    """Whether kernel `name` also writes its results in another floating dtype than `results` says."""
    return _entry(name).casts


def takes_many(name: str) -> bool:
    """Whether one call of kernel `name` does the work of several with the same literals."""
    return _entry(name).many


def sums_many(name: str) -> bool:
    """Whether one call of kernel `name` gives the sum of what several with the same literals give."""
    return _entry(name).sums


def adds_onto(name: str) -> bool:
    """Whether kernel `name` takes one more array, the last, and gives the sum of that and its only result."""
    return _entry(name).onto


def wide(dtype: str) -> str:
    """In what sums and statistics of numbers of a dtype are kept: float32 for those of 16 bits, else the dtype."""
    return "float32" if dtype in NARROW else dtype


def total(shape: Shape, dtype: str) -> Spec:
    """A sum of numbers of a dtype; of all of them it is wide, as it costs nothing and many follow from it."""
    return Spec(shape, dtype if shape else wide(dtype))


def computed(what: str, **dtypes: str) -> str:
    """The dtype of what is computed of arrays of these; ValueError unless they are one, or 16 bits meet wide ones."""
    narrow = [dtype for dtype in dtypes.values() if dtype in NARROW]
    if not narrow:
        same(what, **dtypes)
        return next(iter(dtypes.values()))
    same(what, **{name: wide(dtype) for name, dtype in dtypes.items()})
    return narrow[0]


def names() -> list[str]:
    """All kernels, sorted."""
    return sorted(_entries())


def round_up(nbytes: Any) -> Any:
    """The next multiple of 64, of a number or of each in an array."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _entry(name: str) -> Entry:
    if name not in _entries():
        raise ValueError(f'there is no kernel "{name}"; the kernels are {", ".join(names())}')
    return _ENTRIES[name]


@cache
def _entries() -> dict[str, Entry]:
    """All entries, once the modules that make them are loaded."""
    package = import_module("castile.planner.shapes")
    for info in iter_modules(package.__path__, package.__name__ + "."):
        import_module(info.name)
    return _ENTRIES


def kernel(
    adds: bool = False,
    working: Callable[..., int] = lambda *args, **params: 0,
    casts: bool = False,
    many: bool = False,
    sums: bool = False,
    onto: bool = False,
) -> Callable[[Callable[..., Results]], Callable[..., Results]]:
    """Enters the decorated function, which gives the result specs, under its name."""

    def enter(function: Callable[..., Results]) -> Callable[..., Results]:
        assert function.__name__ not in _ENTRIES, f"two entries of {function.__name__}"
        _ENTRIES[function.__name__] = Entry(function, working, adds, casts, many, sums, onto)
        return function

    return enter


def need(holds: bool, sentence: str) -> None:
    if not holds:
        raise ValueError(sentence)


def same(what: str, **values: Any) -> None:
    """ValueError naming all of `values` unless they are equal."""
    if len(set(values.values())) > 1:
        listed = ", ".join(f"{name} has {value}" for name, value in values.items())
        raise ValueError(f"{what}: {listed}; they must be equal")


def like(what: str, **specs: Spec) -> None:
    if len(set(specs.values())) > 1:
        same(f"{what}: shapes", **{name: one.shape for name, one in specs.items()})
        same(f"{what}: dtypes", **{name: one.dtype for name, one in specs.items()})


def there(**specs: Spec | None) -> dict[str, Spec]:
    """Those that are given."""
    return {name: one for name, one in specs.items() if one is not None}


def integers(what: str, **specs: Spec) -> None:
    for name, one in specs.items():
        need(np.dtype(one.dtype).kind in "iu", f"{what}: {name} must be integers, not {one.dtype}")
