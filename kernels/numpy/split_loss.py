"""The two halves of a cross-entropy over blocks of classes, row by row.

It knows no processors. The two numbers that a block gives lie a step of the result apart; a row's first is addressed.
"""

from math import log

import numpy as np

from castile.kernels.calls import Call
from castile.kernels.form import prepares
from castile.kernels.ids import OutOfRange
from castile.kernels.numpy.jit import compiled, exp, row_max
from castile.kernels.numpy.lanes import after, pointer
from castile.kernels.numpy.moving import onto_zeros
from castile.kernels.numpy.views import Shape, by_rows, steps_of


@prepares
def block_entropy(
    out: np.ndarray, logits: np.ndarray, labels: np.ndarray, *, blocks: int, first: int, of: int, classes: int
) -> Call | None:
    """See the definition."""
    return by_rows(_blocks, [logits], blocks, *_steps(out), first, of, classes, bare=[out[..., 0, 0], labels])


@prepares
def block_entropy_grad(
    out: np.ndarray,
    dy: np.ndarray,
    logits: np.ndarray,
    labels: np.ndarray,
    y: np.ndarray,
    *,
    first: int,
    of: int,
    classes: int,
) -> Call | None:
    """See the definition."""
    steps = y.shape[-2], *_steps(dy), *_steps(y), first, of, classes
    return by_rows(_blocks_grad, [out, logits], *steps, bare=[dy[..., 0, 0], y[..., 0, 0], labels])


@prepares
def split_cross_entropy(out: tuple[np.ndarray, np.ndarray], parts: np.ndarray, *, scale: float) -> Call | None:
    """See the definition."""
    loss, lse = out
    bare = [lse, parts[..., 0, 0]]
    constants = loss.reshape(1), parts.shape[-2], *_steps(parts), parts.dtype.type(scale)
    work = by_rows(_merged, [lse[..., None]], *constants, bare=bare)
    return onto_zeros(work, False, loss)


@prepares
def split_cross_entropy_grad(
    out: np.ndarray, dy: np.ndarray, parts: np.ndarray, lse: np.ndarray, *, scale: float
) -> Call | None:
    """See the definition."""
    bare = [lse, parts[..., 0, 0], out[..., 0, 0]]
    constants = dy.reshape(1), parts.shape[-2], *_steps(parts), *_steps(out), parts.dtype.type(scale)
    return by_rows(_merged_grad, [lse[..., None]], *constants, bare=bare)


def _steps(x: np.ndarray) -> Shape:
    """Elements from block to block and from the first number of a block to the second."""
    return steps_of(x)[-2:]


@compiled
def _blocks(rows, cols, logits, sx, out, so, labels, st, blocks, block, second, first, of, classes):  # type: ignore[no-untyped-def]
    for r in range(rows):
        label = labels[r * st]
        if label < 0 or label >= classes:
            raise OutOfRange("block_entropy: a label lies outside the classes")
        o, at = after(pointer(out), r * so), r * sx
        begin = -(-first * classes // of)
        for n in range(blocks):
            width = -(-(first + n + 1) * classes // of) - begin
            v = logits[at : at + width]
            top = row_max(v)
            total = top - top
            for j in range(width):
                total += exp(v[j] - top)
            o[n * block] = top + log(total)
            place = label - begin
            o[n * block + second] = v[place] if 0 <= place < width else 0
            at, begin = at + width, begin + width


@compiled
def _blocks_grad(  # type: ignore[no-untyped-def]
    rows,
    cols,
    out,
    so,
    logits,
    sx,
    dy,
    sd,
    y,
    sy,
    labels,
    st,
    blocks,
    d_block,
    d_second,
    y_block,
    y_second,
    first,
    of,
    classes,
):
    for r in range(rows):
        label = labels[r * st]
        if label < 0 or label >= classes:
            raise OutOfRange("block_entropy_grad: a label lies outside the classes")
        d, base, past = after(pointer(dy), r * sd), after(pointer(y), r * sy), 0
        begin = -(-first * classes // of)
        for n in range(blocks):
            width = -(-(first + n + 1) * classes // of) - begin
            o = out[r * so + past : r * so + past + width]
            v = logits[r * sx + past : r * sx + past + width]
            slope, lse = d[n * d_block], base[n * y_block]
            for j in range(width):
                o[j] = exp(v[j] - lse) * slope
            place = label - begin
            if 0 <= place < width:
                o[place] += d[n * d_block + d_second]
            past, begin = past + width, begin + width


@compiled
def _merged(rows, cols, lse, sl, lse_again, sa, parts, sp, loss, blocks, block, second, scale):  # type: ignore[no-untyped-def]
    whole = scale - scale
    for r in range(rows):
        v = after(pointer(parts), r * sp)
        top = v[0]
        for n in range(1, blocks):
            top = v[n * block] if v[n * block] > top else top
        total = picked = scale - scale
        for n in range(blocks):
            total += exp(v[n * block] - top)
            picked += v[n * block + second]
        lse[r * sl] = top + log(total)
        whole += lse[r * sl] - picked
    loss[0] += whole * scale


@compiled
def _merged_grad(  # type: ignore[no-untyped-def]
    rows, cols, lse, sl, lse_again, sa, parts, sp, out, so, dy, blocks, block, second, o_block, o_second, scale
):
    factor = dy[0] * scale
    for r in range(rows):
        v, o = after(pointer(parts), r * sp), after(pointer(out), r * so)
        for n in range(blocks):
            o[n * o_block] = exp(v[n * block] - lse[r * sl]) * factor
            o[n * o_block + o_second] = -factor
