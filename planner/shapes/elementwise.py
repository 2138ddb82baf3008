"""What kernels of arithmetic on each element give, work in and refuse."""

from castile.planner.vocabulary import Results, Shape, Spec, computed, kernel, need


@kernel(adds=True)
def pointwise(line: str, *xs: Spec, **constants: float) -> Results:
    """The shape that xs broadcast to."""
    names, arrow, _ = line.partition("->")
    fits = bool(arrow) and len(names.split(",")) == len(xs) > 0
    need(fits, f'pointwise "{line}": it needs a name for each of its {len(xs)} arrays, "->" and a value')
    dtype = computed(f'pointwise "{line}": dtypes', **{f"array {i}": x.dtype for i, x in enumerate(xs)})
    return (Spec(_broadcast(line, [x.shape for x in xs]), dtype),)


def _broadcast(line: str, shapes: list[Shape]) -> Shape:
    """Shapes aligned at the right, missing dims and dims of one stretched."""
    ndim = max(map(len, shapes))
    columns = zip(*((1,) * (ndim - len(shape)) + tuple(shape) for shape in shapes), strict=True)
    lengths = [{length for length in column if length != 1} or {1} for column in columns]
    listed = " and ".join(map(str, shapes))
    need(all(len(found) == 1 for found in lengths), f'pointwise "{line}": shapes {listed} do not broadcast')
    return tuple(next(iter(found)) for found in lengths)
