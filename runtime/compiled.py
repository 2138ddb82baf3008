"""Compiled loops: a function body in plain Python, compiled by numba, so that the same text is its own reference.

It does not know what the loops compute.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np


@cache
def can_compile() -> bool:
    return find_spec("numba") is not None


@cache
def _listener() -> Any:
    """What counts the time that compiling takes, from the first loop on."""
    from numba.core import event

    listener = event.TimingListener()
    event.register("numba:compile", listener)
    return listener


def compiling_seconds() -> float:
    """For how long this process has compiled loops, or read what was kept of them."""
    return _listener().duration if can_compile() and _listener().done else 0.0


@cache
def compiled(body: Callable[..., Any]) -> Callable[..., Any]:
    """The body compiled, once for each kind of arguments and kept on disk; the body itself where numba is missing.

    It runs without the interpreter's lock, so what it is given nobody else may change meanwhile.

    The body may use numbers and arrays of fixed types, and no other function of castile: see `assembled`.
    """
    if not can_compile():
        return body
    # Importing numba costs a tenth of a second, which only those pay who need it.
    import numba

    from castile.kernels import compiler

    _listener()
    # A large array freed once teaches malloc to keep memory of this size, which calls in a row then reuse without
    # faulting its pages in again (mallopt(3), dynamic threshold).
    np.empty(2**24, np.uint8)
    # What is kept on disk is not told apart by these.
    options = {"nogil": True, "no_cfunc_wrapper": True, "pipeline_class": compiler.Loop}
    known_by = _renamed(body, {}, _source_text(body), repr(options))
    result: Callable[..., Any] = compiler.by_one_process(numba.njit(cache=True, **options)(known_by))
    return result


def assembled(
    bodies: Sequence[Any],
    parts: Collection[Any],
    inlined: Collection[Any],
    words: Mapping[Any, Any] | None = None,
    records: Collection[type] = (),
    **options: Any,
) -> tuple[Any, ...]:
    """The bodies, compiled by numba, which must be installed, with all that they call of other functions of castile.

    parts      what they call, and these call, directly by its name: compiled once for each kind of arguments, whoever
               calls it
    inlined    the same, but put in wherever it is called
    words      by function what stands for it in what is compiled
    records    kinds of named tuples that are handed on by reference
    options    more of numba's, for the bodies

    None of them may make an array: references to arrays are not counted, since that would take longer than all else.
    """
    import numba

    # Not `from numba.types`, which replaces itself: threads that wait for another's import of it have an empty module.
    from numba import types

    from castile.kernels import compiler

    _listener()
    texts = [_source_text(one) for one in (*bodies, *parts, *inlined)]
    if records:
        from castile.runtime import records as room

        for kind in records:
            room.by_reference(kind)
        texts.append(Path(room.__file__).read_text())
    # Nobody calls them from C, and parts from the interpreter: what would take care of that takes a tenth of the time.
    common: dict[str, Any] = {"_nrt": False, "no_cfunc_wrapper": True, "pipeline_class": compiler.Loop}
    joined = common | {"no_cpython_wrapper": True, "pipeline_class": compiler.Part}
    made = dict(words or {})
    others = {*parts, *inlined, *made}

    def linked(function: Any) -> FunctionType:
        known = {name: function.__globals__.get(name) for name in _named(function)}
        names = {name: part(one) for name, one in known.items() if callable(one) and one in others}
        return _renamed(function, names, *texts)

    def part(function: Any) -> Any:
        if function not in made:
            made[function] = one = numba.njit(forceinline=function in inlined, **joined)(linked(function))
            # Else it would be compiled anew for every constant that it is given.
            one.get_call_template = lambda args, kws, of=one.get_call_template: of([*map(types.unliteral, args)], kws)
        return made[function]

    loops = [numba.njit(cache=True, **common, **options)(linked(body)) for body in bodies]
    return tuple(map(compiler.by_one_process, loops))


def is_kept(loop: Any) -> bool:
    """Whether this loop, as made here, was compiled before for any arguments and kept on disk; so is what never is."""
    if not can_compile():
        return True
    folder, name = Path(loop.stats.cache_path), loop.__qualname__
    return any(folder.glob(f"*.{name}-*.nbi"))


def _source_text(function: Any) -> str:
    """What a function does and the numbers that it knows by name, wherever these are from."""
    known = [function.__globals__.get(name) for name in _named(function)]
    numbers = [one for one in known if isinstance(one, (int, float, np.generic))]
    # What is written of a code as a constant is where it lies in memory, which is another place in each process.
    codes = [
        (code.co_code, [one for one in code.co_consts if not isinstance(one, CodeType)], code.co_names)
        for code in _codes(function.__code__)
    ]
    return repr((codes, numbers))


def _renamed(function: Any, names: Mapping[str, Any], *texts: str) -> FunctionType:
    """A function with other globals; what was compiled is found again by its file and name, which tells the rest."""
    found = sha256("\n".join(texts).encode()).hexdigest()[:12]
    made = FunctionType(function.__code__, function.__globals__ | names, function.__name__, function.__defaults__)
    made.__qualname__ = f"{function.__qualname__}_{found}"
    return made


def _named(function: Any) -> list[str]:
    steps = chain.from_iterable(map(dis.get_instructions, _codes(function.__code__)))
    return [str(step.argval) for step in steps if step.opname == "LOAD_GLOBAL"]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Its own and those of what is written inside, as comprehensions are."""
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)
