"""PyTorch's own samples of operators read as cases: a function `from_<operator>` reads a sample, or says why it cannot.

Found by name in the modules of this folder. What PyTorch has no samples of a module names in WITHOUT, with the reason.
"""

import inspect
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

LETTERS = "abcdefgh"


class Skip(Exception):
    """Why a sample is no case of the operator."""


def names(count: int) -> str:
    return " ".join(LETTERS[:count])


class Read:
    """A sample read as an operator and its operands.

    operands   (tensor of the sample, how it becomes the operand, axes)
    result     how the operator's result is laid out in the sample's way
    """

    def __init__(self, op, operands, result=lambda y: y):
        self.op, self.operands, self.result = op, operands, result


def same(tensor):
    return tensor


def refuse(kwargs: dict, **harmless) -> None:
    """Settings that the operator does not have are a reason, unless they have their harmless value."""
    for key, value in kwargs.items():
        if key in harmless and value != harmless[key]:
            raise Skip(f"{key} is not {harmless[key]}")


def torch_name(name: str) -> Callable:
    """Marks a reader with the name under which PyTorch keeps its samples."""

    def mark(function: Callable) -> Callable:
        function.torch_name = name  # type: ignore[attr-defined]
        return function

    return mark


@cache
def readers() -> dict[str, Callable]:
    """The reader of each operator that PyTorch has samples of."""
    found = [pair for module in _modules() for pair in inspect.getmembers(module, inspect.isfunction)]
    return {name.removeprefix("from_"): function for name, function in found if name.startswith("from_")}


def without() -> dict[str, str]:
    """The operators that PyTorch has no samples of, and why."""
    return {name: reason for module in _modules() for name, reason in getattr(module, "WITHOUT", {}).items()}


def _modules():
    return [import_module(f"{__name__}.{info.name}") for info in iter_modules(__path__)]
