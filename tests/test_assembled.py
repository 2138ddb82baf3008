"""Loops of several functions: they do what their text says, and each function is compiled once, whoever calls it."""

import ast
from collections import namedtuple
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from castile import kernels
from castile.runtime.compiled import assembled

numba = pytest.importorskip("numba")


class Fields(NamedTuple):
    """A tuple that is handed on by reference."""

    array: np.ndarray
    several: tuple[np.ndarray, ...]
    number: float
    flag: bool


def weighed(k: int, fields: Fields) -> Any:
    return fields.array.flat[k] * fields.number if fields.flag else fields.array.flat[k] * 1.0


def doubled(k: int, fields: Fields) -> Any:
    return 2 * weighed(k, fields)


def worked(begin: int, fields: Fields) -> Any:
    """Reads and writes all fields, calls a part with a number and with a constant, directly and within another."""
    total = weighed(0, fields) + doubled(0, fields)
    for k in range(begin, fields.array.size):
        total += doubled(k, fields) + fields.array.strides[0] + fields.array.shape[fields.array.ndim - 1]
        total += fields.array.itemsize
    first, second = fields.several
    for k in range(len(first)):
        second[len(first) - 1 - k] = first[k] + fields.several[0][k]
    return total


def made(dtype: str, shape: tuple[int, ...], step: int) -> Fields:
    rng = np.random.default_rng(len(shape))
    # Whole numbers, whose sums are the same in whatever type they are made.
    array = rng.integers(0, 100, (*shape[:-1], shape[-1] * step)).astype(dtype)[..., ::step]
    return Fields(array, (rng.random(5), np.zeros(5)), 0.25, bool(step % 2))


# Every dtype in every number of dims, and both with neighbours and without.
KINDS = [
    (dtype, shape, 1 + (n + m) % 2)
    for n, dtype in enumerate(("float64", "float32", "int64", "bool"))
    for m, shape in enumerate(((7,), (3, 5), (2, 3, 4)))
]


@pytest.mark.parametrize(("dtype", "shape", "step"), KINDS)
def test_what_is_handed_on_by_reference_is_what_it_was(dtype: str, shape: tuple[int, ...], step: int) -> None:
    (loop,) = assembled([worked], [weighed], [doubled], records=[Fields])
    mine, theirs = made(dtype, shape, step), made(dtype, shape, step)
    assert loop(1, mine) == worked(1, theirs)
    for one, other in zip((mine.array, *mine.several), (theirs.array, *theirs.several), strict=True):
        np.testing.assert_array_equal(one, other)
    wrong = mine._replace(number=None)
    with pytest.raises(numba.core.errors.TypingError):
        loop(1, wrong)


# Another kind, whose fields are of the same types.
Others = namedtuple("Others", Fields._fields)


def numbered(one: Fields, other: Others) -> Any:
    return one.number + other.number


def strange(fields: Fields) -> Any:
    return fields.strange


def test_kinds_are_told_apart_and_what_is_no_number_of_theirs_is_refused() -> None:
    loop, wrong = assembled([numbered, strange], [], [], records=[Fields, Others])
    one = made("float64", (7,), 1)._replace(number=3)
    other = Others(*one)
    assert loop(one, other) == 6
    assert numba.typeof(one) != numba.typeof(other)
    with pytest.raises(OverflowError):
        loop(one, other._replace(number=2**70))
    with pytest.raises(numba.core.errors.TypingError, match="Unknown attribute 'strange'"):
        wrong(one)


def test_parts_are_compiled_once_whoever_calls_them_with_whatever_constant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where nothing is that was compiled before.
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    met = []

    class Watch(numba.core.event.Listener):  # type: ignore[misc]
        """Notes what is compiled."""

        def on_start(self, started: Any) -> None:
            met.append(started.data["dispatcher"].py_func.__name__)

        def on_end(self, ended: Any) -> None:
            pass

    watch = Watch()
    numba.core.event.register("numba:compile", watch)
    try:
        (loop,) = assembled([worked], [weighed], [doubled], records=[Fields], nogil=True)
        loop(1, made("float64", (7,), 1))
    finally:
        numba.core.event.unregister("numba:compile", watch)
    assert [met.count(name) for name in ("worked", "weighed", "doubled")] == [1, 1, 1]


# The interpreter cannot call what these compile.
INNER = {"inlined", "exact_order"}


@cache
def marked(path: Path) -> dict[str, set[str]]:
    """By function of a room the names of its decorators."""
    found = [one for one in ast.parse(path.read_text()).body if isinstance(one, ast.FunctionDef)]
    return {one.name: {ast.unparse(mark).partition("(")[0] for mark in one.decorator_list} for one in found}


@pytest.mark.parametrize("path", sorted(Path(kernels.__path__[0]).glob("numpy/*.py")), ids=lambda path: path.stem)
def test_what_only_loops_may_call_is_named_by_loops_alone(path: Path) -> None:
    marks = {other.stem: marked(other) for other in path.parent.glob("*.py")}
    inner = {name for name, found in marks[path.stem].items() if found & INNER}
    body = ast.parse(path.read_text()).body
    for one in body:
        if isinstance(one, ast.ImportFrom):
            room = marks.get(str(one.module).rpartition(".")[2], {})
            inner |= {name.name for name in one.names if room.get(name.name, set()) & INNER}
    for one in body:
        if isinstance(one, ast.FunctionDef) and not marks[path.stem][one.name] & {*INNER, "compiled", "overload"}:
            names = [node for node in ast.walk(one) if isinstance(node, ast.Name)]
            own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
            assert not {node.id for node in names} & inner - own, one.name
