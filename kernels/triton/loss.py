"""Cross-entropy of rows of logits at integer labels, which never stores probabilities.

It knows no classes. A label that is out of range, which the definition refuses, gives NaN: a GPU raises nothing.
"""

# mypy: disable-error-code="no-untyped-def"

from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.codegen import contiguous_steps, reduction_plan
from castile.kernels.triton.functions import load_rows, offsets, row_block, row_edges, row_starts, store_rows
from castile.kernels.triton.launch import LaunchPlan, Workspace, are_floats, in_sequence, planned
from castile.kernels.triton.rows import by_rows, has_columns_contiguous
from castile.kernels.triton.snippet import snippet
from castile.kernels.triton.softmax import max_and_sum
from castile.kernels.triton.split_loss import Blocks, entropies, grads, merged
from castile.kernels.triton.views import View, view

_SCALED = snippet("x -> scale * x", "scale")
# Classes of a part of logits that lie by columns.
_PART = 512


@planned
def cross_entropy(out: tuple[Any, Any], logits: Any, labels: Any, *, scale: float) -> LaunchPlan | None:
    """See the definition."""
    loss, lse = out
    if not are_floats(loss, lse, logits):
        return None
    if has_columns_contiguous(view(logits)):
        return _in_parts(loss, lse, logits, labels, scale)
    lead = tuple(labels.shape)
    each = View(Workspace(max(1, labels.size)), lead, contiguous_steps(lead))
    rows = by_rows(_cross_entropy, [view(logits)], [view(lse), each, view(labels)], flops=4)
    total = reduction_plan(_SCALED, [view(loss)], [each], tuple(range(len(lead))), {"scale": scale})
    if rows is None:
        return None
    return in_sequence(rows, total)


@planned
def cross_entropy_grad(out: Any, dy: Any, logits: Any, labels: Any, lse: Any, *, scale: float) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, dy, logits, lse):
        return None
    if all(has_columns_contiguous(view(x)) for x in (out, logits)):
        parts = _parts(logits)
        shape = (*labels.shape, parts.num)
        grad, below = View(dy, shape, (0,) * len(shape)), View(lse, shape, (*view(lse).steps, 0))
        return grads(out, [grad, grad, below], logits, labels, parts, (scale, -scale))
    arrays, bare = [view(out), view(logits)], [view(lse), view(labels)]
    return by_rows(_cross_entropy_grad, arrays, bare, scalars=(dy,), numbers=(scale,), flops=4, again=False)


def _in_parts(loss: Any, lse: Any, logits: Any, labels: Any, scale: float) -> LaunchPlan | None:
    """The same of logits that lie by columns: parts of the classes have programs of their own, for there are few rows
    to a program that reads neighbours.
    """
    parts, lead = _parts(logits), tuple(labels.shape)
    room = View(Workspace(parts.num * labels.size), (*lead, parts.num), (*contiguous_steps(lead), labels.size))
    tops, hits = room, room._replace(array=Workspace(parts.num * labels.size))
    rows, rest = entropies([tops, hits], logits, labels, parts), merged(loss, lse, tops, hits, scale)
    return None if rows is None or rest is None else in_sequence(rows, rest)


def _parts(logits: Any) -> Blocks:
    classes = logits.shape[-1]
    num = max(1, classes // _PART)
    return Blocks(num, 0, num, classes)


@triton.jit
def _cross_entropy(x, s_x, lse, s_lse, each, s_each, labels, s_labels, rows, lead, t_x: tl.constexpr,
                   SKEW: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
                   STAGES: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    x, skew = row_starts(x, offsets(row, lead, s_x), SKEW)
    label = tl.load(labels + offsets(row, lead, s_labels), mask=here, other=0).to(tl.int64)
    top, total = max_and_sum(x, here, skew, t_x, SKEW, NUM, ROWS, BLOCK, STAGES)
    found = top + tl.log(total)
    known = here & (label >= 0) & (label < NUM)
    picked = tl.load(x + (label + skew) * t_x, mask=known, other=float("nan")).to(tl.float32)
    tl.store(lse + offsets(row, lead, s_lse), found.to(lse.dtype.element_ty), mask=here)
    tl.store(each + offsets(row, lead, s_each), found - picked, mask=here)


@triton.jit
def _grad(out, x, at, mask, label, below, share, t_out: tl.constexpr, t_x: tl.constexpr):
    p = tl.exp(load_rows(x, at, t_x, mask, float("-inf")) - below[:, None])
    store_rows(out, at, t_out, (p - (at == label[:, None]).to(tl.float32)) * share, mask)


@triton.jit
def _cross_entropy_grad(out, s_out, x, s_x, lse, s_lse, labels, s_labels, dy, rows, lead, scale, t_out: tl.constexpr,
                        t_x: tl.constexpr, SKEW: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr,
                        BLOCK: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out, _ = row_starts(out, offsets(row, lead, s_out), SKEW)
    x, skew = row_starts(x, offsets(row, lead, s_x), SKEW)
    below = tl.load(lse + offsets(row, lead, s_lse), mask=here, other=0.0).to(tl.float32)
    label = tl.load(labels + offsets(row, lead, s_labels), mask=here, other=0).to(tl.int64)
    # No place is that of a label out of range.
    label = tl.where((label >= 0) & (label < NUM), label + skew, -1)
    share = tl.load(dy).to(tl.float32) * scale
    if SKEW:
        end, near = row_edges(here, skew, NUM)
        _grad(out, x, end, near, label, below, share, t_out, t_x)
    for start in tl.range(0, NUM + 7 * SKEW, BLOCK, num_stages=STAGES):
        at, mask = row_block(here, skew, start, SKEW, NUM, BLOCK)
        _grad(out, x, at, mask, label, below, share, t_out, t_x)
