"""Arrays as shapes and steps (strides in elements): dims are reordered and merged, so that a kernel loops over few.

It knows no kernel, and uses only `shape`, `strides` and `dtype` of an array, as NumPy and CuPy have them.
"""

from math import prod
from typing import Any, NamedTuple

Shape = tuple[int, ...]

# From here on a place in an array does not fit into 32 bits.
INDEX_LIMIT = 2**31


class View(NamedTuple):
    """An array seen in another shape. Steps are in elements, 0 along dims that repeat it."""

    array: Any
    shape: Shape
    steps: Shape

    @property
    def span(self) -> int:
        """Elements from the first to the last in memory."""
        return sum((size - 1) * step for size, step in zip(self.shape, self.steps, strict=True)) + 1

    @property
    def nbytes(self) -> int:
        """Bytes of the elements that are seen, each counted once."""
        seen = prod(size for size, step in zip(self.shape, self.steps, strict=True) if step)
        return seen * int(self.array.dtype.itemsize)


class LoopNest(NamedTuple):
    """Loops that several views share: their sizes, and the steps of each view."""

    sizes: Shape
    steps: tuple[Shape, ...]

    @property
    def extent(self) -> int:
        """Number of elements."""
        return prod(self.sizes)


def view(x: Any) -> View:
    """All of x. AssertionError for steps that are negative or not whole elements, which no plan makes."""
    assert all(step >= 0 and step % x.itemsize == 0 for step in x.strides), f"steps {x.strides} bytes"
    return View(x, tuple(x.shape), tuple(step // x.itemsize for step in x.strides))


def broadcast(one: View, shape: Shape) -> View:
    """`one` broadcast to `shape` as NumPy does."""
    new = len(shape) - len(one.shape)
    own = (0 if size == 1 else step for size, step in zip(one.shape, one.steps, strict=True))
    return View(one.array, shape, (*[0] * new, *own))


def permuted(one: View, dims: Shape) -> View:
    """The dims `dims` of a view, in that order."""
    return View(one.array, tuple(one.shape[dim] for dim in dims), tuple(one.steps[dim] for dim in dims))


def split_dims(one: View, apart: Shape) -> View:
    """The view with its dims divided into those of `apart`; AssertionError where `apart` does not divide them."""
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


def in_memory_order(views: list[View]) -> list[View]:
    """The views with their dims sorted as the first lies in memory, longest steps first."""
    steps = views[0].steps
    dims = tuple(sorted(range(len(steps)), key=lambda dim: -steps[dim]))
    return [permuted(one, dims) for one in views]


def loop_nest(views: list[View]) -> LoopNest:
    """The fewest loops over the same elements: dims of length 1 vanish, neighbours merge where every view allows.

    There is always at least one loop.
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
        return LoopNest((1,), tuple((0,) for _ in views))
    return LoopNest(tuple(sizes), tuple(tuple(step[n] for step in steps) for n in range(len(views))))


def needs_64_bits(views: list[View]) -> bool:
    """Whether offsets in one of the views need 64 bits, including what a masked block reaches beyond the end."""
    return any(max(one.span, prod(one.shape)) > INDEX_LIMIT - 2**20 for one in views)


def power_of_two(least: int) -> int:
    """The smallest power of two that is not below `least`."""
    return 1 << max(0, least - 1).bit_length()
