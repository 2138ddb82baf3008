"""Importers: networks in files of other programs, one importer for each suffix, found by it: `onnx` reads net.onnx.

An importer has `load(path) -> Imported`. It does not know how a network is planned or run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePath
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import numpy as np

from castile.planner.graph import Graph

# "turned" by an order of dims, or "reshaped" to a shape, and that.
Move = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Stored:
    """How a parameter's dims are in the file that it comes out of, where they are otherwise here.

    shape         in the file
    there, here   how they are moved from here to there, and back, one move after another
    """

    shape: tuple[int, ...]
    there: tuple[Move, ...]
    here: tuple[Move, ...]


def moved(array: np.ndarray, moves: Iterable[Move]) -> np.ndarray:
    """The same numbers under other dims."""
    for kind, how in moves:
        array = array.transpose(how) if kind == "turned" else array.reshape(how)
    return array


@dataclass(frozen=True)
class Imported:
    """A network out of a file, as a model: `build` and RECIPE are what a model's module has.

    values   from a graph and its model's settings to the numbers that the file has for the graph's parameters and
             states; each is read when it is asked for
    stored   from the same to how the file has parameters whose dims are moved here, by their names
    remark   from the same to what is worth knowing before it is trained, "" for nothing
    inputs   what the file calls its inputs; the setting `inputs` calls them otherwise, with + between
    losses   what the setting `loss` may be
    """

    build: Callable[..., Graph]
    RECIPE: Any
    values: Callable[[Graph, Mapping[str, Any]], Mapping[str, np.ndarray]]
    stored: Callable[[Graph, Mapping[str, Any]], Mapping[str, Stored]]
    remark: Callable[[Graph, Mapping[str, Any]], str]
    inputs: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()


def of(path: str) -> ModuleType | None:
    """The importer of files with a path's suffix; None where there is none."""
    suffix = PurePath(path).suffix.removeprefix(".")
    return import_module(f"{__name__}.{suffix}") if suffix in available() else None


def available() -> tuple[str, ...]:
    """The suffixes of all files that can be imported, found by walking the folder."""
    return tuple(sorted(module.name for module in iter_modules(__path__)))
