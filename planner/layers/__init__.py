"""Layers made of several operators: a file of this folder with `layer(g, name, ...)`, called as `g.<layer>(name, ...)`.

They know operators and nothing of how these are cut.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any


@cache
def available() -> tuple[str, ...]:
    """The names of all layers, found by walking the folder."""
    return tuple(sorted(module.name for module in iter_modules(__path__)))


def find(name: str) -> Callable[..., Any]:
    """The function that adds a layer to a graph."""
    return import_module(f"{__name__}.{name}").layer
