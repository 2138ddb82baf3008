"""Tuning: of all ways to run a kernel call each is bound to arrays and timed; the fastest is to be remembered.

It knows no kernel, no device and no clock.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from castile.kernels.choice import Choice
from castile.kernels.form import Refused
from castile.kernels.table import Call, Table


class Operands(NamedTuple):
    """Arrays and literals of a call."""

    outs: tuple[Any, ...]
    args: tuple[Any, ...]


def tune(
    table: Table,
    name: str,
    operands: Sequence[Operands],
    params: dict[str, Any],
    adds: bool,
    seconds: Callable[[list[Call]], float],
) -> dict[Choice, float]:
    """Seconds of each way that the device takes, the likeliest first; nothing is timed where there is only one.

    operands: arrays of the same shapes, of which results are written over; as many as it takes to outgrow the caches.
    seconds: what a call takes of these, one for each of `operands`, which compute alike.
    """
    outs, args = operands[0]
    found = {}
    for way in table.ways(name, args, outs, params, adds):
        try:
            calls = [table.bind(name, one.args, one.outs, params, None, adds, way) for one in operands]
        except Refused:
            continue
        found[way] = seconds(calls)
    return found
