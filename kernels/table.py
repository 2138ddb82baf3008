"""The table of kernels: finds definitions and forms by name, and binds them to arrays as calls without arguments.

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

from castile.kernels import choice, reference
from castile.kernels.calls import Call, chain
from castile.kernels.choice import Choice
from castile.kernels.half_precision import fits_form

Arrays = tuple[np.ndarray, ...]
# Forms that calls of a library may do better than, and the folder of these.
LIBRARIES = {"triton": "cupy"}
# Forms that leave numbers of 16 bits, and casts, to the definitions.
PLAIN = ("numpy",)


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

    A definition without a form is run as it is. For a call that `choice` remembers something of, that is taken: a
    setting of its form, or the form of a library. ValueError for a folder that is not there, or whose library is not.
    """

    def __init__(self, form: str) -> None:
        self.form = form
        try:
            self.forms = {} if form == "reference" else forms(form)
            self.library = forms(LIBRARIES[form]) if form in LIBRARIES else {}
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
        chosen: Choice | None = None,
    ) -> Call:
        """The call that computes kernel `name` of `args` (arrays and literals) into `outs`, or adds it to them.

        scratch: 1-D uint8, 64-byte aligned, of the bytes that the planner's vocabulary declares, or None for none.
        chosen: one of `choices`, by default what is remembered. Raises Refused where the device cannot run it.
        The call keeps what it needs of the arrays alive and may be repeated; it reads the arrays anew each time.
        """
        assert name in definitions(), f"no kernel {name}"
        call = self._formed(name, args, outs, params, scratch, accumulate, chosen)
        return call or self.defined(name, args, outs, params, scratch, accumulate)

    def defined(
        self,
        name: str,
        args: tuple[Any, ...],
        outs: Arrays,
        params: dict[str, Any],
        scratch: np.ndarray | None,
        accumulate: bool,
    ) -> Call:
        """As `bind`, but by the definition. Tables for arrays that NumPy cannot read replace this."""
        return partial(_define, definitions()[name], args, outs, params, accumulate)

    def adds(self, name: str) -> bool:
        """Whether a kernel's form can add into its results; if not, they are computed in scratch and then added."""
        return name in self.forms and native_accumulate(self.forms[name])

    def choices(
        self, name: str, args: tuple[Any, ...], outs: Arrays, params: dict[str, Any], adds: bool
    ) -> list[Choice]:
        """All ways in which a call could be bound, the likeliest first; none where there is nothing to choose from.

        adds: whether it adds into its results, which its form then does by itself. Of the arrays only shapes, strides
        and dtypes are looked at.
        """
        found = []
        for folder, those in ((self.form, self.forms), (LIBRARIES.get(self.form, ""), self.library)):
            form = those.get(name)
            if form is None or (adds and not native_accumulate(form)):
                continue
            work = given(form, args, outs, params, None, adds)
            if hasattr(form, "settings"):
                found += [Choice(folder, text) for text in form.settings(*work.args, **work.keywords)]
        return found if len(found) > 1 else []

    def library_choice(
        self, name: str, args: tuple[Any, ...], outs: Arrays, params: dict[str, Any], adds: bool
    ) -> Choice | None:
        """The library, if it is used for a call of which nothing was measured; like `choices` it reads no data."""
        form = self.library.get(name)
        if form is None or not hasattr(form, "leads") or (adds and not native_accumulate(form)):
            return None
        work = given(form, args, outs, params, None, adds)
        return Choice(LIBRARIES[self.form]) if form.leads(*work.args, **work.keywords) else None

    def _formed(
        self,
        name: str,
        args: tuple[Any, ...],
        outs: Arrays,
        params: dict[str, Any],
        scratch: np.ndarray | None,
        accumulate: bool,
        chosen: Choice | None,
    ) -> Call | None:
        """As `bind`, by a form alone; None if there is none or it cannot."""
        if name not in self.forms or (self.form in PLAIN and not fits_form(definitions()[name], args, outs)):
            return None
        form = self.forms[name]
        taken = chosen or choice.find(name, outs, args, params, accumulate)
        if taken and name in self.library and taken.form == LIBRARIES[self.form]:
            form, taken = self.library[name], None
        if accumulate and not native_accumulate(form):
            held, scratch = _padded_results(outs, scratch)
            work = self._formed(name, args, held, params, scratch, False, chosen)
            adds = [self.bind("copy", (part,), (out,), {}, None, True) for out, part in zip(outs, held, strict=True)]
            return work and chain([work, *adds])
        call = given(form, args, outs, params, scratch, accumulate)
        if taken and taken.form == self.form and taken.setting:
            call = partial(call, setting=taken.setting)
        return call() if getattr(form, "prepares", False) else call


def given(
    form: Callable[..., Any],
    args: tuple[Any, ...],
    outs: Arrays,
    params: dict[str, Any],
    scratch: np.ndarray | None,
    accumulate: bool,
) -> partial[Any]:
    """A call of the form: with scratch, and with whether it adds, where the form takes them."""
    extra: dict[str, Any] = {"scratch": scratch, "accumulate": accumulate}
    keywords = params | {key: value for key, value in extra.items() if key in _keywords(form)}
    return partial(form, outs[0] if len(outs) == 1 else outs, *args, **keywords)


@cache
def _keywords(form: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(form).parameters)


def native_accumulate(form: Callable[..., Any]) -> bool:
    """Whether a form can itself add into its results."""
    return "accumulate" in _keywords(form)


def _padded_results(outs: Arrays, scratch: np.ndarray | None) -> tuple[Arrays, np.ndarray]:
    """Arrays for the results at the head of scratch, each padded to a multiple of 64 bytes, and the rest of it.

    Their dims lie in the order of the results' own.
    """
    assert scratch is not None, "adding to a result needs scratch"
    held = []
    for out in outs:
        nbytes, order = prod(out.shape) * out.itemsize, choice.memory_order(out)
        dense = scratch[:nbytes].view(out.dtype).reshape([out.shape[dim] for dim in order])
        held.append(dense.transpose([*map(order.index, range(out.ndim))]) if out.ndim > 1 else dense)
        scratch = scratch[-(-nbytes // 64) * 64 :]
    return tuple(held), scratch


def _define(
    definition: Callable[..., Any], args: tuple[Any, ...], outs: Arrays, params: dict[str, Any], accumulate: bool
) -> None:
    # What is added up is added array by array, as by calls for each.
    for those in [(one,) for one in args] if accumulate and hasattr(definition, "sums") else [args]:
        results = definition(*those, **params)
        for out, result in zip(outs, results if isinstance(results, tuple) else (results,), strict=True):
            # what overflows 16 bits is infinite there
            with np.errstate(over="ignore"):
                if accumulate:
                    np.add(out, result, out=out)
                else:
                    np.copyto(out, result)
