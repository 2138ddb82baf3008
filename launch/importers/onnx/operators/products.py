"""Products of matrices: dense layers, contractions, attention."""

from __future__ import annotations

from math import isclose, sqrt
from string import ascii_letters

from castile.launch.importers.onnx import heads, shaping, views
from castile.launch.importers.onnx.network import Call
from castile.launch.importers.onnx.operators import handles
from castile.launch.importers.onnx.operators.arithmetic import scaled
from castile.launch.importers.onnx.values import Known, Unsupported, Value
from castile.planner.op import Init, Tensor, find


def uniform(inputs: int) -> Init:
    """As wide as castile's own layers begin."""
    return Init("uniform", 1 / sqrt(inputs))


def dense(c: Call, name: str, x: Tensor, w: Known, bias: Known | None = None, turned: bool = True) -> Tensor:
    """x [..., i] times a weight [i, o], or [o, i] where not `turned`, and a bias [o].

    Of rows that were joined to that end the joining comes behind: of what is joined inside, as samples behind positions
    are, nothing could be cut.
    """
    rows = views.rows(c.g, c.inner("apart"), x) if w.shape[1 if turned else 0] > 1 else None
    if rows is not None:
        y = dense(c, name, rows.source, w, bias, turned)
        joined = views.made(c.g, c.inner("joined"), rows.over(y))
        assert joined is not None, f"{name}: {rows} of no dims of one"
        return joined
    whole = w.turned((1, 0)) if turned else w
    if bias is None and c.net.is_other(whole):
        own = c.net.operand(w)
        names = "i o" if turned else "o i"
        return c.g.contract(name, f"... i, {names} -> ... o", x, own)
    operands = [c.net.parameter(whole, ("o", "i"), uniform(whole.shape[1]))]
    if bias is not None:
        operands.append(c.net.parameter(bias, ("o",), Init("zeros")))
    return c.g.apply(find("linear")(), name, x, *operands)


def along(c: Call, name: str, x: Tensor, dim: int, matrix: Known) -> Tensor:
    """x, of which a dim is multiplied by a matrix of constants [made, length]."""
    before = list(ascii_letters[: len(x.shape)])
    after = [*before[:dim], "z", *before[dim + 1 :]]
    line = f"{' '.join(before)}, z {before[dim]} -> {' '.join(after)}"
    return c.g.contract(name, line, x, c.net.operand(matrix, x.dtype))


@handles("MatMul")
def matmul(c: Call) -> Tensor:
    a, b = c.value(0), c.value(1)
    if isinstance(b, Known) and len(b.shape) == 2 and not c.net.is_trained(a):
        return dense(c, c.name, c.tensor(0), b)
    whole = heads.attention(c, a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else None
    return whole if whole is not None else _product(c, c.name, a, b)


def _product(c: Call, name: str, a: Value, b: Value) -> Tensor:
    """As NumPy multiplies matrices: the dims before the last two are batched, and stretched where they are one."""
    x, y = c.net.operand(a, c.g.dtype), c.net.operand(b, c.g.dtype)
    if len(x.shape) == 1 or len(y.shape) == 1:
        return _with_vector(c, name, x, y)
    letters = iter(ascii_letters[3:])
    ndim = max(len(x.shape), len(y.shape)) - 2
    left, right, both = list[str](), list[str](), list[str]()
    for dim in range(-ndim - 2, -2):
        # 0 for a dim that it lacks
        lengths = [t.shape[dim] if -dim <= len(t.shape) else 0 for t in (x, y)]
        axis = next(letters)
        if lengths[0] != lengths[1] and min(lengths) == 1:
            # a dim of one is left out, and comes back by the other
            gone = x if lengths[0] == 1 else y
            less = (*gone.shape[: len(gone.shape) + dim], *gone.shape[len(gone.shape) + dim + 1 :])
            return _stretched(c, name, x, y, gone, less, dim)
        if lengths[0]:
            left.append(axis)
        if lengths[1]:
            right.append(axis)
        both.append(axis)
    line = f"{' '.join([*left, 'a', 'c'])}, {' '.join([*right, 'c', 'b'])} -> {' '.join([*both, 'a', 'b'])}"
    return c.g.contract(name, line, x, y)


def _stretched(c: Call, name: str, x: Tensor, y: Tensor, gone: Tensor, less: tuple[int, ...], dim: int) -> Tensor:
    other, first = y if gone is x else x, len(gone.shape) + dim
    # ones before it, each in the place of the next then, come back by the other too
    if first == 0 or (set(gone.shape[:first]) == {1} and len(other.shape) >= len(gone.shape)):
        lesser = shaping.reshaped(c.g, c.inner("less"), gone, less)
        return _product(c, name, *((lesser, y) if gone is x else (x, lesser)))
    length = other.shape[dim]
    longer = c.g.expand(
        c.inner("stretched"), gone, tuple(length if n - len(gone.shape) == dim else l for n, l in enumerate(gone.shape))
    )
    return _product(c, name, *((longer, y) if gone is x else (x, longer)))


def _with_vector(c: Call, name: str, x: Tensor, y: Tensor) -> Tensor:
    before = " ".join(ascii_letters[3 : 3 + max(len(x.shape), len(y.shape)) - 2])
    if len(x.shape) == len(y.shape) == 1:
        return c.g.contract(name, "c, c -> ", x, y)
    if len(y.shape) == 1:
        return c.g.contract(name, f"{before} a c, c -> {before} a", x, y)
    return c.g.contract(name, f"c, {before} c b -> {before} b", x, y)


@handles("Gemm")
def gemm(c: Call) -> Tensor:
    """alpha a b + beta c, each of a and b turned or not."""
    c.get("broadcast")
    alpha, beta = c.get("alpha", 1.0), c.get("beta", 1.0)
    turned, bias = (bool(c.get("transA", 0)), bool(c.get("transB", 0))), c.value(2) if c.has(2) else None
    b = c.value(1)
    features = b.shape[0 if turned[1] else 1]
    is_dense = isinstance(b, Known) and not c.net.is_trained(c.value(0))
    own = bias if is_dense and isinstance(bias, Known) and bias.size == features and alpha == beta == 1 else None
    name = c.name if own is not None or (bias is None and alpha == 1) else c.inner("product")
    if isinstance(b, Known) and is_dense:
        x = shaping.permuted(c.g, c.inner("turned"), c.tensor(0), (1, 0)) if turned[0] else c.tensor(0)
        y = dense(c, name, x, b, own.reshaped((features,)) if own is not None else None, not turned[1])
        if own is not None:
            return y
    else:
        names = ("i a" if turned[0] else "a i"), ("o i" if turned[1] else "i o")
        y = c.g.contract(name, f"{names[0]}, {names[1]} -> a o", c.tensor(0), c.tensor(1))
    if bias is None:
        return scaled(c, c.name, y, alpha)
    more = c.tensor(2) if beta == 1 else c.g.scale(c.inner("beta"), c.tensor(2), factor=beta)
    return c.g.add(c.name, scaled(c, c.inner("alpha"), y, alpha), more)


@handles("Einsum")
def einsum(c: Call) -> Tensor:
    text = c.get("equation").decode().replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if not arrow:
        right = "".join(sorted(axis for axis in set(left) - {","} if left.count(axis) == 1))
    if "." in text or any(len(set(term)) < len(term) for term in terms) or len(terms) > 2:
        raise Unsupported(f"of {text}")
    xs = []
    for n, term in enumerate(terms):
        x, elsewhere = c.tensor(n), set(right).union(*(other for m, other in enumerate(terms) if m != n))
        gone = [dim for dim, axis in enumerate(term) if axis not in elsewhere]
        xs.append(c.g.sum(c.inner(f"sum{n}"), x, dims=gone) if gone else x)
        terms[n] = "".join(axis for axis in term if axis in elsewhere)
    if len(xs) == 2:
        line = f"{' '.join(terms[0])}, {' '.join(terms[1])} -> {' '.join(right)}"
        return c.g.contract(c.name, line, *xs)
    return shaping.permuted(c.g, c.name, xs[0], tuple(terms[0].index(axis) for axis in right))


@handles("Attention")
def attention(c: Call) -> Tensor:
    """q, keys and values [b, s, h*d], or [b, h, s, d] with the heads apart."""
    if any(c.has(n) for n in range(3, 7)) or c.results > 1 or c.get("softcap", 0.0):
        raise Unsupported("with a mask, a past, a bound of scores or more than one result")
    q, keys, values = (c.tensor(n) for n in range(3))
    apart = len(q.shape) == 4
    count = q.shape[1] if apart else c.get("q_num_heads")
    groups = keys.shape[1] if apart else c.get("kv_num_heads")
    width = q.shape[-1] // (1 if apart else count)
    if apart:
        q, keys, values = (
            c.g.transpose(c.inner(f"joined{n}"), t, "b h s d -> b s (h d)") for n, t in enumerate((q, keys, values))
        )
    if values.shape != keys.shape:
        raise Unsupported("with values of another width than keys")
    scale = c.get("scale", 1 / sqrt(width))
    if not isclose(scale, 1 / sqrt(width), rel_tol=1e-6):
        q = scaled(c, c.inner("scaled"), q, scale * sqrt(width))
    name = c.inner("heads") if apart else c.name
    y = c.g.attention(name, q, keys, values, heads=count, causal=bool(c.get("is_causal", 0)), kv_heads=groups)
    return c.g.transpose(c.name, y, "b s (h d) -> b h s d", h=count) if apart else y
