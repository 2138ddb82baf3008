"""Operators of ONNX as castile's: functions that take a node, found by the operator's name.

    @handles("Relu")
    def relu(c: Call) -> Tensor:
        return c.g.relu(c.name, c.tensor(0))

A function gives what stands for the node's results, in their order; what it cannot take it refuses with Unsupported.
It does not know how nodes are found.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

Handler = Callable[[Any], Any]

_HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Enters the decorated function as what handles operators of these names."""

    def enter(function: Handler) -> Handler:
        for name in names:
            assert name not in _HANDLERS, f"two handlers of {name}"
            _HANDLERS[name] = function
        return function

    return enter


def find(name: str) -> Handler | None:
    """What handles an operator; None where nothing does."""
    return _loaded().get(name)


def available() -> tuple[str, ...]:
    """The names of all operators that are handled."""
    return tuple(sorted(_loaded()))


@cache
def _loaded() -> dict[str, Handler]:
    """All handlers, once the modules of this folder are loaded."""
    for info in iter_modules(__path__, f"{__name__}."):
        import_module(info.name)
    return _HANDLERS
