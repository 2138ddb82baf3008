"""What the kernel of arithmetic on each element and on numbers of its channel gives and refuses."""

from math import prod

from castile.planner.bodies.vocabulary import Results, Spec, kernel, need
from castile.planner.shapes.elementwise import pointwise


@kernel(adds=True)
def channelwise(line: str, *xs: Spec, tables: int, **constants: float) -> Results:
    """The shape [b,c,...] that all xs but the last `tables` of them broadcast to; these are [n,c] or [c]."""
    need(0 < tables < len(xs), f'channelwise "{line}": of {len(xs)} arrays {tables} cannot be tables of channels')
    arrays, last = xs[: len(xs) - tables], xs[len(xs) - tables :]
    rows = [Spec(table.shape[-1:], table.dtype) for table in last for _ in range(prod(table.shape[:-1]))]
    (result,) = pointwise(line, *arrays, *(Spec((1,), row.dtype) for row in rows), **constants)
    fits = len(result.shape) >= 2 and all(row.shape == result.shape[1:2] for row in rows)
    shapes = " and ".join(str(table.shape) for table in last)
    need(fits, f'channelwise "{line}": tables {shapes} must hold numbers for each channel of {result.shape}')
    return (result,)
