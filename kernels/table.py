"""The table of kernels: definitions and forms found by name, and bound to arrays as calls that need nothing more.

It knows no kernel by name.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from castile.kernels import reference

Call = Callable[[], Any]
Arrays = tuple[np.ndarray, ...]


@cache
def definitions() -> dict[str, Callable[..., Any]]:
    """All kernels' definitions by name."""
    public = inspect.getmembers(reference, inspect.isfunction)
    return {name: f for name, f in public if f.__module__.startswith(reference.__name__ + ".")}


def _functions(module: Any) -> dict[str, Callable[..., Any]]:
    found = inspect.getmembers(module, inspect.isfunction)
    return {name: f for name, f in found if f.__module__ == module.__name__ and not name.startswith("_")}


@cache
def forms(folder: str) -> dict[str, Callable[..., Any]]:
    """The faster forms in the package castile.kernels.<folder>: functions that are named like definitions."""
    package = importlib.import_module(f"castile.kernels.{folder}")
    found: dict[str, Callable[..., Any]] = {}
    for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        for name, form in _functions(importlib.import_module(info.name)).items():
            if name in definitions():
                assert name not in found, f"two {folder} forms of {name}"
                found[name] = form
    return found


class Table:
    """The kernels in one form: "reference" (the definitions) or a folder of forms, "numpy" or "triton".

    A definition without a form is run as it is. ValueError for a folder that is not there, or whose library is not.
    """

    def __init__(self, form: str) -> None:
        self.form = form
        try:
            self.forms = {} if form == "reference" else forms(form)
        except ModuleNotFoundError as error:
            if error.name == form:
                raise ValueError(f'kernels: the forms "{form}" need the library {form}, which is not there') from None
            if error.name != f"castile.kernels.{form}":
                raise
            known = '"reference", "numpy" or "triton"'
            raise ValueError(f'kernels: there are no forms "{form}"; use {known}') from None

    def names(self) -> list[str]:
        """All kernels, sorted."""
        return sorted(definitions())

    def source(self, name: str) -> str:
        """The source text of a kernel: its form's where there is one, else its definition."""
        return inspect.getsource(inspect.unwrap(self.forms.get(name, definitions()[name])))

    def bind(
        self,
        name: str,
        args: tuple[Any, ...],
        outs: Arrays,
        params: dict[str, Any],
        scratch: np.ndarray | None = None,
        accumulate: bool = False,
    ) -> Call:
        """The call that computes kernel `name` of `args` (arrays and literals) into `outs`, or adds it to them.

        scratch: 1-D uint8, 64-byte aligned, of the bytes that the planner's vocabulary declares, or None for none.
        The call keeps what it needs of the arrays alive and may be repeated; it reads the arrays anew each time.
        """
        assert name in definitions(), f"no kernel {name}"
        call = self._formed(name, args, outs, params, scratch, accumulate)
        return call or partial(_define, definitions()[name], args, outs, params, accumulate)

    def _formed(
        self,
        name: str,
        args: tuple[Any, ...],
        outs: Arrays,
        params: dict[str, Any],
        scratch: np.ndarray | None,
        accumulate: bool,
    ) -> Call | None:
        """As `bind`, by the form alone; None if there is none or it cannot."""
        form = self.forms.get(name)
        if form is None:
            return None
        if accumulate and not native_accumulate(form):
            held, scratch = _held(outs, scratch)
            work = self._formed(name, args, held, params, scratch, False)
            adds = [self.bind("copy", (part,), (out,), {}, None, True) for out, part in zip(outs, held, strict=True)]
            return work and partial(_run_all, [work, *adds])
        extra: dict[str, Any] = {"scratch": scratch, "accumulate": accumulate}
        keywords = params | {key: value for key, value in extra.items() if key in _keywords(form)}
        work = partial(form, outs[0] if len(outs) == 1 else outs, *args, **keywords)
        return work() if getattr(form, "prepares", False) else work


@cache
def _keywords(form: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(form).parameters)


def native_accumulate(form: Callable[..., Any]) -> bool:
    """Whether a form can itself add into its results."""
    return "accumulate" in _keywords(form)


def _run_all(calls: list[Call]) -> None:
    for call in calls:
        call()


def _held(outs: Arrays, scratch: np.ndarray | None) -> tuple[Arrays, np.ndarray]:
    """Places for the results at the head of scratch, each rounded up to 64 bytes, and the scratch that is left."""
    assert scratch is not None, "adding to a result needs scratch"
    held = []
    for out in outs:
        nbytes = prod(out.shape) * out.itemsize
        held.append(scratch[:nbytes].view(out.dtype).reshape(out.shape))
        scratch = scratch[-(-nbytes // 64) * 64 :]
    return tuple(held), scratch


def _define(
    definition: Callable[..., Any], args: tuple[Any, ...], outs: Arrays, params: dict[str, Any], accumulate: bool
) -> None:
    results = definition(*args, **params)
    for out, result in zip(outs, results if isinstance(results, tuple) else (results,), strict=True):
        if accumulate:
            np.add(out, result, out=out)
        else:
            np.copyto(out, result)
