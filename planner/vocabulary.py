"""What an operator body may call: each kernel's result shapes, its working memory, and what it refuses, in words.

It knows no kernel's code, no machine and no memory layout: bytes do not depend on strides.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Pair = tuple[int, int]
Pads = tuple[int, int, int, int]

ALIGNMENT = 64
COLUMNS_CAP = 1 << 21
SCORES_CAP = 1 << 19


@dataclass(frozen=True)
class Spec:
    """Shape and dtype (by name, such as "float32") of an array."""

    shape: Shape
    dtype: str

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array, dense."""
        return prod(self.shape) * self.itemsize


Results = tuple[Spec, ...]


@dataclass(frozen=True)
class Entry:
    """One kernel: its result specs, the bytes it works in, and whether it can add into its result by itself."""

    results: Callable[..., Results]
    working: Callable[..., int]
    adds: bool


_ENTRIES: dict[str, Entry] = {}


def results(name: str, args: tuple[Any, ...], params: dict[str, Any]) -> Results:
    """Specs of the results of kernel `name` on args (Specs or literals); ValueError for what it cannot take."""
    entry = _entry(name)
    try:
        return entry.results(*args, **params)
    except TypeError as error:
        raise ValueError(f"kernel {name}: {error}") from None


def workspace(
    name: str, args: tuple[Any, ...], outs: tuple[Spec, ...], params: dict[str, Any], accumulate: bool
) -> int:
    """Bytes of scratch memory, a multiple of 64, that kernel `name` gets, for adding into its results if so asked."""
    entry = _entry(name)
    held = sum(round_up(out.nbytes) for out in outs) if accumulate and not entry.adds else 0
    return round_up(entry.working(outs, accumulate, *args, **params)) + held


def names() -> list[str]:
    """All kernels, sorted."""
    return sorted(_ENTRIES)


def round_up(nbytes: Any) -> Any:
    """The next multiple of 64, of a number or of each in an array."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _entry(name: str) -> Entry:
    if name not in _ENTRIES:
        raise ValueError(f'there is no kernel "{name}"; the kernels are {", ".join(names())}')
    return _ENTRIES[name]


def _kernel(
    adds: bool = False, working: Callable[..., int] = lambda *args, **params: 0
) -> Callable[[Callable[..., Results]], Callable[..., Results]]:
    """Enters the decorated function, which gives the result specs, under its name."""

    def enter(function: Callable[..., Results]) -> Callable[..., Results]:
        _ENTRIES[function.__name__] = Entry(function, working, adds)
        return function

    return enter


def _need(holds: bool, sentence: str) -> None:
    if not holds:
        raise ValueError(sentence)


def _same(what: str, **values: Any) -> None:
    """ValueError naming all of `values` unless they are equal."""
    if len(set(values.values())) > 1:
        listed = ", ".join(f"{name} has {value}" for name, value in values.items())
        raise ValueError(f"{what}: {listed}; they must be equal")


def _like(what: str, **specs: Spec) -> None:
    _same(f"{what}: shapes", **{name: one.shape for name, one in specs.items()})
    _same(f"{what}: dtypes", **{name: one.dtype for name, one in specs.items()})


def _contract_working(outs: Results, accumulate: bool, spec: str, *xs: Spec) -> int:
    by_blas = len(xs) == 2 and all(x.dtype in ("float32", "float64") for x in xs)
    once = all(len(set(term)) == len(term) for term in spec.split("->")[0].replace("...", "").split(","))
    return outs[0].nbytes if accumulate and not (by_blas and once) else 0


@_kernel(adds=True, working=_contract_working)
def contract(spec: str, *xs: Spec) -> Results:
    """Lengths of the labels, each of which must be one."""
    left, arrow, right = spec.replace(" ", "").partition("->")
    terms = left.split(",")
    fits = bool(arrow) and len(terms) == len(xs) > 0
    _need(fits, f'contract "{spec}": it needs one term for each of its {len(xs)} arrays, "->" and the result')
    _same(f'contract "{spec}": dtypes', **{f"array {i}": x.dtype for i, x in enumerate(xs)})
    lengths: dict[str, Any] = {}
    for number, (term, x) in enumerate(zip(terms, xs, strict=True)):
        for label, length in _labelled(spec, term, x.shape):
            earlier = lengths.setdefault(label, length)
            _same(f'contract "{spec}": label {label}', earlier=earlier, **{f"array {number}": length})
    before, dots, after = right.partition("...")
    missing = [label for label in [*before, *after, *([dots] if dots else [])] if label not in lengths]
    _need(not missing, f'contract "{spec}": no array has the result\'s {", ".join(missing)}')
    middle = lengths["..."] if dots else ()
    return (Spec((*(lengths[i] for i in before), *middle, *(lengths[i] for i in after)), xs[0].dtype),)


def _labelled(spec: str, term: str, shape: Shape) -> list[tuple[str, Any]]:
    """Each label of a term with its length, `...` with the shape of the leading dims that it stands for."""
    before, dots, after = term.partition("...")
    num_leading = len(shape) - len(before) - len(after)
    _need(num_leading >= 0 if dots else num_leading == 0, f'contract "{spec}": {term} does not fit the shape {shape}')
    leading = shape[len(before) : len(before) + num_leading]
    named = zip(before + after, shape[: len(before)] + shape[len(before) + num_leading :], strict=True)
    return [*named, *([("...", leading)] if dots else [])]


@_kernel()
def add(x: Spec, y: Spec) -> Results:
    """x's spec; y must broadcast to it."""
    _same("add: dtypes", x=x.dtype, y=y.dtype)
    tail = x.shape[len(x.shape) - len(y.shape) :]
    fits = len(y.shape) <= len(x.shape) and all(b in (1, a) for a, b in zip(tail, y.shape, strict=True))
    _need(fits, f"add: y {y.shape} does not broadcast to x {x.shape}")
    return (x,)


@_kernel()
def add_bias(x: Spec, b: Spec, *, dim: int) -> Results:
    """x's spec."""
    _need(-len(x.shape) <= dim < len(x.shape), f"add_bias: x {x.shape} has no dim {dim}")
    _like("add_bias", b=b, **{"x's dim": Spec((x.shape[dim],), x.dtype)})
    return (x,)


@_kernel(adds=True)
def sum_over(x: Spec, *, dims: Shape) -> Results:
    """x without `dims`."""
    gone = {dim % len(x.shape) for dim in dims if -len(x.shape) <= dim < len(x.shape)}
    _need(len(gone) == len(dims), f"sum_over: dims {dims} are not distinct dims of x {x.shape}")
    return (Spec(tuple(length for dim, length in enumerate(x.shape) if dim not in gone), x.dtype),)


@_kernel()
def reshape(x: Spec, *, shape: Shape) -> Results:
    """As many elements in another shape."""
    _need(prod(x.shape) == prod(shape), f"reshape: {x.shape} and {shape} hold different numbers of elements")
    return (Spec(tuple(shape), x.dtype),)


@_kernel()
def expand(x: Spec, *, shape: Shape) -> Results:
    """A scalar everywhere."""
    _need(x.shape == (), f"expand: x must be a scalar of shape (), not {x.shape}")
    return (Spec(tuple(shape), x.dtype),)


@_kernel(adds=True)
def copy(x: Spec) -> Results:
    """x's spec."""
    return (x,)


@_kernel(adds=True)
def zero(*, shape: Shape, dtype: str) -> Results:
    """As told."""
    return (Spec(tuple(shape), dtype),)


@_kernel()
def relu(x: Spec) -> Results:
    """x's spec."""
    return (x,)


@_kernel()
def relu_grad(dy: Spec, x: Spec) -> Results:
    """x's spec."""
    _like("relu_grad", dy=dy, x=x)
    return (x,)


@_kernel()
def gelu(x: Spec, *, approximate: str) -> Results:
    """x's spec."""
    _need(approximate in ("none", "tanh"), f'gelu: approximate is "none" or "tanh", not "{approximate}"')
    return (x,)


@_kernel()
def gelu_grad(dy: Spec, x: Spec, *, approximate: str) -> Results:
    """x's spec."""
    _like("gelu_grad", dy=dy, x=x)
    return gelu(x, approximate=approximate)


def _columns_bytes(y: Spec, window: Shape) -> int:
    """Columns and results of as many whole samples as the cap holds, else of as many rows of one, but at least one.

    y [b,o,h,w] is the convolution's result and `window` the channels, height and width that each element looks at.
    """
    batch, outputs, height, width = y.shape
    row = (prod(window) + outputs) * width * y.itemsize
    if row * height <= COLUMNS_CAP:
        return row * height * min(batch, COLUMNS_CAP // (row * height))
    return row * max(1, COLUMNS_CAP // row)


@_kernel(adds=True, working=lambda outs, _, x, w, **how: _columns_bytes(outs[0], w.shape[1:]))
def conv2d(x: Spec, w: Spec, *, stride: Pair, pads: Pads) -> Results:
    """[b,o,h,w] of x [b,i,H,W] and w [o,i,r,s]."""
    _four("conv2d", x=x, w=w)
    _same("conv2d: dtypes", x=x.dtype, w=w.dtype)
    _same("conv2d: input channels", x=x.shape[1], w=w.shape[1])
    size = _windows("conv2d", x.shape[2:], w.shape[2:], stride, pads)
    return (Spec((x.shape[0], w.shape[0], *size), x.dtype),)


@_kernel(adds=True, working=lambda outs, _, dy, w, shape, **how: _columns_bytes(dy, w.shape[1:]))
def conv2d_grad_input(dy: Spec, w: Spec, *, shape: Shape, stride: Pair, pads: Pads) -> Results:
    """x's shape."""
    x = Spec(tuple(shape), dy.dtype)
    _like("conv2d_grad_input", dy=dy, conv2d=conv2d(x, w, stride=stride, pads=pads)[0])
    return (x,)


@_kernel(adds=True, working=lambda outs, _, dy, x, kernel, **how: _columns_bytes(dy, (x.shape[1], *kernel)))
def conv2d_grad_weight(dy: Spec, x: Spec, *, kernel: Pair, stride: Pair, pads: Pads) -> Results:
    """[o,i,r,s], (r, s) = kernel."""
    _four("conv2d_grad_weight", dy=dy, x=x)
    w = Spec((dy.shape[1], x.shape[1], *kernel), x.dtype)
    _like("conv2d_grad_weight", dy=dy, conv2d=conv2d(x, w, stride=stride, pads=pads)[0])
    return (w,)


@_kernel()
def max_pool2d(x: Spec, *, kernel: Pair, stride: Pair, pads: Pads) -> Results:
    """[b,c,h,w] of x [b,c,H,W]."""
    _four("max_pool2d", x=x)
    return (Spec((*x.shape[:2], *_windows("max_pool2d", x.shape[2:], kernel, stride, pads)), x.dtype),)


@_kernel(adds=True)
def max_pool2d_grad(dy: Spec, x: Spec, *, kernel: Pair, stride: Pair, pads: Pads) -> Results:
    """x's spec."""
    _like("max_pool2d_grad", dy=dy, max_pool2d=max_pool2d(x, kernel=kernel, stride=stride, pads=pads)[0])
    return (x,)


def _four(what: str, **specs: Spec) -> None:
    for name, one in specs.items():
        _need(len(one.shape) == 4, f"{what}: {name} must have 4 dims, not {one.shape}")


def _windows(what: str, size: Shape, kernel: Shape, stride: Pair, pads: Pads) -> Pair:
    _need(min(stride) > 0 and min(pads) >= 0, f"{what}: stride {stride} must be positive and pads {pads} not negative")
    padded = (size[0] + pads[0] + pads[1], size[1] + pads[2] + pads[3])
    fits = all(0 < k <= n for k, n in zip(kernel, padded, strict=True))
    _need(fits, f"{what}: the kernel {tuple(kernel)} does not fit into the padded image {padded}")
    return (padded[0] - kernel[0]) // stride[0] + 1, (padded[1] - kernel[1]) // stride[1] + 1


@_kernel()
def layer_norm(x: Spec, g: Spec, b: Spec, *, eps: float) -> Results:
    """y, mean, rstd."""
    _like("layer_norm", g=g, b=b, **{"x's last dim": Spec(x.shape[-1:], x.dtype)})
    rows = Spec(x.shape[:-1], x.dtype)
    return x, rows, rows


@_kernel()
def layer_norm_grad_input(dy: Spec, x: Spec, g: Spec, mean: Spec, rstd: Spec) -> Results:
    """x's spec."""
    _like("layer_norm_grad_input", dy=dy, x=x)
    _like("layer_norm_grad_input", g=g, **{"x's last dim": Spec(x.shape[-1:], x.dtype)})
    _like("layer_norm_grad_input", mean=mean, rstd=rstd, **{"x's rows": Spec(x.shape[:-1], x.dtype)})
    return (x,)


@_kernel(adds=True)
def layer_norm_grad_params(dy: Spec, x: Spec, mean: Spec, rstd: Spec) -> Results:
    """dg, db."""
    _like("layer_norm_grad_params", dy=dy, x=x)
    _like("layer_norm_grad_params", mean=mean, rstd=rstd, **{"x's rows": Spec(x.shape[:-1], x.dtype)})
    params = Spec(x.shape[-1:], x.dtype)
    return params, params


@_kernel()
def embedding(ids: Spec, table: Spec) -> Results:
    """ids.shape + (d,)."""
    _integers("embedding", ids=ids)
    _need(len(table.shape) == 2, f"embedding: the table must have 2 dims, not {table.shape}")
    return (Spec((*ids.shape, table.shape[1]), table.dtype),)


@_kernel(adds=True)
def embedding_grad(dy: Spec, ids: Spec, *, rows: int) -> Results:
    """[rows, d]."""
    _integers("embedding_grad", ids=ids)
    _same("embedding_grad: shapes", dy=dy.shape[:-1], ids=ids.shape)
    return (Spec((rows, dy.shape[-1]), dy.dtype),)


def _integers(what: str, **specs: Spec) -> None:
    for name, one in specs.items():
        _need(np.dtype(one.dtype).kind in "iu", f"{what}: {name} must be integers, not {one.dtype}")


def _scores_bytes(q: Spec, kk: Spec, heads: int) -> int:
    """Score rows of t and one more elements, as many as the cap holds, but at least one."""
    row = (kk.shape[1] + 1) * q.itemsize
    return row * min(q.shape[0] * heads * q.shape[1], max(1, SCORES_CAP // row))


@_kernel(working=lambda outs, _, q, kk, v, heads, **how: _scores_bytes(q, kk, heads))
def attention(q: Spec, kk: Spec, v: Spec, *, heads: int, causal: bool, offset: int, scale: float) -> Results:
    """y like q, and lse [b,heads,s]."""
    _need(len(q.shape) == 3 and len(kk.shape) == 3, f"attention: q {q.shape} and kk {kk.shape} must have 3 dims")
    _like("attention", kk=kk, v=v)
    _same("attention: samples, width and dtype", q=(q.shape[::2], q.dtype), kk=(kk.shape[::2], kk.dtype))
    _need(q.shape[2] % heads == 0, f"attention: the width {q.shape[2]} is not a multiple of {heads} heads")
    _need(scale > 0 and offset >= 0, f"attention: scale {scale} must be positive and offset {offset} not negative")
    return q, Spec((q.shape[0], heads, q.shape[1]), q.dtype)


@_kernel(working=lambda outs, _, dy, q, kk, *more, heads, **how: 2 * round_up(_scores_bytes(q, kk, heads)))
def attention_grad(
    dy: Spec, q: Spec, kk: Spec, v: Spec, y: Spec, lse: Spec, *, heads: int, causal: bool, offset: int, scale: float
) -> Results:
    """dq, dk, dv."""
    forward = attention(q, kk, v, heads=heads, causal=causal, offset=offset, scale=scale)
    _like("attention_grad", dy=dy, q=q, y=y)
    _like("attention_grad", lse=lse, attention=forward[1])
    return q, kk, v


@_kernel()
def cross_entropy(logits: Spec, labels: Spec, *, scale: float) -> Results:
    """loss [], lse."""
    _integers("cross_entropy", labels=labels)
    _same("cross_entropy: shapes", logits=logits.shape[:-1], labels=labels.shape)
    return Spec((), logits.dtype), Spec(logits.shape[:-1], logits.dtype)


@_kernel()
def cross_entropy_grad(dy: Spec, logits: Spec, labels: Spec, lse: Spec, *, scale: float) -> Results:
    """Like logits."""
    loss, rows = cross_entropy(logits, labels, scale=scale)
    _like("cross_entropy_grad", dy=dy, loss=loss)
    _like("cross_entropy_grad", lse=lse, cross_entropy=rows)
    return (logits,)


@_kernel()
def sgd(w: Spec, g: Spec, m: Spec, lr: Spec, *, momentum: float, decay: float, nesterov: bool) -> Results:
    """w, m."""
    _like("sgd", w=w, g=g, m=m)
    _like("sgd", lr=lr, scalar=Spec((), w.dtype))
    return w, m
