"""Arrays as shapes and steps: dims put in order and merged, so that a kernel sees as few of them as there are.

It knows no kernel, and asks of an array only `shape`, `strides` and `dtype`, as those of NumPy and CuPy have them.
"""

from math import prod
from typing import Any, NamedTuple

Shape = tuple[int, ...]

# From here on a place in an array does not fit into 32 bits.
WIDE = 2**31


class View(NamedTuple):
    """An array seen in another shape: its steps are in elements, 0 where it stands still."""

    array: Any
    shape: Shape
    steps: Shape

    @property
    def span(self) -> int:
        """Elements from the first to the last in memory."""
        return sum((size - 1) * step for size, step in zip(self.shape, self.steps, strict=True)) + 1

    @property
    def nbytes(self) -> int:
        """Bytes of the elements that are seen, each once."""
        seen = prod(size for size, step in zip(self.shape, self.steps, strict=True) if step)
        return seen * int(self.array.dtype.itemsize)


class Nest(NamedTuple):
    """Dims that several views walk together: the sizes, and the steps of each view."""

    sizes: Shape
    steps: tuple[Shape, ...]

    @property
    def extent(self) -> int:
        """Number of elements."""
        return prod(self.sizes)


def view(x: Any) -> View:
    """All of x. AssertionError for steps that go backwards or between elements, which no plan makes."""
    assert all(step >= 0 and step % x.itemsize == 0 for step in x.strides), f"steps {x.strides} bytes"
    return View(x, tuple(x.shape), tuple(step // x.itemsize for step in x.strides))


def broadcast(one: View, shape: Shape) -> View:
    """`one` stretched to `shape` as NumPy does: it stands still along new dims and those of length 1."""
    new = len(shape) - len(one.shape)
    own = (0 if size == 1 else step for size, step in zip(one.shape, one.steps, strict=True))
    return View(one.array, shape, (*[0] * new, *own))


def permuted(one: View, dims: Shape) -> View:
    """The dims `dims` of a view, in that order."""
    return View(one.array, tuple(one.shape[dim] for dim in dims), tuple(one.steps[dim] for dim in dims))


def split(one: View, apart: Shape) -> View:
    """The dims of a view divided into those of `apart`; AssertionError where `apart` does not divide them."""
    steps: list[int] = []
    dims = iter([(size, step) for size, step in zip(one.shape, one.steps, strict=True) if size != 1])
    left, step = 1, 0
    for size in apart:
        if left == 1 and size != 1:
            left, step = next(dims)
        assert left % size == 0, f"{apart} does not divide {one.shape}"
        left //= size
        steps.append(step * left if size != 1 else 0)
    return View(one.array, apart, tuple(steps))


def ordered(views: list[View]) -> list[View]:
    """The views with their dims in the order in which the first lies in memory, longest steps first."""
    steps = views[0].steps
    dims = tuple(sorted(range(len(steps)), key=lambda dim: -steps[dim]))
    return [permuted(one, dims) for one in views]


def nest(views: list[View]) -> Nest:
    """The fewest dims that walk the same elements: dims of length 1 vanish, neighbours merge where every view allows.

    There is always at least one dim.
    """
    sizes: list[int] = []
    steps: list[list[int]] = []
    for dim, size in enumerate(views[0].shape):
        if size == 1:
            continue
        here = [one.steps[dim] for one in views]
        if sizes and all(before == step * size for before, step in zip(steps[-1], here, strict=True)):
            sizes[-1] *= size
            steps[-1] = here
        else:
            sizes.append(size)
            steps.append(here)
    if not sizes:
        return Nest((1,), tuple((0,) for _ in views))
    return Nest(tuple(sizes), tuple(tuple(step[n] for step in steps) for n in range(len(views))))


def wide(views: list[View]) -> bool:
    """Whether places in one of the views need 64 bits, with room for what a masked block reaches beyond the end."""
    return any(max(one.span, prod(one.shape)) > WIDE - 2**20 for one in views)


def power_of_two(least: int) -> int:
    """The smallest power of two that is not below `least`."""
    return 1 << max(0, least - 1).bit_length()
