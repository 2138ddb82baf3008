"""What a faster form of a kernel looks like: a function named like its definition, in a module of a forms folder.

It does not know which forms exist.

There are two kinds, distinguished by a mark:

- plain: `def relu(out, x)` does the work at once, on each call;
- prepared: `@prepares def contract(out, spec, *xs, ...)` looks at shapes and strides once and returns a callable that
  does the work as often as it is called, or None when it has no fast way for these strides (the definition then runs).

`out` is the result array, or the tuple of result arrays where the definition returns a tuple. Results are preallocated,
hold NaN before the call, and never overlap inputs, except that `sgd` may write over its own w and m. A form that needs
working memory takes the keyword `scratch` (1-D uint8, 64-byte aligned, of the bytes that the planner's vocabulary
declares); a form that can add into its result takes the keyword `accumulate`.

A prepared form that one may choose has an attribute `settings`: of the same arguments it gives the settings worth
trying, as text and the likeliest first, [""] where it leaves nothing to choose and [] where it cannot; of the arrays it
looks at shapes, strides and dtypes alone. Such a form takes the keyword `setting`, unless all that it offers is [""],
and raises Refused for one that the device cannot run.

A library's form may have an attribute `leads`: of the same arguments it tells whether the library is taken on a device
where nothing was measured of the call.

A definition that adds up the arrays of several is marked too, by `sums`, and one whose integers number rows or classes
by `numbers`.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Form = TypeVar("Form", bound=Callable[..., Any])


class Refused(Exception):
    """The device cannot run a form with this setting, as where it has too little shared memory; another may do."""


def offers(settings: Callable[..., list[str]]) -> Callable[[Form], Form]:
    """Give a prepared form its `settings`."""
    return _marks("settings", settings)


def leads(where: Callable[..., bool]) -> Callable[[Form], Form]:
    """Give a library's form its `leads`."""
    return _marks("leads", where)


def prepares(form: Form) -> Form:
    """Mark `form` as prepared: it is called once when bound and returns the work as a callable, or None."""
    setattr(form, "prepares", True)
    return form


def sums(definition: Form) -> Form:
    """Mark a definition that takes any number of arrays and adds up, in their order, what it gives for each alone."""
    setattr(definition, "sums", True)
    return definition


def numbers(word: str) -> Callable[[Form], Form]:
    """Mark a definition whose integers number as many things as that parameter says."""
    return _marks("numbers", word)


def _marks(word: str, value: object) -> Callable[[Form], Form]:
    def mark(form: Form) -> Form:
        setattr(form, word, value)
        return form

    return mark


def each_of(out: Sequence[Any], arrays: Sequence[Any], num_results: int) -> list[tuple[Any, Any]]:
    """Of one call for many the results and the arrays of each: so many results, and as many arrays for all."""
    length = len(arrays) * num_results // len(out)
    return [
        (out[num_results * n :][:num_results], arrays[length * n :][:length]) for n in range(len(out) // num_results)
    ]
