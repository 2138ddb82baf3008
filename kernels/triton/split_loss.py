"""Cross-entropy over a vocabulary split into blocks: the statistics of each block, and their combination.

It knows no processors. An out-of-range label, which the definition refuses, gives NaN: a GPU raises nothing.
"""

# mypy: disable-error-code="no-untyped-def"

from typing import Any, NamedTuple

import triton
from triton import language as tl

from castile.kernels.triton.codegen import contiguous_steps, elementwise_plan, reduction_plan
from castile.kernels.triton.functions import (
    block_of_rows,
    load_rows,
    offsets,
    row_block,
    row_edges,
    row_starts,
    store_rows,
)
from castile.kernels.triton.launch import LaunchPlan, Workspace, are_floats, in_sequence, planned
from castile.kernels.triton.rows import by_rows, has_columns_contiguous
from castile.kernels.triton.snippet import snippet
from castile.kernels.triton.softmax import max_and_sum
from castile.kernels.triton.views import INDEX_LIMIT, View, permuted, view

_SCALED = snippet("x -> scale * x", "scale")
_SLOPES = snippet("dy, part, lse -> exp(part - lse) * (dy * scale); -dy * scale", "scale")


@planned
def block_entropy(
    out: Any, logits: Any, labels: Any, *, blocks: int, first: int, of: int, classes: int
) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, logits):
        return None
    return entropies([view(out[..., 0]), view(out[..., 1])], logits, labels, Blocks(blocks, first, of, classes))


@planned
def block_entropy_grad(
    out: Any, dy: Any, logits: Any, labels: Any, y: Any, *, first: int, of: int, classes: int
) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, dy, logits, y):
        return None
    parts = [view(dy[..., 0]), view(dy[..., 1]), view(y[..., 0])]
    return grads(out, parts, logits, labels, Blocks(y.shape[-2], first, of, classes), (1.0, 1.0))


@planned
def split_cross_entropy(out: tuple[Any, Any], parts: Any, *, scale: float) -> LaunchPlan | None:
    """See the definition."""
    loss, lse = out
    return merged(loss, lse, view(parts[..., 0]), view(parts[..., 1]), scale) if are_floats(loss, lse, parts) else None


@planned
def split_cross_entropy_grad(out: Any, dy: Any, parts: Any, lse: Any, *, scale: float) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, dy, parts, lse):
        return None
    shape = tuple(parts.shape[:-1])
    xs = [View(dy, shape, (0,) * len(shape)), view(parts[..., 0]), View(lse, shape, (*view(lse).steps, 0))]
    return elementwise_plan(_SLOPES, [view(out[..., 0]), view(out[..., 1])], xs, {"scale": scale})


class Blocks(NamedTuple):
    """Blocks of classes of some logits: how many, the number of the first, of how many, of how many classes."""

    num: int
    first: int
    of: int
    classes: int


def entropies(outs: list[View], logits: Any, labels: Any, blocks: Blocks) -> LaunchPlan | None:
    """The work of telling log-sum-exps [...,blocks] and logits at the labels; None for more than 32 bits can count."""
    if _is_wide(labels, blocks):
        return None
    columns = has_columns_contiguous(view(logits))
    bare = [_blocks_first(one, columns) for one in (*outs, _repeated(view(labels), blocks))]
    numbers, own = _counts(labels, blocks, columns)
    return by_rows(_block_entropy, [_apart(logits, blocks, columns)], bare, numbers=numbers, flops=4, own=own)


def grads(
    out: Any, parts: list[View], logits: Any, labels: Any, blocks: Blocks, times: tuple[float, float]
) -> LaunchPlan | None:
    """The work of logits' gradients; parts: gradients of both statistics, and the log-sum-exps, all
    [...,blocks]; times: by what these gradients are multiplied.
    """
    if _is_wide(labels, blocks):
        return None
    columns = all(has_columns_contiguous(view(x)) for x in (out, logits))
    bare = [_blocks_first(one, columns) for one in (*parts, _repeated(view(labels), blocks))]
    numbers, own = _counts(labels, blocks, columns)
    arrays = [_apart(x, blocks, columns) for x in (out, logits)]
    return by_rows(_block_entropy_grad, arrays, bare, numbers=(*numbers, *times), flops=4, again=False, own=own)


def merged(loss: Any, lse: Any, tops: View, hits: View, scale: float) -> LaunchPlan | None:
    """The work of a loss, and of log-sum-exps of whole rows, from the statistics of blocks."""
    lead = tuple(lse.shape)
    alone = View(Workspace(max(1, lse.size)), lead, contiguous_steps(lead))
    rows = by_rows(_whole, [tops, hits], [view(lse), alone], flops=3)
    if rows is None:
        return None
    total = reduction_plan(_SCALED, [view(loss)], [alone], tuple(range(len(lead))), {"scale": scale})
    return in_sequence(rows, total)


def _is_wide(labels: Any, blocks: Blocks) -> bool:
    """Whether the numbers of rows and blocks need more than 32 bits."""
    return max(labels.size * blocks.num, (blocks.of + 1) ** 2) >= INDEX_LIMIT


def _counts(labels: Any, blocks: Blocks, columns: bool) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Arguments of kernels about blocks, with the number of consecutive rows that have the same ones."""
    together = labels.size if columns else 1
    return (together, *blocks), {"UNEVEN": blocks.classes % blocks.of > 0}


def _apart(logits: Any, blocks: Blocks, columns: bool) -> View:
    """Logits as rows [...,blocks,shortest], as if none were longer; by columns the blocks are outermost."""
    shortest = blocks.classes // blocks.of
    *lead, step = view(logits).steps
    rows = View(logits, (*logits.shape[:-1], blocks.num), (*lead, shortest * step))
    seen = _blocks_first(rows, columns)
    return View(logits, (*seen.shape, shortest), (*seen.steps, step))


def _blocks_first(one: View, columns: bool) -> View:
    """What has a number for each block [...,blocks], with the blocks outermost by columns."""
    last = len(one.shape) - 1
    return permuted(one, (last, *range(last))) if columns else one


def _repeated(one: View, blocks: Blocks) -> View:
    """What has a number for all blocks, seen for each."""
    return View(one.array, (*one.shape, blocks.num), (*one.steps, 0))


@triton.jit
def _longer(number, of, classes, NUM: tl.constexpr):
    """How many of so many blocks, from the first of all on, have one element more than NUM: of 32 bits, which a
    thread divides in a few instructions.
    """
    return (number * (classes - of * NUM) + of - 1) // of


@triton.jit
def _block_entropy(x, s_x, lse, s_lse, hit, s_hit, labels, s_labels, rows, lead, together, blocks, first, of,
                   classes, t_x: tl.constexpr, SKEW: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr,
                   BLOCK: tl.constexpr, STAGES: tl.constexpr, UNEVEN: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    number = first + row.to(tl.int32) // together % blocks
    before = _longer(number, of, classes, NUM)
    late = (before - _longer(first, of, classes, NUM)) * t_x
    x, skew = row_starts(x, offsets(row, lead, s_x) + late, SKEW)
    label = tl.load(labels + offsets(row, lead, s_labels), mask=here, other=0).to(tl.int64)
    top, total = max_and_sum(x, here, skew, t_x, SKEW, NUM, ROWS, BLOCK, STAGES)
    last = _longer(number + 1, of, classes, NUM) - before
    if UNEVEN:
        one = tl.load(x + (skew + NUM) * t_x, mask=here & (last > 0), other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, one)
        total = total * tl.exp(top - higher) + tl.exp(one - higher)
        top = higher
    place = label - number * NUM - before
    mine = (place >= 0) & (place < NUM + last)
    picked = tl.load(x + (place + skew) * t_x, mask=here & mine, other=0.0).to(tl.float32)
    picked = tl.where((label >= 0) & (label < classes), picked, float("nan"))
    tl.store(lse + offsets(row, lead, s_lse), (top + tl.log(total)).to(lse.dtype.element_ty), mask=here)
    tl.store(hit + offsets(row, lead, s_hit), picked.to(hit.dtype.element_ty), mask=here)


@triton.jit
def _grad(out, x, at, mask, place, below, share, extra, t_out: tl.constexpr, t_x: tl.constexpr):
    grad = share[:, None] * tl.exp(load_rows(x, at, t_x, mask, float("-inf")) - below[:, None])
    store_rows(out, at, t_out, grad + tl.where(at == place[:, None], extra[:, None], 0.0), mask)


@triton.jit
def _block_entropy_grad(out, s_out, x, s_x, dlse, s_dlse, dhit, s_dhit, lse, s_lse, labels, s_labels, rows, lead,
                        together, blocks, first, of, classes, share_times, extra_times, t_out: tl.constexpr,
                        t_x: tl.constexpr, SKEW: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr,
                        BLOCK: tl.constexpr, STAGES: tl.constexpr, UNEVEN: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    number = first + row.to(tl.int32) // together % blocks
    before = _longer(number, of, classes, NUM)
    late = before - _longer(first, of, classes, NUM)
    out, _ = row_starts(out, offsets(row, lead, s_out) + late * t_out, SKEW)
    x, skew = row_starts(x, offsets(row, lead, s_x) + late * t_x, SKEW)
    share = tl.load(dlse + offsets(row, lead, s_dlse), mask=here, other=0.0).to(tl.float32) * share_times
    extra = tl.load(dhit + offsets(row, lead, s_dhit), mask=here, other=0.0).to(tl.float32) * extra_times
    below = tl.load(lse + offsets(row, lead, s_lse), mask=here, other=0.0).to(tl.float32)
    label = tl.load(labels + offsets(row, lead, s_labels), mask=here, other=0).to(tl.int64)
    place, last = label - number * NUM - before, _longer(number + 1, of, classes, NUM) - before
    # No place is that of a label of another block.
    place = tl.where((place >= 0) & (place < NUM + last), place + skew, -1).to(tl.int32)
    if UNEVEN:
        _grad(out, x, (skew + NUM)[:, None], (here & (last > 0))[:, None], place, below, share, extra, t_out, t_x)
    if SKEW:
        end, near = row_edges(here, skew, NUM)
        _grad(out, x, end, near, place, below, share, extra, t_out, t_x)
    for start in tl.range(0, NUM + 7 * SKEW, BLOCK, num_stages=STAGES):
        at, mask = row_block(here, skew, start, SKEW, NUM, BLOCK)
        _grad(out, x, at, mask, place, below, share, extra, t_out, t_x)


@triton.jit
def _whole(x, s_x, hits, s_hits, lse, s_lse, alone, s_alone, rows, lead, t_x: tl.constexpr, t_hits: tl.constexpr,
           NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    x += offsets(row, lead, s_x)
    hits += offsets(row, lead, s_hits)
    top, total = max_and_sum(x, here, row * 0, t_x, False, NUM, ROWS, BLOCK, 1)
    picked = tl.zeros((ROWS,), tl.float32)
    for start in range(0, NUM, BLOCK):
        col, mask = block_of_rows(here, start, NUM, BLOCK)
        picked += tl.sum(load_rows(hits, col, t_hits, mask, 0.0), 1)
    found = top + tl.log(total)
    tl.store(lse + offsets(row, lead, s_lse), found.to(lse.dtype.element_ty), mask=here)
    tl.store(alone + offsets(row, lead, s_alone), found - picked, mask=here)
