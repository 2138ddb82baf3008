"""The definitions of all kernels in plain NumPy, slow and obvious: what a kernel means is what is written here.

Each public function of a module of this folder is one, and is found here by its name. They know no fast form. Shapes
stand in brackets; results have the dtype of the floating inputs, or float32 where those have 16 bits: who keeps them
rounds them.

Of infinities: what a form makes is finite where its definition's result is. Where that is an infinity or NaN so is the
form's, but not always the same of these, as sums in another order meet others of other signs. Definitions say where
more or less than this holds, as forms leave out products by zero, or make some more; none is made to hide a NaN.
"""

import inspect
from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from castile.kernels.half_precision import in_float32


def _definitions() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for info in iter_modules(__path__, __name__ + "."):
        for name, function in inspect.getmembers(import_module(info.name), inspect.isfunction):
            if function.__module__ == info.name and not name.startswith("_"):
                assert name not in found, f"two definitions of {name}"
                found[name] = in_float32(function)
    return found


# a module may be called like a kernel; the kernel is what is meant
globals().update(_definitions())
