"""Elementwise expressions with one number for each channel, in one pass over memory.

It knows no expression.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from castile.kernels.expression import parse
from castile.kernels.form import prepares
from castile.kernels.numpy.channels import channels
from castile.kernels.numpy.codegen import fill_template, from_text, typed_text
from castile.kernels.numpy.elementwise import pointwise

# Numbers of a channel are read once for each of its rows of places, and stay where the loop has them.
_LOOP = """
def {name}(shape, out, to{arguments}):
    p_out = pointer(out)
    {begin}
    for sample, channel in np.ndindex(shape[0], shape[1]):
        {numbers}
        for row in range(shape[2]):
            v_out = after(p_out, sample * to[0] + channel * to[1] + row * to[2])
            {fetch}
            for place in range(shape[3]):
                {load}
                v_out[place] {assign} {value}
"""


@prepares
def channelwise(
    out: np.ndarray, expression: str, *xs: np.ndarray, tables: int, accumulate: bool, **constants: float
) -> Callable[[], Any] | None:
    """See the definition."""
    arrays, last = xs[: len(xs) - tables], xs[len(xs) - tables :]
    rows = [row for table in last for row in (table if table.ndim == 2 else (table,))]
    found = channels(out, *arrays) if all(x.shape == out.shape for x in arrays) else None
    if found is None:
        # one number for each channel of what lies below it, as a view
        views = [row.reshape(-1, *[1] * (out.ndim - 2), copy=False) for row in rows]
        return pointwise(out, expression, *arrays, *views, accumulate=accumulate, **constants)
    loop = _loop(expression, len(arrays), tuple(constants), out.dtype.name, accumulate)
    operands = [part for pair in zip(found.flats[1:], found.steps[1:], strict=True) for part in pair]
    numbers = [out.dtype.type(value) for value in constants.values()]
    return partial(loop, found.shape, found.flats[0], found.steps[0], *operands, *rows, *numbers)


@cache
def _loop(expression: str, num_arrays: int, constants: tuple[str, ...], dtype: str, adds: bool) -> Callable[..., Any]:
    """The loop of an expression whose first names are arrays; the others are numbers of channels."""
    names, value = parse(expression)
    arrays, rows = names[:num_arrays], names[num_arrays:]
    parts = {
        "begin": [f"p_{x} = pointer(a_{x})" for x in arrays],
        "numbers": [f"{x} = a_{x}[channel]" for x in rows],
        "fetch": [f"v_{x} = after(p_{x}, sample * s_{x}[0] + channel * s_{x}[1] + row * s_{x}[2])" for x in arrays],
        "load": [f"{x} = v_{x}[place]" for x in arrays],
    }
    given = (*(f"a_{x}, s_{x}" for x in arrays), *(f"a_{x}" for x in rows), *constants)
    arguments = "".join(f", {x}" for x in given)
    body = fill_template(_LOOP, parts, arguments=arguments, value=typed_text(value), assign="+=" if adds else "=")
    return from_text(body, dtype)
