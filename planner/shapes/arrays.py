"""What kernels of arrays: sums of products, sums, shapes and copies give, work in and refuse."""

from math import prod
from typing import Any

from castile.planner.bodies.vocabulary import Results, Shape, Spec, kernel, like, need, same
from castile.planner.shapes.elementwise import pointwise


def _contract_working(outs: Results, accumulate: bool, spec: str, *xs: Spec) -> int:
    by_blas = len(xs) == 2 and all(x.dtype in ("float32", "float64") for x in xs)
    once = all(len(set(term)) == len(term) for term in spec.split("->")[0].replace("...", "").split(","))
    return outs[0].nbytes if accumulate and not (by_blas and once) else 0


@kernel(adds=True, casts=True, working=_contract_working)
def contract(spec: str, *xs: Spec) -> Results:
    """Lengths of the labels, each of which must be one."""
    left, arrow, right = spec.replace(" ", "").partition("->")
    terms = left.split(",")
    fits = bool(arrow) and len(terms) == len(xs) > 0
    need(fits, f'contract "{spec}": it needs one term for each of its {len(xs)} arrays, "->" and the result')
    same(f'contract "{spec}": dtypes', **{f"array {i}": x.dtype for i, x in enumerate(xs)})
    lengths: dict[str, Any] = {}
    for number, (term, x) in enumerate(zip(terms, xs, strict=True)):
        for label, length in _labelled(spec, term, x.shape):
            earlier = lengths.setdefault(label, length)
            same(f'contract "{spec}": label {label}', earlier=earlier, **{f"array {number}": length})
    before, dots, after = right.partition("...")
    missing = [label for label in [*before, *after, *([dots] if dots else [])] if label not in lengths]
    need(not missing, f'contract "{spec}": no array has the result\'s {", ".join(missing)}')
    middle = lengths["..."] if dots else ()
    return (Spec((*(lengths[i] for i in before), *middle, *(lengths[i] for i in after)), xs[0].dtype),)


@kernel(casts=True)
def contract_pointwise(spec: str, line: str, *xs: Spec, **constants: float) -> Results:
    """What `contract` of the first two gives, to which the others must broadcast."""
    need(len(xs) >= 2, f'contract_pointwise "{spec}": it needs two arrays to contract, not {len(xs)}')
    (total,) = contract(spec, *xs[:2])
    (result,) = pointwise(line, total, *xs[2:], **constants)
    shapes = " and ".join(str(x.shape) for x in xs[2:])
    need(result.shape == total.shape, f'contract_pointwise "{line}": {shapes} do not broadcast to {total.shape}')
    return (result,)


def _labelled(spec: str, term: str, shape: Shape) -> list[tuple[str, Any]]:
    """Each label of a term with its length, `...` with the shape of the leading dims that it stands for."""
    before, dots, after = term.partition("...")
    num_leading = len(shape) - len(before) - len(after)
    need(num_leading >= 0 if dots else num_leading == 0, f'contract "{spec}": {term} does not fit the shape {shape}')
    leading = shape[len(before) : len(before) + num_leading]
    named = zip(before + after, shape[: len(before)] + shape[len(before) + num_leading :], strict=True)
    return [*named, *([("...", leading)] if dots else [])]


@kernel()
def add(x: Spec, y: Spec) -> Results:
    """x's spec; y must broadcast to it."""
    same("add: dtypes", x=x.dtype, y=y.dtype)
    tail = x.shape[len(x.shape) - len(y.shape) :]
    fits = len(y.shape) <= len(x.shape) and all(b in (1, a) for a, b in zip(tail, y.shape, strict=True))
    need(fits, f"add: y {y.shape} does not broadcast to x {x.shape}")
    return (x,)


@kernel()
def add_bias(x: Spec, b: Spec, *, dim: int) -> Results:
    """x's spec."""
    need(-len(x.shape) <= dim < len(x.shape), f"add_bias: x {x.shape} has no dim {dim}")
    like("add_bias", b=b, **{"x's dim": Spec((x.shape[dim],), x.dtype)})
    return (x,)


@kernel()
def reshape(x: Spec, *, shape: Shape) -> Results:
    """As many elements in another shape."""
    need(prod(x.shape) == prod(shape), f"reshape: {x.shape} and {shape} hold different numbers of elements")
    return (Spec(tuple(shape), x.dtype),)


@kernel(adds=True, casts=True, many=True)
def copy(x: Spec, *more: Spec) -> Results:
    """x's spec, or in another dtype, and those of further arrays."""
    return x, *more


@kernel(adds=True)
def zero(*, shape: Shape, dtype: str) -> Results:
    """As told."""
    return (Spec(tuple(shape), dtype),)
