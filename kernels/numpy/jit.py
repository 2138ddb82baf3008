"""How loops of the CPU forms are compiled, and exponential and error functions that LLVM can vectorise.

It knows no kernel.
"""

import math
import sys
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import event
from numba.extending import overload

from castile.kernels import compiler

# Sums may be reordered and fused so that they vectorise; NaN, infinities and signed zeros keep their meaning. What is
# not said here a function called by an inlined one would inherit from it. Nobody calls loops from C, and none makes an
# array: who calls one holds those that it is given, so that references to them need not be counted.
_options = {
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract"},
    "forceinline": False,
    "no_cfunc_wrapper": True,
    "_nrt": False,
    "pipeline_class": compiler.Loop,
}
# What is called by its address alone may be asked for of these.
_FOR_C = ("cache", "error_model", "fastmath", "_nrt", "pipeline_class")


def _with(**more: Any) -> Callable[[Callable[..., Any]], Any]:
    """What compiles loops with these options beside; kept ones are found by names that tell the text of other files."""

    def join(body: Callable[..., Any]) -> Any:
        body.__qualname__ += f"_{_others(body.__module__)}"
        return compiler.by_one_process(numba.njit(**_options | more)(body))

    return join


@cache
def _others(module: str) -> str:
    """A hash of all files of its folder whose functions a module's loops may call: numba looks at its own alone."""
    found, waiting = set[str](), [module]
    while waiting:
        new = {*_imported(waiting.pop())} - found
        found |= new
        waiting += new
    return sha256(b"".join(_text(str(sys.modules[name].__file__)) for name in sorted(found))).hexdigest()[:12]


def _imported(module: str) -> Iterator[str]:
    """The modules of its folder from which a module has something."""
    folder = module.rpartition(".")[0] + "."
    for one in list(vars(sys.modules[module]).values()):
        name = one.__name__ if isinstance(one, ModuleType) else getattr(one, "__module__", None)
        if isinstance(name, str) and name.startswith(folder) and name != module:
            yield name


@cache
def _text(path: str) -> bytes:
    return Path(path).read_bytes()


compiled = _with()

# For a few instructions, which a call would outweigh. Called by loops alone, as what the interpreter needs to call it
# would take as long to compile.
inlined = _with(forceinline=True, no_cpython_wrapper=True)

# Range reduction loses its point when its terms may be reordered. Called by loops alone, too.
exact_order = _with(fastmath={"contract"}, no_cpython_wrapper=True)


def addressed(body: Any, signature: Any) -> Any:
    """A `compiled` function that is called by the address of the result alone, and for one kind of arguments."""
    with event.trigger_event("numba:compile", data={"dispatcher": body}), compiler.turn(body):
        return numba.cfunc(signature, **{name: _options[name] for name in _FOR_C})(body.py_func)


f32 = np.float32


@exact_order
def _exp32(x):  # type: ignore[no-untyped-def]
    """exp in float32 to 1e-7 relative, by the range reduction and polynomial of Cephes (Moshier 1989)."""
    n = np.floor(x * f32(1.44269504) + f32(0.5))
    n = min(max(n, f32(-127)), f32(128))
    r = x - n * f32(0.693359375) - n * f32(-2.12194440e-4)
    p = f32(1.9875691500e-4) * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    p = p * r * r + r + f32(1)
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23))
    y = p * power.view(f32)
    if x < f32(-87.3):
        y = f32(0)
    if x > f32(88.3):
        y = f32(np.inf)
    return y


@exact_order
def half_exp64(r):  # type: ignore[no-untyped-def]
    """(e to the r, less 1) / 2 in float64 for abs(r) up to 1/2, by the quotient of polynomials of Cephes."""
    z = r * r
    p = r * ((1.26177193074810590878e-4 * z + 3.02994407707441961300e-2) * z + 9.99999999999999999910e-1)
    q = (3.00198505138664455042e-6 * z + 2.52448340349684104192e-3) * z + 2.27265548208155028766e-1
    return p / (q * z + 2.0 - p)


@exact_order
def _exp64(x):  # type: ignore[no-untyped-def]
    """exp in float64 to 3e-16 relative, as `_exp32`."""
    n = np.floor(x * 1.4426950408889634 + 0.5)
    n = min(max(n, -1100.0), 1100.0)
    y = 1.0 + 2.0 * half_exp64(x - n * 6.93145751953125e-1 - n * 1.42860682030941723212e-6)
    # in two steps, as the power itself may lie outside what a float64 can be
    whole = np.int64(n)
    half = whole >> np.int64(1)
    first = np.int64((half + np.int64(1023)) << np.int64(52))
    second = np.int64((whole - half + np.int64(1023)) << np.int64(52))
    y = y * first.view(np.float64) * second.view(np.float64)
    if x < -746.0:
        y = 0.0
    if x > 709.79:
        y = np.inf
    return y


@exact_order
def _normal_tail32(a, density):  # type: ignore[no-untyped-def]
    """P(Z > a) for a >= 0 in float32 to 1e-7, given exp(-a*a/2) (Abramowitz and Stegun 7.1.26)."""
    t = f32(1) / (f32(1) + f32(0.3275911 * 0.7071067811865476) * a)
    p = f32(1.061405429) * t + f32(-1.453152027)
    p = p * t + f32(1.421413741)
    p = p * t + f32(-0.284496736)
    p = p * t + f32(0.254829592)
    return f32(0.5) * p * t * density


def exp(x: Any) -> Any:
    """e to the x in the dtype of x, for use inside compiled loops only."""
    raise NotImplementedError


@overload(exp)
def _exp(x):  # type: ignore[no-untyped-def]
    if x == types.float32:
        return lambda x: _exp32(x)
    return lambda x: _exp64(x)


def normal_tail(a: Any, density: Any) -> Any:
    """P(Z > a) of a standard normal Z, a >= 0, given density = exp(-a*a/2); for use inside compiled loops only."""
    raise NotImplementedError


@overload(normal_tail)
def _normal_tail(a, density):  # type: ignore[no-untyped-def]
    if a == types.float32:
        return lambda a, density: _normal_tail32(a, density)
    return lambda a, density: 0.5 * math.erfc(a * 0.7071067811865476)


@compiled
def row_max(row: np.ndarray) -> Any:
    """Largest element of a row of one or more; a NaN may be passed over."""
    # Four chains, because one chain of comparisons waits for each comparison's latency.
    a = b = c = d = row[0]
    quads = row.size // 4 * 4
    for j in range(0, quads, 4):
        a = row[j] if row[j] > a else a
        b = row[j + 1] if row[j + 1] > b else b
        c = row[j + 2] if row[j + 2] > c else c
        d = row[j + 3] if row[j + 3] > d else d
    for j in range(quads, row.size):
        a = row[j] if row[j] > a else a
    a = b if b > a else a
    c = d if d > c else c
    return c if c > a else a
