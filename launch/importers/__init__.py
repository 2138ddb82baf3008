"""Importers: networks in files of other programs, one importer for each suffix, found by it: `onnx` reads net.onnx.

An importer has `load(path) -> Imported`. It does not know how a network is planned or run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePath
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import numpy as np

from castile.planner.graph import Graph


@dataclass(frozen=True)
class Imported:
    """A network out of a file, as a model: `build` and RECIPE are what a model's module has.

    values   from a graph and its model's settings to the numbers that the file has for the graph's parameters and
             states; each is read when it is asked for
    remark   from the same to what is worth knowing before it is trained, "" for nothing
    inputs   what the file calls its inputs; the setting `inputs` calls them otherwise, with + between
    losses   what the setting `loss` may be
    """

    build: Callable[..., Graph]
    RECIPE: Any
    values: Callable[[Graph, Mapping[str, Any]], Mapping[str, np.ndarray]]
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
