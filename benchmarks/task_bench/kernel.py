"""The task of every system: it checks its inputs, works for as long as it is told to, and signs its output.

A token is (stamp, point): the stamp counts steps through all runs, so that a token of another step, run or point is
seen. The work is a chain of multiply-adds in registers, without memory traffic, as the paper's compute-bound kernel.
It does not know who moves tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

TOKEN = 2  # int64 numbers
ORDER = 2  # int64 numbers: the stamp of step 0, and how many turns a task works


class WrongInput(Exception):
    """A task did not get the tokens of the points that it reads."""


def bind(order: np.ndarray, out: np.ndarray, point: int, inputs: Sequence[tuple[np.ndarray, int]]) -> Callable[[], Any]:
    """The call that does a task: out [2] gets the token of `point`, `inputs` are (token [2], whose it must be).

    order [2] is read at each call. The call raises WrongInput.
    """
    numbers = [order.ctypes.data, out.ctypes.data, point, len(inputs)]
    numbers += [number for token, whose in inputs for number in (token.ctypes.data, whose)]
    table = np.array(numbers, np.int64)
    address = table.ctypes.data
    held = (table, order, out, inputs)

    def call() -> None:
        if not task(address):
            raise WrongInput(f"point {point} got {[token.tolist() for token, _ in held[3]]}, where it reads "
                             f"{[whose for _, whose in held[3]]} of the step before")  # fmt: skip

    return call


@intrinsic
def _at(typing: Any, address: Any) -> Any:
    """An address as a pointer to int64 numbers."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int64)(types.int64), generate


@numba.njit(types.boolean(types.int64), cache=True, nogil=True, fastmath={"contract"})
def task(address):  # type: ignore[no-untyped-def]
    """Whether all inputs are what they must be; `address` is that of a table as in `bind`."""
    table = _at(address)
    order, out = _at(table[0]), _at(table[1])
    stamp, agree = order[0], True
    for n in range(table[3]):
        token = _at(table[4 + 2 * n])
        if n == 0:
            stamp = token[0] + 1
        agree = agree and token[0] + 1 == stamp and token[1] == table[5 + 2 * n]
    a, b, c, d = 1.0, 1.25, 1.5, 1.75
    for _ in range(order[1]):
        a, b, c, d = a * 0.75 + 0.5, b * 0.75 + 0.5, c * 0.75 + 0.5, d * 0.75 + 0.5
    out[0], out[1] = stamp, table[2]
    # never false, but only whoever has done the work knows
    return agree and a + b + c + d > 0.0


def turns_a_second() -> float:
    """How many turns a core works in a second, the best of some trials."""
    order, out = np.array([0, 200_000]), np.empty(TOKEN, np.int64)
    call, best = bind(order, out, 0, ()), float("inf")
    for _ in range(20):
        began = perf_counter()
        call()
        best = min(best, perf_counter() - began)
    return float(order[1]) / best
