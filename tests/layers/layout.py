"""Layers of drawn graphs: contraction, dims in another order, side by side, a range of one."""

from hypothesis import strategies as st

from castile.planner.op import Init, Tensor
from tests.layers import Canvas, layer

LETTERS = "ijkl"


@layer(exact=True)
def layer_contract(c: Canvas) -> Tensor | None:
    """Two tensors that share some dims, or a tensor and a parameter."""
    x = c.choose(lambda t: len(t.shape) >= 2)
    if x is None:
        return None
    axes = ["b", *LETTERS[: len(x.shape) - 1]]
    others = [t for t in c.pool if t.shape[:-1] == x.shape[:-1]]
    if c.draw(st.booleans()):
        y = c.draw(st.sampled_from(others))
        text = f"{' '.join(axes)}, {' '.join(axes[:-1])} o -> {' '.join(axes[:-2])} {axes[-1]} o"
        return c.graph.contract(c.name("contract"), f"{text} {axes[-2]}" if c.draw(st.booleans()) else text, x, y)
    width = c.integer(1, 4)
    w = c.graph.param(c.name("matrix"), (x.shape[-1], width), ("i", "o"), Init("zeros"))
    order = c.draw(st.permutations([*axes[:-1], "o"]))
    text = f"{' '.join(axes)}, {axes[-1]} o -> {' '.join(order)}"
    made = c.graph.contract(c.name("contract"), text, x, w)
    return (
        made
        if order[0] == "b"
        else c.graph.transpose(c.name("back"), made, f"{' '.join(order)} -> {' '.join([*axes[:-1], 'o'])}")
    )


@layer(exact=True)
def layer_transpose(c: Canvas) -> Tensor | None:
    """The dims behind the first in another order, the last divided before, or joined with its neighbour after."""
    x = c.choose(lambda t: len(t.shape) >= 2)
    if x is None:
        return None
    axes = list(LETTERS[: len(x.shape) - 1])
    before, sizes = " ".join(["b", *axes]), {}
    if c.draw(st.booleans()):
        inner = [n for n in range(1, x.shape[-1] + 1) if x.shape[-1] % n == 0]
        before, sizes = " ".join(["b", *axes[:-1], f"({axes[-1]} z)"]), {"z": c.draw(st.sampled_from(inner))}
        axes.append("z")
    after = c.draw(st.permutations(axes))
    joined = [*after[:-2], f"({' '.join(after[-2:])})"] if len(after) > 1 and c.draw(st.booleans()) else after
    if len(joined) > 3:
        joined = [f"({' '.join(after)})"]
    return c.graph.transpose(c.name("transpose"), x, f"{before} -> {' '.join(['b', *joined])}", **sizes)


@layer(exact=True)
def layer_concat(c: Canvas) -> Tensor | None:
    """Two or three tensors along a dim that is not the sample's."""
    x = c.choose(lambda t: len(t.shape) >= 2)
    if x is None:
        return None
    dim = c.integer(1, len(x.shape) - 1)

    def fits(t: Tensor) -> bool:
        same = len(t.shape) == len(x.shape)
        return same and all(a == b for n, (a, b) in enumerate(zip(x.shape, t.shape, strict=True)) if n != dim)

    others = st.sampled_from([t for t in c.pool if fits(t)])
    return c.graph.concat(c.name("concat"), dim, x, *(c.draw(others) for _ in range(c.integer(1, 2))))


@layer(exact=True)
def layer_slice(c: Canvas) -> Tensor | None:
    """A range of a dim that is not the sample's."""
    x = c.choose(lambda t: len(t.shape) >= 2 and max(t.shape[1:]) > 1)
    if x is None:
        return None
    dim = c.draw(st.sampled_from([n for n in range(1, len(x.shape)) if x.shape[n] > 1]))
    start = c.integer(0, x.shape[dim] - 1)
    return c.graph.slice(c.name("slice"), x, dim, start, c.integer(start + 1, x.shape[dim]))


@layer(exact=True)
def layer_expand(c: Canvas) -> Tensor | None:
    """A dim of one, which is made before where there is none, repeated."""
    x = c.choose(lambda t: len(t.shape) in (2, 3))
    if x is None:
        return None
    axes = " ".join(["b", *LETTERS[: len(x.shape) - 1]])
    x = c.graph.reshape(c.name("column"), x, f"{axes} -> {axes} z", z=1)
    return c.graph.expand(c.name("expand"), x, (*x.shape[:-1], c.integer(1, 3)))


@layer(exact=True)
def layer_pad(c: Canvas) -> Tensor | None:
    """More at the ends of a dim that is not the sample's."""
    x = c.choose(lambda t: len(t.shape) >= 2)
    if x is None:
        return None
    dim = c.integer(1, len(x.shape) - 1)
    return c.graph.pad(c.name("pad"), x, dim, c.integer(0, 2), c.integer(0, 2), value=c.integer(-1, 1))
