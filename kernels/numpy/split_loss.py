"""Cross-entropy over a vocabulary split into blocks: the statistics of each block, and their combination, row by row.

It knows no processors. The two numbers of a block lie a step of the result apart; a row is given by its first one.
"""

from math import log

import numpy as np

from castile.kernels.calls import Call
from castile.kernels.form import prepares
from castile.kernels.ids import OutOfRange
from castile.kernels.numpy.columns import by_columns, log_sums
from castile.kernels.numpy.copying import onto_zeros
from castile.kernels.numpy.jit import compiled, exp, inlined, row_max
from castile.kernels.numpy.pointers import BLOCK, after, pointer, spare
from castile.kernels.numpy.views import Shape, by_rows, element_strides


@prepares
def block_entropy(
    out: np.ndarray, logits: np.ndarray, labels: np.ndarray, *, blocks: int, first: int, of: int, classes: int
) -> Call | None:
    """See the definition."""
    constants, bare = (blocks, *_steps(out), first, of, classes), [out[..., 0, 0], labels]
    return by_rows(_blocks, [logits], *constants, bare=bare) or by_columns(_beside, [logits], *constants, bare=bare)


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
    arrays, bare = [out, logits], [dy[..., 0, 0], y[..., 0, 0], labels]
    return by_rows(_blocks_grad, arrays, *steps, bare=bare) or by_columns(_beside_grad, arrays, *steps, bare=bare)


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
    return element_strides(x)[-2:]


@inlined
def _border(number, of, classes):  # type: ignore[no-untyped-def]
    """Where a block of classes begins, as `region.blocks` has them."""
    return -(-number * classes // of)


@compiled
def _blocks(rows, cols, logits, sx, out, so, labels, st, blocks, block, second, first, of, classes):  # type: ignore[no-untyped-def]
    for r in range(rows):
        label = labels[r * st]
        if label < 0 or label >= classes:
            raise OutOfRange("block_entropy: a label lies outside the classes")
        o, at = after(pointer(out), r * so), r * sx
        begin = _border(first, of, classes)
        for n in range(blocks):
            width = _border(first + n + 1, of, classes) - begin
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
        begin = _border(first, of, classes)
        for n in range(blocks):
            width = _border(first + n + 1, of, classes) - begin
            o = out[r * so + past : r * so + past + width]
            v = logits[r * sx + past : r * sx + past + width]
            grad, lse = d[n * d_block], base[n * y_block]
            for j in range(width):
                o[j] = exp(v[j] - lse) * grad
            place = label - begin
            if 0 <= place < width:
                o[place] += d[n * d_block + d_second]
            past, begin = past + width, begin + width


@compiled
def _beside(rows, cols, logits, sx, out, so, labels, st, blocks, block, second, first, of, classes):  # type: ignore[no-untyped-def]
    tops, totals = spare(logits), spare(logits)
    for r in range(0, rows, BLOCK):
        some, at = min(BLOCK, rows - r), after(pointer(logits), r)
        o, label = after(pointer(out), r * so), after(pointer(labels), r * st)
        for k in range(some):
            if label[k * st] < 0 or label[k * st] >= classes:
                raise OutOfRange("block_entropy: a label lies outside the classes")
        begin = _border(first, of, classes)
        for n in range(blocks):
            width = _border(first + n + 1, of, classes) - begin
            log_sums(tops, totals, at, sx, width, some)
            for k in range(some):
                place = label[k * st] - begin
                o[k * so + n * block] = tops[k]
                o[k * so + n * block + second] = at[place * sx + k] if 0 <= place < width else 0
            at, begin = after(at, width * sx), begin + width


@compiled
def _beside_grad(  # type: ignore[no-untyped-def]
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
    grad, lse = spare(logits), spare(logits)
    for r in range(0, rows, BLOCK):
        some, o, v = min(BLOCK, rows - r), after(pointer(out), r), after(pointer(logits), r)
        d, base, label = after(pointer(dy), r * sd), after(pointer(y), r * sy), after(pointer(labels), r * st)
        for k in range(some):
            if label[k * st] < 0 or label[k * st] >= classes:
                raise OutOfRange("block_entropy_grad: a label lies outside the classes")
        begin = _border(first, of, classes)
        for n in range(blocks):
            width = _border(first + n + 1, of, classes) - begin
            for k in range(some):
                grad[k], lse[k] = d[k * sd + n * d_block], base[k * sy + n * y_block]
            for j in range(width):
                for k in range(some):
                    o[j * so + k] = exp(v[j * sx + k] - lse[k]) * grad[k]
            for k in range(some):
                place = label[k * st] - begin
                if 0 <= place < width:
                    o[place * so + k] += d[k * sd + n * d_block + d_second]
            o, v, begin = after(o, width * so), after(v, width * sx), begin + width


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
