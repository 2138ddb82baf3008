"""What checks of the Triton forms share: their plans on arrays that are there or not, shapes of real networks."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, combinations, product
from typing import Any
from unittest import mock

import ml_dtypes  # noqa: F401  (makes "bfloat16" a dtype of NumPy)
import numpy as np

from castile.kernels.estimates import estimate
from castile.kernels.table import definitions, forms
from castile.kernels.triton.launch import Launch, LaunchPlan
from castile.planner.bodies import vocabulary
from castile.planner.bodies.vocabulary import Spec
from tests import triton_cases_images, triton_cases_tokens
from tests.kernel_cases import Case, cases
from tests.triton_arrays import array, boxed, by_columns, outermost
from tests.triton_cases_images import layouts

NAMES = sorted(forms("triton"))
OF_LOGITS = tuple(name for name in NAMES if "entropy" in name or name.startswith("contract"))
FAMILIES = (triton_cases_images, triton_cases_tokens)


def _as_it_comes(x: Any) -> Any:
    return x


# How operands and results lie where these are not whole arrays, or not by rows.
STEPPED = {"reading boxes": (boxed, _as_it_comes), "writing columns": (_as_it_comes, by_columns)}


def specs(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arrays as the vocabulary sees them."""
    return tuple(Spec(x.shape, x.dtype.name) if hasattr(x, "strides") else x for x in args)


def results(name: str, args: tuple[Any, ...], params: dict[str, Any]) -> tuple[Spec, ...]:
    """What a kernel gives, as Specs."""
    return vocabulary.results(name, specs(args), params)


def cast(name: str, case: Case, dtype: str) -> Case:
    """A case with its floating arrays in another dtype, but for those that its kernel wants wide."""
    args, params = case
    words = {word: dtype if word == "dtype" else x for word, x in params.items()}
    return _taken(name, tuple(_cast(x, dtype) for x in args), args, words), words


def _taken(name: str, low: tuple[Any, ...], wide: tuple[Any, ...], params: dict[str, Any]) -> tuple[Any, ...]:
    """`low` with as few arguments of `wide` as the vocabulary wants."""
    for kept in chain(*(combinations(range(len(low)), num) for num in range(len(low) + 1))):
        mixed = tuple(wide[n] if n in kept else x for n, x in enumerate(low))
        with suppress(ValueError):
            results(name, mixed, params)
            return mixed
    raise ValueError(f"{name} takes no such dtypes")


def plain(name: str, case: Case, dtype: str) -> list[np.ndarray]:
    """The results of a case in dtype by the definition in float32, but for operands of products, which are rounded to
    dtype: what comes of units that multiply numbers of dtype and add in float32.
    """
    einsum = np.einsum

    def rounding(spec: str, *xs: np.ndarray) -> np.ndarray:
        return np.asarray(einsum(spec, *(x.astype(dtype).astype(x.dtype) for x in xs)))

    args, params = cast(name, case, "float32")
    with mock.patch.object(np, "einsum", rounding), np.errstate(all="ignore"):
        made = definitions()[name](*args, **params)
    every = zip(made if isinstance(made, tuple) else (made,), results(name, *case), strict=True)
    return [np.asarray(x).astype(spec.dtype) for x, spec in every]


def _cast(x: Any, dtype: str) -> Any:
    # What is float64 among float32, as moments are, is so whatever the others are.
    kept = not isinstance(x, np.ndarray) or x.dtype.kind in "iub" or x.dtype == np.float64
    with np.errstate(over="ignore"):
        return x if kept else x.astype(dtype)


def error(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference; infinities that are the same are none."""
    one, other = got.astype(np.float64), want.astype(np.float64)
    return float(np.abs(np.subtract(one, other, where=one != other, out=np.zeros_like(one))).max(initial=0))


def plan(name: str, outs: tuple[Any, ...], case: Case, accumulate: bool = False) -> LaunchPlan | None:
    """What a form says of its work, before anything is bound."""
    args, params = case
    return estimate.plan(name, outs, args, params, accumulate)


def fake_plan(name: str, case: Case) -> LaunchPlan | None:
    """The plan on arrays like those of a case, with results that lie dense."""
    outs = tuple(array(one.shape, one.dtype) for one in results(name, *case))
    return plan(name, outs, case)


def asked(name: str, dtype: str) -> Iterator[tuple[str, LaunchPlan]]:
    """The plans of `large` cases in every way that planners ask for them, and that way in words: with images in each
    layout, logits in both, added to what is there, and written in float32; reading boxes of larger arrays; writing by
    columns what is read by rows. The first of a case, as it comes, has none.
    """
    adds = ("", "adds")[: 1 + ("accumulate" in inspect.signature(forms("triton")[name]).parameters)]
    wide = ("", "written in float32")[: 1 + (vocabulary.casts(name) and dtype != "float32")]
    for case in large(name, dtype):
        lays = layouts(case) if hasattr(triton_cases_images, f"large_{name}") else {"": _as_it_comes}
        lays = lays | ({"classes outermost": outermost} if "entropy" in name else {})
        ways = [(layout, lay, lay, add, cast_to) for (layout, lay), add, cast_to in product(lays.items(), adds, wide)]
        ways += [(way, read, written, "", "") for way, (read, written) in STEPPED.items()]
        for layout, read, written, add, cast_to in ways:
            made_of = (tuple(map(read, case[0])), case[1])
            outs = (array(one.shape, "float32" if cast_to else one.dtype) for one in results(name, *case))
            made = plan(name, tuple(map(written, outs)), made_of, bool(add))
            assert made is not None, f"{name} falls back to its definition"
            yield " ".join(filter(None, (layout, add, cast_to))), made


def launches(made: LaunchPlan) -> list[Launch]:
    """What the likeliest setting would launch."""
    return made.launches(made.settings[0])


def has_network_shapes(name: str) -> bool:
    """Whether `large` has more than the small cases."""
    return _large(name) is not None


def large(name: str, dtype: str) -> Iterator[Case]:
    """Cases of a GPT-2 of 124 million parameters and batch 8; small ones where none is named."""
    make = _large(name)
    if make is None:
        yield from (cast(name, case, dtype) for case in cases(name, "float32")[-2:])
        return

    def draw(*shape: int) -> np.ndarray:
        return array(shape, dtype)

    for args, params in make(draw):
        wide = tuple(array(x.shape, "float32") if getattr(x, "dtype", None) == dtype else x for x in args)
        yield _taken(name, args, wide, params), params


def _large(name: str) -> Callable[..., Iterator[Case]] | None:
    """What makes cases of a kernel, in one of the families."""
    return next((getattr(one, f"large_{name}") for one in FAMILIES if hasattr(one, f"large_{name}")), None)
